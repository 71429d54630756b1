"""MCP tools and prompts from plain typed functions.

A tool is a function: its name, docstring, annotations and defaults are the definition that a model reads.
Schemas cover everything that a signature can say: strings, numbers, booleans, lists, literals, typed
dictionaries, defaults, descriptions and bounds. A parameter called ``request`` gets the request itself, for
progress and cancellation. Complaints about arguments are worded for a language model: they name the mistake
and the expected value.
"""

import json
import threading
import types
import typing
from collections.abc import Callable
from queue import SimpleQueue
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

from mcp_context_proxy.examples.kit import (
    INVALID_PARAMS,
    RESOURCE_NOT_FOUND,
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

SCALARS = {str: "string", int: "integer", float: "number", bool: "boolean", Any: None, object: None}
"""Python types with a one-word counterpart; None stands for any JSON value."""

PYTHON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}
"""Types that `json.loads` gives for each JSON Schema type."""

UNIONS = (types.UnionType, typing.Union)

Schema = dict[str, Any]
Function = TypeVar("Function", bound=Callable[..., object])


class ToolError(Exception):
    """A call that cannot be done; its message tells the model the mistake and the remedy."""


class Between(NamedTuple):
    """Inclusive bounds of a number, used as ``Annotated[int, "description", Between(1, 100)]``."""

    low: float
    high: float


class _Tool(NamedTuple):
    function: Callable[..., Any]
    definition: Schema
    wrapped: bool
    """True while the result is not an object, so that it travels as ``{"result": ...}``."""


class _Prompt(NamedTuple):
    function: Callable[..., str]
    definition: Schema
    parameters: Schema


class Server(Core):
    """An MCP server with tools and prompts made of functions, on standard streams."""

    def __init__(self, name: str, instructions: str) -> None:
        info = {"name": f"example-{name}", "title": name.capitalize(), "version": VERSION}
        super().__init__(info, instructions)
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
            tool = _declared(function, hints)
            self._tools[tool.definition["name"]] = tool
            return function

        return declare

    def prompt(self, function: Callable[..., str]) -> Callable[..., str]:
        """Offer the decorated function as a prompt; it returns the text of one user message."""
        parameters = schema_of_parameters(function)
        arguments = [
            {"name": name, "description": schema["description"], "required": name in parameters["required"]}
            for name, schema in parameters["properties"].items()
        ]
        definition = _headline(function) | {"arguments": arguments}
        self._prompts[definition["name"]] = _Prompt(function, definition, parameters)
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
        name, arguments = request.params.get("name"), request.params.get("arguments") or {}
        tool = self._tools.get(name) if isinstance(name, str) else None
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"unknown tool {name!r}")
        if not isinstance(arguments, dict):
            return _failure("arguments must be an object")
        checked, problems = check_arguments(tool.definition["inputSchema"], arguments)
        if problems:
            return _failure(f"{name}: " + "; ".join(problems))
        if "request" in tool.function.__annotations__:
            checked["request"] = request
        try:
            return _success(tool, tool.function(**checked))
        except (NoResponse, RpcError):
            raise
        except ToolError as e:
            return _failure(str(e))
        except OSError as e:
            return _failure(f"{name}: {e.strerror or e}")
        except Exception as e:  # boundary: one call must not take the server down
            import traceback  # noqa: PLC0415 - seldom needed

            traceback.print_exc()
            return _failure(f"{name} failed: {type(e).__name__}: {e}")

    def _get_prompt(self, request: Request) -> Schema:
        name, arguments = request.params.get("name"), request.params.get("arguments") or {}
        prompt = self._prompts.get(name) if isinstance(name, str) else None
        if prompt is None:
            raise RpcError(INVALID_PARAMS, f"unknown prompt {name!r}")
        checked, problems = check_arguments(prompt.parameters, arguments)
        if problems:
            raise RpcError(INVALID_PARAMS, f"{name}: " + "; ".join(problems))
        try:
            text = prompt.function(**checked)
        except ToolError as e:
            raise RpcError(INVALID_PARAMS, str(e)) from e
        message = {"role": "user", "content": {"type": "text", "text": text}}
        return {"description": prompt.definition["description"], "messages": [message]}


def _success(tool: _Tool, value: Any) -> Schema:
    if isinstance(value, str) and not tool.wrapped:
        return {"content": [{"type": "text", "text": value}], "isError": False}
    text = json.dumps(value, ensure_ascii=False)
    structured = {"result": value} if tool.wrapped else value
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured, "isError": False}


def _failure(message: str) -> Schema:
    return {"content": [{"type": "text", "text": message}], "isError": True}


def _declared(function: Callable[..., object], hints: dict[str, bool]) -> _Tool:
    definition = _headline(function) | {"inputSchema": schema_of_parameters(function), "annotations": hints}
    if function.__annotations__["return"] is str:
        return _Tool(function, definition, wrapped=False)
    result = schema_of(function.__annotations__["return"])
    wrapped = result.get("type") != "object"
    if wrapped:
        result = {"type": "object", "properties": {"result": result}, "required": ["result"]}
    return _Tool(function, definition | {"outputSchema": result}, wrapped)


def _headline(function: Callable[..., object]) -> Schema:
    """Name, title and description, as they stand at the head of any definition."""
    name: str = getattr(function, "__name__")  # noqa: B009 - not every callable has one
    title = name.replace("_", " ").capitalize()
    return {"name": name, "title": title, "description": " ".join((function.__doc__ or "").split())}


def schema_of_parameters(function: Callable[..., object]) -> Schema:
    """The schema of a function's parameters, without the one called ``request``, which gets the request."""
    hints = {name: hint for name, hint in function.__annotations__.items() if name != "return"}
    values: tuple[object, ...] = getattr(function, "__defaults__", None) or ()
    defaults = dict(zip([*hints][len(hints) - len(values) :], values, strict=True))
    properties = {name: schema_of(_without_none(hint)) for name, hint in hints.items() if name != "request"}
    for name, schema in properties.items():
        if defaults.get(name) is not None:
            schema["default"] = defaults[name]
    required = [name for name in properties if name not in defaults]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _without_none(hint: Any) -> Any:
    """``Annotated[X | None, ...]`` as ``Annotated[X, ...]``: an optional parameter is left out, not null."""
    if typing.get_origin(hint) is Annotated:
        return Annotated[(_without_none(typing.get_args(hint)[0]), *hint.__metadata__)]
    if typing.get_origin(hint) in UNIONS:
        [hint] = [arg for arg in typing.get_args(hint) if arg is not types.NoneType]
    return hint


def schema_of(annotation: Any) -> Schema:
    """The schema of one annotation."""
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        schema = schema_of(args[0])
        for extra in args[1:]:
            bounds = isinstance(extra, Between)
            schema |= {"minimum": extra.low, "maximum": extra.high} if bounds else {"description": extra}
        return schema
    if origin is Literal:
        return {"type": "string", "enum": list(args)}
    if origin is list:
        return {"type": "array", "items": schema_of(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema_of(args[1])}
    if origin in UNIONS:
        return {"anyOf": [schema_of(arg) for arg in args]}
    if annotation is types.NoneType:
        return {"type": "null"}
    if typing.is_typeddict(annotation):
        properties = {name: schema_of(hint) for name, hint in annotation.__annotations__.items()}
        return {"type": "object", "properties": properties, "required": list(properties)}
    word = SCALARS[annotation]
    return {"type": word} if word else {}


def check_arguments(schema: Schema, arguments: Schema) -> tuple[Schema, list[str]]:
    """The arguments as Python wants them, and everything that is wrong with them.

    A null for an optional argument counts as left out, because models write it so.
    """
    required = schema["required"]
    given = {name: value for name, value in arguments.items() if value is not None or name in required}
    problems: list[str] = []
    return _check_object(schema, given, "", problems), problems


def _check(schema: Schema, value: Any, where: str, problems: list[str]) -> Any:
    expected: str | None = schema.get("type")
    if expected is None:
        return value
    if expected == "integer" and isinstance(value, float) and value.is_integer():
        value = int(value)
    # To Python a boolean is a number, to JSON it is not.
    fits = isinstance(value, PYTHON_TYPES[expected]) and isinstance(value, bool) == (expected == "boolean")
    if not fits:
        problems.append(f"{where} must be {_a(expected)}, not {_a(_json_type(value))}")
    elif expected == "object":
        return _check_object(schema, value, where, problems)
    elif expected == "array":
        return [_check(schema["items"], item, f"{where}[{i}]", problems) for i, item in enumerate(value)]
    elif "enum" in schema and value not in schema["enum"]:
        problems.append(f"{where} must be one of {', '.join(schema['enum'])}; got {value!r}")
    elif "minimum" in schema and not schema["minimum"] <= value <= schema["maximum"]:
        problems.append(f"{where} must be from {schema['minimum']} to {schema['maximum']}; got {value}")
    return value


def _check_object(schema: Schema, value: Schema, where: str, problems: list[str]) -> Schema:
    known, prefix = schema.get("properties", {}), f"{where}." if where else ""
    checked = {}
    for name, item in value.items():
        if name in known:
            checked[name] = _check(known[name], item, prefix + name, problems)
        elif isinstance(rest := schema.get("additionalProperties", True), dict):
            checked[name] = _check(rest, item, prefix + name, problems)
        elif not rest:
            problems.append(_unknown(prefix + name, list(known)))
    missing = [name for name in schema.get("required", ()) if name not in value]
    problems.extend(f"{prefix}{name} is missing{_purpose(known[name])}" for name in missing)
    return checked


def _unknown(name: str, known: list[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - seldom needed

    nearest = get_close_matches(name, known, 1)
    hint = f"did you mean {nearest[0]}?" if nearest else f"allowed: {', '.join(known) or 'none'}"
    return f"{name} is not an argument of this tool; {hint}"


def _purpose(schema: Schema) -> str:
    kind = _a(schema["type"]) if "type" in schema else "a value"
    return f" ({kind}: {schema['description']})" if "description" in schema else f" ({kind})"


def _a(word: str) -> str:
    if word == "null":
        return word
    return f"an {word}" if word[0] in "aeio" else f"a {word}"


def _json_type(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    return next(word for word, kinds in PYTHON_TYPES.items() if isinstance(value, kinds))
