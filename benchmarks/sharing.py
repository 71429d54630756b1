"""One proxy that hosts share, against one of each session's own, in turns and on the same machine.

    python benchmarks/sharing.py [--rounds 6] [--calls 300]

Measures a further session of a host (seconds until it has the list of tools, and the memory of all its
processes), a prompt hook from its start to its end, a call over the bridge against one without, and calls per
second over eight bridges, beside those of the same clients and servers without a proxy.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from figures import percentile
from raw_clients import StdioClient, call_params
from subjects import Workbench, answers, proxy_command, tool_name

from mcp_context_proxy.bridge import ask, running

BRIDGES = 8
IN_FLIGHT = 16
HOOKS = 60
REQUESTS = Path(__file__).with_name("requests.jsonl")
TOOL = tool_name("proxy")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--calls", type=int, default=300)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="sharing-", ignore_cleanup_errors=True) as folder,
        ExitStack() as stack,
    ):
        os.environ["XDG_RUNTIME_DIR"] = folder
        del os.environ["MCP_CONTEXT_PROXY_OWN"]
        bench = Workbench(Path(folder))
        config = bench.config()
        commands = {
            "own": [*proxy_command(config), "serve", "--own"],
            "shared": [*proxy_command(config), "serve"],
        }
        shared = _opened(stack, commands["shared"])
        (socket,) = running(config, os.environ)
        proxy = ask(socket, "GET", "/status", seconds=60)["pid"]
        stack.callback(os.kill, proxy, signal.SIGTERM)
        with ExitStack() as alone:
            own = _opened(alone, commands["own"])
            _sessions(commands, given.rounds)
            _calls({"own": own, "shared": shared}, given.rounds, given.calls, proxy)
        calls = given.calls * 10
        _throughput("bridges", [_opened(stack, commands["shared"]) for _ in range(BRIDGES)], TOOL, calls)
        servers = [bench.direct() for _ in range(BRIDGES)]
        for server in servers:
            stack.callback(server.close)
            server.open()
        _throughput("clients and servers without any proxy", servers, tool_name("direct"), calls)
        _hooks(config, shared)
    print(f"load: {os.getloadavg()[0]:.1f}")


def _opened(stack: ExitStack, command: list[str]) -> StdioClient:
    client = StdioClient(command)
    stack.callback(client.close)
    client.open()
    client.until(partial(answers, TOOL))
    return client


def _sessions(commands: dict[str, list[str]], rounds: int) -> None:
    """A further session beside the first: time to the list of tools, processor time and memory."""
    for name, command in commands.items():
        seconds, memory = [], []
        for _ in range(rounds):
            began, before = time.perf_counter(), _memory_of_all()
            client = StdioClient(command)
            client.open()
            client.request("tools/list")
            seconds.append(time.perf_counter() - began)
            client.until(partial(answers, TOOL))
            memory.append(_memory_of_all() - before)
            client.close()
        size = median(memory) / 1e6
        print(f"{name:>7}: list of tools after {median(seconds):.3f} s, {size:+.0f} MB (PSS) in all")


def _hooks(config: Path, client: StdioClient) -> None:
    """A prompt hook, as a host runs it: the time that the host waits, and its processor time."""
    client.call("search_available_tools", query="create an issue")  # the model is open from now on
    requests = [json.loads(line)["request"] for line in REQUESTS.read_text("utf-8").splitlines()]
    program = str(Path(sys.executable).with_name("mcp-context-proxy"))
    command = [program, "hook", "run", "claude-code", "--config", str(config)]
    seconds, told = [], 0
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    for request in requests[:HOOKS]:
        said = json.dumps({"prompt": request, "session_id": "none", "cwd": str(Path.cwd())}).encode()
        began = time.perf_counter()
        told += bool(subprocess.run(command, input=said, stdout=subprocess.PIPE, check=True).stdout)
        seconds.append(time.perf_counter() - began)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    middle, most = median(seconds) * 1e3, percentile(seconds, 95) * 1e3
    print(
        f"   hook: p50 {middle:.0f} ms, p95 {most:.0f} ms, {used / len(seconds) * 1e3:.0f} ms of processor "
        f"time; {told} of {len(seconds)} gave a text"
    )


def _calls(clients: dict[str, StdioClient], rounds: int, calls: int, proxy: int) -> None:
    """The same call with and without a bridge, in turns, with the processor time of each process."""
    times: dict[str, list[float]] = {name: [] for name in clients}
    processes = {"own": [clients["own"].process.pid], "shared": [proxy, clients["shared"].process.pid]}
    spent = {name: [0.0] * len(ids) for name, ids in processes.items()}
    for _ in range(rounds):
        for name, client in clients.items():
            before = [_processor_seconds(one) for one in processes[name]]
            times[name].append(median(client.timed("tools/call", call_params(TOOL), calls)) * 1e3)
            for at, one in enumerate(processes[name]):
                spent[name][at] += _processor_seconds(one) - before[at]
    own, shared = (min(times[name]) for name in ("own", "shared"))
    pairs = [b - a for a, b in zip(times["own"], times["shared"], strict=True)]
    print(f"   call: p50 {own:.3f} ms own, {shared:.3f} ms shared at best; {median(pairs):+.3f} ms in pairs")

    each = {name: [1e3 * one / rounds / calls for one in used] for name, used in spent.items()}
    print(
        f"         processor time: {each['own'][0]:.3f} ms own proxy; {each['shared'][0]:.3f} ms shared "
        f"proxy and {each['shared'][1]:.3f} ms bridge"
    )


def _processor_seconds(process: int) -> float:
    """Processor time of all threads of a process."""
    tasks = Path(f"/proc/{process}/task").glob("*")
    return sum(int((task / "schedstat").read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


def _throughput(label: str, clients: list[StdioClient], tool: str, calls: int) -> None:
    began = time.perf_counter()
    threads = [
        threading.Thread(target=client.pipelined, args=(call_params(tool), calls // BRIDGES, IN_FLIGHT))
        for client in clients
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = calls / (time.perf_counter() - began)
    print(f"{BRIDGES} {label}: {rate:,.0f} calls/s, {IN_FLIGHT} under way on each")


def _memory_of_all() -> int:
    """Proportional memory of all Python processes of this benchmark, in bytes."""
    total = 0
    for process in Path("/proc").iterdir():
        try:
            words = (process / "cmdline").read_bytes()
            if b"mcp_context_proxy" in words or b"tool_server.py" in words:
                rollup = (process / "smaps_rollup").read_text(encoding="ascii")
                total += 1024 * int(rollup.partition("Pss:")[2].split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return total


if __name__ == "__main__":
    main()
