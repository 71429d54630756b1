"""Requests of the REST API over the socket of a shared proxy, in few enough lines for a prompt hook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from mcp_context_proxy.bridge.meeting import connected

BASE: Final = "/api/v1"
"""Path of the API."""

CHUNK: Final = 1 << 16

NOTHING: Final = b""


class AskError(Exception):
    """The proxy cannot be asked, or refuses; the message is for a person."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        """Status of a response that refuses; None if there was no response."""


def ask(path: Path, method: str, target: str, body: Any = None, *, seconds: float) -> Any:
    """Make one request of the proxy at a socket, and return the decoded answer.

    Args:
        path: The socket.
        method: Method of HTTP.
        target: Path below the base of the API, with its query.
        body: Value that is sent as JSON; None for no body.
        seconds: Time limit for each step.

    Raises:
        AskError: nobody answers in time, or the answer is a refusal.
    """
    data = NOTHING if body is None else json.dumps(body).encode()
    lines = [f"{method} {BASE}{target} HTTP/1.1", "Host: localhost", "Connection: close"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    head = "\r\n".join([*lines, "", ""]).encode("ascii")
    try:
        peer = connected(path)
        if peer is None:
            raise AskError("the running proxy does not answer: nobody listens there")
        with peer:
            peer.settimeout(seconds)
            peer.sendall(head + data)
            received = bytearray()
            while chunk := peer.recv(CHUNK):
                received += chunk
    except OSError as error:
        raise AskError(f"the running proxy does not answer: {error}") from None
    return _answer(bytes(received))


def _answer(received: bytes) -> Any:
    head, _, body = received.partition(b"\r\n\r\n")
    try:
        status = int(head.split(b" ", 2)[1])
        answer = json.loads(body)
    except (ValueError, IndexError):
        raise AskError("the running proxy has sent no whole answer") from None
    if status >= 400:
        raise AskError(
            answer.get("detail", "it refuses") if isinstance(answer, dict) else "it refuses", status
        )
    return answer
