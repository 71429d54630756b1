"""A run: what was answered to each query, in a file that any other tool can score."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from mcp_context_proxy.errors import DataFileError
from mcp_context_proxy.evaluation.lines import read_lines
from mcp_context_proxy.evaluation.queries import ToolKey


class Answer(msgspec.Struct, frozen=True):
    """The answer to one query: one line of a run."""

    query: str
    ranking: list[tuple[str, str, float]]
    """Server, name and score, best first: as deep as was asked for, and at least those selected."""
    selected: Annotated[int, Meta(ge=0)]
    """How many of the ranking the selection rule returns, whether or not anything fits."""
    fits: bool
    """Whether the answer is that something fits."""

    @property
    def keys(self) -> list[ToolKey]:
        """The ranking without scores."""
        return [(server, name) for server, name, _ in self.ranking]


def write_run(path: Path, answers: Iterable[Answer]) -> None:
    """Write one line per answer.

    Raises:
        DataFileError: the file cannot be written.
    """
    try:
        path.write_bytes(b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers))
    except OSError as e:
        raise DataFileError(path, None, f"it cannot be written ({e.strerror or e})") from None


def read_run(path: Path) -> list[Answer]:
    """The answers of a run, in its order.

    Raises:
        DataFileError: the file cannot be read, or a line is no answer.
    """
    return [answer for _, answer in read_lines(path, Answer)]
