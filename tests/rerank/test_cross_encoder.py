"""A cross-encoder from a folder gives the order; a folder that is none leaves it as it was."""

from pathlib import Path

import numpy as np
from support.model_folders import WORDS, ids_of, table, write_export

from mcp_context_proxy.config import Limits, RerankConfig
from mcp_context_proxy.retrieval.reranker import Reranker, reranker_model_for

from .conftest import build_ranking, build_result, names

LIMITS = Limits(rerank_seconds=60.0)
QUERY = "weather mail"


def reranker(folder: Path) -> Reranker:
    return Reranker(
        "always", reranker_model_for(RerankConfig(mode="always", model=str(folder)), LIMITS), LIMITS
    )


def score(name: str, description: str) -> float:
    """By hand: the mean of the table's values of the tokens of both texts."""
    query, text = ids_of(QUERY), ids_of(f"srv__{name}: {description}")
    return float(np.mean(table()[[*query, *text[1:]]]))


async def test_tools_are_ordered_by_the_scores(tmp_path):
    folder = write_export(tmp_path / "model", graph="model.onnx", output="logits")
    described = {f"t{at}": f"{word} {word} {word}" for at, word in enumerate(WORDS[5:10])}
    results = [build_result(name, 0.5, description) for name, description in described.items()]
    ranked, outcome = await reranker(folder).rerank(build_ranking(*results, query=QUERY))

    expected = sorted(described, key=lambda name: -score(name, described[name]))
    assert outcome.used
    assert "the cross-encoder" in outcome.reason
    assert names(ranked.results) == expected
    assert expected != list(described)


async def test_a_graph_with_more_than_one_score_is_refused(tmp_path, close):
    folder = write_export(tmp_path / "model", output="sentence_embedding")
    ranked, outcome = await reranker(folder).rerank(close)

    assert ranked == close
    assert "it gives 8 numbers for a pair" in outcome.reason


async def test_a_missing_folder_leaves_the_order_unchanged(tmp_path, close):
    ranked, outcome = await reranker(tmp_path / "nowhere").rerank(close)

    assert ranked == close
    assert "there is no such folder" in outcome.reason
    assert "rerank.model" in outcome.reason
