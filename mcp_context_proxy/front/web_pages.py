"""Recognition of requests that web pages have a browser make: all are refused but those of our own pages.

A page of another origin can have a browser send many kinds of requests here: ``fetch``, images, scripts,
links, forms, frames, event streams. ``Origin`` is on some of them only. Browsers name the relation of the
two sites in ``Sec-Fetch-Site`` (Fetch Metadata); another port of this machine is the *same site*, and still a
stranger. Following a link to one of our pages is allowed, because they show nothing without asking for it.
Browsers before 2023 send no ``Sec-Fetch-Site``. They are known by their name, and need a header that a page
of another origin cannot set.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
"""Names that count as one origin: on a given port each of them is this front. Other names of this machine may
belong to others."""

OWN_SITES: Final = ("same-origin", "none")
"""Values of ``Sec-Fetch-Site`` of our own pages, and of what a person typed or an application asked for."""

BROWSER: Final = "Mozilla/"
"""Beginning of the name of every browser."""

OWN_HEADERS: Final = ("authorization", "mcp-protocol-version", "mcp-session-id", "x-requested-with")
"""Headers of clients and of our own pages. A browser asks before it sends any of them to another origin, and
that question is refused."""

OTHER_ORIGIN: Final = "Requests from other origins are refused.\n"
OLD_BROWSER: Final = (
    "A browser that does not say which page makes a request (Sec-Fetch-Site) gets nothing but the pages. "
    "If this is no browser, send any X-Requested-With header.\n"
)


def objection(headers: Headers, method: str, host: str, *, page: bool, public: bool) -> str | None:
    """Return why a request may not be served; None if no page of another origin can have made it.

    Args:
        headers: Headers of the request.
        method: HTTP method.
        host: Value of the Host header, which is one of ours.
        page: Whether the request is for one of our pages or their files.
        public: Whether everybody may read the response.
    """
    if not same_origin(headers.getlist("origin"), host):
        return OTHER_ORIGIN
    sites = headers.getlist("sec-fetch-site")
    if sites:
        own = len(sites) == 1 and sites[0] in OWN_SITES
        return None if own or (page and method == "GET" and _is_navigation(headers)) else OTHER_ORIGIN
    if public or method not in ("GET", "HEAD"):
        # Every browser sends the Origin of another page with any other method.
        return None
    referrers = headers.getlist("referer")
    if referrers and not same_origin([_origin_of(referrer) for referrer in referrers], host):
        return OTHER_ORIGIN
    is_browser = headers.get("user-agent", "").startswith(BROWSER)
    return OLD_BROWSER if is_browser and not any(name in headers for name in OWN_HEADERS) else None


def _is_navigation(headers: Headers) -> bool:
    """Return whether a browser opens a document in a tab or window, and not in a frame."""
    wanted = {"sec-fetch-mode": ["navigate"], "sec-fetch-dest": ["document"]}
    return all(headers.getlist(name) == values for name, values in wanted.items())


def _origin_of(url: str) -> str:
    """Return the origin of a URL; an empty string, which is no origin, if it has none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}"


def same_origin(origins: list[str], host: str) -> bool:
    """Return whether a request has no Origin (it is not from a browser) or the origin of this front."""
    if not origins:
        return True
    if len(origins) > 1:
        return False
    try:
        origin, own = urlsplit(origins[0]), urlsplit(f"//{host}")
        if origin.scheme not in ("http", "https") or origin.username is not None or origin.hostname is None:
            return False
        if origin.path or origin.query or origin.fragment:
            return False
        default = 443 if origin.scheme == "https" else 80
        if own.hostname is None or (origin.port or default) != (own.port or default):
            return False
    except ValueError:
        return False
    return origin.hostname == own.hostname or {origin.hostname, own.hostname} <= LOOPBACK_NAMES
