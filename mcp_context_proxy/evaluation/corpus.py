"""Makes a catalog of a file of tools, as if all their servers were connected."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Raw

from mcp_context_proxy.catalog.fingerprints import fingerprint
from mcp_context_proxy.catalog.naming import exposed_name
from mcp_context_proxy.config import ExposeConfig
from mcp_context_proxy.errors import DataFileError
from mcp_context_proxy.evaluation.lines import read_lines
from mcp_context_proxy.items import Snapshot, Source, Tool

Name = Annotated[str, Meta(min_length=1)]


class CorpusLine(msgspec.Struct):
    """One tool, as a line of a corpus has it."""

    server: Name
    name: Name
    description: str | None = None
    input_schema: Raw = Raw(b"{}")


def read_corpus(path: Path) -> Snapshot:
    """The catalog that a corpus describes; the order of its lines means nothing.

    Raises:
        DataFileError: the file cannot be read, a line is no tool, or a tool is there twice.
    """
    lines: dict[tuple[str, str], int] = {}
    by_server: dict[str, list[Tool]] = {}
    for number, line in read_lines(path, CorpusLine):
        key = line.server, line.name
        if (first := lines.setdefault(key, number)) != number:
            raise DataFileError(
                path, number, f"tool {line.name!r} of {line.server!r} is on line {first} already"
            )
        if not bytes(line.input_schema).startswith((b"{", b"null")):
            raise DataFileError(path, number, "Expected `object | null` - at `$.input_schema`")
        by_server.setdefault(line.server, []).append(_tool(line))
    if not lines:
        raise DataFileError(path, None, "it has no tools")
    sources = tuple(Source(server, tuple(tools), {}) for server, tools in sorted(by_server.items()))
    tools = {tool.exposed_name: tool for group in by_server.values() for tool in group}
    return Snapshot(1, sources, dict(sorted(tools.items())))


def _tool(line: CorpusLine) -> Tool:
    schema = line.input_schema if bytes(line.input_schema).startswith(b"{") else Raw(b"{}")
    members = {"name": line.name, "description": line.description or "", "inputSchema": schema}
    definition = msgspec.json.encode(members)
    return Tool(
        server=line.server,
        name=line.name,
        exposed_name=exposed_name(line.server, line.name, ExposeConfig().max_name_length),
        description=line.description or "",
        definition=definition,
        fingerprint=fingerprint(line.server, definition),
    )
