"""Counts the files and functions of the package that each of the important flows enters; run by hand.

    python benchmarks/flows.py [FLOW...] [--list] [--rounds N]

For each flow a proxy is started in its own process, warmed up, and driven from outside, as a host, an editor
or a dying server would drive it. Meanwhile every function that is entered on any of its threads is recorded,
and so is every coroutine that resumes. A function counts if each of the rounds entered it. What an idle proxy
enters again and again is left out, because it is unrelated background work. At the end the files are printed
that the flow's list in docs/how-it-works.md does not name. `--list` prints the files in the order of entry,
each with its functions. POSIX.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlencode

import definitions
from raw_clients import VERSIONS, FailureError, StdioClient, call_params
from subjects import HERE, Workbench, answers, child, free_port, listening, tool_name

SEARCH = "search_available_tools"
CALL, PAIR = "A tool call", "A learned pair"
"""Sections of docs/how-it-works.md."""
TOOLS = 50
SERVERS = 2

AFTER_SECONDS = 0.1
"""Time without a function that is new to the flow, for work that follows a response at once."""
QUIET_SECONDS = 0.5
"""The same for a flow that has no response; no step of it waits so long."""
IDLE_SECONDS = 2.5
"""Time in which every timer of an idle proxy has run."""
IDLE_WINDOWS = 2
"""So many times; what the start does once, such as a first look at the configuration, is in one of them."""
LOOK_SECONDS = 0.01
START_SECONDS = 60.0

Entered: TypeAlias = tuple[str, str]
"""File and function."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("flows", nargs="*", help="which; all by default")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--list", action="store_true", help="the files in order of entry, with functions")
    arguments = parser.parse_args()
    if unknown := set(arguments.flows) - set(FLOWS):
        parser.error(f"no such flow: {', '.join(sorted(unknown))}; there are {', '.join(FLOWS)}")
    chosen = {name: FLOWS[name] for name in arguments.flows or FLOWS}
    print("| flow | files | at most | functions |\n|---|---:|---:|---:|", flush=True)
    traces = {}
    for name, flow in chosen.items():
        with tempfile.TemporaryDirectory() as folder, flow.rounds(Workbench(Path(folder))) as rounds:
            traces[name] = common([next(rounds) for _ in range(arguments.rounds)])
        files = {file for file, _ in traces[name]}
        verdict = "" if len(files) <= flow.most_files else " **missed**"
        row = f"| {flow.title} | {len(files)} | {flow.most_files}{verdict} | {len(traces[name])} |"
        print(row, flush=True)
    for name, trace in traces.items():
        if missing := sorted({file for file, _ in trace} - documented(chosen[name].section)):
            print(f"\nNot in docs/how-it-works.md under {chosen[name].section!r}: {', '.join(missing)}")
    if arguments.list:
        for name, trace in traces.items():
            print("\n" + listing(chosen[name].title, trace))


def documented(section: str) -> set[str]:
    """Files that a section of docs/how-it-works.md names; that of a learned pair begins with a tool call."""
    page = (HERE.parent / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([\w/]+\.py)`", page.partition(f"\n### {section}\n")[2].partition("\n###")[0]))
    return named | documented(CALL) if section == PAIR else named


def common(rounds: list[list[Entered]]) -> list[Entered]:
    """Functions that each of the rounds entered, in the order of the first round."""
    in_each = set[Entered].intersection(*map(set, rounds))
    return [entered for entered in rounds[0] if entered in in_each]


def listing(title: str, trace: list[Entered]) -> str:
    """Files in the order of entry, each with its functions in that order."""
    files: dict[str, list[str]] = {}
    for file, function in trace:
        files.setdefault(file, []).append(function)
    lines = [
        f"{number:3}  {file}: {', '.join(names)}" for number, (file, names) in enumerate(files.items(), 1)
    ]
    return "\n".join([f"{title}: {len(files)} files, {len(trace)} functions", *lines])


class Probe:
    """Records the functions that a proxy enters, which runs under `entered.py`."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(START_SECONDS)
        self.port: int = self._listener.getsockname()[1]
        self._periodic: set[Entered] | None = None
        """Functions that an idle proxy enters; they belong to no flow."""

    def command(self, *arguments: str) -> list[str]:
        """Return the command line that starts a recorded proxy."""
        return [sys.executable, str(HERE / "entered.py"), str(self.port), *arguments]

    def connect(self) -> None:
        """Wait for the proxy to report."""
        self._stream = self._listener.accept()[0].makefile("rw", encoding="utf-8")

    def recorded(self, act: Callable[[], object], *, whole: bool = False) -> list[Entered]:
        """Return the functions entered until `act` returns or, if `whole`, until no new ones follow."""
        self._ask("start")
        self._settle(QUIET_SECONDS)
        if self._periodic is None:
            self._periodic = self._idle()
        self._ask("start")
        act()
        self._settle(QUIET_SECONDS if whole else AFTER_SECONDS)
        return [entered for entered in self._stopped() if entered not in self._periodic]

    def _idle(self) -> set[Entered]:
        """Return what an idle proxy enters again and again, not what its start has left to do once."""
        entered: set[Entered] = set()
        for window in range(IDLE_WINDOWS):
            self._ask("start")
            time.sleep(IDLE_SECONDS)
            stopped = set(self._stopped())
            entered = entered & stopped if window else stopped
        return entered

    def _stopped(self) -> list[Entered]:
        return [(file, function) for file, function in json.loads(self._ask("stop"))]

    def _settle(self, seconds: float) -> None:
        """Wait until no new functions have been entered for so long."""
        since, entered = time.monotonic(), -1
        while time.monotonic() - since < seconds:
            time.sleep(LOOK_SECONDS)
            if (now := int(self._ask("count"))) != entered:
                since, entered = time.monotonic(), now

    def close(self) -> None:
        """Stop listening."""
        self._listener.close()

    def _ask(self, command: str) -> str:
        self._stream.write(command + "\n")
        self._stream.flush()
        return self._stream.readline()


Rounds: TypeAlias = Iterator[list[Entered]]
"""Recordings of one flow, which is run again for each."""


def unwatched(bench: Workbench) -> Path:
    """Return a folder for files that are written meanwhile: the proxy watches the folder of its settings."""
    folder = bench.folder / "unwatched"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def over_stdio(bench: Workbench, config: Path, era: str = "handshake") -> Iterator[tuple[StdioClient, Probe]]:
    """Start a recorded proxy over stdio; yields a client once every server has answered calls."""
    probe = Probe()
    client = StdioClient(probe.command("--config", str(config)), era, unwatched(bench) / "proxy.log")
    try:
        probe.connect()
        client.open()
        for server in range(SERVERS):
            client.until(partial(answers, tool_name("proxy", server)), START_SECONDS)
        client.timed("tools/call", call_params(tool_name("proxy")), 100)
        yield client, probe
    finally:
        client.close()
        probe.close()


def indexed(client: StdioClient) -> bool:
    """Return whether a search, which this makes, covers everything."""
    return "indexed" not in client.data(SEARCH, query="whatever there is")


def call(client_era: str, server_era: str) -> Callable[[Workbench], AbstractContextManager[Rounds]]:
    """From the request to the response of a tool call."""

    @contextmanager
    def rounds(bench: Workbench) -> Iterator[Rounds]:
        config = bench.config(TOOLS, servers=SERVERS, modern=server_era == "modern")
        with over_stdio(bench, config, client_era) as (client, probe):
            yield map(probe.recorded, repeat(lambda: client.call(tool_name("proxy"))))

    return rounds


@contextmanager
def search(bench: Workbench) -> Iterator[Rounds]:
    """From the request to the response of a search for something new, where everything is indexed."""
    with over_stdio(bench, bench.config(TOOLS, servers=SERVERS)) as (client, probe):
        client.until(indexed, START_SECONDS)
        yield (probe.recorded(partial(client.call, SEARCH, query=query)) for query in definitions.queries())


@contextmanager
def restart(bench: Workbench) -> Iterator[Rounds]:
    """From the death of a server that is in use until the next process of it is ready."""
    config, tool = bench.config(TOOLS, servers=SERVERS), "mortal__create_issue"
    noted = unwatched(bench) / "pid"
    server = child(0, TOOLS)
    noting = ["-c", f'echo $$ > {noted}; exec "$0" "$@"', server["command"], *server["args"]]
    add_server(config, "mortal", {"command": "/bin/sh", "args": noting})

    def die() -> None:
        dying = noted.read_text(encoding="ascii")
        os.kill(int(dying), signal.SIGKILL)
        while noted.read_text(encoding="ascii") in ("", dying):
            time.sleep(LOOK_SECONDS)

    with over_stdio(bench, config) as (client, probe):

        def deaths() -> Rounds:
            while True:
                client.until(partial(answers, tool), START_SECONDS)
                yield probe.recorded(die, whole=True)

        yield deaths()


@contextmanager
def reload(bench: Workbench) -> Iterator[Rounds]:
    """From saving a configuration with one more server until a client has its tools in the list."""
    config = bench.config(TOOLS, servers=SERVERS, expose={"mode": "all"})

    def edit(client: StdioClient, name: str) -> None:
        add_server(config, name, child(0, 1))
        listed: list[dict[str, Any]] = []
        while not any(tool["name"].startswith(name) for tool in listed):
            client.until_notified("notifications/tools/list_changed")
            listed = client.request("tools/list")["tools"]

    with over_stdio(bench, config) as (client, probe):
        yield (probe.recorded(partial(edit, client, f"more{number}")) for number in range(1000))


@contextmanager
def learning(bench: Workbench) -> Iterator[Rounds]:
    """From the call of a tool that a search has found until the pair of query and tool is stored."""
    store = bench.folder / "store.sqlite3"
    config = bench.config(TOOLS, servers=SERVERS, store=store)

    def written() -> list[int]:
        return [
            path.stat().st_mtime_ns for path in bench.folder.glob(f"{store.name}*") if "-shm" not in path.name
        ]

    def use(client: StdioClient, tool: str) -> None:
        before = written()
        client.call(tool)
        client.until(lambda _: written() != before)

    with over_stdio(bench, config) as (client, probe):
        client.until(indexed, START_SECONDS)

        def uses() -> Rounds:
            for query in definitions.queries():
                found = client.data(SEARCH, query=query)["results"]
                yield probe.recorded(partial(use, client, found[0]["name"]))

        yield uses()


@contextmanager
def rest_search(bench: Workbench) -> Iterator[Rounds]:
    """From the request to the response of a search over the REST API for something new."""
    port, probe = free_port(), Probe()
    config = bench.config(TOOLS, servers=SERVERS)
    serving = ["--config", str(config), "serve", "--http", "--no-auth", "--port", str(port)]

    def ask(method: str, path: str) -> Any:
        connection.request(method, f"/api/v1/{path}")
        response = connection.getresponse()
        answer = response.read()
        if response.status != 200:
            raise FailureError(answer.decode())
        return json.loads(answer)

    def searched(query: str) -> Any:
        return ask("GET", "tools/search?" + urlencode({"query": query}))

    with listening(probe.command(*serving), port):
        probe.connect()
        connection = http.client.HTTPConnection("127.0.0.1", port)
        state = {"complete": False, "tools": 0}
        while not state["complete"] or state["tools"] < SERVERS * TOOLS:
            state = ask("POST", "reindex")
            time.sleep(LOOK_SECONDS)
        searched("whatever there is")
        yield (probe.recorded(partial(searched, query)) for query in definitions.queries())


def add_server(config: Path, name: str, server: dict[str, Any]) -> None:
    """Add a server to a configuration as an editor saves it: in one step."""
    entry = [f"\n[servers.{name}]", *(f"{key} = {json.dumps(value)}" for key, value in server.items())]
    edited = config.with_suffix(".edited")
    edited.write_text(config.read_text(encoding="utf-8") + "\n".join(entry), encoding="utf-8")
    edited.replace(config)


@dataclass(frozen=True)
class Flow:
    """One flow, and the number of files that it may enter."""

    section: str
    """The one in docs/how-it-works.md that tells it."""
    title: str
    most_files: int
    rounds: Callable[[Workbench], AbstractContextManager[Rounds]]


FLOWS = {
    f"call-{client}-{server}": Flow(
        CALL, f"warm `tools/call`, {client} client, {server} server", 18, call(client, server)
    )
    for client in VERSIONS
    for server in VERSIONS
} | {
    "search": Flow("An indexed search", "indexed `search_available_tools`", 32, search),
    "restart": Flow("A server dies and comes back", "death of a server until it is ready", 22, restart),
    "reload": Flow(
        "An edited configuration", "edited configuration until the new tool is listed", 35, reload
    ),
    "learning": Flow(PAIR, "one learned pair from call to store", 30, learning),
    "rest": Flow("A search over REST", "REST search", 32, rest_search),
}

if __name__ == "__main__":
    main()
