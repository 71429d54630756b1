"""Reads catalogs of tools, and queries with the tools they need, from files of JSON lines, gzipped or not.

A query's needs are tools that must all be found, and groups of tools any one of which is enough. A
`DataFileError` names the file, the line, and the reason.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct

from mcp_context_proxy.catalog.definitions import class_of, exposed_name, fingerprint
from mcp_context_proxy.config.host_profiles import NAME_CHARACTERS
from mcp_context_proxy.errors import DataFileError
from mcp_context_proxy.items import Snapshot, Source, Tool, ToolKey
from mcp_context_proxy.protocol.mistakes import in_words

T = TypeVar("T")

GZIP_MAGIC = b"\x1f\x8b"

Need: TypeAlias = frozenset[ToolKey]
"""Tools any one of which is enough."""

Name = Annotated[str, Meta(min_length=1)]


class CorpusLine(msgspec.Struct):
    """One tool: a line of a corpus."""

    server: Name
    name: Name
    description: str | None = None
    input_schema: Raw = Raw(b"{}")
    title: str | None = None
    annotations: Raw = Raw(b"{}")
    use_cases: tuple[str, ...] = ()


class QueryLine(msgspec.Struct):
    """One query: a line of a file of queries."""

    query: Annotated[str, Meta(min_length=1)]
    relevant: list[ToolKey]
    any_of: list[Annotated[list[ToolKey], Meta(min_length=1)]] = []


class EvalQuery(Struct, frozen=True):
    """A query and its distinct needs: each tool of ``relevant``, then the groups of ``any_of``."""

    text: str
    needs: tuple[Need, ...]
    """Empty if no tool at all can answer the query."""


def read_corpus(path: Path) -> Snapshot:
    """Make a catalog of a file of tools, as if all their servers were connected; in any order of lines."""
    lines: dict[ToolKey, int] = {}
    by_server: dict[str, list[Tool]] = {}
    for number, line in read_lines(path, CorpusLine):
        key = line.server, line.name
        if (first := lines.setdefault(key, number)) != number:
            raise DataFileError(
                path, number, f"tool {line.name!r} of {line.server!r} is on line {first} already"
            )
        if not bytes(line.input_schema).startswith((b"{", b"null")):
            raise DataFileError(path, number, "input_schema must be an object or null")
        by_server.setdefault(line.server, []).append(_tool(line))
    if not lines:
        raise DataFileError(path, None, "it has no tools")
    sources = tuple(Source(server, tuple(tools), {}) for server, tools in sorted(by_server.items()))
    tools = {tool.exposed_name: tool for group in by_server.values() for tool in group}
    return Snapshot(1, sources, dict(sorted(tools.items())))


def _tool(line: CorpusLine) -> Tool:
    schema = line.input_schema if bytes(line.input_schema).startswith(b"{") else Raw(b"{}")
    members: dict[str, str | Raw] = {
        "name": line.name,
        "description": line.description or "",
        "inputSchema": schema,
    }
    if line.title is not None:
        members["title"] = line.title
    if bytes(line.annotations) != b"{}":
        members["annotations"] = line.annotations
    definition = msgspec.json.encode(members)
    return Tool(
        server=line.server,
        name=line.name,
        exposed_name=exposed_name(line.server, line.name, NAME_CHARACTERS),
        description=line.description or "",
        definition=definition,
        fingerprint=fingerprint(line.server, definition),
        use_cases=line.use_cases,
        tool_class=class_of(line.name, definition),
    )


def read_queries(path: Path) -> list[EvalQuery]:
    """Read the queries of a file, in its order."""
    queries = []
    for _, line in read_lines(path, QueryLine):
        needs = [frozenset({key}) for key in line.relevant] + [frozenset(group) for group in line.any_of]
        queries.append(EvalQuery(line.query, tuple(dict.fromkeys(needs))))
    if not queries:
        raise DataFileError(path, None, "it has no queries")
    return queries


def read_lines(path: Path, kind: type[T]) -> Iterator[tuple[int, T]]:
    """Yield each line that is not blank, decoded, with its number from 1."""
    decode = msgspec.json.Decoder(kind).decode
    number = 0
    try:
        # A gzipped file is recognised by its first bytes, whatever its name.
        with path.open("rb") as file:
            packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise DataFileError(path, number, in_words(e, kind, "the line")) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise DataFileError(path, None, f"it is damaged: not a complete gzip file ({e})") from None
    except OSError as e:
        raise DataFileError(path, None, f"it cannot be read ({e.strerror or e})") from None
