"""The pages that show request contexts and usage: the same for everyone, and without data.

They are served without a token. What they show, their script asks the API for, with the token that it was
given in the fragment of the address; a fragment is sent to no server. A cookie would not do: browsers send it
to every port of a host, so to any other program that serves pages on this machine.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

PATH: Final = "/ui"

FILES: Final = {
    **dict.fromkeys(("api.js", "page.js", "view.js", "usage.js", "usage_view.js"), "text/javascript"),
    **dict.fromkeys(("style.css", "usage.css"), "text/css"),
}
"""Media types of what the pages load, by file."""

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

CURRENT: Final = ' aria-current="page"'
"""Marks the link to the page that one is on."""


@dataclass(frozen=True, slots=True)
class Page:
    """What one page puts into the frame that all share."""

    path: str
    name: str
    """In the links between pages."""
    title: str
    region: str
    """The element that one can skip to."""
    main: str
    """File of what it shows."""
    script: str
    styles: tuple[str, ...]

    def html(self) -> str:
        """The whole page. Its addresses are relative: the proxy may be behind a path of another server."""
        root = "../" * (self.path.count("/") - 1)
        styles = [f'<link rel="stylesheet" href="{root}ui/{style}">' for style in self.styles]
        script = f'<script type="module" src="{root}ui/{self.script}"></script>'
        pages = [page.link(root, page is self) for page in PAGES]
        return Template((_FOLDER / "frame.html").read_text(encoding="utf-8")).substitute(
            title=self.title,
            region=self.region,
            links="\n  ".join([*styles, script]),
            pages=" ".join(pages),
            main=(_FOLDER / self.main).read_text(encoding="utf-8"),
        )

    def link(self, root: str, current: bool) -> str:
        """To this page, from one at `root` or from this one itself."""
        return f'<a href="{root}{self.path[1:]}"{CURRENT if current else ""}>{self.name}</a>'


PAGES: Final = (
    Page(PATH, "Requests", "Request contexts", "context", "requests.html", "page.js", ("style.css",)),
    Page(f"{PATH}/usage", "Usage", "Usage", "usage", "usage.html", "usage.js", ("style.css", "usage.css")),
)


def routes() -> list[Route]:
    """One for each page and file, and one for the path that people type with a slash at its end."""
    served = [(page.path, page.html().encode(), "text/html") for page in PAGES]
    served += [(f"{PATH}/{name}", (_FOLDER / name).read_bytes(), kind) for name, kind in FILES.items()]
    return [
        *(Route(path, _serving(content, kind), methods=["GET"]) for path, content, kind in served),
        Route(f"{PATH}/", _to_page, methods=["GET"]),
    ]


def _serving(content: bytes, media_type: str) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        del request
        return Response(content, headers=HEADERS, media_type=media_type)

    return endpoint


async def _to_page(request: Request) -> Response:
    del request
    return RedirectResponse("../ui", 308, HEADERS)
