"""Filters of a search, and the items that each allows."""

from collections.abc import Mapping
from typing import Any

from support.tables import each

from mcp_context_proxy.context.search_filters import engine_filters, excluded
from mcp_context_proxy.items import Document, Kind, SearchFilters, Tool
from mcp_context_proxy.retrieval import Result
from mcp_context_proxy.statistics import ToolFigures

TOOLS = tuple(Tool("s", name, f"s__{name}", b"{}", name) for name in ("new", "good", "slow", "bad", "few"))
RULE = Document(Kind.RULE, "rule", "", "", "rule")


def figures(calls: int, errors: int, p95_ms: float) -> ToolFigures:
    return ToolFigures(calls, errors, p95_ms / 2, p95_ms / 2, p95_ms, 0.0, 10.0)


KNOWN: Mapping[tuple[str, str], ToolFigures] = {
    ("s", "good"): figures(100, 1, 50),
    ("s", "slow"): figures(100, 0, 5000),
    ("s", "bad"): figures(100, 60, 20),
    ("s", "few"): figures(4, 4, 20),
}


def left(**asked: Any) -> set[str]:
    filters = engine_filters(SearchFilters(**asked), KNOWN)
    return {item.name for item in (*TOOLS, RULE) if filters.allow(item)}


EVERYTHING = {"new", "good", "slow", "bad", "few", "rule"}


@each(
    ("asked", "expected"),
    [
        ({"max_latency_ms": 100.0}, EVERYTHING - {"slow"}),
        ({"max_latency_ms": 100.0, "strict": True}, {"good", "bad", "few"}),
        ({"min_success_rate": 0.9}, EVERYTHING - {"bad"}),
        ({"min_success_rate": 0.9, "min_calls": 4}, EVERYTHING - {"bad", "few"}),
        ({"min_success_rate": 0.9, "strict": True}, {"good", "slow"}),
        ({"min_success_rate": 0.9, "max_latency_ms": 100.0}, EVERYTHING - {"bad", "slow"}),
        ({"min_success_rate": 0.9, "max_latency_ms": 100.0, "strict": True}, {"good"}),
        ({"strict": True}, EVERYTHING),
    ],
)
def test_tools_without_statistics_pass_call_filters_unless_those_are_strict(
    asked: dict[str, Any], expected: set[str]
) -> None:
    assert left(**asked) == expected


def test_without_any_statistics_only_strict_call_filters_leave_tools_out() -> None:
    free = engine_filters(SearchFilters(max_latency_ms=1), {})
    strict = engine_filters(SearchFilters(max_latency_ms=1, strict=True), {})

    assert all(map(free.allow, TOOLS))
    assert not any(map(strict.allow, TOOLS))


def test_only_the_given_filters_are_reported() -> None:
    asked = SearchFilters(tags=("a",), read_only=True, open_world=False, strict=True, min_calls=9)

    assert asked.applied() == {"tags": ["a"], "read_only": True, "open_world": False}
    assert SearchFilters(strict=True, min_calls=9).applied() == {}
    assert SearchFilters(min_success_rate=0.5, min_calls=9).applied() == {
        "min_success_rate": 0.5,
        "min_calls": 9,
    }


def test_exactly_the_unmet_filters_are_named() -> None:
    asked = SearchFilters(server="s", read_only=True, open_world=True, max_latency_ms=100.0)

    (one,) = excluded([Result(TOOLS[2], 1.0, None, 0.0, 0.0, "", (), "")], asked, KNOWN)

    assert sorted(one.failed) == ["max_latency_ms", "read_only"]
