"""The HTTP front as a process: its inputs, its bounds, the end of sessions and of the process."""

import contextlib
import json
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.ledger import until
from support.proxies import HttpProxy, http_proxy
from support.raw_client import HANDSHAKE, INITIALIZE, MODERN, PREFIX
from support.servers import Server, Workshop, tool
from support.wires import http

ACCEPT = {"accept": "application/json, text/event-stream"}


@pytest.fixture(scope="module")
def server_and_proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, HttpProxy]]:
    workshop = Workshop(tmp_path_factory.mktemp("http"))
    calls: dict[str, Any] = {
        "hang": [{"wait_cancelled": True}],
        "slow": [{"wait": str(workshop.flag("go"))}],
        "report": [{"progress": 2}],
    }
    server = workshop.server("work", tools=[tool(name) for name in ("echo", *calls)], calls=calls)
    with http_proxy(workshop.config()) as proxy:
        yield server, proxy
    workshop.close()


@pytest.fixture
def server(server_and_proxy: tuple[Server, HttpProxy]) -> Server:
    return server_and_proxy[0]


async def ask(proxy: HttpProxy, method: str, path: str, **options: Any) -> httpx2.Response:
    async with httpx2.AsyncClient(timeout=20) as client:
        return await client.request(method, proxy.base + path, **options)


async def test_healthz_answers_ok(proxy: HttpProxy) -> None:
    response = await ask(proxy, "GET", "/healthz")

    assert (response.status_code, response.json()["status"]) == (200, "ok")


@pytest.mark.parametrize("path", ["/mcp", "/sse", "/messages/", "/healthz", "/"])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_requests_of_a_foreign_web_page_are_refused(proxy: HttpProxy, method: str, path: str) -> None:
    rebound = await ask(proxy, method, path, headers={"host": "evil.example"})
    foreign = await ask(proxy, method, path, headers={"origin": "http://evil.example"})

    assert (rebound.status_code, foreign.status_code) == (421, 403)
    assert "access-control-allow-origin" not in foreign.headers


@pytest.mark.parametrize("version", ["0.9", "2.0", "9.9"])
async def test_an_unsupported_http_version_is_refused(proxy: HttpProxy, version: str) -> None:
    host, port = proxy.base.removeprefix("http://").split(":")
    async with await anyio.connect_tcp(host, int(port)) as stream:
        await stream.send(f"GET /healthz HTTP/{version}\r\nhost: {host}:{port}\r\n\r\n".encode())

        assert (await stream.receive()).startswith(b"HTTP/1.1 505 ")


async def test_a_body_over_the_limit_is_refused(proxy: HttpProxy) -> None:
    response = await ask(proxy, "POST", "/mcp", headers=ACCEPT, json={"x": "x" * (5 << 20)})

    assert response.status_code == 413


async def test_an_invalid_message_is_refused_and_the_front_goes_on(proxy: HttpProxy) -> None:
    for body in (b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"jsonrpc":"2.0"}', b"[" * 100_000):
        headers = ACCEPT | {"content-type": "application/json"}
        response = await ask(proxy, "POST", "/mcp", headers=headers, content=body)
        assert 400 <= response.status_code < 500, body[:20]

    assert (await ask(proxy, "GET", "/healthz")).status_code == 200


@pytest.mark.parametrize("path", ["/mcp", "/messages/"])
@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":5}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"result":5}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":"x","message":"y"}}', -32600),
    ],
)
async def test_errors_about_invalid_messages_do_not_quote_libraries(
    proxy: HttpProxy, path: str, body: bytes, code: int
) -> None:
    opened = await ask(proxy, "POST", "/mcp", headers=ACCEPT, json=INITIALIZE)
    session = ACCEPT | {"mcp-session-id": opened.headers["mcp-session-id"]}

    response = await ask(
        proxy, "POST", path, headers=session | {"content-type": "application/json"}, content=body
    )

    assert (response.status_code, response.json()["error"]["code"]) == (400, code)
    assert [word for word in ("JSONRPC", "pydantic", "validation error") if word in response.text] == []


async def test_each_message_of_a_batch_is_answered_where_the_version_has_batches(proxy: HttpProxy) -> None:
    params = INITIALIZE["params"] | {"protocolVersion": "2025-03-26"}
    opened = await ask(proxy, "POST", "/mcp", headers=ACCEPT, json=INITIALIZE | {"params": params})
    session = ACCEPT | {"mcp-session-id": opened.headers["mcp-session-id"]}
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    call = {"name": "work__report", "_meta": {"progressToken": "p"}}
    asked = [
        {"jsonrpc": "2.0", "id": 1, "method": "ping"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
        {"jsonrpc": "2.0", "id": 3, "method": "no/such"},
    ]

    only_told = await ask(proxy, "POST", "/mcp", headers=session, json=[told, told])
    answered = await ask(proxy, "POST", "/mcp", headers=session, json=[told, *asked])

    assert (only_told.status_code, only_told.content) == (202, b"")
    assert answered.headers["mcp-session-id"] == session["mcp-session-id"]
    lines = [line.removeprefix("data: ") for line in answered.text.splitlines() if line.startswith("data: ")]
    messages = [json.loads(line) for line in lines]
    assert [message["method"] for message in messages if "method" in message] == [
        "notifications/progress"
    ] * 2
    answers = {message["id"]: message for message in messages if "method" not in message}
    assert answers[1]["result"] == {}
    assert "isError" not in answers[2]["result"]
    assert answers[3]["error"]["code"] == -32601


@pytest.mark.parametrize("version", [None, HANDSHAKE, "2025-03-26"])
async def test_a_modern_request_without_the_version_header_is_refused_with_the_reason(
    proxy: HttpProxy, version: str | None
) -> None:
    meta = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": "mine", "method": "tools/list", "params": {"_meta": meta}}
    headers = ACCEPT | ({} if version is None else {"mcp-protocol-version": version})

    response = await ask(proxy, "POST", "/mcp", headers=headers, json=message)

    assert response.status_code == 400
    assert response.json()["id"] == "mine"
    assert response.json()["error"]["code"] == -32020
    assert MODERN in response.json()["error"]["message"]


async def test_all_endpoints_have_the_same_limit_for_bodies(workshop: Workshop) -> None:
    message = {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"x": "x" * 2000}}
    with http_proxy(workshop.config(limits={"http_body_bytes": 1000})) as small:
        for path in ("/mcp", "/messages/?session_id=" + "0" * 32):
            assert (await ask(small, "POST", path, headers=ACCEPT, json=message)).status_code == 413


async def test_an_ended_session_is_not_found(proxy: HttpProxy) -> None:
    opened = await ask(proxy, "POST", "/mcp", headers=ACCEPT, json=INITIALIZE)
    session = ACCEPT | {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}

    ended = await ask(proxy, "DELETE", "/mcp", headers=session)
    after = await ask(
        proxy, "POST", "/mcp", headers=session, json={"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    )

    assert ended.status_code == 200
    assert after.status_code == 404


async def test_a_session_that_is_ended_during_calls_ends_all_of_them(
    proxy: HttpProxy, server: Server
) -> None:
    async with httpx2.AsyncClient(timeout=20, base_url=proxy.base) as client:
        opened = await client.post("/mcp", json=INITIALIZE, headers=ACCEPT)
        session = ACCEPT | {"mcp-session-id": opened.headers["mcp-session-id"]}
        before, answered = len(server.ledger.calls("hang")), list[str]()

        async def call(number: int) -> None:
            params = {"name": "work__hang", "arguments": {}}
            message = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}
            answered.append((await client.post("/mcp", json=message, headers=session)).text)

        async with anyio.create_task_group() as group:
            for number in range(5):
                group.start_soon(call, number)
            await server.ledger.until(lambda ledger: len(ledger.calls("hang")) == before + 5)
            ended = await client.delete("/mcp", headers=session)

    assert ended.status_code == 200
    assert ["the session was ended" in each for each in answered] == [True] * 5


async def test_two_clients_with_the_same_ids_never_get_each_others_answers(
    proxy: HttpProxy, era: str
) -> None:
    async with http(proxy.base, era) as one, http(proxy.base, era) as two:
        await one.until_listed("work__echo")
        for number in range(100, 140):
            params = [{"name": "work__echo", "arguments": {"of": who, "n": number}} for who in ("one", "two")]
            first = (await one.start("tools/call", params[0], request_id=number))[1]
            second = (await two.start("tools/call", params[1], request_id=number))[1]
            for future, who in ((second, "two"), (first, "one")):
                text = (await future)["content"][0]["text"]
                assert json.loads(text)["arguments"] == {"of": who, "n": number}


async def test_two_clients_with_the_same_progress_token_get_progress_of_their_own_calls(
    proxy: HttpProxy, era: str
) -> None:
    async with http(proxy.base, era) as one, http(proxy.base, era) as two:
        await one.until_listed("work__report")
        async with anyio.create_task_group() as group:
            for client, calls in ((one, 20), (two, 10)):
                for _ in range(calls):
                    group.start_soon(partial(client.call, "work__report", progressToken="same"))
        told = [client.notified("notifications/progress") for client in (one, two)]

    # The last is always told; one before it may be left out.
    ends = [sum(note["progress"] == 2 for note in notes) for notes in told]
    assert ends == [20, 10]
    assert {note["progressToken"] for notes in told for note in notes} == {"same"}


async def test_endless_headers_are_refused_and_the_front_goes_on(proxy: HttpProxy) -> None:
    try:
        refused = (await ask(proxy, "GET", "/healthz", headers={"x-much": "x" * 4_000_000})).status_code
    except httpx2.TransportError:
        # It had not taken all of them when it closed the connection.
        refused = 400

    assert refused in {400, 431}
    assert (await ask(proxy, "GET", "/healthz")).status_code == 200
    assert "Traceback" not in proxy.folder.joinpath("config.log").read_text(encoding="utf-8")


async def test_cancelling_a_request_does_not_affect_the_same_id_in_another_session(
    proxy: HttpProxy, server: Server
) -> None:
    go = proxy.folder / "go"
    async with http(proxy.base) as one, http(proxy.base) as two:
        await one.until_listed("work__slow")
        await one.start("tools/call", {"name": "work__hang", "arguments": {}}, request_id=77)
        _, kept = await two.start("tools/call", {"name": "work__slow", "arguments": {}}, request_id=77)
        await server.ledger.until(lambda ledger: ledger.calls("hang") and ledger.calls("slow"))
        await one.cancel(77)
        await server.ledger.until(lambda ledger: ledger.entries("cancelled"))
        go.touch()

        assert "isError" not in await kept


async def test_a_modern_call_is_cancelled_if_its_client_disconnects(proxy: HttpProxy, server: Server) -> None:
    before = len(server.ledger.entries("cancelled"))
    async with http(proxy.base, "modern") as client:
        await client.until_listed("work__hang")
        calls = len(server.ledger.calls("hang"))
        await client.start("tools/call", {"name": "work__hang", "arguments": {}})
        await server.ledger.until(lambda ledger: len(ledger.calls("hang")) > calls)

    await server.ledger.until(lambda ledger: len(ledger.entries("cancelled")) > before)


async def test_a_mismatched_name_header_is_refused(proxy: HttpProxy) -> None:
    async with http(proxy.base, "modern") as client:
        wire: Any = client.wire
        message = {
            "jsonrpc": "2.0",
            "id": 5,
            "method": "tools/call",
            "params": client._with_meta({"name": "work__echo", "arguments": {}}, {}),
        }
        headers = wire.headers(message) | {"mcp-name": "work__hang"}
        response = await ask(proxy, "POST", "/mcp", headers=headers, json=message)

    assert response.status_code == 400
    assert response.json()["error"]["code"] == -32020


async def test_sigterm_ends_the_proxy_with_0_and_all_its_servers(workshop: Workshop) -> None:
    server = workshop.server("work", tools=[tool("echo")], at_start=[{"spawn": True}])
    with http_proxy(workshop.config(limits={"stop_seconds": 0.3})) as proxy:
        async with http(proxy.base, "modern") as client:
            await client.until_listed("work__echo")
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.process.wait(20) == 0

    pids = [entry["pid"] for entry in server.ledger.entries("start")]
    pids += [entry["child"] for entry in server.ledger.entries("spawned")]
    await until(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() and cmdline(pid) for pid in pids))


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_sigterm_ends_the_proxy_although_streams_are_open(workshop: Workshop) -> None:
    workshop.server("work", tools=[tool("hang")], calls={"hang": [{"silent": True}]})
    with http_proxy(workshop.config()) as proxy:
        url = proxy.base
        async with httpx2.AsyncClient(timeout=20) as pool, pool.stream("GET", f"{url}/sse") as stream:
            assert stream.status_code == 200
            proxy.process.send_signal(signal.SIGTERM)
            with anyio.fail_after(20):
                await until(lambda: proxy.process.poll() is not None)

    assert proxy.process.returncode == 0


async def test_ending_a_session_during_a_request_logs_no_traceback(proxy: HttpProxy) -> None:
    ping = {"jsonrpc": "2.0", "method": "ping"}
    async with httpx2.AsyncClient(timeout=20, base_url=proxy.base) as client:

        async def post(session: dict[str, str], number: int) -> None:
            with contextlib.suppress(httpx2.RemoteProtocolError):
                await client.post("/mcp", json=ping | {"id": number}, headers=session)

        for _ in range(10):
            opened = await client.post("/mcp", json=INITIALIZE, headers=ACCEPT)
            session = ACCEPT | {"mcp-session-id": opened.headers["mcp-session-id"]}
            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(post, session, number)
                group.start_soon(partial(client.delete, "/mcp", headers=session))

    assert "Traceback" not in proxy.folder.joinpath("config.log").read_text(encoding="utf-8")
