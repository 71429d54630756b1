"""Queries of several sentences: each need is met before one is met twice."""

from __future__ import annotations

import numpy as np
import pytest

from mcp_context_proxy.retrieval import Engine, SearchOptions
from mcp_context_proxy.retrieval.scoring import (
    NEED_COSINE,
    NEED_COSINE_OF_ORDER,
    boost_uncovered_sentences,
)

NO_ORDERS = (False, False)


def floats(*values):
    return np.array(values, np.float32)


def order(scores):
    return np.argsort(-scores, kind="stable").tolist()


def test_an_item_for_an_uncovered_sentence_ranks_before_a_duplicate_of_the_first():
    scores = floats(0.9, 0.85, 0.7)
    sentences = floats([0.9, 0.85, 0.1], [0.1, 0.1, 0.7])

    raised, serving = boost_uncovered_sentences(scores, sentences, NO_ORDERS)

    assert order(raised) == [0, 2, 1]
    assert scores[2] < raised[2] < raised[0]
    assert serving[2] == 1


def test_another_item_for_a_sentence_gains_a_little_and_one_that_is_far_from_it_nothing():
    scores = floats(0.9, 0.5, 0.49, 0.48)
    sentences = floats([0.9, 0.1, 0.1, 0.1], [0.1, 0.6, 0.1, 0.59])

    raised, serving = boost_uncovered_sentences(scores, sentences, NO_ORDERS)

    assert order(raised) == [0, 1, 3, 2]
    assert serving == {1: 1, 3: 1}


def test_the_best_result_keeps_its_rank_and_score():
    scores = floats(0.8, 0.79)

    raised, serving = boost_uncovered_sentences(scores, floats([0.8, 0.1], [0.1, 0.79]), NO_ORDERS)

    assert raised[0] == scores[0]
    assert raised[1] < raised[0]
    assert serving == {1: 1}


def test_a_sentence_without_a_near_item_raises_nothing():
    scores = floats(0.9, 0.6, 0.5)

    sentences = floats([0.9, 0.6, 0.3], [0.1, 0.2, NEED_COSINE])

    raised, serving = boost_uncovered_sentences(scores, sentences, NO_ORDERS)

    assert raised.tolist() == scores.tolist()
    assert serving == {}


def test_an_order_is_met_by_an_item_that_is_less_near_than_other_sentences_need():
    scores = floats(0.9, 0.36, 0.35)
    sentences = floats([0.9, 0.1, 0.1], [0.1, 0.1, 0.35])
    assert NEED_COSINE_OF_ORDER < 0.35 < NEED_COSINE

    raised, serving = boost_uncovered_sentences(scores, sentences, (True, True))

    assert order(raised) == [0, 2, 1]
    assert serving == {2: 1}
    assert boost_uncovered_sentences(scores, sentences, (True, False))[1] == {}


def test_no_score_is_lowered_and_excluded_items_stay_out():
    random = np.random.default_rng(0)
    scores = random.random(200).astype(np.float32).round(6)
    scores[::7] = -np.inf
    sentences = random.random((5, 200)).astype(np.float32)

    raised, serving = boost_uncovered_sentences(scores, sentences, [False] * len(sentences))

    assert (raised >= scores - 1e-6).all()
    assert np.isneginf(raised[::7]).all()
    assert set(np.flatnonzero(raised > scores + 1e-5)) == set(serving)


@pytest.mark.parametrize("method", ["hybrid", "dense"])
def test_two_sentences_bring_two_tools_first(word_vectors, tool, snapshot, method):
    """Only the proxy's own ranking changes; the ranking that it is compared with stays."""
    twins = [tool(f"send_mail_{i}", "send mail to people", server=f"mail{i}") for i in range(4)]
    catalog = snapshot(*twins, tool("make_chart", "draw chart of numbers kept in table", server="charts"))
    query = "Send mail to people. Draw chart of numbers."

    ranking = Engine(word_vectors()).search(query, catalog, options=SearchOptions(top_n=2, method=method))

    servers = {result.item.server for result in ranking.results}
    needs = [result.need for result in ranking.results]
    assert ("charts" in servers) or method == "dense"
    assert (max(needs) > 0) == (method == "hybrid")


def test_a_query_of_one_sentence_is_scored_unchanged(word_vectors, tool, snapshot):
    catalog = snapshot(tool("send_mail", "send mail to people"), tool("make_chart", "draw chart of numbers"))

    for result in Engine(word_vectors()).search("send mail with chart of numbers", catalog).results:
        assert result.need == 0


def test_a_result_names_the_sentence_that_it_covers(word_vectors, tool, snapshot):
    twins = [tool(f"send_mail_{i}", "send mail to people", server=f"mail{i}") for i in range(4)]
    catalog = snapshot(*twins, tool("make_chart", "draw chart of numbers kept in table", server="charts"))

    ranking = Engine(word_vectors()).search("Send mail to people. Draw chart of numbers.", catalog)

    by_name = {result.item.name: result for result in ranking.results}
    assert by_name["make_chart"].serves == "Draw chart of numbers."
    assert by_name["make_chart"].matched == "Draw chart of numbers."
    assert all((result.serves is None) == (result.need == 0) for result in ranking.results)
