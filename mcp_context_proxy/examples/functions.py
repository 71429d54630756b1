"""MCP tools and prompts from plain typed functions, and the private folder where servers keep their data.

A tool is a function: its name, docstring, annotations and defaults are the definition that a model reads.
A parameter called ``request`` gets the request itself, for progress and cancellation. Errors about arguments
are worded for a language model: they name the mistake and the expected value.
"""

import json
import os
import threading
import types
import typing
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from mcp_context_proxy.examples import (
    DATA_VARIABLE,
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
    SERVERS,
    Core,
    NoResponse,
    Pipe,
    Request,
    RpcError,
    serve_stdio,
)

VERSION = "1.0.0"
"""Version of every example server; they change together."""

WORKERS = 4
"""Calls at once; enough that one long call does not hold up the others."""

JSON_TYPES: dict[type, str] = {
    types.NoneType: "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}

Schema = dict[str, Any]
Function = TypeVar("Function", bound=Callable[..., object])


class ToolError(Exception):
    """A call that cannot be done; its message tells the model the mistake and the remedy."""


class Between(NamedTuple):
    """Inclusive bounds of a number, used as ``Annotated[int, "description", Between(1, 100)]``."""

    low: float
    high: float


class Declared(NamedTuple):
    """A tool or a prompt."""

    function: Callable[..., Any]
    definition: Schema
    parameters: Schema


class Server(Core):
    """An MCP server with tools and prompts made of functions, on standard streams."""

    def __init__(self, name: str, instructions: str) -> None:
        info = {"name": f"example-{name}", "title": name.capitalize(), "version": VERSION}
        super().__init__(info, instructions)
        self._tools: dict[str, Declared] = {}
        self._prompts: dict[str, Declared] = {}

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
            parameters = schema_of_parameters(function)
            definition = _heading(function) | {"inputSchema": parameters, "annotations": hints}
            result = schema_of(function.__annotations__["return"])
            if result["type"] not in ("string", "object"):
                result = {"type": "object", "properties": {"result": result}, "required": ["result"]}
            if result["type"] == "object":
                definition["outputSchema"] = result
            self._tools[definition["name"]] = Declared(function, definition, parameters)
            return function

        return declare

    def prompt(self, function: Callable[..., str]) -> Callable[..., str]:
        """Offer the decorated function as a prompt; it returns the text of one user message."""
        parameters = schema_of_parameters(function)
        arguments = [
            {"name": name, "description": schema["description"], "required": name in parameters["required"]}
            for name, schema in parameters["properties"].items()
        ]
        definition = _heading(function) | {"arguments": arguments}
        self._prompts[definition["name"]] = Declared(function, definition, parameters)
        self.handlers["prompts/list"] = lambda request: self.page(
            request, "prompts", [prompt.definition for prompt in self._prompts.values()]
        )
        self.handlers["prompts/get"] = self._get_prompt
        return function

    def offer_resources(
        self,
        resources: Callable[[], list[Schema]],
        templates: list[Schema],
        read: Callable[[str], Schema | None],
    ) -> None:
        """Offer resources: their list, their templates, and the content of one, None where there is none."""

        def contents(request: Request) -> Schema:
            uri = request.params.get("uri")
            content = read(uri) if isinstance(uri, str) else None
            if content is None:
                code = INVALID_PARAMS if request.modern else RESOURCE_NOT_FOUND
                raise RpcError(code, f"no resource {uri!r}", {"uri": uri})
            return {"contents": [content]}

        self.handlers |= {
            "resources/list": lambda request: self.page(request, "resources", resources()),
            "resources/templates/list": lambda request: self.page(request, "resourceTemplates", templates),
            "resources/read": contents,
        }

    def run(self) -> None:
        """Serve standard input and output until the client closes them; calls under way are abandoned.

        Requests run in worker threads, so that a long call never keeps a cancellation from being read.
        """
        queue: SimpleQueue[Request] = SimpleQueue()

        def work() -> None:
            try:
                while True:
                    self.answer(queue.get())
            except BrokenPipeError:
                return

        for _ in range(WORKERS):
            threading.Thread(target=work, daemon=True).start()
        try:
            serve_stdio(self, Pipe(), queue.put)
        except (KeyboardInterrupt, BrokenPipeError):
            return

    def capabilities(self) -> Schema:
        offered = ("tools", "prompts", "resources")
        return {name: {} for name in offered if f"{name}/list" in self.handlers}

    def tools(self) -> list[Schema]:
        return [tool.definition for tool in self._tools.values()]

    def call(self, request: Request) -> Schema:
        """Run a tool; a failure is a result for the model, not an error of the protocol."""
        try:
            tool, arguments = _requested(request, self._tools, "tool")
            if "request" in tool.function.__annotations__:
                arguments["request"] = request
            value = tool.function(**arguments)
        except (NoResponse, RpcError):
            raise
        except ToolError as e:
            return _failure(str(e))
        except OSError as e:
            return _failure(f"{request.params['name']}: {e.strerror or e}")
        except Exception as e:  # boundary: one call must not take the server down
            import traceback  # noqa: PLC0415 - seldom needed

            traceback.print_exc()
            return _failure(f"{request.params['name']} failed: {type(e).__name__}: {e}")
        if isinstance(value, str):
            return {"content": [{"type": "text", "text": value}], "isError": False}
        text = json.dumps(value, ensure_ascii=False)
        structured = value if isinstance(value, dict) else {"result": value}
        content = [{"type": "text", "text": text}]
        return {"content": content, "structuredContent": structured, "isError": False}

    def _get_prompt(self, request: Request) -> Schema:
        try:
            prompt, arguments = _requested(request, self._prompts, "prompt")
            text = prompt.function(**arguments)
        except ToolError as e:
            raise RpcError(INVALID_PARAMS, str(e)) from e
        message = {"role": "user", "content": {"type": "text", "text": text}}
        return {"description": prompt.definition["description"], "messages": [message]}


def _failure(message: str) -> Schema:
    return {"content": [{"type": "text", "text": message}], "isError": True}


def _requested(request: Request, known: dict[str, Declared], kind: str) -> tuple[Declared, Schema]:
    """The tool or prompt that a request names, and its checked arguments.

    A null for an optional argument counts as left out, because models write it so.
    """
    name, arguments = request.params.get("name"), request.params.get("arguments") or {}
    if not isinstance(name, str) or name not in known:
        raise RpcError(INVALID_PARAMS, f"unknown {kind} {name!r}")
    declared, problems = known[name], list[str]()
    checked = _check_arguments(declared.parameters, arguments, problems)
    if problems:
        raise ToolError(f"{name}: {'; '.join(problems)}")
    return declared, checked


def _heading(function: Callable[..., object]) -> Schema:
    name: str = getattr(function, "__name__")  # noqa: B009 - not every callable has one
    title = name.replace("_", " ").capitalize()
    return {"name": name, "title": title, "description": " ".join((function.__doc__ or "").split())}


def schema_of_parameters(function: Callable[..., object]) -> Schema:
    """The schema of a function's parameters, without the one called ``request``, which gets the request."""
    hints = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    values: tuple[object, ...] = getattr(function, "__defaults__", None) or ()
    defaults = dict(zip([*hints][len(hints) - len(values) :], values, strict=True))
    properties = {name: schema_of(hint) for name, hint in hints.items() if name != "request"}
    for name, schema in properties.items():
        if defaults.get(name) is not None:
            schema["default"] = defaults[name]
    required = [name for name in properties if name not in defaults]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def schema_of(annotation: Any) -> Schema:
    """The schema of one annotation."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        schema = schema_of(args[0])
        for extra in args[1:]:
            bounds = isinstance(extra, Between)
            schema |= {"minimum": extra.low, "maximum": extra.high} if bounds else {"description": extra}
        return schema
    if origin in (types.UnionType, typing.Union):
        # X | None is an optional parameter, which is left out, not null.
        return schema_of(args[0])
    if origin is Literal:
        return {"type": "string", "enum": list(args)}
    if origin is list:
        return {"type": "array", "items": schema_of(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(args[1])}
    if typing.is_typeddict(annotation):
        properties = {name: schema_of(hint) for name, hint in annotation.__annotations__.items()}
        return {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": JSON_TYPES[annotation]}


def _check_arguments(parameters: Schema, arguments: Any, problems: list[str]) -> Schema:
    """The arguments as Python wants them; whatever does not fit the schema is added to ``problems``."""
    if not isinstance(arguments, dict):
        problems.append(f"arguments must be of type object, not {JSON_TYPES[type(arguments)]}")
        return {}
    known: Schema = parameters["properties"]
    checked: Schema = {}
    for name, value in arguments.items():
        if value is None and name not in parameters["required"]:
            continue
        if name in known:
            checked[name] = _check(known[name], value, name, problems)
            continue
        from difflib import get_close_matches  # noqa: PLC0415 - seldom needed

        nearest = get_close_matches(name, known, 1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"allowed: {', '.join(known) or 'none'}"
        problems.append(f"{name} is not an argument of this tool; {hint}")
    for name in parameters["required"]:
        if name not in arguments:
            problems.append(f"{name} is missing ({known[name].get('description', 'required')})")
    return checked


def _check(schema: Schema, value: Any, where: str, problems: list[str]) -> Any:
    expected = schema["type"]
    if expected == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    actual = JSON_TYPES[type(value)]
    if expected != actual and (expected, actual) != ("number", "integer"):
        problems.append(f"{where} must be of type {expected}, not {actual}")
    elif expected == "array":
        return [_check(schema["items"], item, f"{where}[{i}]", problems) for i, item in enumerate(value)]
    elif "enum" in schema and value not in schema["enum"]:
        problems.append(f"{where} must be one of {', '.join(schema['enum'])}; got {value!r}")
    elif "minimum" in schema and not schema["minimum"] <= value <= schema["maximum"]:
        problems.append(f"{where} must be from {schema['minimum']} to {schema['maximum']}; got {value}")
    return value


def server(name: str) -> Server:
    found: Server = getattr(import_module(f"mcp_context_proxy.examples.{SERVERS[name]}"), name)
    return found


def data_folder() -> Path:
    """The folder of all data, created if it does not exist yet."""
    if configured := os.environ.get(DATA_VARIABLE):
        folder = Path(configured)
        folder.mkdir(parents=True, exist_ok=True)
        return folder.resolve()
    import tempfile  # noqa: PLC0415 - for the default folder only

    owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = Path(tempfile.gettempdir()) / f"mcp-context-proxy-examples-{owner}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # The temporary folder is everybody's: another user may have made this one, or a link, before us.
    if folder.is_symlink() or (hasattr(os, "getuid") and folder.stat().st_uid != os.getuid()):
        raise ToolError(f"{folder} belongs to somebody else; set {DATA_VARIABLE} to a folder of your own")
    return folder.resolve()
