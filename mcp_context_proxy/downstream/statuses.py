"""Says what an HTTP status without a message means for whoever called, and what can be done."""

from __future__ import annotations

from http import HTTPStatus

from mcp_context_proxy.errors import BadAnswerError

PASSING = frozenset({408, 425, 429, 502, 503, 504})
"""What is over sooner or later."""

_ADVICE: dict[int, str] = {
    HTTPStatus.FORBIDDEN: "it does not allow this with the credentials it was given",
    HTTPStatus.NOT_FOUND: "nothing is there; whoever configured its URL should look at the path",
    HTTPStatus.METHOD_NOT_ALLOWED: "nothing takes calls there; whoever configured its URL should look at it",
}


def without_message(server: str, status: int, kind: str = "") -> BadAnswerError:
    """The error of an answer that has a status, and content of some kind, but no message."""
    what = f"with HTTP status {status} and no message{f' ({kind})' if kind else ''}"
    return BadAnswerError(server, f"{what}: {_advice(status)}", status)


def _advice(status: int) -> str:
    if status < HTTPStatus.BAD_REQUEST:
        return (
            "what answers there does not speak MCP as it should; whoever configured its URL should look at it"
        )
    if status in PASSING:
        return "try again in a while"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "it has a fault, which only who runs it can mend"
    return _ADVICE.get(status, "it refuses the request; whoever configured its URL should look at it")
