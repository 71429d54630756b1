"""The OpenAPI document of the API, made from the declarations that the endpoints themselves go by."""

from __future__ import annotations

import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any

import msgspec

from mcp_context_proxy import __version__
from mcp_context_proxy.front.bodies import JSON_TYPE, PROBLEM_TYPE
from mcp_context_proxy.items import JSON
from mcp_context_proxy.web.operation import AGENT_HEADER, Operation, Problem

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
