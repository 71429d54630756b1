"""What a query needs: tools that must all be found, and groups of which any one is enough."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta

from mcp_context_proxy.errors import DataFileError
from mcp_context_proxy.evaluation.lines import read_lines

ToolKey: TypeAlias = tuple[str, str]
"""Server and the tool's own name."""

Need: TypeAlias = frozenset[ToolKey]
"""Tools any one of which is enough."""


class QueryLine(msgspec.Struct):
    """One query, as a line of a file of queries has it."""

    query: Annotated[str, Meta(min_length=1)]
    relevant: list[ToolKey]
    any_of: list[Annotated[list[ToolKey], Meta(min_length=1)]] = []


@dataclass(frozen=True, slots=True)
class Query:
    """A query and its needs, each once: those of ``relevant`` one by one, then the groups of ``any_of``."""

    text: str
    needs: tuple[Need, ...]
    """Empty when nothing there is answers the query."""


def read_queries(path: Path) -> list[Query]:
    """The queries of a file, in its order.

    Raises:
        DataFileError: the file cannot be read, a line is no query, or there is none.
    """
    queries = [_query(line) for _, line in read_lines(path, QueryLine)]
    if not queries:
        raise DataFileError(path, None, "it has no queries")
    return queries


def _query(line: QueryLine) -> Query:
    needs = [frozenset({key}) for key in line.relevant] + [frozenset(group) for group in line.any_of]
    return Query(line.query, tuple(dict.fromkeys(needs)))
