"""How what a search found reads in a terminal: rank, score, name, then what it is and why it was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from rich.text import Text

from mcp_context_proxy.cli.terminal import Terminal, one_line
from mcp_context_proxy.items import Document
from mcp_context_proxy.retrieval.ranking import Result

INDENT: Final = 12
"""Where names begin, after rank and score."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One found item, for a person."""

    name: str
    """Under which it is called or read."""
    description: str
    score: float
    why: str

    @classmethod
    def of(cls, result: Result) -> Self:
        """From a search in this process."""
        item = result.item
        if isinstance(item, Document):
            return cls(item.uri, one_line(item.description), result.score, result.why)
        return cls(item.exposed_name, one_line(item.description), result.score, result.why)

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """From the structured answer of ``search_available_tools``."""
        name = str(data.get("uri") or data["name"])
        return cls(name, one_line(str(data["description"])), float(data["score"]), str(data["why"]))


def show_one(console: Terminal, rank: int | str, hit: Hit) -> None:
    """Show one hit: its name, what it is on one line, and why it was found."""
    console.say(f"{rank:>4}  {hit.score:4.2f}  ", Text(hit.name, style="bold cyan"))
    if hit.description:
        console.short(hit.description, INDENT)
    console.prose(Text(f"why: {one_line(hit.why)}", style="dim"), INDENT, hanging=5)
