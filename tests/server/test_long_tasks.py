"""Tasks that the proxy waits for: over one connection that stays open, and as one call that is under way."""

import os
import signal
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, command, host_of, inside
from support.servers import Server, Workshop, tool
from support.wires import stdio

from mcp_context_proxy.server import forwarding

DATES = {"createdAt": "2026-07-28T10:00:00Z", "lastUpdatedAt": "2026-07-28T10:00:00Z"}
ELICIT = {"message": "Which one?", "requestedSchema": {"type": "object", "properties": {}}}
CHOSEN = {"action": "accept", "content": {"which": "this"}}
ANSWERS = {"elicitation/create": lambda params: CHOSEN}
REPORT = {"content": [{"type": "text", "text": "the report"}]}


def lab(
    workshop: Workshop,
    *result: dict[str, Any],
    status: str = "completed",
    poll_ms: int = 1,
    settings: dict[str, Any] | None = None,
    at_a_url: bool = False,
    **more: Any,
) -> Server:
    """A server whose tool `research` runs as a task only, and works until the file `done` is there.

    The steps `result` answer the question for its result.
    """
    task = {"taskId": "own", "status": "working", **DATES, "ttl": None, "pollInterval": poll_ms}
    ended = {"if": [str(workshop.flag("done")), [{"result": task | {"status": status}}]]}
    return (workshop.http_server if at_a_url else workshop.server)(
        "lab",
        capabilities={"tools": {}, "tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}},
        tools=[tool("research", execution={"taskSupport": "required"}), tool("ask"), tool("plain")],
        calls={
            "research": [{"result": {"task": task}}],
            "ask": [{"ask": {"method": "elicitation/create", "params": ELICIT}}],
        },
        on={
            "tasks/get": [ended, {"result": task}],
            "tasks/result": [*(result or ({"result": REPORT},))],
            "tasks/cancel": [{"result": {}}],
        },
        settings=settings,
        **more,
    )


def pids(server: Server, method: str) -> list[int]:
    """The processes that got a message of a method."""
    return [one["pid"] for one in server.ledger.entries("received") if f'"{method}"' in one["line"]]


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_task_stays_with_the_process_that_runs_it_when_another_call_asks(
    workshop: Workshop, era: str
) -> None:
    server = lab(workshop)
    results = []
    async with inside(workshop.config()) as proxy, anyio.create_task_group() as group:
        one = Host(proxy, era, {"elicitation": {}}, ANSWERS)
        other = Host(proxy, "handshake", {"elicitation": {}}, ANSWERS)

        async def research() -> None:
            results.append(await one.call("lab__research"))

        group.start_soon(research)
        await server.ledger.until(lambda ledger: ledger.messages("tasks/get"))
        await other.call("lab__ask")
        told = len(server.ledger.messages("tasks/get"))
        await server.ledger.until(lambda ledger: len(ledger.messages("tasks/get")) > told + 1)
        workshop.flag("done").touch()

    assert results[0]["content"] == REPORT["content"]
    assert len(set(pids(server, "tasks/get") + pids(server, "tasks/result"))) == 1


async def test_tasks_of_one_client_that_run_apart_do_not_change_places(workshop: Workshop) -> None:
    server = lab(workshop, settings={"isolation": "session"})
    async with inside(workshop.config()) as proxy, anyio.create_task_group() as group:
        host = Host(proxy, "modern", {"elicitation": {}}, ANSWERS)
        for _ in range(2):
            group.start_soon(host.call, "lab__research")
        await server.ledger.until(lambda ledger: len(ledger.messages("tasks/get")) > 6)
        workshop.flag("done").touch()

    assert len(set(pids(server, "tools/call"))) == 2
    assert set(pids(server, "tasks/result")) == set(pids(server, "tools/call"))


async def test_a_server_does_not_fall_asleep_while_it_runs_a_task(workshop: Workshop) -> None:
    server = lab(workshop, poll_ms=500, settings={"idle_timeout": 0.1})
    async with host_of(workshop.config(), "handshake") as host, anyio.create_task_group() as group:
        group.start_soon(host.call, "lab__research")
        await server.ledger.until(lambda ledger: len(ledger.messages("tasks/get")) > 1)
        workshop.flag("done").touch()

    assert len(set(pids(server, "tasks/get") + pids(server, "tasks/result"))) == 1


async def test_a_task_that_is_waited_for_counts_as_one_call_under_way(workshop: Workshop) -> None:
    server = lab(workshop)
    limits = {"in_flight_per_server": 1}
    async with inside(workshop.config(limits=limits)) as proxy, anyio.create_task_group() as group:
        host, other = Host(proxy, "handshake"), Host(proxy, "handshake")
        results = []

        async def research() -> None:
            results.append(await host.call("lab__research"))

        group.start_soon(research)
        await server.ledger.until(lambda ledger: ledger.messages("tasks/get"))
        busy = [await other.call("lab__plain") for _ in range(20)]
        workshop.flag("done").touch()

    assert all("busy" in each["content"][0]["text"] for each in busy)
    assert results[0]["content"] == REPORT["content"]


async def test_a_task_may_work_for_longer_than_a_call_after_it_has_asked(workshop: Workshop) -> None:
    asks = {"ask_then": {"method": "elicitation/create", "params": ELICIT}}
    lab(
        workshop,
        asks,
        {"wait": str(workshop.flag("worked"))},
        {"result": REPORT},
        status="input_required",
        settings={"call_timeout": 0.3},
    )
    workshop.flag("done").touch()
    async with host_of(workshop.config(), "handshake", {"elicitation": {}}, ANSWERS) as host:
        results = []

        async def research() -> None:
            results.append(await host.call("lab__research"))

        async with anyio.create_task_group() as group:
            group.start_soon(research)
            await anyio.sleep(0.8)
            workshop.flag("worked").touch()

    assert results[0]["content"] == REPORT["content"]


async def test_a_client_gets_progress_while_a_task_that_has_asked_goes_on(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forwarding, "POLL_SECONDS", (0.05, 0.05))
    worked = workshop.flag("worked")
    lab(workshop, {"wait": str(worked)}, {"result": REPORT}, status="input_required")
    workshop.flag("done").touch()
    able = {"elicitation": {}}
    async with (
        host_of(workshop.config(), "handshake", able, ANSWERS) as host,
        anyio.create_task_group() as group,
    ):

        async def research() -> None:
            await host.call("lab__research", progressToken="p")

        group.start_soon(research)
        await until(lambda: len(host.notifications) > 3)
        worked.touch()

    told = [params["progress"] for method, params in host.notifications]
    assert told == sorted(set(told))


@pytest.mark.parametrize("task_id", [7, None, "", "x" * 2_000, "x" * 100_000])
async def test_a_task_without_an_id_that_can_be_asked_for_is_no_result(
    workshop: Workshop, task_id: Any
) -> None:
    task = {"taskId": task_id, "status": "working", **DATES, "ttl": None}
    workshop.server(
        "lab",
        tools=[tool("research", execution={"taskSupport": "required"})],
        calls={"research": [{"result": {"task": task}}]},
    )
    async with host_of(workshop.config(), "handshake") as host:
        refused = await host.call("lab__research")

    assert refused["isError"] is True
    assert "taskId" in refused["content"][0]["text"]


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_task_that_fails_at_once_is_cancelled_and_says_why(workshop: Workshop, era: str) -> None:
    server = lab(workshop, status="paused")
    workshop.flag("done").touch()
    async with stdio(command(workshop.config()), era) as client:
        await client.until_listed("lab__research")
        result = await client.call("lab__research")

    assert result["content"][0]["text"] == "server 'lab' answered that its task is 'paused'"
    assert len(server.ledger.messages("tasks/cancel")) == 1


async def test_a_call_says_so_if_the_process_ends_that_runs_its_task(workshop: Workshop) -> None:
    server = lab(workshop, poll_ms=600)
    async with inside(workshop.config()) as proxy, anyio.create_task_group() as group:
        results = []

        async def research() -> None:
            results.append(await Host(proxy, "handshake").call("lab__research"))

        group.start_soon(research)
        await server.ledger.until(lambda ledger: ledger.messages("tasks/get"))
        os.kill(pids(server, "tasks/get")[0], signal.SIGKILL)

    assert "may or may not have run" in results[0]["content"][0]["text"]
    assert len(server.ledger.messages("tasks/get")) == 1


@pytest.mark.parametrize("isolation", ["shared", "session"])
async def test_a_task_is_asked_for_in_a_new_session_if_its_server_has_forgotten_the_first(
    workshop: Workshop, isolation: str
) -> None:
    expired = workshop.flag("expired")
    server = lab(workshop, forgets=str(expired), settings={"isolation": isolation}, at_a_url=True)
    async with host_of(workshop.config(), "handshake") as host, anyio.create_task_group() as group:
        results = []

        async def research() -> None:
            results.append(await host.call("lab__research"))

        group.start_soon(research)
        await server.ledger.until(lambda ledger: ledger.messages("tasks/get"))
        expired.touch()
        told = len(server.ledger.messages("tasks/get"))
        await server.ledger.until(lambda ledger: len(ledger.messages("tasks/get")) > told + 3)
        workshop.flag("done").touch()

    assert results[0]["content"] == REPORT["content"]
    assert len(server.ledger.calls("research")) == 1
