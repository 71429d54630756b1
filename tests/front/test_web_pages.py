"""Requests that web pages make a browser send: header sets as browsers send them, and a real browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from support.browser import browser, program
from support.proxies import http_proxy
from support.servers import Workshop, tool
from support.services import QuietHandler, serving
from support.tables import each

from mcp_context_proxy.front.auth import Guard, policy

OPEN = policy("127.0.0.1", 8765, (), None)
LOCKED = policy("127.0.0.1", 8765, (), "correct-horse-battery")

CHROME = (
    "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/130.0.0.0 Safari/537.36"
)
SAFARI_15 = (
    "Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) "
    "Version/15.6 Safari/605.1.15"
)

ROUTES = ("/mcp", "/sse", "/api/v1/tools/search", "/api/v1/openapi.json", "/metrics", "/healthz", "/none")
PAGES = ("/ui", "/ui/usage", "/ui/page.js")


async def status(headers: dict[str, str], path: str, method: str = "GET", rules: Any = OPEN) -> int:
    async def served(request: Request) -> Response:
        return PlainTextResponse("in")

    methods = ["GET", "HEAD", "POST"]
    guard = Guard(Starlette(routes=[Route("/{path:path}", served, methods=methods)]), rules, PAGES)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=guard)) as client:
        request = client.build_request(method, f"http://localhost:8765{path}")
        request.headers = httpx2.Headers({"host": "localhost:8765", **headers})
        return (await client.send(request)).status_code


def chrome(site: str, mode: str, dest: str, **more: str) -> dict[str, str]:
    return {
        "user-agent": CHROME,
        "sec-fetch-site": site,
        "sec-fetch-mode": mode,
        "sec-fetch-dest": dest,
        **{name.replace("_", "-"): value for name, value in more.items()},
    }


@each("site", ["cross-site", "same-site", "", "Same-Origin", "none, same-origin"])
@each(
    ("mode", "dest"),
    [
        pytest.param("no-cors", "image", id="image"),
        pytest.param("no-cors", "script", id="script"),
        pytest.param("no-cors", "style", id="link"),
        pytest.param("no-cors", "empty", id="fetch"),
        pytest.param("no-cors", "audio", id="media"),
        pytest.param("no-cors", "embed", id="embed"),
        pytest.param("cors", "empty", id="fetch-cors"),
        pytest.param("cors", "script", id="module"),
        pytest.param("same-origin", "worker", id="worker"),
        pytest.param("navigate", "iframe", id="iframe"),
        pytest.param("navigate", "object", id="object"),
        pytest.param("websocket", "empty", id="websocket"),
    ],
)
async def test_nothing_is_loaded_into_a_page_of_another_origin(site: str, mode: str, dest: str) -> None:
    asked = list(product([*ROUTES, *PAGES], ["GET", "HEAD"]))
    given = [await status(chrome(site, mode, dest), *one) for one in asked]

    assert [one for one, code in zip(asked, given, strict=True) if code != 403] == []


@each("site", ["cross-site", "same-site"])
@each("rules", [OPEN, LOCKED])
async def test_a_link_of_another_page_leads_to_the_pages_and_nowhere_else(site: str, rules: Any) -> None:
    link = chrome(site, "navigate", "document", sec_fetch_user="?1", referer="https://news.example/")

    assert [await status(link, path, rules=rules) for path in PAGES] == [200] * len(PAGES)
    assert [await status(link, path, rules=rules) for path in ROUTES] == [403] * len(ROUTES)
    # A form that is sent with POST says so in its Origin as well.
    assert [await status(link, path, "POST") for path in (*PAGES, *ROUTES)] == [403] * 10


async def test_two_values_of_a_header_are_no_navigation() -> None:
    async def served(request: Request) -> Response:
        return PlainTextResponse("in")

    guard = Guard(Starlette(routes=[Route("/ui", served)]), OPEN, PAGES)
    two = [("host", "localhost:8765"), ("sec-fetch-site", "same-origin"), ("sec-fetch-site", "cross-site")]
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=guard)) as client:
        request = client.build_request("GET", "http://localhost:8765/ui")
        request.headers = httpx2.Headers(two)
        assert (await client.send(request)).status_code == 403


@each(
    ("headers", "path"),
    [
        pytest.param(chrome("none", "navigate", "document"), "/healthz", id="typed"),
        pytest.param(chrome("none", "navigate", "document"), "/ui", id="bookmark"),
        pytest.param(chrome("same-origin", "cors", "script"), "/ui/page.js", id="script"),
        pytest.param(chrome("same-origin", "cors", "empty"), "/api/v1/tools/search", id="own-fetch"),
        pytest.param(chrome("none", "no-cors", "empty"), "/mcp", id="electron"),
        pytest.param({"user-agent": SAFARI_15}, "/ui", id="old-page"),
        pytest.param({"user-agent": SAFARI_15}, "/ui/page.js", id="old-script"),
        pytest.param(
            {"user-agent": SAFARI_15, "x-requested-with": "fetch"}, "/api/v1/tools/search", id="old-fetch"
        ),
        pytest.param({"user-agent": SAFARI_15}, "/healthz", id="monitor"),
        pytest.param({"user-agent": "node", "sec-fetch-mode": "cors"}, "/mcp", id="node"),
        pytest.param({"user-agent": "python-httpx/0.28"}, "/sse", id="python"),
        pytest.param({"user-agent": CHROME, "mcp-session-id": "1" * 32}, "/mcp", id="own-header"),
        pytest.param({}, "/sse", id="nothing"),
    ],
)
async def test_people_own_pages_and_programs_are_served(headers: dict[str, str], path: str) -> None:
    assert await status(headers, path) == 200


@each("path", ["/mcp", "/sse", "/api/v1/tools/search", "/metrics"])
@each(
    "headers",
    [
        pytest.param({"referer": "https://evil.example/page"}, id="referrer"),
        pytest.param({"referer": "http://localhost:3000/"}, id="another-port"),
        pytest.param({"referer": "http://[", "x-requested-with": "x"}, id="no-url"),
        pytest.param({}, id="no-referrer"),
        pytest.param({"origin": "null"}, id="sandboxed"),
    ],
)
async def test_an_old_browser_reads_nothing_for_a_page_of_another_origin(
    path: str, headers: dict[str, str]
) -> None:
    assert await status({"user-agent": SAFARI_15, **headers}, path) == 403


async def test_a_websocket_is_closed_before_anything_is_served() -> None:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def never(*_: Any) -> None:
        raise AssertionError("reached")

    await Guard(never, OPEN)({"type": "websocket", "path": "/mcp", "headers": []}, never, send)  # type: ignore[arg-type]

    assert [message["type"] for message in sent] == ["websocket.close"]


EVIL_PAGE = b"""<!doctype html><meta charset=utf-8><title>evil</title><body><script>
const at = new URLSearchParams(location.search).get("at");
const search = "/api/v1/tools/search?query=evil";
const paths = [search, "/metrics", "/healthz", "/ui", "/ui/page.js", "/mcp", "/sse"];
const element = (name, attribute, path) => new Promise((done) => {
  const made = document.createElement(name);
  made.onload = made.onerror = done;
  setTimeout(done, 1500);
  made[attribute] = at + path;
  document.body.append(made);
});
(async () => {
  const all = [];
  for (const path of paths) {
    const options = {mode: "no-cors", credentials: "include", referrerPolicy: "no-referrer"};
    all.push(fetch(at + path, options).catch(() => null));
    all.push(fetch(at + path, {...options, method: "HEAD"}).catch(() => null));
    all.push(element("img", "src", path), element("script", "src", path), element("iframe", "src", path));
    new EventSource(at + path).onerror = (event) => event.target.close();
    try { new WebSocket(at.replace("http", "ws") + path); } catch (error) {}
  }
  await Promise.all(all);
  document.title = "done";
})();
</script>"""


@contextmanager
def evil_site() -> Iterator[str]:
    """A web server with a page that tries to reach another port of this machine."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(EVIL_PAGE)

    with serving(Handler) as root:
        yield root.removeprefix("http://")


@pytest.mark.skipif(program() is None, reason="needs Chromium (Debian: apt-get install chromium)")
def test_a_real_page_of_another_origin_leaves_no_trace_in_a_proxy_without_a_token(
    workshop: Workshop, tmp_path: Path
) -> None:
    workshop.server("work", tools=[tool("echo", "Say it again")])
    config = workshop.config(store={"path": str(tmp_path / "store.sqlite3")})
    with http_proxy(config) as proxy, evil_site() as evil, browser(tmp_path) as page:
        # The same site but for the port, and another site.
        for host in (evil, evil.replace("127.0.0.1", "localhost")):
            page.open(f"http://{host}/?at={proxy.base}")
            page.until("document.title === 'done'")
        requests = httpx2.get(f"{proxy.base}/api/v1/requests").text
        page.open(f"{proxy.base}/ui")
        page.until("!document.getElementById('main').hidden")

    assert "evil" not in requests
