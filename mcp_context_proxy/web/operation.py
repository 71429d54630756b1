"""One operation of the API: what it takes, what it answers, and the endpoint that holds it to both.

What comes in is decoded into the declared types, and refused if it does not fit them; the document that
describes the API (`openapi`) is made from the same declarations.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal, TypeAlias

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_context_proxy.front.bodies import JSON_TYPE, PROBLEM_TYPE
from mcp_context_proxy.items import JSON
from mcp_context_proxy.wire.nesting import holds_more

logger = logging.getLogger(__name__)

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Of every answer: it is private, and browsers must not guess at its type."""


MOST_VALUES = 10_000
"""In a body: building more of them would keep everybody waiting, and no form has a tenth of it."""

AGENT_HEADER = "X-Agent-Name"
"""Says on behalf of which agent something is asked."""

REFUSED = (HTTPStatus.UNPROCESSABLE_ENTITY,)
WITH_BODY = (
    *REFUSED,
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
"""What a request with parameters, or with a body, can be refused as."""


class Problem(msgspec.Struct, frozen=True):
    """What is wrong with a request."""

    title: str
    status: int
    detail: str
    """One sentence for a person."""


class NoParameters(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Of an operation that takes none."""


@dataclass(frozen=True, slots=True)
class Given:
    """What a request brings, decoded."""

    path: dict[str, str]
    query: Any
    """Of the operation's `query` type."""
    body: Any
    """Of the operation's `body` type; None where it takes none."""
    agent: str | None = None
    """Who asks, by the header `AGENT_HEADER`."""


Handler: TypeAlias = Callable[[Given], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path."""

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    name: str
    """Its ``operationId``."""
    summary: str
    handler: Handler
    answer: type[msgspec.Struct]
    """What its answer is, as JSON."""
    query: type[msgspec.Struct] = NoParameters
    body: type[msgspec.Struct] | None = None
    problems: tuple[HTTPStatus, ...] = field(default=(HTTPStatus.UNPROCESSABLE_ENTITY,))
    """Beside those that every operation can answer."""
    names_agent: bool = False
    """Whether it matters which agent asks."""


class RefusedError(Exception):
    """The request cannot be served as it is; tells why."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def refused(status: int, detail: str) -> Response:
    """An answer that says what is wrong."""
    problem = Problem(HTTPStatus(status).phrase, status, detail)
    return Response(msgspec.json.encode(problem), status, HEADERS, PROBLEM_TYPE)


def route(operations: list[Operation]) -> Route:
    """All operations of one path."""
    by_method: dict[str, Operation] = {operation.method: operation for operation in operations}

    async def endpoint(request: Request) -> Response:
        operation = by_method["GET" if request.method == "HEAD" else request.method]
        try:
            answer = await operation.handler(await _given(operation, request))
        except RefusedError as error:
            return refused(error.status, error.detail)
        except ClientDisconnect:
            return refused(HTTPStatus.BAD_REQUEST, "The body ends too early.")  # and nobody reads that
        return Response(msgspec.json.encode(answer), HTTPStatus.OK, HEADERS, JSON_TYPE)

    return Route(operations[0].path, endpoint, methods=list(by_method))


async def _given(operation: Operation, request: Request) -> Given:
    pairs = request.query_params.multi_items()
    if len(dict(pairs)) < len(pairs):
        raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, "A query parameter is given twice.")
    try:
        query = msgspec.convert(dict(pairs), operation.query, strict=False)
        if operation.body is None:
            return Given(dict(request.path_params), query, None, request.headers.get(AGENT_HEADER))
        decoded = msgspec.json.decode(await _body(request))
        body = msgspec.convert(_with_integers(decoded), operation.body)
    except (msgspec.ValidationError, RecursionError) as error:
        raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, f"{error}.") from None
    except msgspec.DecodeError as error:
        raise RefusedError(HTTPStatus.BAD_REQUEST, f"The body is not JSON: {error}.") from None
    return Given(dict(request.path_params), query, body, request.headers.get(AGENT_HEADER))


def _with_integers(value: JSON) -> JSON:
    """The same value, with whole numbers as such: to JSON, 2.0 is an integer as good as 2."""
    if isinstance(value, dict):
        return {key: _with_integers(member) for key, member in value.items()}
    if isinstance(value, list):
        return [_with_integers(member) for member in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def _body(request: Request) -> bytes:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != JSON_TYPE:
        raise RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"The body must be {JSON_TYPE}.")
    body = await request.body()
    if holds_more(body, MOST_VALUES):
        detail = f"The body holds more than {MOST_VALUES:,} values."
        raise RefusedError(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
    return body


async def on_http_error(request: Request, error: Exception) -> Response:
    """No such path, or no such method: told like everything else."""
    del request
    assert isinstance(error, HTTPException)
    answer = refused(error.status_code, f"{error.detail}.")
    answer.headers.update(error.headers or {})
    return answer
