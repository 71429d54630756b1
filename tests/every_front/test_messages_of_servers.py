"""Requests and notifications that servers send: questions, progress, log messages, updated resources."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from every_front.cases import CAPABLE, LOGGED, MESSAGE, QUESTIONS, SERVERS, UPDATED
from support.fronts import EVERY_FRONT_AND_REPLICAS, opening
from support.questions import as_shown
from support.raw_client import MODERN, PREFIX, RawClient
from support.servers import Server

pytestmark = pytest.mark.each_value(cross=2)


@pytest.fixture(**EVERY_FRONT_AND_REPLICAS)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[RawClient]:
    """A client that can answer all requests of servers."""
    answers = {method: lambda params, given=given: given for method, _, given in QUESTIONS.values()}
    async with opening(request, capabilities=CAPABLE, answers=answers) as opened:
        await opened.until_listed(*(f"{name}__echo" for name in SERVERS))
        yield opened


async def finish(
    client: RawClient, name: str, result: dict[str, Any], arguments: Any = None
) -> dict[str, Any]:
    """The result of a call that asks by its results, answered as the client answers requests."""
    while result.get("resultType") == "input_required":
        client.asked.extend(result["inputRequests"].values())
        given = {
            key: client.answers[asked["method"]](asked) for key, asked in result["inputRequests"].items()
        }
        params = {"name": name, "arguments": arguments or {}, "inputResponses": given}
        if "requestState" in result:
            params["requestState"] = result["requestState"]
        result = await client.request("tools/call", params)
    return result


async def test_a_modern_server_is_told_the_clients_capabilities_with_their_extensions(
    client: RawClient, server: Server
) -> None:
    result = await client.call(f"{server.name}__echo")

    meta = json.loads(result["content"][0]["text"]).get("_meta", {})
    told = {key.removeprefix(PREFIX): value for key, value in meta.items() if key.startswith(PREFIX)}
    if SERVERS[server.name][0] == "handshake":
        assert told == {}
    else:
        assert told["protocolVersion"] == MODERN
        assert told["clientCapabilities"] == CAPABLE
        assert told["clientInfo"]["name"] == "raw"


@pytest.mark.parametrize("name", list(QUESTIONS))
async def test_a_servers_request_reaches_the_client_and_the_answer_reaches_the_server(
    client: RawClient, server: Server, name: str
) -> None:
    method, params, given = QUESTIONS[name]
    client.asked.clear()

    result = await finish(client, f"{server.name}__{name}", await client.call(f"{server.name}__{name}"))

    shown = as_shown(server.name, method, params)
    assert [(asked["method"], asked.get("params", {})) for asked in client.asked] == [(method, shown)]
    said = json.loads(result["content"][0]["text"])
    assert (said["answers"]["q"] if "answers" in said else said) == given


@pytest.mark.parametrize("through", [False, True], ids=["direct", "call_tool"])
async def test_a_person_is_asked_once_before_a_confirmed_call_and_then_for_what_the_server_needs(
    client: RawClient, server: Server, through: bool
) -> None:
    client.asked.clear()
    name, before = f"{server.name}__confirmed", len(server.ledger.calls("confirmed"))
    called, arguments = ("call_tool", {"name": name}) if through else (name, {})

    result = await finish(client, called, await client.call(called, arguments), arguments)

    messages = [asked["params"]["message"] for asked in client.asked]
    assert messages == [
        f"May tool 'confirmed' of server '{server.name}' be called?\nIt gets no arguments.",
        f"[server '{server.name}' asks] Which one?",
    ]
    assert "this" in result["content"][0]["text"]
    # A modern server gets its call again with the answer.
    times = 1 if SERVERS[server.name][0] == "handshake" else 2
    assert len(server.ledger.calls("confirmed")) == before + times


@pytest.mark.parametrize("token", [7, "seven", "7"], ids=["number", "text", "digits"])
async def test_progress_comes_in_order_before_the_result_and_with_the_clients_own_token(
    client: RawClient, server: Server, token: int | str
) -> None:
    client.notifications.clear()

    await client.call(f"{server.name}__report", progressToken=token)

    told = client.notified("notifications/progress")
    assert [(note["progressToken"], note["progress"]) for note in told] == [(token, n) for n in (1, 2, 3)]
    assert told[0]["total"] == 3
    assert told[0]["message"] == "step 1"


async def test_the_clients_progress_token_never_reaches_a_server(client: RawClient, server: Server) -> None:
    await client.call(f"{server.name}__report", {"text": "leak"}, progressToken="my-own-token")

    assert not [line for line in server.ledger.lines() if "my-own-token" in line]


async def test_without_a_progress_token_no_progress_is_asked_for_or_sent(
    client: RawClient, server: Server
) -> None:
    client.notifications.clear()

    await client.call(f"{server.name}__report")

    assert client.notified("notifications/progress") == []
    assert "progressToken" not in server.ledger.calls("report")[-1].get("_meta", {})


async def test_a_log_message_of_a_call_reaches_the_client_that_wants_it(
    client: RawClient, server: Server
) -> None:
    client.notifications.clear()

    await client.call(f"{server.name}__log", **({PREFIX + "logLevel": "info"} if client.modern else {}))

    await client.until(lambda client: client.notified(MESSAGE))
    assert client.notified(MESSAGE) == [{**LOGGED, "logger": f"{server.name}/x"}]


async def test_a_log_message_below_the_clients_level_is_left_out(client: RawClient, server: Server) -> None:
    if not client.modern:
        await client.request("logging/setLevel", {"level": "error"})
    client.notifications.clear()

    await client.call(f"{server.name}__log", **({PREFIX + "logLevel": "error"} if client.modern else {}))
    await client.call(f"{server.name}__log")
    await client.call(f"{server.name}__echo")

    if not client.modern:
        await client.request("logging/setLevel", {"level": "debug"})
    assert client.notified(MESSAGE) == []


async def test_a_subscribed_client_is_told_of_an_updated_resource(client: RawClient, server: Server) -> None:
    uri = f"note://{server.name}/1"
    client.notifications.clear()
    async with subscribed(client, server, uri):
        await client.call(f"{server.name}__touch")
        await client.until(lambda client: client.notified(UPDATED))

    assert {note["uri"] for note in client.notified(UPDATED)} == {uri}
    tags = {note.get("_meta", {}).get(PREFIX + "subscriptionId") for note in client.notified(UPDATED)}
    assert tags == ({"listening"} if client.modern else {None})


class subscribed:  # noqa: N801 - used as a function
    """Keep the client subscribed to a resource."""

    def __init__(self, client: RawClient, server: Server, uri: str) -> None:
        self.client, self.server, self.uri = client, server, uri

    async def __aenter__(self) -> None:
        client = self.client
        if client.modern:
            wanted = {"notifications": {"resourceSubscriptions": [self.uri]}}
            await client.start("subscriptions/listen", wanted, request_id="listening")
            await client.until(lambda client: client.notified("notifications/subscriptions/acknowledged"))
        else:
            await client.request("resources/subscribe", {"uri": self.uri})

    async def __aexit__(self, *raised: Any) -> None:
        if self.client.modern:
            await self.client.abandon("listening")
        else:
            await self.client.request("resources/unsubscribe", {"uri": self.uri})
