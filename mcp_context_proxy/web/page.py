"""The pages that show request contexts and usage: files that are the same for everyone and hold no data.

They are served without a token. What they show, their script asks the API for, with the token that it was
given in the fragment of the address; a fragment is sent to no server. A cookie would not do: browsers send it
to every port of a host, so to any other program that serves pages on this machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

PATH: Final = "/ui"

FILES: Final = {
    PATH: ("index.html", "text/html"),
    f"{PATH}/usage": ("usage.html", "text/html"),
    **{
        f"{PATH}/{name}": (name, "text/javascript")
        for name in ("api.js", "page.js", "view.js", "usage.js", "usage_view.js")
    },
    **{f"{PATH}/{name}": (name, "text/css") for name in ("style.css", "usage.css")},
}
"""By path: file and media type."""

HEADERS: Final = {
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
"""Nothing is loaded from elsewhere, nothing inline runs, and no text can become markup: descriptions of tools
are written by strangers."""

_FOLDER: Final = Path(__file__).parent / "files"


def routes() -> list[Route]:
    """One for each file, and one for the path that people type with a slash at its end."""
    return [
        *(Route(path, _served(*file), methods=["GET"]) for path, file in FILES.items()),
        Route(f"{PATH}/", _to_page, methods=["GET"]),
    ]


def _served(name: str, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    content = (_FOLDER / name).read_bytes()

    async def endpoint(request: Request) -> Response:
        del request
        return Response(content, headers=HEADERS, media_type=media_type)

    return endpoint


async def _to_page(request: Request) -> Response:
    del request
    return RedirectResponse("../ui", 308, HEADERS)
