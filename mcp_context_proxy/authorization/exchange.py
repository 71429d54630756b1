"""One request to an authorization server: encrypted on its way, bounded in time and size."""

from __future__ import annotations

import ipaddress
from typing import Final

import httpx2
from mcp.client.auth import OAuthFlowError

from mcp_context_proxy.wire.text import clean

REQUEST_SECONDS: Final = 15.0
"""For one answer of an authorization server."""

ANSWER_BYTES: Final = 1024 * 1024
"""Of one such answer; an honest one has a few kilobytes."""

REASON_SHOWN: Final = 300
"""Characters of a foreign explanation that are passed on."""


async def exchange(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """Send a request; its whole answer.

    Raises:
        OAuthFlowError: tokens would be readable on the way, or the answer is too large.
        httpx2.HTTPError: there is no answer.
    """
    check_encrypted(str(request.url))
    answer = await client.send(request, stream=True)
    body = bytearray()
    try:
        async for chunk in answer.aiter_bytes():
            body += chunk
            if len(body) > ANSWER_BYTES:
                raise OAuthFlowError(f"{request.url.host} answered with more than {ANSWER_BYTES:,} bytes")
    finally:
        await answer.aclose()
    plain = {key: value for key, value in answer.headers.items() if key != "content-encoding"}
    return httpx2.Response(answer.status_code, headers=plain, content=bytes(body), request=request)


def check_encrypted(url: str) -> None:
    """Refuse an address to which tokens would go as plain text.

    Raises:
        OAuthFlowError: it is neither https nor this machine.
    """
    parts = httpx2.URL(url)
    if parts.scheme != "https" and not _is_loopback(parts.host):
        raise OAuthFlowError(f"{parts.host} is not reached over https: tokens would be readable on the way")


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def explained(error: BaseException) -> str:
    """Why a request to an authorization server failed, for a person."""
    text = str(error) or type(error).__name__
    if text.startswith("State parameter mismatch"):
        return "the answer that came back was not to our question (its state is wrong); try again"
    return clean(text)[:REASON_SHOWN]


def reason(answer: httpx2.Response) -> str:
    """What an authorization server said when it refused, for a person."""
    return clean(f"its authorization server answered {answer.status_code}: {answer.text}")[:REASON_SHOWN]
