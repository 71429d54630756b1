"""Rankings that a search could have made."""

import hashlib
import json
from typing import Any

import pytest

from mcp_context_proxy.items import IncludeMode, Tool
from mcp_context_proxy.retrieval import Ranking, Result


def build_result(name: str, score: float, description: str = "", **more: Any) -> Result:
    fingerprint = hashlib.sha256(name.encode()).hexdigest()
    definition = json.dumps({"description": description}).encode()
    tool = Tool("srv", name, f"srv__{name}", definition, fingerprint, IncludeMode.AGENT)
    return Result(tool, score, score, 0.0, 0.0, description, (), "why", **more)


def build_ranking(*results: Result, selected: int | None = None, query: str = "query") -> Ranking:
    count = len(results) if selected is None else selected
    return Ranking(
        query=query,
        results=results[:count],
        considered=len(results),
        method="hybrid",
        note=None,
        fits=True,
        near_misses=(),
        seconds=0.0,
        others=results[count:],
    )


def names(results: tuple[Result, ...]) -> list[str]:
    return [result.item.name for result in results]


@pytest.fixture
def close() -> Ranking:
    """Six that are close to each other, of which three are selected."""
    scores = {"a": 0.60, "b": 0.59, "c": 0.58, "d": 0.57, "e": 0.56, "f": 0.55}
    results = [build_result(name, score, f"Does {name}") for name, score in scores.items()]
    return build_ranking(*results, selected=3)
