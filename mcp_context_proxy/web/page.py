"""Web pages for a person who looks after the proxy, and the routes of API and pages for every front.

The pages are the same for everyone and served without a token. Their script asks the API for data, with the
token from the fragment of the address, which no browser sends to a server. A cookie would not do: browsers
send it to every port of a host, and so to any other program that serves pages on this machine.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from http import HTTPStatus
from pathlib import Path
from string import Template
from typing import Final

from msgspec import Struct
from msgspec.structs import replace
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from mcp_context_proxy.config import HttpConfig, Limits
from mcp_context_proxy.errors import ConfigError
from mcp_context_proxy.front import auth, http
from mcp_context_proxy.front.auth import credentials_for
from mcp_context_proxy.front.http import ROOT_PATH
from mcp_context_proxy.protocol.strangers import clean_json
from mcp_context_proxy.web.api import HEADERS, Operation, Shown, document, on_http_error, refused, route

logger = logging.getLogger(__name__)

PATH: Final = "/ui"
BASE: Final = "/api/v1"
LOOPBACK: Final = "127.0.0.1"

FILES: Final = {
    **dict.fromkeys(
        (
            *("api.js", "view.js", "servers.js", "tools.js", "page.js", "usage.js", "usage_view.js"),
            *("audit.js", "approvals.js", "connect.js", "sessions.js"),
        ),
        "text/javascript",
    ),
    **dict.fromkeys(("style.css", "usage.css", "manage.css"), "text/css"),
}
"""Media types of the files that the pages load."""

PAGE_HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-cache",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""Headers of pages and files. Nothing is loaded from elsewhere, nothing inline runs, and no text can become
markup: descriptions of tools are written by strangers."""

_FOLDER: Final = Path(__file__).parent / "files"

CURRENT: Final = ' aria-current="page"'
"""Attribute of the link to the current page."""


class Page(Struct, frozen=True):
    """One page; all share a frame."""

    path: str
    name: str
    """Text of links to it."""
    title: str
    region: str
    """Id of the element that the skip link leads to."""
    main: str
    """File with its content."""
    script: str
    styles: tuple[str, ...]

    def html(self) -> str:
        """Return the whole page. Its links are relative: the proxy may be below a path of another server."""
        root = "../" * (self.path.count("/") - 1)
        styles = [f'<link rel="stylesheet" href="{root}ui/{style}">' for style in self.styles]
        script = f'<script type="module" src="{root}ui/{self.script}"></script>'
        pages = [
            f'<a href="{root}{page.path[1:]}"{CURRENT if page is self else ""}>{page.name}</a>'
            for page in PAGES
        ]
        return Template((_FOLDER / "frame.html").read_text(encoding="utf-8")).substitute(
            title=self.title,
            region=self.region,
            links="\n  ".join([*styles, script]),
            pages=" ".join(pages),
            main=(_FOLDER / self.main).read_text(encoding="utf-8"),
        )


_PLAIN: Final = ("style.css",)
_TABLES: Final = ("style.css", "usage.css")
_CARDS: Final = ("style.css", "usage.css", "manage.css")

PAGES: Final = (
    Page(PATH, "Servers", "Servers", "servers", "servers.html", "servers.js", _CARDS),
    Page(f"{PATH}/tools", "Tools", "Tools", "tools", "tools.html", "tools.js", _CARDS),
    Page(f"{PATH}/requests", "Requests", "Request contexts", "context", "requests.html", "page.js", _PLAIN),
    Page(f"{PATH}/sessions", "Sessions", "Sessions", "sessions", "sessions.html", "sessions.js", _CARDS),
    Page(f"{PATH}/usage", "Usage", "Usage", "usage", "usage.html", "usage.js", _TABLES),
    Page(f"{PATH}/audit", "Audit", "Audit", "audit", "audit.html", "audit.js", _TABLES),
    Page(
        f"{PATH}/approvals", "Approvals", "Approvals", "approvals", "approvals.html", "approvals.js", _TABLES
    ),
    Page(
        f"{PATH}/connect", "Connect a host", "Connect a host", "connect", "connect.html", "connect.js", _CARDS
    ),
)


def page_routes() -> list[Route]:
    """Return a route for each page and file, and those that lead to the first page."""
    served = [(page.path, page.html().encode(), "text/html") for page in PAGES]
    served += [(f"{PATH}/{name}", (_FOLDER / name).read_bytes(), kind) for name, kind in FILES.items()]
    return [
        *(Route(path, _serving(content, kind), methods=["GET"]) for path, content, kind in served),
        Route(f"{PATH}/", partial(_to_page, "../ui", HTTPStatus.PERMANENT_REDIRECT), methods=["GET"]),
        # For now only: browsers remember a permanent move also when another program has the port.
        Route(ROOT_PATH, partial(_to_page, "ui", HTTPStatus.TEMPORARY_REDIRECT), methods=["GET"]),
    ]


def _serving(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(_request: Request) -> Response:
        return Response(content, headers=PAGE_HEADERS, media_type=media_type)

    return endpoint


async def _to_page(place: str, status: HTTPStatus, _request: Request) -> Response:
    return RedirectResponse(place, status, PAGE_HEADERS)


def routes(
    operations: Sequence[Operation],
    shown: Shown = clean_json,
    within: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> list[BaseRoute]:
    """Return the routes of the API, its OpenAPI document, and the pages.

    Responses of the API pass `shown`; its requests are served `within` the limits of their clients.
    """
    described = document(BASE, operations)

    async def openapi(_request: Request) -> Response:
        return JSONResponse(described, headers=HEADERS)

    by_path: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_path[operation.path].append(operation)
    inner = Starlette(
        routes=[
            *(route(same_path, shown) for same_path in by_path.values()),
            Route("/openapi.json", openapi, methods=["GET"]),
        ],
        exception_handlers={HTTPException: on_http_error, Exception: _on_fault},
    )
    mounted = Mount(BASE, app=within(inner))
    # Every path below the base is answered by the API, also one with a line break in it.
    mounted.path_regex = re.compile(mounted.path_regex.pattern, re.DOTALL)
    return [mounted, *page_routes()]


async def _on_fault(_request: Request, _error: Exception) -> Response:
    # The error goes on to the log, with its details.
    return refused(HTTPStatus.INTERNAL_SERVER_ERROR, "The proxy failed; its log has the details.")


async def serve(
    routes: Sequence[BaseRoute],
    settings: HttpConfig,
    port: int,
    limits: Limits,
    health: http.Health,
    access: Callable[[auth.Policy], auth.Policy] = lambda policy: policy,
    within: Callable[[ASGIApp], ASGIApp] = lambda app: app,
) -> None:
    """Serve the API and the pages on a port of this machine beside the stdio front, until cancelled.

    Each host starts a proxy of its own, and only one of them can have the port: if it is taken, or there is
    no token, the log says so and nothing else suffers. `access` adds to the policy who else may connect;
    requests for ``/healthz`` are served `within` the limits of their clients.
    """
    try:
        credentials = credentials_for(replace(settings, host=LOOPBACK))
        bound = http.listen(LOOPBACK, port)
    except (ConfigError, OSError) as error:
        logger.warning("the API is not served on port %d: %s", port, error)
        return
    port = bound.getsockname()[1]
    policy = access(auth.policy(LOOPBACK, port, (), credentials.token))
    message = "serving http://%s:%d/api/v1 and /ui%s"
    logger.log(credentials.level, message, LOOPBACK, port, credentials.whereabouts)
    await http.serve(http.guarded(routes, policy, health, limits, within=within), bound, limits)
