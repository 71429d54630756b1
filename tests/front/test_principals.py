"""Principals of the HTTP front: nothing that one of them opened is usable by another, even if it leaks.

Without a token the front believes the credentials that clients send, which is enough to keep them apart.
"""

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import anyio
import httpx2
import pytest
from support.ledger import until
from support.proxies import HttpProxy, http_proxy
from support.raw_client import ACCEPT, HANDSHAKE, MODERN, OWN, PATIENCE, PREFIX, WHO, message
from support.servers import Server, Workshop, tool
from support.shop import TOKEN, environment

from mcp_context_proxy.front.http_sessions import GUESSES

ALICE, MALLORY = ({"authorization": f"Bearer {name}"} for name in ("alice", "mallory"))


@pytest.fixture(scope="module")
def server_and_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, HttpProxy]]:
    workshop = Workshop(tmp_path_factory.mktemp("principals"))
    calls: dict[str, Any] = {"hang": [{"wait_cancelled": True}]}
    server = workshop.server("work", tools=[tool("echo"), tool("hang")], calls=calls)
    with http_proxy(workshop.config(), env=environment()) as running:
        yield server, running
    workshop.close()


@pytest.fixture
def server(server_and_proxy: tuple[Server, HttpProxy]) -> Server:
    return server_and_proxy[0]


@pytest.fixture
async def client(proxy: HttpProxy) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=proxy.base, timeout=20) as opened:
        yield opened


async def session_of(client: httpx2.AsyncClient, who: dict[str, str]) -> dict[str, str]:
    """The headers of a new session of somebody, without their credentials."""
    answer = await client.post("/mcp", json=message("initialize", **WHO), headers=ACCEPT | who)
    assert answer.status_code == 200, answer.text
    return ACCEPT | {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}


async def ping(client: httpx2.AsyncClient, session: dict[str, str], who: dict[str, str]) -> httpx2.Response:
    return await client.post("/mcp", json=message("ping"), headers=session | who)


@pytest.mark.parametrize("stranger", [MALLORY, {}], ids=["another", "nobody"])
async def test_a_session_does_not_exist_for_another_principal(
    client: httpx2.AsyncClient, stranger: dict[str, str]
) -> None:
    session = await session_of(client, ALICE)
    unknown = await ping(client, session | {"mcp-session-id": "0" * 32}, stranger)
    refused = [
        await ping(client, session, stranger),
        await client.post("/mcp", json=message("tools/list"), headers=session | stranger),
        await client.post("/mcp", json=message("notifications/cancelled", None), headers=session | stranger),
        await client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "result": {}}, headers=session | stranger),
        await client.get("/mcp", headers=session | stranger | {"accept": "text/event-stream"}),
        await client.delete("/mcp", headers=session | stranger),
    ]

    assert [answer.status_code for answer in refused] == [404] * len(refused)
    assert refused[0].json()["error"] == unknown.json()["error"]
    assert (await ping(client, session, ALICE)).status_code == 200


async def test_a_session_opened_by_nobody_is_not_for_somebody(client: httpx2.AsyncClient) -> None:
    session = await session_of(client, {})

    assert (await ping(client, session, ALICE)).status_code == 404
    assert (await ping(client, session, {})).status_code == 200


async def test_another_principal_can_neither_cancel_a_call_nor_take_its_id(
    client: httpx2.AsyncClient, server: Server
) -> None:
    session = await session_of(client, ALICE)
    call = message("tools/call", 7, name="work__hang", arguments={})
    async with anyio.create_task_group() as group:
        ended = []

        async def hang() -> None:
            await client.post("/mcp", json=call, headers=session | ALICE)
            ended.append(True)

        group.start_soon(hang)
        await until(lambda: server.ledger.calls("hang"))
        cancelled = message("notifications/cancelled", None, requestId=7)
        refused = await client.post("/mcp", json=cancelled, headers=session | MALLORY)
        taken = await client.post("/mcp", json=call, headers=session | MALLORY)
        again = await client.post("/mcp", json=call, headers=session | ALICE)
        still_under_way = not ended
        group.cancel_scope.cancel()

    assert (refused.status_code, taken.status_code) == (404, 404)
    assert "under way" in again.text
    assert still_under_way


@asynccontextmanager
async def event_stream(client: httpx2.AsyncClient, who: dict[str, str]) -> AsyncIterator[str]:
    """An open HTTP+SSE stream; the address to which its messages are posted."""
    async with client.stream("GET", "/sse", headers=who) as stream:
        async for line in stream.aiter_lines():
            if line.startswith("data: "):
                yield line.removeprefix("data: ")
                return


async def test_an_event_stream_takes_no_messages_of_another_principal(client: httpx2.AsyncClient) -> None:
    async with event_stream(client, ALICE) as address:
        statuses = [
            (await client.post(address, json=message("ping"), headers=who)).status_code
            for who in (MALLORY, {}, ALICE)
        ]
        unknown = await client.post("/messages/?session_id=no", json=message("ping"), headers=MALLORY)

    assert statuses == [404, 404, 202]
    assert unknown.status_code == 404


async def test_a_context_does_not_exist_for_another_principal(client: httpx2.AsyncClient) -> None:
    meta = {
        PREFIX + "protocolVersion": MODERN,
        PREFIX + "clientInfo": {"name": "raw", "version": "1"},
        PREFIX + "clientCapabilities": {},
        OWN + "format": "json",
    }

    async def called(name: str, who: dict[str, str], **arguments: str) -> dict[str, Any]:
        named = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": name}
        call = message("tools/call", name=name, arguments=arguments, _meta=meta)
        answer = (await client.post("/mcp", json=call, headers=ACCEPT | named | who)).text
        data = answer[answer.index("{") :] if answer.startswith("event") else answer
        return json.loads(data)

    made = await called("set_context", ALICE, query="say it again")
    context_id = made["result"]["structuredContent"]["context_id"]
    stolen = await called("set_context", MALLORY, query="mine now", context_id=context_id)
    own = await called("set_context", ALICE, query="still mine", context_id=context_id)

    assert "unknown or expired" in json.dumps(stolen)
    assert own["result"]["structuredContent"]["context_id"] == context_id


@pytest.mark.parametrize("thief", [MALLORY, {}], ids=["another token", "no token"])
async def test_what_one_principal_searched_is_read_by_no_other(
    client: httpx2.AsyncClient, thief: dict[str, str]
) -> None:
    meta = {
        PREFIX + "protocolVersion": MODERN,
        PREFIX + "clientInfo": {"name": "raw", "version": "1"},
        PREFIX + "clientCapabilities": {},
    }

    async def asked(method: str, who: dict[str, str], subject: str, **params: Any) -> str:
        named = {"mcp-protocol-version": MODERN, "mcp-method": method, "mcp-name": subject}
        answer = await client.post(
            "/mcp", json=message(method, **params, _meta=meta), headers=ACCEPT | named | who
        )
        return answer.text

    query = "a query of alice alone"
    search = "search_available_tools"
    await asked("tools/call", ALICE, search, name=search, arguments={"query": query})
    requests = "context://requests"
    own = await asked("resources/read", ALICE, requests, uri=requests)
    request, *_ = re.findall(r'\\"id\\":\\"(\w+)\\"', own)
    places = [requests, f"{requests}/{request}", "context://current"]
    read = [await asked("resources/read", thief, place, uri=place) for place in places]
    session = await session_of(client, thief)
    for place in places:
        body = message("resources/read", uri=place)
        read.append((await client.post("/mcp", json=body, headers=session | thief)).text)

    assert query in own
    assert query in await asked("resources/read", ALICE, places[1], uri=places[1])
    assert not [text for text in read if query in text]
    assert "unknown resource" in read[1]
    assert "unknown resource" in read[4]


async def test_the_same_token_is_the_same_principal_however_it_is_written(workshop: Workshop) -> None:
    spellings = [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"BEARER   {TOKEN}"]
    with http_proxy(workshop.config(), auth=True, env=environment()) as proxy:
        async with httpx2.AsyncClient(base_url=proxy.base, timeout=20) as client:
            session = await session_of(client, {"authorization": spellings[0]})
            answers = [await ping(client, session, {"authorization": each}) for each in spellings]

    assert [answer.status_code for answer in answers] == [200] * 3


async def test_many_sessions_and_guesses_of_one_principal_harm_no_other(workshop: Workshop) -> None:
    with http_proxy(workshop.config(limits={"sessions": 3}), env=environment()) as proxy:
        async with httpx2.AsyncClient(base_url=proxy.base, timeout=20) as client:
            first, unknown = await session_of(client, ALICE), ACCEPT | {"mcp-session-id": "0" * 32}
            for _ in range(5):
                theirs = await session_of(client, MALLORY)
            with anyio.fail_after(30):
                while (await ping(client, unknown, MALLORY)).status_code != 429:
                    continue
            asked = ((first, ALICE), (theirs, MALLORY), (unknown, ALICE))
            statuses = [(await ping(client, session, who)).status_code for session, who in asked]

    assert statuses == [200, 200, 404]


async def test_whoever_has_streams_open_in_all_of_their_sessions_ends_none_of_another(
    workshop: Workshop,
) -> None:
    with http_proxy(workshop.config(limits={"sessions": 3}), env=environment()) as proxy:
        async with httpx2.AsyncClient(base_url=proxy.base, timeout=20) as client, AsyncExitStack() as stack:
            first = await session_of(client, ALICE)
            for _ in range(2):
                theirs = await session_of(client, MALLORY) | MALLORY
                await stack.enter_async_context(client.stream("GET", "/mcp", headers=theirs))
            third = await client.post("/mcp", json=message("initialize", **WHO), headers=ACCEPT | MALLORY)
            after = await ping(client, first, ALICE)

    assert (third.status_code, after.status_code) == (503, 200)


async def test_many_sessions_and_guesses_of_a_person_harm_no_other_whatever_the_profile(
    workshop: Workshop,
) -> None:
    config = workshop.config(limits={"sessions": 3}, clients={name: {} for name in "abcd"})
    guessed = Counter[int]()
    with http_proxy(config, env=environment()) as proxy:
        async with httpx2.AsyncClient(base_url=proxy.base, timeout=PATIENCE) as client:
            first, unknown = await session_of(client, ALICE), ACCEPT | {"mcp-session-id": "0" * 32}

            async def status(place: str, body: dict[str, Any], headers: dict[str, str]) -> int:
                return (await client.post(place, json=body, headers=headers)).status_code

            async def guess(place: str) -> None:
                for _ in range(GUESSES):
                    guessed[await status(place, message("ping"), unknown | MALLORY)] += 1

            places = [f"/mcp/p/{name}" for name in "abcd"]
            opened = [await status(place, message("initialize", **WHO), ACCEPT | MALLORY) for place in places]
            async with anyio.create_task_group() as group:
                for place in places:
                    group.start_soon(guess, place)
            others = [
                (await ping(client, first, ALICE)).status_code,
                (await ping(client, unknown, ALICE)).status_code,
            ]

    assert opened == [200] * 4
    # Each profile alone would have let all of its guesses pass.
    assert guessed.keys() == {404, 429}
    assert guessed[404] >= GUESSES
    assert others == [200, 404]


async def test_initialize_keeps_no_long_introduction(client: httpx2.AsyncClient) -> None:
    params = WHO | {"clientInfo": {"name": "x" * 100_000, "version": "1"}}
    answer = await client.post("/mcp", json=message("initialize", **params), headers=ALICE | ACCEPT)

    assert "65,536 are allowed" in answer.json()["error"]["message"]
