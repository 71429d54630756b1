"""The proxy goes on serving without a disk, a home, a model or descriptors, and beside another proxy."""

import json
import os
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import anyio
import pytest
from faults.harness import SAFE, Ledger, faulty
from support import commands
from support.ledger import until
from support.proxies import command, http_proxy, real_command
from support.raw_client import PATIENCE, RawClient
from support.servers import Workshop
from support.wires import http, stdio

from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.trust.decisions import decide
from mcp_context_proxy.trust.fingerprints import State

pytestmark = pytest.mark.slow

NAMESPACES = (
    sys.platform == "linux"
    and shutil.which("unshare") is not None
    and subprocess.run(["unshare", "-rm", "true"], check=False, capture_output=True).returncode == 0
)
needs_namespaces = pytest.mark.skipif(not NAMESPACES, reason="needs user namespaces")


@pytest.fixture
def workshop(tmp_path: Path) -> Workshop:
    made = Workshop(tmp_path)
    made.server("good").settings = faulty("normal", tmp_path / "ledger")
    return made


async def search(client: RawClient, query: str = "says safe") -> dict[str, Any]:
    await client.until_listed(f"good__{SAFE}")
    answer = await client.data("search_available_tools", {"query": query})
    assert (await client.call(f"good__{SAFE}", {"nonce": "n"}))["content"][0]["text"] == "n"
    found: dict[str, Any] = answer
    return found


@needs_namespaces
@pytest.mark.parametrize(
    "then", ["dd if=/dev/zero of={0}/fill bs=1k 2>/dev/null || true", "mount -o remount,ro {0}"]
)
async def test_on_a_full_or_read_only_disk_the_proxy_serves_from_memory(
    workshop: Workshop, tmp_path: Path, then: str
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    config = workshop.config(store={"path": str(state / "store.sqlite3")}, expose={"mode": "all"})
    script = f'mount -t tmpfs -o size=64k none {state} && {then.format(state)} && exec "$@"'
    log = tmp_path / "log"
    with log.open("w", encoding="utf-8") as stderr:
        confined = ["unshare", "-rm", "sh", "-c", script, "sh", *real_command(config)]
        async with stdio(confined, stderr=stderr) as client:
            found = await search(client)

    assert found["results"][0]["name"] == f"good__{SAFE}"
    told = log.read_text(encoding="utf-8")
    assert "store" in told
    assert "Traceback" not in told


@needs_namespaces
@pytest.mark.parametrize(
    "then", ["dd if=/dev/zero of={0}/fill bs=1k 2>/dev/null || true", "mount -o remount,ro {0}"]
)
async def test_what_a_person_has_rejected_is_not_served_from_a_full_or_read_only_disk(
    workshop: Workshop, tmp_path: Path, then: str
) -> None:
    state, kept = tmp_path / "state", tmp_path / "kept"
    state.mkdir()
    kept.mkdir()
    config = workshop.config(store={"path": str(state / "store.sqlite3")}, expose={"mode": "all"})
    async with stdio(command(config)) as client:
        await client.until_listed(f"good__{SAFE}")
    with open_store(state / "store.sqlite3") as store:
        decide(store, "good", [SAFE], State.REJECTED, by="test")
    (state / "store.sqlite3").replace(kept / "store.sqlite3")
    mounted = f"mount -t tmpfs -o size=2m none {state} && cp {kept}/* {state} && {then.format(state)}"
    confined = ["unshare", "-rm", "sh", "-c", f'{mounted}; exec "$@"', "sh", *real_command(config)]
    async with stdio(confined) as client:
        refused = await client.call(f"good__{SAFE}", {"nonce": "n"})
        assert f"good__{SAFE}" not in await client.names()

    assert "a person has rejected it" in refused["content"][0]["text"]


@needs_namespaces
def test_check_says_that_the_disk_is_full(workshop: Workshop, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    config = workshop.config(store={"path": str(state / "store.sqlite3")})
    script = f'mount -t tmpfs -o size=1m none {state}; dd if=/dev/zero of={state}/fill bs=1k; "$@"'
    checked = [*commands.real_command("check", "--config", config)]
    confined = ["unshare", "-rm", "sh", "-c", script, "sh", *checked]
    done = subprocess.run(confined, capture_output=True, text=True, timeout=PATIENCE, check=False)

    assert done.returncode == 1
    assert "is full: 0 bytes are free" in " ".join(done.stdout.split())


DISK = """
mount -t tmpfs -o size=1m none {0} || exit 1
soon() {{ while [ ! -e {1}/$1 ]; do sleep 0.05; done; }}
(soon fill; dd if=/dev/zero of={0}/fill bs=1k 2>/dev/null; touch {1}/filled
 soon free; rm {0}/fill; touch {1}/freed) &
"$@"; code=$?
cp {0}/store.sqlite3 {1}; exit $code
"""
"""Runs a program with a small disk that is full from ``fill`` to ``free``, and keeps its store."""


PAUSED = "New data waits in memory"


@needs_namespaces
async def test_a_full_disk_is_reported_once_and_pending_writes_are_kept_for_later(
    workshop: Workshop, tmp_path: Path
) -> None:
    async def said(flag: str, done: str) -> None:
        await anyio.Path(tmp_path / flag).touch()
        await until((tmp_path / done).exists)

    state, log = tmp_path / "state", tmp_path / "log"
    state.mkdir()
    config = workshop.config(store={"path": str(state / "store.sqlite3")}, expose={"mode": "all"})
    confined = ["unshare", "-rm", "sh", "-c", DISK.format(state, tmp_path), "sh", *real_command(config)]
    with log.open("w", encoding="utf-8") as stderr:
        async with stdio(confined, stderr=stderr) as client:
            await client.until_listed(f"good__{SAFE}")
            await said("fill", "filled")
            for _ in range(5):
                assert "isError" not in await client.call(f"good__{SAFE}", {"nonce": "n"})
            await search(client, "says safe while it is full")
            await until(lambda: PAUSED in log.read_text(encoding="utf-8"))
            for _ in range(3):
                await search(client, "says safe while it is still full")
            await said("free", "freed")
            await search(client, "says safe when there is room")

    with closing(sqlite3.connect(tmp_path / "store.sqlite3")) as store:
        ((calls,),) = store.execute("SELECT sum(calls) FROM tool_usage").fetchall()
        learned = store.execute("SELECT query FROM learned").fetchall()
        contexts = store.execute("SELECT context FROM requests").fetchall()
    assert calls == 5 + 5
    assert ("says safe while it is full",) in learned
    for query in (b"while it is full", b"while it is still full", b"when there is room"):
        assert any(query in context for (context,) in contexts)
    told = log.read_text(encoding="utf-8")
    assert told.count(PAUSED) == 1
    assert "Traceback" not in told


@pytest.mark.parametrize("home", ["/nonexistent", ""])
async def test_the_proxy_serves_without_a_home_folder(workshop: Workshop, home: str) -> None:
    config = workshop.config(store={}, expose={"mode": "all"})
    async with stdio(command(config), env={"HOME": home, "XDG_DATA_HOME": ""}) as client:
        assert (await search(client))["results"]


async def test_two_proxies_on_one_store_do_not_block_each_other(workshop: Workshop, tmp_path: Path) -> None:
    config = workshop.config(store={"path": str(tmp_path / "store.sqlite3")}, expose={"mode": "all"})
    log = tmp_path / "log"
    with log.open("w", encoding="utf-8") as stderr:
        async with (
            stdio(command(config), stderr=stderr) as one,
            stdio(command(config), stderr=stderr) as two,
            anyio.create_task_group() as group,
        ):
            for client in (one, two) * 5:
                group.start_soon(search, client)

    assert "locked" not in log.read_text(encoding="utf-8")
    with closing(sqlite3.connect(tmp_path / "store.sqlite3")) as store:
        assert store.execute("SELECT sum(calls), sum(errors) FROM tool_usage").fetchall() == [(10, 0)]
        assert store.execute("SELECT sum(searches) FROM search_usage").fetchall() == [(10,)]


@pytest.mark.parametrize("harm", ["missing", "empty", "flipped"])
async def test_without_a_usable_model_search_is_lexical(
    workshop: Workshop, tmp_path: Path, harm: str
) -> None:
    packaged = Path(__file__).parents[2] / "mcp_context_proxy" / "embedding" / "files"
    model = tmp_path / "model"
    shutil.copytree(packaged, model)
    file = model / "model.onnx"
    if harm == "missing":
        file.unlink()
    else:
        data = bytearray(file.read_bytes())
        data[1000] ^= 1
        file.write_bytes(b"" if harm == "empty" else data)
    config = workshop.config(embedding={"model": str(model)}, expose={"mode": "search"})
    log = tmp_path / "log"
    with log.open("w", encoding="utf-8") as stderr:
        async with stdio(command(config), stderr=stderr) as client:
            assert "goes by words alone" in client.introduction["instructions"]
            for _ in range(3):
                found = await client.data("search_available_tools", {"query": "says safe"})

    assert log.read_text(encoding="utf-8").count("search uses words alone") == 1
    assert found["method"] != "hybrid"
    assert found["results"][0]["name"] == f"good__{SAFE}"


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="needs prlimit")
async def test_without_free_descriptors_servers_fail_with_a_reason_and_others_go_on(tmp_path: Path) -> None:
    workshop, ledger = Workshop(tmp_path), Ledger(tmp_path / "ledger")
    workshop.server("good").settings = faulty("normal", ledger.path)
    for number in range(25):
        workshop.server(f"s{number}").settings = faulty("normal", ledger.path)
    config = workshop.config(expose={"mode": "all"})
    confined = ["prlimit", "--nofile=80:80", *real_command(config)]
    async with stdio(confined, env={"MCP_CONTEXT_PROXY_DEBUGGABLE": "1"}) as client:
        await client.until_listed(f"good__{SAFE}")
        results = [await client.call(f"s{number}__{SAFE}", {"nonce": "n"}) for number in range(25)]
        good = await client.call(f"good__{SAFE}", {"nonce": "n"})
        assert client.process is not None
        in_use = len(os.listdir(f"/proc/{client.process.pid}/fd"))  # noqa: PTH208 - names alone

    refused = [json.dumps(result) for result in results if result.get("isError")]
    assert refused
    words = ("Too many open files", "starting", "No file")
    assert [text for text in refused if not any(word in text for word in words)] == []
    assert "isError" not in good
    assert in_use < 70, "what is left is for hosts"
    await ledger.until(lambda ledger: ledger.survivors() == [])


@pytest.mark.skipif(sys.platform != "linux", reason="limits another process")
async def test_without_free_descriptors_connections_wait_and_the_log_stays_short(workshop: Workshop) -> None:
    config = workshop.config(expose={"mode": "all"}, limits={"http_header_seconds": 1.0})
    with http_proxy(config, real=True) as proxy, ExitStack() as stack:
        async with http(proxy.base) as client:
            await client.until_listed(f"good__{SAFE}")
        resource.prlimit(proxy.process.pid, resource.RLIMIT_NOFILE, (64, 64))
        for _ in range(100):
            silent = stack.enter_context(socket.socket())
            silent.connect(("127.0.0.1", int(proxy.base.rpartition(":")[2])))
        log = config.with_suffix(".log")
        await until(lambda: "Too many open files" in log.read_text(encoding="utf-8"))
        # Those that say nothing are sent away: then it is the turn of who has something to say, whose one
        # request has come with its connection.
        async with http(proxy.base, "modern", opened=False) as client:
            result = await client.call(f"good__{SAFE}", {"nonce": "n"})
        assert result["content"][0]["text"] == "n"

    # Not a line for each attempt, thousands a second; whatever else finds no file may say so once.
    written = log.read_text(encoding="utf-8")
    assert written.count("hosts have to wait") == 1
    assert "socket.accept()" not in written


NOBODY = 54_321
"""A user of no other process: what limits processes of a user limits these alone."""

needs_users = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs to run as another user",
)


def as_nobody(*more: str) -> list[str]:
    """Another user, whom a limit on processes binds, and who may read as root may."""
    may_read = [f"--{kind}-caps=-all,+dac_read_search" for kind in ("inh", "ambient")]
    return ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", *may_read, *more]


def allow_processes(pid: int, count: int) -> None:
    """Threads are counted as well, those that are there stay."""
    subprocess.run(as_nobody("prlimit", "--pid", str(pid), f"--nproc={count}:4000"), check=True)


def through_env(settings: dict[str, Any]) -> dict[str, Any]:
    """A program that root alone has the right to start, by way of one that everybody has."""
    return {"command": "/usr/bin/env", "args": [settings["command"], *settings["args"]]}


@needs_users
async def test_if_no_process_can_be_started_running_servers_serve_and_others_wait(tmp_path: Path) -> None:
    workshop, ledger = Workshop(tmp_path), Ledger(tmp_path / "ledger")
    ledger.path.touch()
    for name in ("good", "frail"):
        workshop.server(name).settings = through_env(faulty("normal", ledger.path, name=name))
    limits = {"backoff_max_seconds": 1.0, "breaker_seconds": 1.0, "indexing_wait_seconds": 0.5}
    config = workshop.config(expose={"mode": "all"}, limits=limits)
    for path in (tmp_path, ledger.path, config):
        os.chown(path, NOBODY, NOBODY)
    # Started where not even a thread is to be had: that is waited for, not died of.
    within = ["prlimit", "--nproc=1:4000", "env", "-C", str(tmp_path), *real_command(Path(config.name))]
    log = tmp_path / "log"
    with log.open("w", encoding="utf-8") as stderr:
        async with stdio(as_nobody(*within), stderr=stderr, opened=False) as client:
            assert client.process is not None
            await until(lambda: "no more threads" in log.read_text(encoding="utf-8"))
            allow_processes(client.process.pid, 4000)
            await client.open()
            await client.until_listed(f"good__{SAFE}", f"frail__{SAFE}")
            allow_processes(client.process.pid, 1)
            (frail,) = (entry["pid"] for entry in ledger.of("start") if "frail" in str(entry["argv"]))
            os.kill(frail, signal.SIGKILL)

            await until_says(client, f"frail__{SAFE}", "Resource temporarily unavailable")
            found = await client.data("search_available_tools", {"query": "says safe"})
            assert found["results"]
            assert (await client.call(f"good__{SAFE}", {"nonce": "n"}))["content"][0]["text"] == "n"
            allow_processes(client.process.pid, 4000)
            await until_says(client, f"frail__{SAFE}", "back")

    assert "Traceback" not in log.read_text(encoding="utf-8")
    await ledger.until(lambda ledger: ledger.survivors() == [])


async def until_says(client: RawClient, tool: str, text: str) -> None:
    """Call until the answer says something."""
    with anyio.fail_after(PATIENCE):
        while True:
            answer = await client.call(tool, {"nonce": "back"})
            if text in answer["content"][0]["text"]:
                return
            await anyio.sleep(0.05)
