"""The REST API and the pages, for people and programs beside the protocol.

Here is the framework: operations, endpoints, the OpenAPI document, and the routes of the pages. Requests are
decoded into the declared types, and refused if they do not fit. The OpenAPI document is made from the same
declarations.

The pages are the same for everyone and served without a token. Their script asks the API for data, with the
token from the fragment of the address, which no browser sends to a server. A cookie would not do: browsers
send it to every port of a host, and so to any other program that serves pages on this machine.
"""

from __future__ import annotations

import json
import re
import typing
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from http import HTTPStatus
from itertools import compress
from pathlib import Path
from string import Template
from types import MethodType
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp

from mcp_context_proxy import __version__
from mcp_context_proxy.errors import StoreError, UnknownFilterError, UnknownItemError
from mcp_context_proxy.front import http
from mcp_context_proxy.front.auth import is_proven, rights_of
from mcp_context_proxy.front.http import HEADERS, ROOT_PATH
from mcp_context_proxy.front.http_requests import AGENT_HEADER, JSON_TYPE, PROBLEM_TYPE
from mcp_context_proxy.items import JSON
from mcp_context_proxy.protocol import holds_more
from mcp_context_proxy.protocol.strangers import clean_json, in_words
from mcp_context_proxy.statistics import PERIOD_PATTERN
from mcp_context_proxy.system.later import packaged_text
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import THE_USER, Principal, Role
from mcp_context_proxy.trust.audit import AuditLog

MOST_VALUES = 10_000
"""Values in a body: no request needs a tenth of them, and building more would hold up the event loop."""

LIST_CHARACTERS = 1000
"""Length of a query parameter that is a list: its values, separated by commas."""


def needs(role: Role) -> str:
    return f"This needs an administrator's token, such as the proxy's own, or the role {role.name.lower()}."


AUDITED: Final = "order"
"""Kind of the entries of the audit about orders of a person to the proxy."""

LISTED_MOST = 500
"""Request contexts in one response: more than a person looks through, some 500 kB."""

LARGE_ANSWER_BYTES = 64 * 1024
"""Size from which on an answer is made fit to be shown in a thread."""

SELECTED_MOST = 1000
"""Items or chunks that a request may select; a model reads tens."""

Words = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Count = Annotated[int, Meta(ge=1, le=SELECTED_MOST)]
Period = Annotated[str, Meta(pattern=PERIOD_PATTERN, description="Hours or days, such as 24h or 30d.")]

BODY_PROBLEMS = (
    HTTPStatus.BAD_REQUEST,
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
)
"""Errors of every operation with a body."""

NEEDS_TOKEN: Final = (
    "Only an administrator decides that, and nobody can be told for one where no token is required."
)


class Problem(msgspec.Struct, frozen=True):
    """A refused request and the reason."""

    title: str
    status: int
    detail: str
    """One sentence for a person."""


class NoParameters(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """Query of an operation without parameters."""


def answer_form(
    name: str, meaning: str, value: type | None = None, /, *, without: Collection[str] = (), **fields: Any
) -> type[msgspec.Struct]:
    """Derive the documented form of an answer from the class of the value that is encoded.

    ``fields`` are added, or have another type. Every field is in every answer, so none has a default here.
    """
    hints = {} if value is None else typing.get_type_hints(value, include_extras=True)
    types = {field: hint for field, hint in hints.items() if field not in without} | fields
    return msgspec.defstruct(name, list(types.items()), frozen=True, namespace={"__doc__": meaning})


class Given(Struct, frozen=True):
    """Facts of a request beside its query and its body."""

    path: dict[str, str]
    agent: str | None = None
    """Value of the header `AGENT_HEADER`."""
    principal: Principal = THE_USER
    """Whose request it is."""


Shown: TypeAlias = Callable[[bytes], bytes]
"""Makes encoded JSON fit to be shown: names and texts in it come from servers and clients."""

Handler: TypeAlias = Callable[..., Coroutine[Any, Any, object]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method on one path; decorates the method of an `Api` that serves it.

    The docstring of the method is the summary of the operation, and the types of its parameters are those of
    the request: `given` has the facts of each, `wanted` is the query, and `body` the body.
    """

    method: Literal["GET", "POST", "PATCH", "DELETE"]
    path: str
    answer: type[Struct] = Struct
    """Form of the JSON that the handler's result is encoded to; by default the type that it returns."""
    problems: tuple[HTTPStatus, ...] = ()
    """Errors beside those that every operation can have."""
    role: Role = Role.USE
    """Role that it needs: more than `USE` if it changes what concerns others, or shows what is theirs."""
    own_of_profile: bool = False
    """True if a client of a profile may use it as well, for what is its own."""
    names_agent: bool = False
    """True if it reads the header `AGENT_HEADER`."""
    decides: bool = False
    """True if it decides for the user: whoever asks must be known by a token, also where no other operation
    needs one."""
    name: str = ""
    """Its ``operationId``: the handler's name in camel case. This and all that follows is the handler's."""
    summary: str = ""
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    handler: Handler | None = None

    def __call__(self, handler: Handler) -> Operation:
        first, *others = handler.__name__.strip("_").split("_")
        types = typing.get_type_hints(handler, include_extras=True)
        return replace(
            self,
            name=first + "".join(map(str.capitalize, others)),
            summary=handler.__doc__ or "",
            answer=types["return"] if self.answer is Struct else self.answer,
            query=types.get("wanted"),
            body=types.get("body"),
            handler=handler,
        )


Order: Final = partial(Operation, "POST", role=Role.OPERATE, decides=True)
"""An order to the proxy, which is in the audit."""


class Api:
    """A group of operations that share parts of the proxy."""

    def operations(self) -> list[Operation]:
        """Return the operations, each with its handler bound to this."""
        members = vars(type(self)).values()
        declared = (member for member in members if isinstance(member, Operation))
        return [replace(one, handler=MethodType(one.handler, self)) for one in declared if one.handler]


def note_order(log: AuditLog, given: Given, order: str, **facts: str | None) -> None:
    """Record who told the proxy to do something, once it is done."""
    named = {key: fact for key, fact in (facts | {"subject": given.principal.label}).items() if fact}
    log.note(AUDITED, order=order, principal=given.principal.name, **named)


def sentence(error: object) -> str:
    """Return the text of an error as a sentence."""
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('?') else '.'}"


class BadRequestError(Exception):
    """A request cannot be served; has the status and a sentence for a person."""

    def __init__(self, status: HTTPStatus, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


def refused(status: int, detail: str, shown: Shown = clean_json) -> Response:
    problem = Problem(HTTPStatus(status).phrase, status, detail)
    return Response(shown(msgspec.json.encode(problem)), status, HEADERS, PROBLEM_TYPE)


async def on_http_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    answer = refused(error.status_code, f"{error.detail}.")
    answer.headers.update(error.headers or {})
    return answer


def route(operations: list[Operation], shown: Shown = clean_json) -> Route:
    """Return the route for all operations of one path; every response passes `shown`."""
    by_method: dict[str, Operation] = {operation.method: operation for operation in operations}

    async def endpoint(request: Request) -> Response:
        operation = by_method["GET" if request.method == "HEAD" else request.method]
        assert operation.handler is not None
        rights = rights_of(request.scope)
        if not rights.may(operation.role) and not (operation.own_of_profile and rights.profile is not None):
            return refused(HTTPStatus.FORBIDDEN, needs(operation.role), shown)
        if operation.decides and not is_proven(request.scope):
            return refused(HTTPStatus.FORBIDDEN, NEEDS_TOKEN, shown)
        server = request.path_params.get("server")
        if server is not None and not rights.reaches(server):
            return refused(HTTPStatus.FORBIDDEN, f"The server {server!r} is beyond your reach.", shown)
        try:
            given = Given(dict(request.path_params), request.headers.get(AGENT_HEADER), rights)
            answer = await operation.handler(given, **await _decoded(operation, request))
            if rights.limited:  # each value is looked at: 0.2 s for 20,000 tools
                answer = await in_thread(within_reach, rights, answer)
        except BadRequestError as error:
            return refused(error.status, error.detail, shown)
        except (UnknownItemError, UnknownFilterError) as error:
            return refused(HTTPStatus.NOT_FOUND, sentence(error), shown)
        except StoreError as error:
            return refused(HTTPStatus.SERVICE_UNAVAILABLE, f"The store cannot be used: {error}.", shown)
        except ClientDisconnect:
            return refused(HTTPStatus.BAD_REQUEST, "The body ends too early.")  # and nobody reads that
        try:
            data = msgspec.json.encode(answer)
        except UnicodeEncodeError:  # a path of a folder whose name is not UTF-8
            text = json.dumps(msgspec.to_builtins(answer), ensure_ascii=False)
            data = text.encode(errors="surrogateescape").decode(errors="replace").encode()
        # All strings in it are looked at, which takes some 30 ms for each megabyte.
        data = shown(data) if len(data) < LARGE_ANSWER_BYTES else await in_thread(shown, data)
        return Response(data, HTTPStatus.OK, HEADERS, JSON_TYPE)

    # For a tool, the URI of a document may be given, with the slashes in it.
    path = operations[0].path.replace("{tool}", "{tool:path}")
    return Route(path, endpoint, methods=list(by_method))


def within_reach(rights: Principal, value: Any) -> Any:
    """Return a value without the entries of its lists about servers that somebody does not reach."""
    if isinstance(value, Struct):
        names = value.__struct_fields__
        return msgspec.structs.replace(value, **{n: within_reach(rights, getattr(value, n)) for n in names})
    if isinstance(value, dict):
        return {key: within_reach(rights, member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        of = [getattr(one, "server", one.get("server") if isinstance(one, dict) else "") for one in value]
        reached = [not isinstance(one, str) or not one or rights.reaches(one) for one in of]
        return [within_reach(rights, one) for one in compress(value, reached)]
    return value


async def _decoded(operation: Operation, request: Request) -> dict[str, Any]:
    """Return the query and the body of a request, as far as the handler takes them."""
    form = operation.query or NoParameters
    pairs = request.query_params.multi_items()
    given: dict[str, Any] = dict(pairs)
    if len(given) < len(pairs):
        raise BadRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, "A query parameter is given twice.")
    for name in _lists(form) & given.keys():
        if len(given[name]) > LIST_CHARACTERS:
            detail = f"The parameter {name} is longer than {LIST_CHARACTERS:,} characters."
            raise BadRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, detail)
        given[name] = [word.strip() for word in given[name].split(",") if word.strip()]
    try:
        query = msgspec.convert(given, form, strict=False)
        values = {} if operation.query is None else {"wanted": query}
        if operation.body is not None:
            decoded, form = msgspec.json.decode(await _body(request)), operation.body
            values["body"] = msgspec.convert(_with_integers(decoded), form)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, _told(error, form)) from None
    except msgspec.DecodeError as error:
        raise BadRequestError(HTTPStatus.BAD_REQUEST, f"The body is not JSON: {error}.") from None
    return values


def _told(error: Exception, form: type[msgspec.Struct]) -> str:
    """Return why a request does not have its form; where a pattern is not met, the text that is expected."""
    detail = in_words(error, form, "The body")
    name, pattern_missed, _ = detail.partition(": Expected `str` matching regex")
    if not pattern_missed:
        return detail if detail.endswith("?") else f"{detail}."
    schema = _properties(form).get(name, {})
    found = (each["description"] for each in (schema, *schema.get("anyOf", ())) if "description" in each)
    meant = next(found, None)
    return f"{name} must not be blank." if meant is None else f"{name} cannot be read. {meant}"


@cache
def _properties(form: type[msgspec.Struct]) -> dict[str, Any]:
    properties: dict[str, Any] = msgspec.json.schema(form)["$defs"][form.__name__]["properties"]
    return properties


@cache
def _lists(query: type[msgspec.Struct]) -> frozenset[str]:
    return frozenset(name for name, schema in _properties(query).items() if schema.get("type") == "array")


def _with_integers(value: JSON) -> JSON:
    """Return a value with whole numbers as integers: in JSON, 2.0 is as good as 2."""
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


_PATH_PARAMETER: Final = re.compile(r"\{(\w+)\}")

_AGENT: Final = {
    "name": AGENT_HEADER,
    "in": "header",
    "required": False,
    "description": "The agent on whose behalf the request is made, where interactions are remembered.",
    "schema": {"type": "string"},
}


def document(base: str, operations: Iterable[Operation]) -> JSON:
    """Return the OpenAPI document for operations below the path `base`."""
    operations = list(operations)
    types: set[type[msgspec.Struct]] = {Problem, NoParameters}
    types |= {operation.query for operation in operations if operation.query is not None}
    types |= {operation.answer for operation in operations}
    types |= {operation.body for operation in operations if operation.body is not None}
    named = sorted(types, key=lambda form: form.__name__)
    schemas, components = msgspec.json.schema_components(named, ref_template="#/components/schemas/{name}")
    # Generators of clients refuse `false` as a schema; `maxItems`, which is beside it, says the same.
    components = msgspec.json.decode(msgspec.json.encode(components).replace(b',"items":false', b""))
    by_type = dict(zip(named, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = _operation(operation, by_type, components)
        paths.setdefault(operation.path, {})[operation.method.lower()] = described
    for operation in operations:
        components.pop((operation.query or NoParameters).__name__, None)
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
    def response(description: str, media_type: str, form: type[msgspec.Struct]) -> JSON:
        return {"description": description, "content": {media_type: {"schema": schemas[form]}}}

    query = components[(operation.query or NoParameters).__name__]
    parameters: list[JSON] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PATH_PARAMETER.findall(operation.path)
    ]
    # Required ones first; msgspec has inherited fields before a class's own.
    for name in sorted(query["properties"], key=lambda name: name not in query.get("required", ())):
        schema = query["properties"][name]
        if schema.get("type") == "array":
            meaning = f"{schema['description']} Separated by commas."
            schema = {"type": "string", "maxLength": LIST_CHARACTERS, "default": "", "description": meaning}
        required = name in query.get("required", ())
        parameters.append({"name": name, "in": "query", "required": required, "schema": schema})
    problems = {HTTPStatus.UNPROCESSABLE_ENTITY, *operation.problems}
    if operation.role > Role.USE or operation.decides:
        problems.add(HTTPStatus.FORBIDDEN)
    if operation.body is not None:
        problems.update(BODY_PROBLEMS)
    described: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "parameters": [*parameters, *([_AGENT] if operation.names_agent else [])],
        "responses": {
            "200": response("The answer.", JSON_TYPE, operation.answer),
            **{
                str(int(status)): response(status.phrase, PROBLEM_TYPE, Problem)
                for status in sorted(problems)
            },
            "401": {"description": "The bearer token is missing or wrong."},
        },
    }
    if operation.body is not None:
        content = {JSON_TYPE: {"schema": schemas[operation.body]}}
        described["requestBody"] = {"required": True, "content": content}
    return described


PATH: Final = "/ui"
BASE: Final = "/api/v1"

MEDIA_TYPES: Final = {".js": "text/javascript", ".css": "text/css"}
"""Media types of the files that the pages load, by their suffixes."""

PAGE_HEADERS: Final = {
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
"""Headers of pages and files: nothing comes from elsewhere or runs inline; strangers write descriptions."""

_FOLDER: Final = Path(__file__).parent / "files"

CURRENT: Final = ' aria-current="page"'
"""Attribute of the link to the current page."""


class Page(Struct, frozen=True):
    """One page; all share a frame."""

    path: str
    name: str
    """Text of links to it."""
    title: str
    region: str
    """Id of the element that the skip link leads to."""
    main: str
    """File with its content."""
    script: str
    styles: tuple[str, ...]

    def html(self) -> str:
        """Return the whole page. Its links are relative: the proxy may be below a path of another server."""
        root = "../" * (self.path.count("/") - 1)
        styles = [f'<link rel="stylesheet" href="{root}ui/{style}">' for style in self.styles]
        script = f'<script type="module" src="{root}ui/{self.script}"></script>'
        pages = [
            f'<a href="{root}{page.path[1:]}"{CURRENT if page is self else ""}>{page.name}</a>'
            for page in PAGES
        ]
        return Template(packaged_text(_FOLDER / "frame.html")).substitute(
            title=self.title,
            region=self.region,
            links="\n  ".join([*styles, script]),
            pages=" ".join(pages),
            main=packaged_text(_FOLDER / self.main),
        )


_PLAIN: Final = ("style.css",)
_TABLES: Final = ("style.css", "usage.css")
_CARDS: Final = ("style.css", "usage.css", "manage.css")

PAGES: Final = (
    Page(PATH, "Servers", "Servers", "servers", "servers.html", "servers.js", _CARDS),
    Page(f"{PATH}/tools", "Tools", "Tools", "tools", "tools.html", "tools.js", _CARDS),
    Page(f"{PATH}/requests", "Requests", "Request contexts", "context", "requests.html", "page.js", _PLAIN),
    Page(f"{PATH}/sessions", "Sessions", "Sessions", "sessions", "sessions.html", "sessions.js", _CARDS),
    Page(f"{PATH}/usage", "Usage", "Usage", "usage", "usage.html", "usage.js", _TABLES),
    Page(f"{PATH}/audit", "Audit", "Audit", "audit", "audit.html", "audit.js", _TABLES),
    Page(
        f"{PATH}/approvals", "Approvals", "Approvals", "approvals", "approvals.html", "approvals.js", _TABLES
    ),
    Page(
        f"{PATH}/connect", "Connect a host", "Connect a host", "connect", "connect.html", "connect.js", _CARDS
    ),
)


def page_routes() -> list[Route]:
    """Return a route for each page and file, and those that lead to the first page."""
    answers: dict[str, Response] = {
        f"{PATH}/": RedirectResponse("../ui", HTTPStatus.PERMANENT_REDIRECT, PAGE_HEADERS),
        f"{PATH}/servers": RedirectResponse("../ui", HTTPStatus.PERMANENT_REDIRECT, PAGE_HEADERS),
        # For now only: browsers remember a permanent move also when another program has the port.
        ROOT_PATH: RedirectResponse("ui", HTTPStatus.TEMPORARY_REDIRECT, PAGE_HEADERS),
    }
    for page in PAGES:
        answers[page.path] = Response(page.html(), headers=PAGE_HEADERS, media_type="text/html")
    for file in _FOLDER.iterdir():
        if kind := MEDIA_TYPES.get(file.suffix):
            answers[f"{PATH}/{file.name}"] = Response(packaged_text(file), 200, PAGE_HEADERS, kind)
    return [Route(path, answer, methods=["GET"]) for path, answer in answers.items()]


def routes(
    operations: Sequence[Operation],
    shown: Shown = clean_json,
    within: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    public_url: str | None = None,
) -> list[BaseRoute]:
    """Return the routes of the API, its OpenAPI document, and the pages.

    Responses of the API pass `shown`; its requests are served `within` the limits of their clients. The
    document names the path that belongs to the `public_url` of MCP.
    """
    described = cache(lambda: document(http.below(public_url) + BASE, operations))  # takes 0.1 s, and few ask

    async def openapi(_request: Request) -> Response:
        return JSONResponse(await in_thread(described), headers=HEADERS)

    by_path: dict[str, list[Operation]] = defaultdict(list)
    for operation in operations:
        by_path[operation.path].append(operation)
    inner = Starlette(
        routes=[
            *(route(same_path, shown) for same_path in by_path.values()),
            Route("/openapi.json", openapi, methods=["GET"]),
        ],
        exception_handlers={HTTPException: on_http_error, Exception: _on_fault},
    )
    mounted = Mount(BASE, app=within(inner))
    # Every path below the base is answered by the API, also one with a line break in it.
    mounted.path_regex = re.compile(mounted.path_regex.pattern, re.DOTALL)
    return [mounted, *page_routes()]


async def _on_fault(_request: Request, _error: Exception) -> Response:
    # The error goes on to the log, with its details.
    return refused(HTTPStatus.INTERNAL_SERVER_ERROR, "The proxy failed; its log has the details.")
