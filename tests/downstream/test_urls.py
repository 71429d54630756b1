"""Servers at a URL: streamable HTTP in both eras, and HTTP+SSE, keep every promise that stdio keeps."""

import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest
from support.ledger import until
from support.proxies import Host, HttpProxy, host_of, http_proxy, inside, real_command
from support.raw_client import OWN
from support.servers import Server, Workshop, tool
from support.services import QuietHandler, serving
from support.tables import each
from support.wires import stdio

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.config.tables import Limits
from mcp_context_proxy.downstream.http_client import without_message
from mcp_context_proxy.downstream.lifecycle import ServerState

DOWNSTREAM = ["modern", "handshake"]
WHOLE = {"max_tokens": 0}


def spec(era: str) -> dict[str, Any]:
    return {
        "era": era,
        "tools": [tool(name) for name in ("echo", "large", "drop")],
        "calls": {"large": [{"large": 3_000_000}], "drop": [{"silent": True}]},
    }


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path_factory.mktemp("urls"))
    for era in DOWNSTREAM:
        settings = {"headers": {"Authorization": "Bearer downstream"}, "call_timeout": 2.0}
        workshop.http_server(era, settings=settings, **spec(era))
    yield workshop
    workshop.close()


@pytest.fixture(scope="module")
async def proxy(servers: Workshop) -> AsyncIterator[Proxy]:
    async with inside(servers.config(results=WHOLE), patience=None) as opened:
        clients = opened.fleet.clients.values()
        await until(lambda: all(client.state is ServerState.READY for client in clients))
        yield opened


@pytest.fixture(params=DOWNSTREAM)
def server(request: pytest.FixtureRequest, servers: Workshop) -> Server:
    return servers.servers[request.param]


async def test_the_era_of_a_server_at_a_url_is_found(proxy: Proxy, server: Server) -> None:
    assert proxy.fleet.clients[server.name].era == server.name


async def test_a_result_of_megabytes_arrives(host: Host, server: Server) -> None:
    result = await host.call(f"{server.name}__large")

    assert len(result["content"][0]["text"]) == 3_000_000


async def test_configured_headers_are_sent_and_none_of_the_client(host: Host, server: Server) -> None:
    await host.call(f"{server.name}__echo", **{OWN + "query": "secret"})

    headers = server.ledger.entries("headers")[-1]["headers"]
    assert headers["authorization"] == "Bearer downstream"
    assert not [line for line in server.ledger.lines("tools/call") if OWN in line]


async def test_modern_requests_name_their_method_and_target_in_headers(
    proxy: Proxy, servers: Workshop
) -> None:
    await Host(proxy, "modern").call("modern__echo")

    headers = [entry["headers"] for entry in servers.servers["modern"].ledger.entries("headers")]
    called = [each for each in headers if each.get("mcp-method") == "tools/call"][-1]
    assert called["mcp-name"] == "echo"
    assert called["mcp-protocol-version"] == "2026-07-28"


async def test_a_stream_that_ends_without_a_response_fails_its_call_alone(proxy: Proxy) -> None:
    host = Host(proxy, "modern")

    dropped = await host.call("modern__drop")
    after = await host.call("modern__echo")

    assert dropped["isError"] is True
    assert "may or may not have run" in dropped["content"][0]["text"]
    assert "isError" not in after


async def test_many_concurrent_calls_each_get_their_own_response(proxy: Proxy, server: Server) -> None:
    host = Host(proxy, "modern")
    got: dict[int, Any] = {}

    async def call(number: int) -> None:
        result = await host.call(f"{server.name}__echo", {"n": number})
        assert "isError" not in result, result
        got[number] = json.loads(result["content"][0]["text"])["arguments"]["n"]

    async with anyio.create_task_group() as group:
        for number in range(60):
            group.start_soon(call, number)

    assert got == {number: number for number in range(60)}


@pytest.mark.parametrize("kind", ["modern", "handshake", "sse"])
async def test_an_answer_over_the_limit_fails_its_own_call_alone(workshop: Workshop, kind: str) -> None:
    flag = workshop.flag("go")
    made, era = (workshop.sse_server, "handshake") if kind == "sse" else (workshop.http_server, kind)
    calls = {"large": [{"large": 300_000}], "slow": [{"progress": 1}, {"wait": str(flag)}]}
    server = made("big", tools=[tool("large"), tool("slow")], calls=calls, era=era)
    config = workshop.config(limits={"sse_event_bytes": 100_000})
    async with host_of(config, "modern") as host, anyio.create_task_group() as group:
        slow: list[Any] = []

        async def call() -> None:
            slow.append(await host.call("big__slow"))

        group.start_soon(call)
        await server.ledger.until(lambda ledger: ledger.calls("slow"))
        large = await host.call("big__large")
        flag.touch()

    assert "over the limit of 100,000 for a message" in large["content"][0]["text"]
    assert "isError" not in slow[0]


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("kind", ["modern", "sse"])
async def test_the_system_notices_a_stream_whose_other_end_is_gone(workshop: Workshop, kind: str) -> None:
    """After a laptop has slept, its address has changed or a router has forgotten it, nobody says so."""
    make, era = (workshop.sse_server, "handshake") if kind == "sse" else (workshop.http_server, kind)
    server = make("far", tools=[tool("go")], era=era)
    port = f":{urlsplit(server.settings['url']).port:04X}"

    def timers() -> set[str]:
        lines = Path("/proc/self/net/tcp").read_text(encoding="ascii").splitlines()[1:]
        return {line.split()[5].partition(":")[0] for line in lines if line.split()[2].endswith(port)}

    async with inside(workshop.config()):
        keepalive = "02"
        await until(lambda: keepalive in timers())


async def test_an_unreachable_server_is_reported_with_its_address(workshop: Workshop) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    workshop.server("gone")
    workshop.servers["gone"].settings = {"url": f"http://me:pw@127.0.0.1:{port}/mcp?key=123"}
    workshop.server("good", tools=[tool("fine")])
    async with inside(workshop.config()) as proxy:
        # Models read it: no user, password or parameter, not even one that is too short to be looked for.
        where = f"http://***@127.0.0.1:{port}/mcp?***"
        assert proxy.fleet.clients["gone"].cause == f"{where}: nothing answers there"
        assert "good__fine" in await Host(proxy, "modern").names()


async def test_the_reason_why_there_is_no_connection_has_no_code_of_the_system(workshop: Workshop) -> None:
    served = workshop.http_server("plain", tools=[tool("fine")])
    workshop.server("tls").settings = {"url": served.settings["url"].replace("http:", "https:")}
    workshop.server("nowhere").settings = {"url": "http://no-such-host.invalid/mcp"}
    workshop.server("stream").settings = {"url": "http://no-such-host.invalid/sse"}
    async with inside(workshop.config()) as proxy:
        causes = {name: proxy.fleet.clients[name].cause for name in ("tls", "nowhere", "stream")}

    assert "speaks no TLS; the URL may have to begin with http://" in causes["tls"]
    assert causes["nowhere"].startswith("http://no-such-host.invalid/mcp: ")
    assert causes["stream"].startswith("http://no-such-host.invalid/sse: ")
    assert not any("Errno" in cause or "_ssl" in cause for cause in causes.values())


@pytest.fixture(scope="module")
def inner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HttpProxy]:
    """A proxy that is a server of another."""
    workshop = Workshop(tmp_path_factory.mktemp("inner"))
    calls = {"report": [{"progress": 2}], "large": [{"large": 3_000_000}]}
    workshop.server("work", tools=[tool(name) for name in ("echo", *calls)], calls=calls)
    with http_proxy(workshop.config(expose={"mode": "all"}, results=WHOLE)) as served:
        yield served


@pytest.mark.parametrize("transport", ["http", "sse"])
async def test_a_proxy_behind_a_proxy_works_over_any_transport(
    workshop: Workshop, inner: HttpProxy, transport: str, era: str
) -> None:
    path = "mcp" if transport == "http" else "sse"
    workshop.server("inner")
    workshop.servers["inner"].settings = {"url": f"{inner.base}/{path}", "transport": transport, "era": era}
    async with inside(workshop.config(expose={"mode": "all"}, results=WHOLE)) as proxy:
        host = Host(proxy, "handshake")
        await until(lambda: "inner__work__echo" in proxy.catalog.snapshot.tools)
        result = await host.call("inner__work__echo", {"n": 2**70, "t": "\u2028"})
        await host.call("inner__work__report", progressToken=3)
        large = await host.call("inner__work__large")
        spoken = proxy.fleet.clients["inner"].era

    assert json.loads(result["content"][0]["text"])["arguments"] == {"n": 2**70, "t": "\u2028"}
    assert [params["progressToken"] for _, params in host.notifications] == [3, 3]
    assert len(large["content"][0]["text"]) == 3_000_000
    assert spoken == era


def test_an_sse_endpoint_on_another_host_is_refused() -> None:
    from mcp_context_proxy.downstream.http_session import _same_origin

    assert _same_origin("http://a:1/sse", "/messages/?id=1") == "http://a:1/messages/?id=1"
    for elsewhere in ("http://b:1/messages", "//b/messages", "https://a:1/messages", "http://a:2/messages"):
        with pytest.raises(ValueError, match="another origin"):
            _same_origin("http://a:1/sse", elsewhere)


SPOKEN: dict[str, dict[str, Any]] = {era: {"era": era} for era in ("modern", "handshake", "auto")}
SPOKEN["sse"] = {"transport": "sse"}


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_to_another_origin_is_not_followed(workshop: Workshop, status: int) -> None:
    with socket.socket() as canary, ExitStack() as stack:
        canary.bind(("127.0.0.1", 0))
        canary.listen()
        canary.setblocking(False)
        there = f"http://127.0.0.1:{canary.getsockname()[1]}/mcp"
        asked: dict[str, list[str]] = {}
        for name, settings in SPOKEN.items():
            url, asked[name] = stack.enter_context(redirecting(status, there))
            workshop.server(name).settings = {"url": url, "headers": {"Authorization": "ours"}, **settings}
        async with host_of(workshop.config(limits={"connect_seconds": 5.0}), "modern") as host:
            told = {name: await host.call(f"{name}__echo") for name in SPOKEN}
        with pytest.raises(BlockingIOError):
            canary.accept()

    for name, result in told.items():
        assert asked[name], name
        assert result["isError"] is True
        assert f"'{name}'" in result["content"][0]["text"]
        assert there in result["content"][0]["text"]


@each(
    ("status", "said"),
    [
        (503, "try again in 30 s"),
        (429, "try again in 30 s"),
        (500, "has a fault"),
        (403, "credentials"),
        (401, "which may have expired"),
        (418, "418"),
    ],
)
def test_a_status_without_a_message_is_reported_with_advice(status: int, said: str) -> None:
    error = without_message("work", httpx2.Response(status, headers={"retry-after": "30"}))

    assert "'work'" in str(error)
    assert f"HTTP status {status}" in str(error)
    assert said in str(error)
    assert error.http_status == status
    assert "in a while" in str(without_message("work", httpx2.Response(503)))


@pytest.mark.parametrize(("wanted", "waited"), [("30", 30), ("86400", Limits().breaker_seconds)])
async def test_a_server_that_says_when_to_come_back_is_left_alone_until_then(
    workshop: Workshop, wanted: str, waited: float
) -> None:
    with ExitStack() as stack:
        for name, settings in SPOKEN.items():
            url, _ = stack.enter_context(redirecting(429, wanted, "retry-after"))
            workshop.server(name).settings = {"url": url, **settings}
        async with inside(workshop.config()) as proxy:
            with anyio.fail_after(30):
                for client in proxy.fleet.clients.values():
                    await until(lambda: client.retry_at)  # noqa: B023 - it is awaited at once
            left = {
                name: round(client.retry_at - time.time(), -1) for name, client in proxy.fleet.clients.items()
            }

    assert left == dict.fromkeys(SPOKEN, waited)


@pytest.mark.parametrize("status", [307, 308])
@pytest.mark.parametrize("spoken", ["modern", "handshake"])
async def test_a_redirect_to_another_path_of_the_same_server_is_followed(
    workshop: Workshop, spoken: str, status: int
) -> None:
    """Many serve at a path with a slash at its end, and send whoever leaves it out there."""
    server = workshop.http_server("work", era=spoken, tools=[tool("echo")], settings={"era": spoken})
    with slashed(status, server.settings["url"]) as url:
        server.settings["url"] = url
        server.settings["headers"] = {"Authorization": "ours"}
        async with inside(workshop.config()) as proxy:
            result = await Host(proxy, "modern").call("work__echo", {"text": "there"})

    assert "there" in result["content"][0]["text"]
    sent = [each["headers"] for each in server.ledger.entries("headers")]
    assert {each["authorization"] for each in sent} == {"ours"}


@pytest.mark.parametrize("isolation", ["shared", "session"])
async def test_calls_with_an_expired_session_each_run_once_in_a_new_one(
    workshop: Workshop, isolation: str
) -> None:
    """The calls were refused unread, so they may be sent again without telling the caller."""
    expired = workshop.flag("expired")
    server = workshop.http_server(
        "work", tools=[tool("echo")], forgets=str(expired), settings={"isolation": isolation}
    )
    async with host_of(workshop.config(), "handshake") as host:
        await host.call("work__echo", {"n": -1})
        opened = len(server.ledger.lines("initialize"))
        expired.touch()
        results: list[Any] = []
        async with anyio.create_task_group() as group:

            async def call(number: int) -> None:
                results.append(await host.call("work__echo", {"n": number}))

            for number in range(10):
                group.start_soon(call, number)

    assert [result for result in results if "isError" in result] == []
    assert sorted(call["arguments"]["n"] for call in server.ledger.calls("echo")) == [*range(-1, 10)]
    assert len(server.ledger.lines("initialize")) == opened + 1


@contextmanager
def slashed(status: int, behind: str) -> Iterator[str]:
    """The server at a URL, at the path ``/mcp/``; whoever asks for ``/mcp`` is sent there."""

    class Slashed(QuietHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", "0")))
            if self.path != "/mcp/":
                self.send_response(status)
                self.send_header("location", "/mcp/")
                self.send_header("content-length", "0")
                self.end_headers()
                return
            headers = {name: value for name, value in self.headers.items() if name.lower() != "host"}
            answer = httpx2.post(behind, content=body, headers=headers)
            self.send_response(answer.status_code)
            for name in {"content-type", "mcp-session-id"} & set(answer.headers):
                self.send_header(name, answer.headers[name])
            self.send_header("content-length", str(len(answer.content)))
            self.end_headers()
            self.wfile.write(answer.content)

        def do_GET(self) -> None:
            self.send_error(405)

        do_DELETE = do_GET

    with serving(Slashed) as root:
        yield f"{root}/mcp"


@contextmanager
def redirecting(status: int, location: str, header: str = "location") -> Iterator[tuple[str, list[str]]]:
    """A server that sends everybody elsewhere, or away for a time: its URL, and who came."""
    asked: list[str] = []

    class Elsewhere(QuietHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("content-length", "0")))
            self.send_response(status)
            self.send_header(header, location)
            self.send_header("content-length", "0")
            self.end_headers()

        do_POST = do_DELETE = do_GET

    with serving(Elsewhere) as root:
        yield f"{root}/mcp", asked


@pytest.mark.parametrize("kind", ["stdio", "http"])
async def test_a_modern_server_that_first_refuses_its_own_revision_is_asked_again(
    workshop: Workshop, kind: str
) -> None:
    refusal = {
        "code": -32022,
        "message": "Unsupported protocol version",
        "data": {"supported": ["2026-07-28"]},
    }
    on = {"server/discover": [{"once": [str(workshop.flag("refused")), [{"error": refusal}]]}]}
    make = workshop.http_server if kind == "http" else workshop.server
    server = make("picky", era="both", tools=[tool("echo")], on=on)
    async with inside(workshop.config()) as proxy:
        assert (await Host(proxy, "modern").call("picky__echo"))["content"]

    assert server.ledger.messages("initialize") == []


class Baker(QuietHandler):
    """A server that sets cookies with every response, and answers with the size of those that it gets."""

    protocol_version = "HTTP/1.1"
    set = 0

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        schema = {"type": "object"}
        result = {
            "initialize": {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "baker", "version": "1"},
            },
            "tools/list": {"tools": [{"name": "bake", "inputSchema": schema}]},
            "tools/call": {"content": [{"type": "text", "text": self.headers.get("cookie", "")}]},
        }.get(message["method"])
        answer = {"result": result} if result else {"error": {"code": -32601, "message": "unknown"}}
        body = json.dumps({"jsonrpc": "2.0", "id": message.get("id"), **answer}).encode()
        self.send_response(200 if "id" in message else 202)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body) if "id" in message else 0))
        self.send_header("set-cookie", "affinity=one")
        for size in (100, 100, 50_000):
            type(self).set += 1
            self.send_header("set-cookie", f"c{self.set}={'v' * size}")
        self.end_headers()
        if "id" in message:
            self.wfile.write(body)

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("content-length", "0")
        self.end_headers()


async def test_the_cookies_of_a_server_are_sent_back_and_bounded(workshop: Workshop) -> None:
    with serving(Baker) as root:
        workshop.server("baker").settings = {"url": f"{root}/mcp", "era": "handshake"}
        async with host_of(workshop.config(), "handshake") as host:
            sent = [(await host.call("baker__bake"))["content"][0]["text"] for _ in range(60)]

    assert all("affinity=one" in cookies for cookies in sent)
    assert max(map(len, sent)) < 33 * 200


@pytest.mark.skipif(sys.platform != "linux", reason="the system does not tell what a process has loaded")
async def test_servers_at_urls_are_served_without_loading_the_sdk(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MCP_CONTEXT_PROXY_DEBUGGABLE", "1")
    for era in DOWNSTREAM:
        workshop.http_server(era, era=era, tools=[tool("echo")])
    workshop.sse_server("sse", tools=[tool("echo")])
    async with stdio(real_command(workshop.config())) as client:
        await client.until_listed("modern__echo", "handshake__echo", "sse__echo")
        for server in (*DOWNSTREAM, "sse"):
            await client.call(f"{server}__echo")
        assert client.process is not None
        loaded = await anyio.Path(f"/proc/{client.process.pid}/maps").read_text("utf-8")

    assert "pydantic_core" not in loaded
