"""The port that a login returns to: requests of strangers neither end a login nor appear anywhere."""

import socket
import struct

import anyio
import httpx2
import pytest
from support.authorization import Protected
from support.tables import each

from mcp_context_proxy.errors import AuthorizationError
from mcp_context_proxy.oauth import login
from mcp_context_proxy.oauth.login import Loopback

from .conftest import server_config, visit

NOT_FOUND = b"HTTP/1.1 404 Not Found"
ADDRESS = "https://issuer.example/authorize?state=not-this&response_type=code&state=right"


def port_of(waiting: Loopback) -> int:
    return int(waiting.redirect_uri.split(":")[2].split("/")[0])


async def raw(waiting: Loopback, request: str) -> bytes:
    """Send a request as it is; return the status line of the response."""
    async with await anyio.connect_tcp("127.0.0.1", port_of(waiting)) as stream:
        await stream.send(request.encode())
        return (await stream.receive()).partition(b"\r\n")[0]


async def test_the_loopback_server_answers_nothing_but_the_callback() -> None:
    async with login.listening("any", 0) as waiting:
        waiting.expect(ADDRESS)
        base = waiting.redirect_uri.removesuffix("/callback")

        assert (await visit(base + "/")).status_code == 404
        async with httpx2.AsyncClient() as client:
            assert (await client.post(base + "/callback?code=x&state=right")).status_code == 404
        page = await visit(base + "/callback?code=<b>&state=right")
        assert page.status_code == 200
        assert "<b>" not in page.text
        assert (await waiting.answer()).code == "<b>"


@each("host", ["evil.example", "evil.example:{}", "localhost:{}", "127.0.0.1", "127.0.0.1:1", ""])
async def test_a_foreign_host_gets_404(host: str) -> None:
    async with login.listening("any", 0) as waiting:
        waiting.expect(ADDRESS)
        named = host.format(port_of(waiting))
        target = "/callback?error=refused&state=right"

        assert await raw(waiting, f"GET {target} HTTP/1.1\r\nHost: {named}\r\n\r\n") == NOT_FOUND
        assert await raw(waiting, f"GET {target} HTTP/1.1\r\n\r\n") == NOT_FOUND
        good = f"Host: 127.0.0.1:{port_of(waiting)}\r\n"
        both = await raw(waiting, f"GET {target} HTTP/1.1\r\n{good}Host: evil.example\r\n\r\n")
        assert both == NOT_FOUND
        assert not waiting._came.is_set()


@pytest.mark.parametrize(
    "query",
    [
        "error=%1b]0;taken%07&state=wrong",
        "error=access_denied",
        "code=stolen",
        "code=stolen&state=",
        "code=stolen&state=not-this",
        "code=stolen&state=right&state=right",
        "code=stolen&code=other&state=right",
        "code=stolen&state=%C3%BC",
        "",
    ],
)
async def test_a_result_without_the_state_of_the_login_is_ignored_and_its_text_appears_nowhere(
    protected: Protected, query: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An authorization server's result counts afterwards: nobody can end the login of another."""
    config = server_config(protected)
    async with login.listening(config.name, 0) as waiting:

        async def show(address: str) -> None:
            answer = await visit(f"{waiting.redirect_uri}?{query}")
            assert answer.status_code == 400
            await visit(address)

        credentials = await login.log_in(config, waiting, show)

    assert credentials.access_token in protected.issuer.access
    assert "taken" not in caplog.text
    assert "stolen" not in caplog.text


async def test_before_the_login_has_begun_nothing_is_taken() -> None:
    async with login.listening("any", 0) as waiting:
        assert (await visit(waiting.redirect_uri + "?code=x&state=")).status_code == 400
        assert (await visit(waiting.redirect_uri + "?code=x")).status_code == 400


async def test_an_authorization_server_that_returns_another_state_logs_nobody_in(
    protected: Protected,
) -> None:
    protected.issuer.wrong_state = True
    config = server_config(protected)
    async with login.listening(config.name, 0) as waiting:
        statuses = []

        async def show(address: str) -> None:
            statuses.append((await visit(address)).status_code)
            scope.cancel()

        with anyio.CancelScope() as scope:
            await login.log_in(config, waiting, show)

    assert statuses == [400]
    assert protected.issuer.granted == []


async def test_the_reason_of_a_refusal_is_shown_clean_short_and_on_one_line() -> None:
    said = "%1b[2J%E2%80%AEdenied%0ALogged in to bank " + "x" * 5000
    async with login.listening("any", 0) as waiting:
        waiting.expect(ADDRESS)
        await visit(f"{waiting.redirect_uri}?error={said}&state=right")
        with pytest.raises(AuthorizationError) as refused:
            await waiting.answer()

    shown = str(refused.value)
    assert "(denied Logged in to bank" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\n" not in shown
    assert len(shown) < 500


@each("request_line", ["GET //[ HTTP/1.1", "GET", "", "\x00", "GET /callback?%00=%ff HTTP/1.1"])
async def test_a_malformed_request_does_not_end_the_login(request_line: str) -> None:
    async with login.listening("any", 0) as waiting:
        waiting.expect(ADDRESS)
        host = f"Host: 127.0.0.1:{port_of(waiting)}"
        assert b" 40" in await raw(waiting, f"{request_line}\r\n{host}\r\n\r\n")
        assert (await visit(waiting.redirect_uri + "?code=x&state=right")).status_code == 200


async def test_a_connection_that_is_reset_does_not_end_the_login() -> None:
    async with login.listening("any", 0) as waiting:
        waiting.expect(ADDRESS)
        for sent in (b"", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection(("127.0.0.1", port_of(waiting))) as stream:
                stream.sendall(sent)
                stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        assert (await visit(waiting.redirect_uri + "?code=x&state=right")).status_code == 200
