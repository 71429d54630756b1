"""One request to an authorization server: encrypted, where it may go, bounded in time and size."""

from __future__ import annotations

import contextlib
import ipaddress
from typing import Final

import httpx2
from mcp.client.auth import OAuthFlowError

from mcp_context_proxy.authorization.reach import Destinations
from mcp_context_proxy.wire import certificates
from mcp_context_proxy.wire.text import clean

REQUEST_SECONDS: Final = 15.0
"""For one answer of an authorization server."""

ANSWER_BYTES: Final = 1024 * 1024
"""Of one such answer; an honest one has a few kilobytes."""

ADDRESSES_TRIED: Final = 3
"""Of a host that has several; more would only make one that is down take longer."""

REASON_SHOWN: Final = 300
"""Characters of a foreign explanation that are passed on."""


async def exchange(destinations: Destinations, request: httpx2.Request) -> httpx2.Response:
    """Send a request; its whole answer.

    Raises:
        OAuthFlowError: it may not go there, tokens would be readable on the way, or the answer is too large.
        httpx2.HTTPError: there is no answer.
        OSError: the host is not known.
    """
    check_encrypted(str(request.url))
    *others, last = (await destinations.pinned(request))[:ADDRESSES_TRIED]
    # A client for each: two names of one address must not share a connection that only one has proved.
    async with httpx2.AsyncClient(timeout=REQUEST_SECONDS, verify=await certificates.trusted()) as client:
        for pinned in others:
            with contextlib.suppress(httpx2.ConnectError, httpx2.ConnectTimeout):
                return await _whole(client, pinned, request, destinations)
        return await _whole(client, last, request, destinations)


async def _whole(
    client: httpx2.AsyncClient,
    pinned: httpx2.Request,
    request: httpx2.Request,
    destinations: Destinations,
) -> httpx2.Response:
    answer = await client.send(pinned, stream=True)
    destinations.heard_from(answer)
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
