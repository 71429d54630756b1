"""An MCP server from plain typed functions; standard library only, because start-up time is its point.

A tool is a function: its name, docstring, annotations and defaults are the definition a model reads. This
module turns functions into definitions and requests into results; `stdio` moves the bytes.
"""

import json
import logging
import time
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar

from mcp_context_proxy.examples import protocol, schema
from mcp_context_proxy.examples.protocol import JSON, Request, RpcError
from mcp_context_proxy.examples.schema import Between

__all__ = ["JSON", "Between", "Call", "Resources", "Server", "ToolError"]

logger = logging.getLogger(__name__)

VERSION = "1.0.0"
"""Of every example server; they change together."""

REPORT_EVERY = 0.1
"""Seconds between two progress notifications of one call; nobody reads faster."""

Function = TypeVar("Function", bound=Callable[..., object])


class ToolError(Exception):
    """A call that cannot be done; its message tells the model what was wrong and what is expected."""


class CallCancelled(Exception):  # noqa: N818
    """The client no longer wants the answer."""


class Call:
    """One call under way, for a tool that takes long: declare a parameter of this type to get it."""

    def __init__(
        self,
        notify: Callable[[str, JSON], None],
        token: int | str | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._notify, self._token, self._clock = notify, token, clock
        self._next_report = clock()
        self.cancelled = False

    def step(self, done: float, total: float, message: str) -> None:
        """Report progress if the client asked for it: the first step, the last one, and some between.

        Raises:
            CallCancelled: The client has cancelled the call.
        """
        if self.cancelled:
            raise CallCancelled
        if self._token is not None and (done >= total or self._clock() >= self._next_report):
            self._next_report = self._clock() + REPORT_EVERY
            progress = {"progressToken": self._token, "progress": done, "total": total, "message": message}
            self._notify("notifications/progress", progress)


Handler: TypeAlias = Callable[[Request, Call], dict[str, JSON]]
"""Answers one method."""


class Resources(Protocol):
    """What a server offers for reading besides its tools."""

    def list(self) -> Sequence[JSON]:
        """Every resource, as ``resources/list`` shows it."""

    def templates(self) -> Sequence[JSON]:
        """Every template, as ``resources/templates/list`` shows it."""

    def read(self, uri: str) -> JSON | None:
        """The one content of ``uri``, or None when there is no such resource."""


@dataclass(frozen=True, slots=True)
class _Tool:
    function: Callable[..., object]
    definition: dict[str, JSON]
    call_parameter: str | None
    wrapped: bool
    """The result is not an object, so it travels as ``{"result": ...}``."""


@dataclass(frozen=True, slots=True)
class _Prompt:
    function: Callable[..., str]
    definition: dict[str, JSON]


class Server:
    """The tools, prompts and resources of one server, and its answers to requests."""

    def __init__(self, name: str, instructions: str, resources: Resources | None = None) -> None:
        self.info = {"name": f"example-{name}", "title": name.capitalize(), "version": VERSION}
        self._instructions = instructions
        self._resources = resources
        self._tools: dict[str, _Tool] = {}
        self._prompts: dict[str, _Prompt] = {}

    def tool(
        self, *, read_only: bool = False, destructive: bool = False, idempotent: bool = False
    ) -> Callable[[Function], Function]:
        """Offer the decorated function as a tool; the hints tell a host how careful to be with it."""
        hints = {
            "readOnlyHint": read_only,
            "destructiveHint": destructive,
            "idempotentHint": idempotent or read_only,
            "openWorldHint": False,
        }

        def declare(function: Function) -> Function:
            self._tools[_name(function)] = _declare_tool(function, hints)
            return function

        return declare

    def prompt(self, function: Callable[..., str]) -> Callable[..., str]:
        """Offer the decorated function as a prompt; it returns the text of one user message."""
        parameters = schema.of_parameters(function, Call)
        arguments = [
            {
                "name": name,
                "description": parameter.get("description", ""),
                "required": name in parameters["required"],
            }
            for name, parameter in parameters["properties"].items()
        ]
        definition = _headline(function) | {"arguments": arguments}
        self._prompts[_name(function)] = _Prompt(function, definition)
        return function

    def run(self) -> None:
        """Serve standard input and output until the client closes them."""
        from mcp_context_proxy.examples.stdio import Connection  # noqa: PLC0415

        Connection(self).serve()

    def answer(self, request: Request, call: Call) -> dict[str, JSON]:
        """The result of one request.

        Raises:
            RpcError: There is no such method, tool, prompt or resource, or its parameters are malformed.
            CallCancelled: The client cancelled the call while it ran.
        """
        handlers = self._handlers(request.modern)
        if request.method not in handlers:
            raise RpcError(protocol.METHOD_NOT_FOUND, f"unknown method {request.method!r}")
        return protocol.stamp(request, handlers[request.method](request, call), self.info)

    def _handlers(self, modern: bool) -> dict[str, Handler]:
        handlers: dict[str, Handler] = {"tools/list": self._list_tools, "tools/call": self._call_tool}
        handlers |= {"server/discover": self._discover} if modern else {"initialize": self._initialize}
        if not modern:
            handlers["ping"] = lambda _request, _call: {}
        if self._prompts:
            handlers |= {"prompts/list": self._list_prompts, "prompts/get": self._get_prompt}
        if self._resources is not None:
            handlers |= {
                "resources/list": self._list_resources,
                "resources/templates/list": self._list_templates,
                "resources/read": self._read_resource,
            }
        return handlers

    def _capabilities(self) -> dict[str, JSON]:
        offered = {"tools": True, "prompts": bool(self._prompts), "resources": self._resources is not None}
        return {name: {} for name, present in offered.items() if present}

    def _initialize(self, request: Request, _call: Call) -> dict[str, JSON]:
        asked = request.params.get("protocolVersion")
        version = asked if asked in protocol.HANDSHAKE_VERSIONS else protocol.HANDSHAKE_VERSIONS[0]
        return {
            "protocolVersion": version,
            "capabilities": self._capabilities(),
            "serverInfo": self.info,
            "instructions": self._instructions,
        }

    def _discover(self, _request: Request, _call: Call) -> dict[str, JSON]:
        return {
            "supportedVersions": [*protocol.MODERN_VERSIONS, *protocol.HANDSHAKE_VERSIONS],
            "capabilities": self._capabilities(),
            "instructions": self._instructions,
        }

    def _list_tools(self, request: Request, _call: Call) -> dict[str, JSON]:
        _refuse_cursor(request)
        return {"tools": [tool.definition for tool in self._tools.values()]}

    def _call_tool(self, request: Request, call: Call) -> dict[str, JSON]:
        name, arguments = request.params.get("name"), request.params.get("arguments") or {}
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise RpcError(protocol.INVALID_PARAMS, f"unknown tool {name!r}")
        if not isinstance(arguments, dict):
            return _failure("arguments must be an object")
        checked, problems = schema.check_arguments(tool.definition["inputSchema"], arguments)
        if problems:
            return _failure(f"{name}: " + "; ".join(problems))
        return _run(tool, checked, call)

    def _list_prompts(self, request: Request, _call: Call) -> dict[str, JSON]:
        _refuse_cursor(request)
        return {"prompts": [prompt.definition for prompt in self._prompts.values()]}

    def _get_prompt(self, request: Request, _call: Call) -> dict[str, JSON]:
        name, arguments = request.params.get("name"), request.params.get("arguments") or {}
        prompt = self._prompts.get(name) if isinstance(name, str) else None
        if prompt is None:
            raise RpcError(protocol.INVALID_PARAMS, f"unknown prompt {name!r}")
        declared = schema.of_parameters(prompt.function, Call)
        checked, problems = schema.check_arguments(declared, arguments)
        if problems:
            raise RpcError(protocol.INVALID_PARAMS, f"{name}: " + "; ".join(problems))
        try:
            text = prompt.function(**checked)
        except ToolError as e:
            raise RpcError(protocol.INVALID_PARAMS, str(e)) from e
        message = {"role": "user", "content": {"type": "text", "text": text}}
        return {"description": prompt.definition["description"], "messages": [message]}

    def _list_resources(self, request: Request, _call: Call) -> dict[str, JSON]:
        _refuse_cursor(request)
        return {"resources": list(self._offered.list())}

    def _list_templates(self, request: Request, _call: Call) -> dict[str, JSON]:
        _refuse_cursor(request)
        return {"resourceTemplates": list(self._offered.templates())}

    def _read_resource(self, request: Request, _call: Call) -> dict[str, JSON]:
        uri = request.params.get("uri")
        content = self._offered.read(uri) if isinstance(uri, str) else None
        if content is None:
            code = protocol.INVALID_PARAMS if request.modern else protocol.RESOURCE_NOT_FOUND
            raise RpcError(code, f"no resource {uri!r}", {"uri": uri})
        return {"contents": [content]}

    @property
    def _offered(self) -> Resources:
        if self._resources is None:
            raise RpcError(protocol.METHOD_NOT_FOUND, "this server offers no resources")
        return self._resources


def _declare_tool(function: Callable[..., object], hints: dict[str, bool]) -> _Tool:
    types = typing.get_type_hints(function, include_extras=True)
    call_parameter = next((name for name, hint in types.items() if hint is Call), None)
    definition = _headline(function) | {
        "inputSchema": schema.of_parameters(function, Call),
        "annotations": hints,
    }
    if types["return"] is str:
        return _Tool(function, definition, call_parameter, wrapped=False)
    result = schema.of_annotation(types["return"])
    wrapped = result.get("type") != "object"
    if wrapped:
        result = {"type": "object", "properties": {"result": result}, "required": ["result"]}
    return _Tool(function, definition | {"outputSchema": result}, call_parameter, wrapped)


def _headline(function: Callable[..., object]) -> dict[str, JSON]:
    """Name, title and description, as they stand at the head of any definition."""
    name = _name(function)
    title = name.replace("_", " ").capitalize()
    return {"name": name, "title": title, "description": " ".join((function.__doc__ or "").split())}


def _name(function: Callable[..., object]) -> str:
    return str(getattr(function, "__name__"))  # noqa: B009


def _run(tool: _Tool, arguments: dict[str, JSON], call: Call) -> dict[str, JSON]:
    if tool.call_parameter is not None:
        arguments = arguments | {tool.call_parameter: call}
    try:
        return _success(tool, tool.function(**arguments))
    except (CallCancelled, RpcError):
        raise
    except ToolError as e:
        return _failure(str(e))
    except OSError as e:
        return _failure(f"{tool.definition['name']}: {e.strerror or e}")
    except Exception as e:  # boundary: one call must not take the server down
        logger.exception("tool %s failed", tool.definition["name"])
        return _failure(f"{tool.definition['name']} failed: {type(e).__name__}: {e}")


def _success(tool: _Tool, value: Any) -> dict[str, JSON]:
    if isinstance(value, str) and not tool.wrapped:
        return {"content": [{"type": "text", "text": value}], "isError": False}
    text = json.dumps(value, ensure_ascii=False)
    structured = {"result": value} if tool.wrapped else value
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured, "isError": False}


def _failure(message: str) -> dict[str, JSON]:
    return {"content": [{"type": "text", "text": message}], "isError": True}


def _refuse_cursor(request: Request) -> None:
    """Every list fits one page, so any cursor is one this server never gave out."""
    if request.params.get("cursor") is not None:
        raise RpcError(protocol.INVALID_PARAMS, "invalid cursor")
