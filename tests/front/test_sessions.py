"""Sessions over HTTP: room for the next one, nobody's calls, guesses, and requests that are none."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest
from support.ledger import Ledger, until
from support.proxies import HttpProxy, http_proxy
from support.raw_client import ACCEPT, HANDSHAKE, INITIALIZE, MODERN, PREFIX, message
from support.servers import Server, Workshop, tool
from support.wires import http, sse

from mcp_context_proxy.front.conversation import MOST_VALUES, PROTOCOL_BYTES
from mcp_context_proxy.front.http_sessions import GUESSES

STREAM = {"accept": "text/event-stream"}
PLACES = 3
NO_IDS = ["1.5", "null", "true"]
SECRET = "argument-51c0"
DEPTHS = (500, 800, 880, 900, 920, 940, 960, 980, 1_000, 5_000)
"""Levels about as many as the interpreter reads."""


@pytest.fixture(scope="module")
def server_and_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, HttpProxy]]:
    workshop = Workshop(tmp_path_factory.mktemp("sessions"))
    calls: dict[str, Any] = {"hang": [{"wait_cancelled": True}]}
    region = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}}
    tools = [*(tool(name) for name in ("echo", *calls)), tool("route", inputSchema=region)]
    server = workshop.server("work", tools=tools, calls=calls)
    with http_proxy(workshop.config(limits={"sessions": PLACES}), level="debug") as proxy:
        yield server, proxy
    workshop.close()


@pytest.fixture
def server(server_and_proxy: tuple[Server, HttpProxy]) -> Server:
    return server_and_proxy[0]


@pytest.fixture
async def client(server_and_proxy: tuple[Server, HttpProxy]) -> Any:
    async with httpx2.AsyncClient(base_url=server_and_proxy[1].base, timeout=20) as client:
        yield client


async def opened(client: httpx2.AsyncClient) -> dict[str, str]:
    """The headers of a new session."""
    with anyio.fail_after(20):
        # That the streams of an earlier test were left may not have come to the proxy yet.
        while (answer := await client.post("/mcp", json=INITIALIZE, headers=ACCEPT)).status_code == 503:
            continue
    assert answer.status_code == 200, answer.text
    return ACCEPT | {"mcp-session-id": answer.headers["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}


async def status(client: httpx2.AsyncClient, session: dict[str, str]) -> int:
    return (await client.post("/mcp", json=message("ping"), headers=session)).status_code


async def test_at_the_limit_the_session_that_was_idle_longest_is_closed(
    client: httpx2.AsyncClient,
) -> None:
    first, *others = [await opened(client) for _ in range(PLACES)]
    assert await status(client, first) == 200

    await opened(client)

    assert [await status(client, session) for session in (first, *others)] == [200, 404, 200]


async def test_a_session_with_an_open_stream_is_not_idle(client: httpx2.AsyncClient) -> None:
    sessions = [await opened(client) for _ in range(PLACES)]
    with anyio.fail_after(20):
        async with client.stream("GET", "/mcp", headers=sessions[0] | STREAM) as stream:
            assert stream.status_code == 200
            for _ in range(2 * PLACES):
                await opened(client)
            assert await status(client, sessions[0]) == 200


async def test_if_every_session_is_in_use_a_new_one_is_refused_with_the_reason(
    client: httpx2.AsyncClient,
) -> None:
    async with AsyncExitStack() as streams:
        for _ in range(PLACES):
            stream = client.stream("GET", "/mcp", headers=await opened(client) | STREAM)
            assert (await streams.enter_async_context(stream)).status_code == 200
        refused = await client.post("/mcp", json=INITIALIZE, headers=ACCEPT)

    assert refused.status_code == 503
    assert "in use" in refused.json()["error"]["message"]
    await opened(client)


async def test_slow_request_bodies_open_no_session_and_log_no_traceback(
    proxy: HttpProxy, client: httpx2.AsyncClient
) -> None:
    host, port = proxy.base.removeprefix("http://").split(":")
    kept = [await opened(client) for _ in range(PLACES)]
    head = "".join(f"{name}: {value}\r\n" for name, value in ACCEPT.items())
    with ExitStack() as stack:
        for _ in range(3 * PLACES):
            slow = stack.enter_context(socket.create_connection((host, int(port))))
            slow.sendall(
                f"POST /mcp HTTP/1.1\r\nhost: {host}:{port}\r\n{head}content-length: 9\r\n\r\n{{".encode()
            )
        assert [await status(client, session) for session in kept] == [200] * PLACES

    assert await status(client, kept[0]) == 200
    assert "Traceback" not in proxy.folder.joinpath("config.log").read_text(encoding="utf-8")


async def test_the_log_has_no_session_ids_and_no_contents(
    proxy: HttpProxy, client: httpx2.AsyncClient
) -> None:
    session = await opened(client)
    params = {"name": "work__echo", "arguments": {"text": SECRET}}
    await client.post("/mcp", json=message("tools/call", **params), headers=session)
    async with sse(proxy.base) as other:
        await other.call("work__echo", {"text": SECRET})
        address: Any = other.wire
    await client.delete("/mcp", headers=session)

    log = proxy.folder.joinpath("config.log").read_text(encoding="utf-8")
    assert "DEBUG" in log
    assert session["mcp-session-id"] not in log
    assert address.url.rpartition("=")[2] not in log
    assert not re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-", log)
    assert SECRET not in log


@pytest.mark.parametrize("opener", [http, sse], ids=["http", "sse"])
async def test_a_call_is_cancelled_at_its_server_if_the_client_disconnects(
    proxy: HttpProxy, server: Server, opener: Any
) -> None:
    calls, cancelled = len(server.ledger.calls("hang")), len(server.ledger.entries("cancelled"))

    def running(ledger: Ledger) -> bool:
        return len(ledger.calls("hang")) > calls

    async with opener(proxy.base) as client:
        await client.until_listed("work__hang")
        await client.start("tools/call", {"name": "work__hang", "arguments": {}})
        await server.ledger.until(running)
        if opener is http:
            # The connection of the call alone: its session lives on.
            next(iter(client.wire.scopes.values())).cancel()
            await server.ledger.until(lambda ledger: len(ledger.entries("cancelled")) > cancelled)
            assert "isError" not in await client.call("work__echo", {})

    await server.ledger.until(lambda ledger: len(ledger.entries("cancelled")) > cancelled)


@pytest.mark.parametrize("name", ["work__route", "route"])
async def test_a_header_that_contradicts_its_argument_is_refused_under_every_name_of_a_tool(
    client: httpx2.AsyncClient, name: str
) -> None:
    meta = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}
    call = message("tools/call", name=name, arguments={"region": "eu"}, _meta=meta)
    headers = ACCEPT | {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": name}
    agreeing, contradicting = [
        await client.post("/mcp", json=call, headers=headers | {"mcp-param-region": region})
        for region in ("eu", "us")
    ]

    assert "result" in agreeing.json()
    assert contradicting.json()["error"]["message"].endswith("contradicts the argument 'region'")


async def test_resuming_a_stream_gives_a_new_one(client: httpx2.AsyncClient) -> None:
    headers = await opened(client) | STREAM | {"last-event-id": "7"}

    async with client.stream("GET", "/mcp", headers=headers) as stream:
        assert stream.status_code == 200
        assert stream.headers["content-type"].startswith("text/event-stream")


async def test_ending_a_session_closes_its_streams_cleanly(
    proxy: HttpProxy, client: httpx2.AsyncClient
) -> None:
    session = await opened(client)
    async with client.stream("GET", "/mcp", headers=session | STREAM) as stream:
        assert (await client.delete("/mcp", headers=session)).status_code == 200
        with anyio.fail_after(20):
            assert await stream.aread() == b""

    assert "without completing" not in proxy.folder.joinpath("config.log").read_text(encoding="utf-8")


async def test_the_id_of_an_abandoned_call_can_be_reused_at_once(
    client: httpx2.AsyncClient, server: Server
) -> None:
    session = await opened(client)
    for count in range(5):
        before = len(server.ledger.calls("hang"))
        hang = message("tools/call", 7, name="work__hang", arguments={})
        async with client.stream("POST", "/mcp", json=hang, headers=session):
            await until(lambda before=before: len(server.ledger.calls("hang")) > before)
        echo = message("tools/call", 7, name="work__echo", arguments={"text": f"again-{count}"})
        answer = await client.post("/mcp", json=echo, headers=session)

        assert f"again-{count}" in answer.text


async def test_messages_during_the_end_of_a_session_log_no_traceback(
    proxy: HttpProxy, client: httpx2.AsyncClient
) -> None:
    note = {"jsonrpc": "2.0", "method": "notifications/roots/list_changed"}
    for _ in range(20):
        session = await opened(client)
        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(partial(client.post, "/mcp", json=note, headers=session))
            group.start_soon(partial(client.delete, "/mcp", headers=session))

    assert "Exception in ASGI" not in proxy.folder.joinpath("config.log").read_text(encoding="utf-8")


def asking(proxy: HttpProxy, session: dict[str, str]) -> tuple[socket.socket, bytes]:
    """A connection, and the request over it for the session's own stream."""
    host, port = proxy.base.removeprefix("http://").split(":")
    fields = {"host": f"{host}:{port}"} | session | STREAM
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    connected = socket.create_connection((host, int(port)), timeout=20)
    return connected, f"GET /mcp HTTP/1.1\r\n{head}\r\n".encode()


async def test_an_abandoned_stream_can_be_reopened_at_once(
    proxy: HttpProxy, client: httpx2.AsyncClient
) -> None:
    session = await opened(client)
    following, request = asking(proxy, session)
    left, _ = asking(proxy, session)
    with following:
        with left:
            left.sendall(request)
            assert left.recv(12) == b"HTTP/1.1 200"
            # The proxy need not learn of what happens on two connections in the order in which it did.
            following.sendall(request)

        assert following.recv(12) == b"HTTP/1.1 200"


async def test_a_second_stream_of_one_session_is_refused(
    proxy: HttpProxy, client: httpx2.AsyncClient
) -> None:
    for _ in range(2):
        session = await opened(client)
        one, request = asking(proxy, session)
        other, _ = asking(proxy, session)
        with one, other:
            one.sendall(request)
            other.sendall(request)

            assert {one.recv(12), other.recv(12)} == {b"HTTP/1.1 200", b"HTTP/1.1 409"}


@pytest.mark.parametrize("request_id", NO_IDS)
@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_request_with_a_null_id_is_refused_and_not_taken_for_a_notification(
    client: httpx2.AsyncClient, server: Server, era: str, request_id: str
) -> None:
    meta = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}
    params = {"name": "work__echo", "arguments": {"text": request_id}}
    headers = ACCEPT | {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "work__echo"}
    if era == "modern":
        params["_meta"] = meta
    else:
        headers = await opened(client)
    text = json.dumps(message("tools/call", **params)).replace('"id": 1', f'"id": {request_id}')

    answer = await client.post("/mcp", content=text, headers=headers)

    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == -32600
    assert {"text": request_id} not in [call["arguments"] for call in server.ledger.calls("echo")]


async def test_a_request_with_a_null_id_is_refused_over_sse_as_well(
    proxy: HttpProxy, client: httpx2.AsyncClient
) -> None:
    async with sse(proxy.base) as opened:
        wire: Any = opened.wire
        text = json.dumps(message("ping")).replace('"id": 1', '"id": 1.5')
        answer = await client.post(wire.url, content=text, headers=ACCEPT)

    assert answer.status_code == 400


async def test_a_compressed_body_is_refused_and_not_decompressed(client: httpx2.AsyncClient) -> None:
    headers = ACCEPT | {"content-encoding": "gzip"}

    answer = await client.post("/mcp", content=b"\x1f\x8b" + b"\0" * 100, headers=headers)

    assert answer.status_code == 415


@pytest.mark.parametrize("method", ["server/discover", "ping", "subscriptions/listen", "no/such"])
@pytest.mark.parametrize("kind", ["bytes", "values"])
async def test_a_request_of_the_protocol_has_the_bounds_that_it_has_over_stdio(
    client: httpx2.AsyncClient, method: str, kind: str
) -> None:
    meta = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}
    filling = "x" * (PROTOCOL_BYTES + 1) if kind == "bytes" else [0] * (MOST_VALUES + 1)
    headers = ACCEPT | {"mcp-protocol-version": MODERN, "mcp-method": method}
    body = message(method, filling=filling, _meta=meta)
    answer = await client.post("/mcp", json=body, headers=headers)

    assert answer.status_code == 400
    assert "which no message of its kind needs" in answer.json()["error"]["message"]


async def test_an_argument_that_is_compared_with_its_header_reaches_the_server_once(
    client: httpx2.AsyncClient, server: Server
) -> None:
    """A server may take the first of two, and what stands in between has gone by the header."""
    meta = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}
    body = json.dumps(message("tools/call", name="work__route", arguments={"region": "eu"}, _meta=meta))
    headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "work__route"}
    twice = body.replace('"region": "eu"', '"region": "us", "region": "eu"')
    answer = await client.post("/mcp", content=twice, headers=ACCEPT | headers | {"mcp-param-region": "eu"})
    received = server.ledger.lines("tools/call")[-1]

    assert "isError" not in answer.json()["result"]
    assert received.count('"region"') == 1
    assert json.loads(received)["params"]["arguments"] == {"region": "eu"}


@pytest.mark.parametrize("value", ["1e999", "9" * 5_000, *("[" * depth + "]" * depth for depth in DEPTHS)])
async def test_json_that_cannot_be_read_is_answered_and_leaves_no_traceback(
    proxy: HttpProxy, client: httpx2.AsyncClient, value: str
) -> None:
    while "work__route" not in (await client.get("/api/v1/tools")).text:
        pass
    session = await opened(client)
    meta = f'"{PREFIX}protocolVersion":"{MODERN}","{PREFIX}clientCapabilities":{{}}'
    named = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-param-region": "eu"}
    call = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"work__%s","arguments":%s,'
    call += '"_meta":{%s}}}'
    sent = [
        (call % ("echo", "{}", f'{meta},"progressToken":{value}'), named | {"mcp-name": "work__echo"}),
        (call % ("route", f'{{"region":{value}}}', meta), named | {"mcp-name": "work__route"}),
        (call % ("echo", "{}", f'"progressToken":{value}'), session),
    ]
    answers = [await client.post("/mcp", content=body, headers=ACCEPT | headers) for body, headers in sent]
    cancelled = '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%s}}'
    taken = await client.post("/mcp", content=cancelled % value, headers=session)

    for answer in answers:
        assert answer.status_code in (200, 400)
        assert answer.json()["id"] == 1
        assert answer.json()["error"]["code"] in (-32700, -32600, -32602, -32020)
    assert taken.status_code in (202, 400)
    assert await status(client, session) == 200
    assert "Traceback" not in proxy.folder.joinpath("config.log").read_text(encoding="utf-8")


@pytest.mark.parametrize("value", ["1e999", "9" * 400, "[" * 130 + "]" * 130])
async def test_a_session_whose_terms_some_servers_cannot_read_is_refused(
    client: httpx2.AsyncClient, value: str
) -> None:
    """They go with each request to a server of the modern era, which may end over them, for everybody."""
    params = '{"protocolVersion":"2025-06-18","capabilities":%s,"clientInfo":%s}'
    plain, odd = '{"name":"x","version":"1"}', f'{{"name":"x","version":"1","x":{value}}}'
    for terms in ((odd, plain), ("{}", odd)):
        hello = f'{{"jsonrpc":"2.0","id":1,"method":"initialize","params":{params % terms}}}'
        answer = await client.post("/mcp", content=hello, headers=ACCEPT)

        assert answer.json()["error"]["code"] == -32602


@pytest.mark.parametrize("same", [7, "7"])
async def test_a_request_with_the_id_of_a_pending_one_is_refused(
    client: httpx2.AsyncClient, server: Server, same: int | str
) -> None:
    session = await opened(client)
    before = len(server.ledger.calls("hang"))
    async with anyio.create_task_group() as group:
        hang = message("tools/call", 7, name="work__hang", arguments={})
        group.start_soon(partial(client.post, "/mcp", json=hang, headers=session))
        await until(lambda: len(server.ledger.calls("hang")) > before)

        second = await client.post("/mcp", json={**message("ping"), "id": same}, headers=session)
        other = await client.post("/mcp", json=message("ping", 7), headers=await opened(client))
        group.cancel_scope.cancel()

    assert (second.status_code, second.json()["id"]) == (400, same)
    assert other.status_code == 200


async def test_a_lone_surrogate_in_arguments_is_handled_as_over_stdio(
    client: httpx2.AsyncClient, server: Server
) -> None:
    meta = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}
    params = {"name": "work__echo", "arguments": {"text": "half \ud83d"}, "_meta": meta}
    headers = ACCEPT | {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "work__echo"}

    answer = await client.post("/mcp", content=json.dumps(message("tools/call", **params)), headers=headers)

    assert "isError" not in answer.json()["result"]
    assert {"text": "half \ufffd"} in [call["arguments"] for call in server.ledger.calls("echo")]


async def test_guessing_session_ids_is_rate_limited_without_affecting_real_sessions(
    workshop: Workshop,
) -> None:
    with http_proxy(workshop.config()) as proxy:
        async with httpx2.AsyncClient(base_url=proxy.base, timeout=20) as client:
            session = await opened(client)
            guess = session | {"mcp-session-id": "0" * 32}
            guesses = [await status(client, guess) for _ in range(GUESSES)]
            with anyio.fail_after(20):
                while (refused := await client.delete("/mcp", headers=guess)).status_code == 404:
                    continue

            assert set(guesses) == {404}
            assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
            assert await status(client, session) == 200
