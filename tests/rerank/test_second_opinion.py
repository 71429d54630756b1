"""A model that adds its opinion to the scores of the search, within a bound that nothing can talk it past."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.model_folders import WORDS, ids_of, table, write_export

from mcp_context_proxy.config import Limits, RerankConfig
from mcp_context_proxy.retrieval.reranker import Reranker, reranker_model_for
from mcp_context_proxy.retrieval.reranker_models import joined

from .conftest import build_ranking, build_result, names

pytestmark = pytest.mark.anyio

LIMITS = Limits(rerank_seconds=60.0)
QUERY = "weather mail"
DESCRIBED = {f"t{at}": f"{word} {word} {word}" for at, word in enumerate(WORDS[5:10])}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A graph of one lookup, whose logit is the mean of the values of all word pieces."""
    folder = tmp_path_factory.mktemp("reranker")
    return write_export(folder, graph="reranker.onnx", output="logit", inputs=("input_ids", "types_ids"))


def described(folder: Path, **facts: Any) -> Reranker:
    files = ("reranker.onnx", "tokenizer.json")
    plain = {
        "model": "small-reranker",
        "graph": "reranker.onnx",
        "weight": 0.1,
        "most": 0.05,
        "candidates": 4,
        "request_tokens": 16,
        "tool_tokens": 16,
        "sha256": {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in files},
    }
    (folder / "reranker.json").write_text(json.dumps(plain | facts))
    settings = RerankConfig(mode="auto", model=str(folder))
    return Reranker("auto", reranker_model_for(settings, LIMITS), LIMITS)


def logit(name: str) -> float:
    """By hand: the mean of the table over both texts; the tool is read as it is embedded."""
    tool = ids_of(f"srv {name}: {DESCRIBED[name]}")
    return float(np.mean(table()[[*ids_of(QUERY), *tool[1:]]]))


def ranking(*scores: float):
    tools = zip(DESCRIBED.items(), scores, strict=False)
    return build_ranking(*(build_result(name, score, text) for (name, text), score in tools), query=QUERY)


async def test_the_opinion_is_added_to_the_score_within_its_bound(folder):
    scores = (0.50, 0.49, 0.48, 0.47)
    ranked, outcome = await described(folder, weight=0.3).rerank(ranking(*scores))

    added = {name: float(np.clip(0.3 * logit(name), -0.05, 0.05)) for name in DESCRIBED}
    totals = {name: score + added[name] for name, score in zip(DESCRIBED, scores, strict=False)}
    assert any(abs(more) == 0.05 for more in added.values())
    assert names(ranked.results) == sorted(totals, key=lambda name: -totals[name])
    assert names(ranked.results) != list(totals)
    assert (outcome.used, outcome.reason) == (True, "ordered by small-reranker")


async def test_a_tool_out_of_reach_is_neither_read_nor_moved(folder):
    reranker = described(folder, weight=1.0)
    ranked, _ = await reranker.rerank(ranking(0.50, 0.45, 0.39, 0.38))
    assert names(ranked.results)[2:] == ["t2", "t3"]

    after, outcome = await reranker.rerank(ranking(0.50, 0.39, 0.38, 0.37))
    assert names(after.results) == ["t0", "t1", "t2", "t3"]
    assert outcome.reason == "skipped: the best tool leads by 0.11"


async def test_only_as_many_tools_are_asked_about_as_the_model_wants(folder):
    reranker = described(folder, candidates=3, weight=1.0)
    ranked, outcome = await reranker.rerank(ranking(0.50, 0.50, 0.50, 0.50, 0.50))

    assert outcome.used
    assert reranker.depth == 3
    assert names(ranked.results)[3:] == ["t3", "t4"]


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        pytest.param({"sha256": {"reranker.onnx": "0" * 64}}, "is damaged", id="another graph"),
        pytest.param({"graph": "nowhere.onnx"}, "the runtime refuses it", id="no graph"),
        pytest.param({"weight": 7}, "reranker.json cannot be used", id="a weight beyond all scores"),
    ],
)
async def test_a_folder_that_cannot_be_used_leaves_the_order(folder, facts, reason):
    before = ranking(0.50, 0.49, 0.48)
    ranked, outcome = await described(folder, **facts).rerank(before)

    assert ranked == before
    assert not outcome.used
    assert reason in outcome.reason


def test_a_request_and_a_tool_are_cut_apart_from_each_other():
    request, tool = [101, 1, 2, 3, 102], [101, 7, 8, 9, 102]

    assert joined(request, tool, 16, 16) == ([101, 1, 2, 3, 102, 7, 8, 9, 102], [0] * 5 + [1] * 4)
    assert joined(request, tool, 3, 2) == ([101, 1, 102, 7, 102], [0] * 3 + [1] * 2)
