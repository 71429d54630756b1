"""Access to the HTTP front: a table of hosts and origins, and the token."""

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from support.tables import each

from mcp_context_proxy.front.auth import Guard, Policy, policy
from mcp_context_proxy.protocol.strangers import is_loopback

LOCAL = policy("127.0.0.1", 8765, (), None)
Headers = list[tuple[str, str]]


async def served(request: Request) -> Response:
    return PlainTextResponse("in")


async def answer(rules: Policy, headers: Headers, path: str = "/mcp") -> httpx2.Response:
    app = Guard(Starlette(routes=[Route("/{path:path}", served)]), rules)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://unused") as client:
        request = client.build_request("GET", path)
        request.headers = httpx2.Headers(headers)
        return await client.send(request)


async def status(rules: Policy, headers: Headers, path: str = "/mcp") -> int:
    return (await answer(rules, headers, path)).status_code


@each(
    "host",
    ["127.0.0.1:8765", "localhost:8765", "LOCALHOST:8765", "[::1]:8765"],
)
async def test_loopback_host_names_with_the_servers_port_are_accepted(host: str) -> None:
    assert await status(LOCAL, [("host", host)]) == 200


@each(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "127.0.0.1.evil.example:8765",
        "localhost.evil.example:8765",
        "localhost:8766",
        "localhost",
        "127.0.0.1",
        "localhost.:8765",
        "localhost:8765.evil.example",
        "user@localhost:8765",
        "0.0.0.0:8765",
        "127.0.0.2:8765",
        "[::]:8765",
        "[::ffff:127.0.0.1]:8765",
        "127.1:8765",
        "2130706433:8765",
        "localhost:08765",
        "localhost:8765\tevil.example",
        "localhost:8765, evil.example",
        "localhost:8765/",
        "",
    ],
)
async def test_other_host_names_are_answered_with_misdirected_request(host: str) -> None:
    assert await status(LOCAL, [("host", host)]) == 421


@pytest.mark.parametrize("named", [{"origin": "http://evil.example:8765"}, {"sec-fetch-site": "same-origin"}])
async def test_where_every_host_is_served_a_name_that_leads_here_finds_nothing_without_the_token(
    named: dict[str, str],
) -> None:
    everywhere = policy("0.0.0.0", 8765, (), "correct-horse-battery")
    headers = [("host", "evil.example:8765"), *named.items()]

    assert [await status(everywhere, headers, path) for path in ("/healthz", "/mcp", "/api/v1/tools")] == [
        200,
        401,
        401,
    ]


async def test_the_refusal_of_a_host_says_which_one_came_unless_it_is_no_name() -> None:
    named = (await answer(LOCAL, [("host", "replicas:8765")])).text
    assert named == "This Host is not served here: replicas:8765; see http.allowed_hosts.\n"
    for host in ("<b>", "a" * 300, "", "localhost:8765, evil.example"):
        assert (await answer(LOCAL, [("host", host)])).text == (
            "This Host is not served here; see http.allowed_hosts.\n"
        )


async def test_two_host_headers_or_none_are_answered_with_misdirected_request() -> None:
    assert await status(LOCAL, [("host", "localhost:8765"), ("host", "evil.example")]) == 421
    assert await status(LOCAL, []) == 421


@each(
    "origin",
    ["http://localhost:8765", "http://127.0.0.1:8765", "http://[::1]:8765", "HTTP://LOCALHOST:8765"],
)
async def test_origins_of_the_server_itself_are_accepted(origin: str) -> None:
    assert await status(LOCAL, [("host", "localhost:8765"), ("origin", origin)]) == 200


async def test_the_servers_own_origin_behind_a_tls_proxy_is_accepted() -> None:
    rules = policy("0.0.0.0", 8765, ["proxy.example.com"], None)
    headers = [("host", "proxy.example.com"), ("origin", "https://proxy.example.com")]

    assert await status(rules, headers) == 200
    assert await status(rules, [headers[0], ("origin", "https://proxy.example.com:444")]) == 403


@each(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "http://evil.example:8765",
        "http://localhost.evil.example:8765",
        "http://127.0.0.1.evil.example:8765",
        "http://localhost:8766",
        "http://localhost",
        "https://localhost",
        "http://localhost:8765@evil.example",
        "http://user@localhost:8765",
        "file://localhost:8765",
        "chrome-extension://localhost:8765",
        "localhost:8765",
        "http://[::1",
        "http://localhost:99999999",
        "http://127.0.0.2:8765",
        "http://[::ffff:127.0.0.1]:8765",
        "http://localhost.:8765",
        "http://localhost:8765/",
        "http://localhost:8765?x",
        "http://localhost:8765,http://evil.example",
        "http://evil.example\\@localhost:8765",
    ],
)
async def test_other_origins_are_refused(origin: str) -> None:
    assert await status(LOCAL, [("host", "localhost:8765"), ("origin", origin)]) == 403


async def test_two_origin_headers_are_refused() -> None:
    same = ("origin", "http://localhost:8765")

    assert await status(LOCAL, [("host", "localhost:8765"), same, same]) == 403


@each("path", ["/mcp", "/sse", "/messages/", "/healthz", "/no-such-path"])
async def test_host_and_origin_are_checked_on_every_path(path: str) -> None:
    evil = [("host", "localhost:8765"), ("origin", "http://evil.example")]

    assert await status(LOCAL, [("host", "evil.example")], path) == 421
    assert await status(LOCAL, evil, path) == 403


@each(
    ("listening", "port", "host"),
    [
        ("127.0.0.2", 8765, "127.0.0.2:8765"),
        ("127.0.0.2", 8765, "localhost:8765"),
        ("127.0.0.1", 80, "localhost"),
        ("127.0.0.1", 80, "127.0.0.1:80"),
        ("::1", 80, "[::1]"),
    ],
)
async def test_the_address_on_which_the_proxy_listens_is_accepted_as_clients_write_it(
    listening: str, port: int, host: str
) -> None:
    rules = policy(listening, port, (), None)

    assert await status(rules, [("host", host), ("origin", f"http://{host.removesuffix(':80')}")]) == 200
    assert await status(rules, [("host", "127.0.0.3")]) == 421
    assert await status(rules, [("host", f"{host.removesuffix(f':{port}')}:81")]) == 421


async def test_configured_host_names_are_accepted_as_well() -> None:
    rules = policy("127.0.0.1", 8765, ("Proxy.example:8443",), None)

    assert await status(rules, [("host", "proxy.example:8443")]) == 200
    assert await status(rules, [("host", "localhost:8765")]) == 200
    assert await status(rules, [("host", "proxy.example")]) == 421


TOKEN = policy("127.0.0.1", 8765, (), "correct-horse")


@each("given", ["Bearer correct-horse", "bearer correct-horse", "Bearer  correct-horse "])
async def test_the_right_token_is_accepted(given: str) -> None:
    assert await status(TOKEN, [("host", "localhost:8765"), ("authorization", given)]) == 200


@each(
    "given",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        "Basic correct-horse",
        "correct-horse",
        "Bearer correct-horses",
    ],
)
async def test_any_other_credentials_are_refused(given: str) -> None:
    assert await status(TOKEN, [("host", "localhost:8765"), ("authorization", given)]) == 401


async def test_two_authorization_headers_are_refused() -> None:
    right, wrong = ("authorization", "Bearer correct-horse"), ("authorization", "Bearer wrong")

    for given in ([right, wrong], [wrong, right], [right, right]):
        assert await status(TOKEN, [("host", "localhost:8765"), *given]) == 401


async def test_a_body_with_a_length_and_in_chunks_is_refused_and_its_connection_closed() -> None:
    both = [("host", "localhost:8765"), ("content-length", "4"), ("transfer-encoding", "chunked")]

    assert await status(LOCAL, both) == 400


async def test_health_needs_no_token() -> None:
    assert await status(TOKEN, [("host", "localhost:8765")], "/healthz") == 200


@each("host", ["127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost"])
def test_loopback_addresses_are_recognised(host: str) -> None:
    assert is_loopback(host)


@each("host", ["0.0.0.0", "::", "192.168.0.1", "example.com", "", "localhost.example"])
def test_other_addresses_are_not_taken_for_loopback(host: str) -> None:
    assert not is_loopback(host)
