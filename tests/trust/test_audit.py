"""The audit: calls and callers, refusals, questions and changes; bounded, and without a single value."""

import errno
import json
import os
import re
import stat
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from msgspec import Raw
from support.ledger import until
from support.proxies import Host, command, inside
from support.raw_client import RpcError
from support.servers import Server, Workshop, tool
from support.wires import stdio

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.config import load
from mcp_context_proxy.items import Tool
from mcp_context_proxy.trust import audit
from mcp_context_proxy.trust.audit import AuditedCall, AuditLog, KeptLogs, declared_names
from mcp_context_proxy.trust.audit_file import AuditFile, summary

SECRET_VALUE = "the-value-of-an-argument"
SCHEMA = {
    "type": "object",
    "properties": {
        "title": {"type": "string"},
        "labels": {"type": "array", "items": {"type": "string"}},
        "place": {"type": "object", "properties": {"city": {"type": "string"}}},
        "members": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}
ARGUMENTS: dict[str, Any] = {
    "title": SECRET_VALUE,
    "labels": [SECRET_VALUE, "b"],
    "place": {"city": SECRET_VALUE},
    "members": {"anna@example.org": SECRET_VALUE},
}
FORM = {
    "method": "elicitation/create",
    "params": {"message": "Which?", "requestedSchema": {"type": "object"}},
}


def echo(name: str = "echo") -> Tool:
    definition = json.dumps({"name": name, "inputSchema": SCHEMA}).encode()
    return Tool("work", name, f"work__{name}", definition, f"print of {name}")


UNKNOWN: dict[str, Any] = dict.fromkeys(("rule", "principal", "client_info", "session"))


def called(log: AuditLog, arguments: Any = None, **facts: Any) -> None:
    given: dict[str, Any] = {
        "tool": echo(),
        "arguments": arguments if isinstance(arguments, Raw | None) else Raw(json.dumps(arguments).encode()),
        "outcome": "succeeded",
        "decision": "allowed",
        **UNKNOWN,
        **facts,
    }
    log.called(AuditedCall(**given))


def file_in(folder: Path, max_bytes: int = 1_000_000, files: int = 3) -> AuditFile:
    return AuditFile(folder, max_bytes, files)


async def recorded(log: AuditLog, file: AuditFile) -> list[dict[str, Any]]:
    await log.flush()
    return list(file.entries())


@pytest.fixture
def work(workshop: Workshop) -> Server:
    tools = [
        tool("echo", inputSchema=SCHEMA),
        tool("remove", annotations={"destructiveHint": True}),
        tool("off"),
        tool("asks"),
        tool("hang", inputSchema=SCHEMA),
    ]
    calls = {"asks": [{"ask": FORM}], "hang": [{"wait_cancelled": True}]}
    settings = {"deny": ["off"], "confirm": "destructive"}
    return workshop.server("work", tools=tools, calls=calls, settings=settings)


@pytest.fixture
async def proxy(workshop: Workshop, work: Server) -> AsyncIterator[Proxy]:
    async with inside(workshop.config(store={"path": str(workshop.folder / "state" / "s.db")})) as opened:
        yield opened


async def entries(proxy: Proxy, kind: str) -> list[dict[str, Any]]:
    file = audit.audit_file(proxy.config)
    assert file is not None
    await proxy.audit.flush()
    return [entry for entry in file.entries() if entry["kind"] == kind]


async def test_a_call_that_its_client_gives_up_is_recorded_since_it_may_have_run(
    proxy: Proxy, work: Server, era: str
) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(Host(proxy, era, principal="anna").call, "work__hang", {"title": SECRET_VALUE})
        await work.ledger.until(lambda ledger: ledger.calls("hang"))
        group.cancel_scope.cancel()

    (entry,) = await entries(proxy, "call")
    facts = ("principal", "server", "tool", "decision", "outcome")
    assert [entry[fact] for fact in facts] == ["anna", "work", "hang", "allowed", "cancelled"]
    assert entry["arguments"]["shape"] == {"title": "string"}


async def test_a_call_whose_server_asks_for_what_the_client_cannot_give_is_recorded(
    workshop: Workshop,
) -> None:
    answers = {"visit": [{"need_input": {"inputRequests": {"q": FORM}}}]}
    workshop.server("modern", era="modern", tools=[tool("visit")], calls=answers)
    async with inside(workshop.config(store={"path": str(workshop.folder / "state" / "s.db")})) as opened:
        with pytest.raises(RpcError, match="did not declare: elicitation"):
            await Host(opened, "modern", principal="anna").call("modern__visit")
        (entry,) = await entries(opened, "call")

    assert [entry[fact] for fact in ("principal", "tool", "outcome")] == ["anna", "visit", "failed"]


async def test_a_call_is_recorded_with_the_facts_and_the_shape_of_its_arguments(
    proxy: Proxy, era: str
) -> None:
    host, began = Host(proxy, era, principal="anna"), time.time()
    await host.call("work__echo", ARGUMENTS)

    (entry,) = await entries(proxy, "call")
    assert abs(entry.pop("time") - began) < 60
    assert entry.pop("ms") >= 0
    assert entry.pop("result_bytes") > 0
    assert entry.pop("fingerprint") == proxy.catalog.snapshot.tools["work__echo"].fingerprint
    assert len(entry.pop("arguments_hash")) == 32
    session = {} if host.session is None else {"session": host.session.id}
    assert entry == session | {
        "kind": "call",
        "principal": "anna",
        "client": "host",
        "server": "work",
        "tool": "echo",
        "class": "write",
        "decision": "allowed",
        "outcome": "succeeded",
        "arguments": {
            "bytes": len(json.dumps(ARGUMENTS)),
            "shape": {
                "title": "string",
                "labels": ["string", 2],
                "place": {"city": "string"},
                "members": {"...": 1},
            },
        },
    }


async def test_no_value_and_no_query_is_in_the_files(proxy: Proxy, era: str) -> None:
    host = Host(proxy, era)
    await host.call("search_available_tools", {"query": "zebra crossings in Zurich"})
    await host.call("work__echo", ARGUMENTS)
    await host.call("call_tool", {"name": "work__echo", "arguments": ARGUMENTS, "goal": "zebra"})
    await proxy.audit.flush()

    folder = audit.state_folder(proxy.config)
    assert folder is not None
    written = b"".join(path.read_bytes() for path in folder.glob("audit*.jsonl"))
    assert written.count(b'"kind":"call"') == 2
    for value in (SECRET_VALUE, "anna@example.org", "zebra"):
        assert value.encode() not in written


async def test_a_secret_in_the_name_of_a_client_is_redacted(workshop: Workshop, era: str) -> None:
    workshop.server("work", tools=[tool("echo")], settings={"env": {"API_TOKEN": SECRET_VALUE}})
    async with inside(workshop.config(store={"path": str(workshop.folder / "state" / "s.db")})) as proxy:
        host = Host(proxy, era)
        hidden = f"host {SECRET_VALUE[:4]}\u200b{SECRET_VALUE[4:]}"
        host.client_info = Raw(json.dumps({"name": hidden, "version": "1"}).encode())
        await host.call("work__echo")

        (entry,) = await entries(proxy, "call")
    assert entry["client"] == "host [redacted API_TOKEN]"


async def test_equal_arguments_have_one_hash_in_any_order_and_another_in_another_folder(
    tmp_path: Path,
) -> None:
    first, second = file_in(tmp_path / "one"), file_in(tmp_path / "two")
    log, other = AuditLog(first), AuditLog(second)
    called(log, {"title": "x", "labels": []})
    called(log, {"labels": [], "title": "x"})
    called(log, {"labels": [], "title": "y"})
    called(other, {"title": "x", "labels": []})

    same, again, different = (entry["arguments_hash"] for entry in await recorded(log, first))
    (elsewhere,) = (entry["arguments_hash"] for entry in await recorded(other, second))
    assert same == again
    assert len({same, different, elsewhere}) == 3


async def test_calls_that_were_not_allowed_are_recorded_with_the_rule(proxy: Proxy, era: str) -> None:
    person = {"elicitation/create": lambda _: {"action": "decline"}}
    host = Host(proxy, era, {"elicitation": {}}, person)
    await host.call("work__off", {})
    await host.call("call_read_only_tool", {"name": "work__echo", "arguments": {}})
    params: dict[str, Any] = {"name": "work__remove", "arguments": {}}
    result = await host.request("tools/call", params)
    if era == "modern":
        answers = {key: {"action": "decline"} for key in result["inputRequests"]}
        again = {"inputResponses": answers, "requestState": result["requestState"]}
        await host.request("tools/call", params | again)

    off, reading, confirmed = await entries(proxy, "call")
    assert (off["server"], off["tool"], off["decision"]) == ("work", "off", "refused")
    assert off["rule"].startswith("servers.work.deny[0] (config.toml:")
    assert (reading["rule"], reading["decision"]) == ("call_read_only_tool", "refused")
    assert (confirmed["tool"], confirmed["class"]) == ("remove", "destructive")
    assert confirmed["outcome"] == "not sent"
    assert confirmed["rule"].startswith("servers.work.confirm (config.toml:")


async def test_a_question_of_a_server_is_recorded_with_who_asked_and_how_it_was_answered(
    proxy: Proxy, era: str
) -> None:
    answers = {"elicitation/create": lambda _: {"action": "accept", "content": {"a": SECRET_VALUE}}}
    host = Host(proxy, era, {"elicitation": {}}, answers)
    params: dict[str, Any] = {"name": "work__asks", "arguments": {}}
    result = await host.request("tools/call", params)
    if era == "modern":
        given = {key: {"action": "accept", "content": {"a": SECRET_VALUE}} for key in result["inputRequests"]}
        again = {"inputResponses": given, "requestState": result["requestState"]}
        await host.request("tools/call", params | again)

    (question,) = await entries(proxy, "question")
    assert (question["server"], question["method"]) == ("work", "elicitation/create")
    assert question["answer"] == "accept"


async def test_a_read_is_recorded_with_the_name_that_the_server_lists_and_no_value(
    workshop: Workshop, era: str
) -> None:
    workshop.server(
        "work",
        resources=[{"uri": "note://today", "name": "today"}],
        templates=[{"uriTemplate": "note://of/{day}", "name": "notes"}],
        prompts=[{"name": "report", "arguments": [{"name": "about"}]}],
    )
    async with inside(workshop.config(store={"path": str(workshop.folder / "state" / "s.db")})) as proxy:
        host = Host(proxy, era, principal="anna")
        await host.request("resources/read", {"uri": "note://today"})
        await host.call("call_read_only_tool", {"name": f"note://of/{SECRET_VALUE}"})
        await host.request("prompts/get", {"name": "work__report", "arguments": {"about": SECRET_VALUE}})

        found = await entries(proxy, "read")
    facts = [(one["principal"], one["server"], one["method"], one["name"]) for one in found]
    assert facts == [
        ("anna", "work", "resources/read", "note://today"),
        ("anna", "work", "resources/read", "note://of/{day}"),
        ("anna", "work", "prompts/get", "report"),
    ]
    assert [(one["outcome"], one["result_bytes"] > 0) for one in found] == [("succeeded", True)] * 3
    assert SECRET_VALUE not in json.dumps(found)


async def test_a_changed_configuration_is_recorded_with_its_tables(proxy: Proxy, workshop: Workshop) -> None:
    path = workshop.config(
        store={"path": str(workshop.folder / "state" / "s.db")}, search={"preset": "aggressive"}
    )
    await proxy.apply(load(path, environ={}))

    (change,) = await entries(proxy, "configuration")
    assert "search" in change["changed"]
    told = summary(change)
    assert "changed " in told
    assert "[" not in told, "a person reads names, not a list of a program"


def test_an_entry_is_read_by_a_person_without_repetitions_and_numbers_of_seconds() -> None:
    added = {
        "kind": "token",
        "event": "added",
        "name": "anna",
        "role": "use",
        "again": False,
        "expires": 1_803_782_471.85,
    }
    stopped = {"kind": "order", "order": "stop", "principal": "owner"}
    called = {
        "kind": "call",
        "server": "s",
        "tool": "t",
        "decision": "allowed",
        "outcome": "failed",
        "ms": 8.0149,
    }

    assert re.fullmatch(r"added; name anna; role use; expires 2027-0\d-\d\d \d\d:\d\d:\d\d", summary(added))
    assert "again" in summary(added | {"again": True})
    assert summary(stopped) == "stop; principal owner"
    assert summary(called) == "s.t; allowed, failed; 8.0 ms"


async def test_many_wrong_tokens_of_an_address_make_one_entry(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    log = AuditLog(file)
    for number in range(10_000):
        log.token_refused(f"192.0.2.{number % 250}")

    found = await recorded(log, file)
    assert len(found) == audit.ADDRESSES + 1
    assert sum(entry["count"] for entry in found) == 10_000
    assert {entry["event"] for entry in found} == {"refused"}


async def test_what_does_not_fit_into_the_queue_is_counted_on_a_line_of_its_own(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    log = AuditLog(file, waiting=10)
    for _ in range(25):
        called(log)

    found = await recorded(log, file)
    assert [entry["kind"] for entry in found] == ["call"] * 10 + ["dropped"]
    assert found[-1]["count"] == 15


async def test_no_number_of_changes_that_a_server_makes_at_once_pushes_out_a_call(tmp_path: Path) -> None:
    """It changes all its definitions when it gets the call that nobody is to know of."""
    file = file_in(tmp_path)
    log = AuditLog(file, waiting=10)
    for _ in range(25):
        log.note("approval", server="evil", event="changed")
    called(log)

    found = await recorded(log, file)
    assert [entry["kind"] for entry in found] == ["approval"] * 5 + ["call", "dropped"]
    assert found[-1]["count"] == 20


async def test_large_arguments_that_wait_are_bounded_together(tmp_path: Path) -> None:
    file = file_in(tmp_path, 100_000_000)
    log = AuditLog(file)
    for _ in range(20):
        called(log, {"title": "x" * 1_000_000})

    with_arguments = [entry for entry in await recorded(log, file) if "arguments" in entry]
    assert len(with_arguments) == audit.WAITING_BYTES // 1_000_014
    assert all(
        "shape" not in entry["arguments"] or entry["arguments"]["shape"] is None for entry in with_arguments
    )


async def test_names_that_the_schema_does_not_declare_are_only_counted() -> None:
    definition = json.dumps({"inputSchema": SCHEMA}).encode()

    assert declared_names(definition) == {"title", "labels", "place", "city", "members"}
    assert declared_names(b"not JSON") == frozenset()


@pytest.mark.parametrize(
    "arguments",
    [
        b"[" * 100_000 + b"]" * 100_000,
        b'{"a":' * 5_000 + b"1" + b"}" * 5_000,
        b"nothing of JSON",
        b"\xff",
        b"",
    ],
    ids=["deep array", "deep object", "no JSON", "no UTF-8", "empty"],
)
async def test_arguments_that_cannot_be_read_have_a_size_and_a_hash(tmp_path: Path, arguments: bytes) -> None:
    file = file_in(tmp_path)
    log = AuditLog(file)
    called(log, Raw(arguments), outcome="failed", client_info=Raw(b"[1"))

    (entry,) = await recorded(log, file)
    assert entry["arguments"]["bytes"] == len(arguments)
    assert "arguments_hash" in entry


async def test_the_shape_of_arguments_is_bounded(tmp_path: Path) -> None:
    names = [f"name{number}" for number in range(500)]
    properties = {name: {"type": "string"} for name in names}
    definition = json.dumps({"inputSchema": {"properties": properties}}).encode()
    wide = Tool("work", "wide", "work__wide", definition, "wide")
    file = file_in(tmp_path)
    log = AuditLog(file)
    called(log, {name: {name: {}} for name in names}, tool=wide)
    called(log, {name: dict.fromkeys(names[:9], 1) for name in names[:30]}, tool=wide)
    called(log, Raw(b'{"name1":' * 9 + b"1" + b"}" * 9), tool=wide)

    entries = await recorded(log, file)
    many, large, deep = (json.dumps(entry["arguments"]["shape"]) for entry in entries)
    assert len(json.dumps(entries[0])) < 3_000
    assert json.loads(many)["..."] == 500 - audit.SHAPE_NAMES
    assert 30 < large.count('"name') < audit.SHAPE_VALUES
    assert deep == '{"name1": ' * audit.SHAPE_LEVELS + '"object"' + "}" * audit.SHAPE_LEVELS


async def test_the_files_are_for_their_owner_alone_and_bounded_in_size_and_number(tmp_path: Path) -> None:
    file = file_in(tmp_path / "state", 10_000, 3)
    log = AuditLog(file)
    for _ in range(50):
        called(log, {"title": "x"})
        await log.flush()
        for _ in range(9):
            called(log, {"title": "x"})
    await log.flush()

    names = sorted(path.name for path in file.folder.glob("audit*.jsonl"))
    assert names == ["audit.1.jsonl", "audit.2.jsonl", "audit.jsonl"]
    for path in file.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    assert max(path.stat().st_size for path in file.folder.glob("audit*.jsonl")) <= 10_000
    times = [entry["time"] for entry in file.entries()]
    assert times == sorted(times)


async def test_a_torn_last_line_is_skipped_and_the_next_entry_stands_on_its_own(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    log = AuditLog(file)
    called(log)
    await log.flush()
    with file.path.open("ab") as torn:
        torn.write(b'{"time":1,"kind":"call","to')

    assert [entry["kind"] for entry in file.entries()] == ["call"]
    log.note("configuration", changed=[])
    assert [entry["kind"] for entry in await recorded(log, file)] == ["call", "configuration"]


class FullDisk(AuditFile):
    """A file on a disk that is full as long as `full`."""

    full = True

    def append(self, lines: Any) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().append(lines)


async def test_a_full_disk_costs_no_call_is_said_once_and_the_lines_follow_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = FullDisk(tmp_path, 1_000_000, 3)
    log = AuditLog(file)
    for _ in range(3):
        called(log)
        await log.flush()

    assert [record.message.count("No space left") for record in caplog.records] == [1]
    assert log.warning is not None
    file.full = False
    assert len(await recorded(log, file)) == 3
    assert log.warning is None


async def test_nobody_pushes_out_what_waits_for_a_full_disk(tmp_path: Path) -> None:
    file = FullDisk(tmp_path, 100_000_000, 3)
    log = AuditLog(file)
    called(log, tool=echo("remove"), principal="mallory")
    called(log, principal="anna")
    log.note("login", server="work", event="in")
    await log.flush()
    for _ in range(5):
        for _ in range(audit.WAITING):
            called(log, principal="mallory")
        called(log, principal="berta")
        await log.flush()
    file.full = False

    found = await recorded(log, file)
    assert [entry["tool"] for entry in found if entry.get("principal") == "anna"] == ["echo"]
    assert [entry["tool"] for entry in found if entry.get("principal") == "berta"] == ["echo"] * 5
    assert sum(entry["kind"] == "login" for entry in found) == 1
    assert sum(entry.get("tool") == "remove" for entry in found) == 1
    assert sum(entry.get("count", 1) for entry in found) == 5 * audit.WAITING + 8
    assert file.path.stat().st_size <= audit.UNWRITTEN_BYTES * 1.1


async def test_entries_are_in_the_file_while_the_proxy_runs_so_that_a_kill_loses_a_moment_at_most(
    tmp_path: Path,
) -> None:
    file = file_in(tmp_path)
    log = AuditLog(file)
    async with anyio.create_task_group() as group:
        group.start_soon(log.run)
        called(log)
        first = await until(lambda: list(file.entries()))
        called(log)
        second = await until(lambda: list(file.entries())[1:])
        group.cancel_scope.cancel()

    assert audit.GATHERING_SECONDS < 1
    assert [entry["kind"] for entry in first + second] == ["call", "call"]


async def test_entries_that_wait_are_written_when_the_proxy_stops(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    log = AuditLog(file)
    async with anyio.create_task_group() as group:
        group.start_soon(log.run)
        await anyio.wait_all_tasks_blocked()
        called(log)
        log.token_refused("192.0.2.1")
        group.cancel_scope.cancel()

    assert [entry["kind"] for entry in file.entries()] == ["call", "token"]


async def test_an_audit_that_is_off_or_keeps_nothing_writes_no_file(workshop: Workshop, work: Server) -> None:
    state = workshop.folder / "state"
    config = load(workshop.config(audit={"enabled": False}, store={"path": str(state / "s.db")}), environ={})

    assert audit.audit_file(config) is None
    assert audit.audit_file(load(workshop.config(), environ={})) is None
    log = AuditLog(None)
    called(log)
    log.note("configuration")
    log.token_refused("192.0.2.1")
    await log.flush()


def calls_in(file: AuditFile) -> list[dict[str, Any]]:
    return [entry for entry in file.entries() if entry["kind"] == "call"]


async def test_a_killed_proxy_leaves_whole_entries_without_a_gap_and_the_next_one_goes_on(
    workshop: Workshop, work: Server
) -> None:
    """Loses the last moment only: `benchmarks/reliability.py kills` has how long that is."""
    state = workshop.folder / "state"
    config = workshop.config(store={"path": str(state / "s.db")}, expose={"mode": "all"})
    file = file_in(state)
    made = 0
    for _ in range(2):
        before = len(calls_in(file))
        with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):  # it does not exit with 0
            async with stdio(command(config)) as client:
                assert client.process is not None
                await client.until_listed("work__echo")
                while len(calls_in(file)) == before:
                    await client.call("work__echo", {"title": str(made)})
                    made += 1
                client.process.kill()

    entries = calls_in(file)
    assert 2 <= len(entries) <= made
    assert len({entry["session"] for entry in entries}) == 2
    assert all(entry["outcome"] == "succeeded" for entry in entries)
    assert [entry["time"] for entry in entries] == sorted(entry["time"] for entry in entries)


async def test_lines_of_any_thread_are_written_soon_also_those_before_the_writing_begins(
    tmp_path: Path,
) -> None:
    """The writing sleeps until there is a line."""
    logs = KeptLogs(tmp_path)

    def written() -> list[str]:
        lines = [
            line for file in tmp_path.rglob("*") if file.is_file() for line in file.read_text().splitlines()
        ]
        return [json.loads(line)["text"] for line in lines]

    logs.note("files", "before")
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(logs.run)
            await until(lambda: written() == ["before"])
            await anyio.to_thread.run_sync(logs.note, "files", "one")
            await until(lambda: written() == ["before", "one"])
            await anyio.to_thread.run_sync(logs.note, "files", "two")
            await until(lambda: written() == ["before", "one", "two"])
            tasks.cancel_scope.cancel()
