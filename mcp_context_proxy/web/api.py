"""One operation of the API: what it takes, what it answers, and the endpoint that holds it to both.

What comes in is decoded into the declared types, and refused if it does not fit them; the document that
describes the API (`openapi`) is made from the same declarations.

The OpenAPI document of the API, made from the declarations that the endpoints themselves go by.

What a value in a form of the API may be, where several forms have it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from mcp_context_proxy import __version__
from mcp_context_proxy.front.http_requests import JSON_TYPE, PROBLEM_TYPE
from mcp_context_proxy.items import JSON
from mcp_context_proxy.protocol.validation import holds_more

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


class BadRequestError(Exception):
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
        except BadRequestError as error:
            return refused(error.status, error.detail)
        except ClientDisconnect:
            return refused(HTTPStatus.BAD_REQUEST, "The body ends too early.")  # and nobody reads that
        return Response(msgspec.json.encode(answer), HTTPStatus.OK, HEADERS, JSON_TYPE)

    return Route(operations[0].path, endpoint, methods=list(by_method))


async def _given(operation: Operation, request: Request) -> Given:
    pairs = request.query_params.multi_items()
    if len(dict(pairs)) < len(pairs):
        raise BadRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, "A query parameter is given twice.")
    try:
        query = msgspec.convert(dict(pairs), operation.query, strict=False)
        if operation.body is None:
            return Given(dict(request.path_params), query, None, request.headers.get(AGENT_HEADER))
        decoded = msgspec.json.decode(await _body(request))
        body = msgspec.convert(_with_integers(decoded), operation.body)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, f"{error}.") from None
    except msgspec.DecodeError as error:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, f"The body is not JSON: {error}.") from None
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
        raise BadRequestError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"The body must be {JSON_TYPE}.")
    body = await request.body()
    if holds_more(body, MOST_VALUES):
        detail = f"The body holds more than {MOST_VALUES:,} values."
        raise BadRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
    return body


async def on_http_error(request: Request, error: Exception) -> Response:
    """No such path, or no such method: told like everything else."""
    del request
    assert isinstance(error, HTTPException)
    answer = refused(error.status_code, f"{error.detail}.")
    answer.headers.update(error.headers or {})
    return answer


_PATH_PARAMETER = re.compile(r"\{(\w+)\}")

_AGENT = {
    "name": AGENT_HEADER,
    "in": "header",
    "required": False,
    "description": "The agent on whose behalf this is asked, where interactions are remembered.",
    "schema": {"type": "string"},
}


def document(base: str, operations: Iterable[Operation]) -> JSON:
    """The document.

    Args:
        base: Path that all operations lie under.
        operations: Everything that can be asked.
    """
    operations = list(operations)
    types: set[type[msgspec.Struct]] = {Problem, *(operation.query for operation in operations)}
    types |= {operation.answer for operation in operations}
    types |= {operation.body for operation in operations if operation.body is not None}
    named = sorted(types, key=lambda form: form.__name__)
    schemas, components = msgspec.json.schema_components(named, ref_template="#/components/schemas/{name}")
    by_type = dict(zip(named, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _operation(
            operation, by_type, components
        )
    for operation in operations:
        components.pop(operation.query.__name__, None)
    return {
        "openapi": "3.1.0",
        "info": {"title": "mcp-context-proxy", "version": __version__, "license": {"name": "Apache-2.0"}},
        "servers": [{"url": base}],
        "security": [{"bearer": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(
    operation: Operation, schemas: dict[type[msgspec.Struct], Any], components: dict[str, Any]
) -> JSON:
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [
            *_path_parameters(operation.path),
            *_query_parameters(operation.query, components),
            *([_AGENT] if operation.names_agent else []),
        ],
        "responses": {
            "200": _response("The answer.", JSON_TYPE, schemas[operation.answer]),
            **{
                str(int(status)): _response(status.phrase, PROBLEM_TYPE, schemas[Problem])
                for status in sorted(
                    {*operation.problems, HTTPStatus.UNAUTHORIZED} - {HTTPStatus.UNAUTHORIZED}
                )
            },
            "401": {"description": "The bearer token is missing or wrong."},
        },
    }
    if operation.body is not None:
        content = {JSON_TYPE: {"schema": schemas[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _response(description: str, media_type: str, schema: JSON) -> JSON:
    return {"description": description, "content": {media_type: {"schema": schema}}}


def _path_parameters(path: str) -> list[JSON]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PATH_PARAMETER.findall(path)
    ]


def _query_parameters(form: type[msgspec.Struct], components: dict[str, Any]) -> list[JSON]:
    schema = components[form.__name__]
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": property_schema}
        for name, property_schema in schema["properties"].items()
    ]


LISTED_MOST = 500
"""Request contexts in one answer: more than a person looks through, some 500 kB."""

SELECTED_MOST = 1000
"""Items or chunks that may be asked for; a model reads tens."""

Words = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Count = Annotated[int, Meta(ge=1, le=SELECTED_MOST)]
Score = Annotated[float, Meta(ge=0, le=1)]
