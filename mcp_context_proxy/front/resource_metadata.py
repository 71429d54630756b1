"""Metadata of the proxy as a protected resource (RFC 9728), and the responses that lead clients to it.

A client without a token is told where to read who issues tokens for this proxy. The place and the content are
those of the configuration; nothing of a request is repeated.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from mcp_context_proxy.config import Config

WELL_KNOWN: Final = "/.well-known/oauth-protected-resource"
"""Beginning of the paths of the metadata; a resource with a path has it after this."""

RETRY_KEYS_SECONDS: Final = "5"
"""Value of ``Retry-After`` while the keys of the issuer cannot be had."""

NEEDED: Final = "A bearer token is needed: Authorization: Bearer TOKEN\n"


class ResourceMetadata:
    """The metadata of one proxy, and its challenges."""

    def __init__(self, config: Config) -> None:
        """Describe the proxy of a configuration with ``auth.mode = "jwt"``."""
        resource = config.http.resource_url or config.auth.audience or ""
        parts = urlsplit(resource)
        self._path = parts.path.rstrip("/")
        self._url = f"{parts.scheme}://{parts.netloc}{WELL_KNOWN}{self._path}" if parts.netloc else None
        self._content = {
            "resource": resource,
            "resource_name": "mcp-context-proxy",
            "authorization_servers": [config.auth.issuer],
            "bearer_methods_supported": ["header"],
        }
        if config.auth.scopes:
            self._content["scopes_supported"] = list(config.auth.scopes)

    def routes(self) -> list[BaseRoute]:
        """Return the routes of the metadata: with the path of the resource, and without it."""

        async def metadata(_request: Request) -> Response:
            return JSONResponse(self._content, headers={"Cache-Control": "max-age=600"})

        paths = dict.fromkeys((WELL_KNOWN, WELL_KNOWN + self._path))
        return [Route(path, metadata, methods=["GET"]) for path in paths]

    def challenge(self, **facts: str) -> str:
        """Return the value of ``WWW-Authenticate``; the facts are words of ours, without quotation marks."""
        if self._url is not None:
            facts["resource_metadata"] = self._url
        return "Bearer " + ", ".join(f'{name}="{value}"' for name, value in facts.items())

    def refused(self, why: str) -> Response:
        """Return the response to a token that is not accepted."""
        value = self.challenge(error="invalid_token", error_description=why)
        headers = {"WWW-Authenticate": value}
        return PlainTextResponse(f"{why[0].upper()}{why[1:]}.\n", HTTPStatus.UNAUTHORIZED, headers)

    def without_role(self, why: str) -> Response:
        """Return the response to a genuine token of somebody who may not use the proxy."""
        value = self.challenge(error="insufficient_scope", error_description=why)
        headers = {"WWW-Authenticate": value}
        return PlainTextResponse(f"{why[0].upper()}{why[1:]}.\n", HTTPStatus.FORBIDDEN, headers)


def undecided() -> Response:
    """Return the response to a token about which nothing can be said now."""
    text = "The keys of the issuer cannot be had now; nothing was decided about the token.\n"
    return PlainTextResponse(text, HTTPStatus.SERVICE_UNAVAILABLE, {"Retry-After": RETRY_KEYS_SECONDS})
