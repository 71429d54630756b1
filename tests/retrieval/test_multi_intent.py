"""Queries of several needs: the places of an answer are shared among them by how surely each is met."""

import numpy as np
import pytest
from support.catalogs import WordVectors, snapshot, tool

from mcp_context_proxy.retrieval import SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import CONTEXT, in_context, share_places

ORDERS = (True, True)
ONE_SERVER = np.zeros(200, np.int32)


def floats(*values):
    return np.array(values, np.float32)


def order(scores):
    return np.argsort(-scores, kind="stable").tolist()


def shared(scores, needs, asks=ORDERS, sources=None):
    return share_places(
        scores, needs, asks, ONE_SERVER[: scores.size] if sources is None else floats(*sources).astype(int)
    )


def test_an_item_for_an_unmet_need_ranks_before_a_duplicate_of_the_first():
    scores = floats(0.9, 0.85, 0.5)
    needs = floats([0.9, 0.7, 0.1], [0.1, 0.1, 0.7])

    raised, serving = shared(scores, needs)

    assert order(raised) == [0, 2, 1]
    assert scores[2] < raised[2] < raised[0]
    assert serving[2] == 1


def test_a_need_with_one_clear_winner_leaves_more_places_to_a_vague_one():
    scores = floats(0.9, 0.6, 0.59, 0.58, 0.5, 0.49)
    needs = floats([0.9, 0.1, 0.1, 0.1, 0.5, 0.49], [0.1, 0.6, 0.59, 0.58, 0.1, 0.1])

    assert order(shared(scores, needs)[0]) == [0, 1, 2, 3, 4, 5]
    assert order(shared(scores, needs[::-1])[0]) == [0, 1, 2, 3, 4, 5]


def test_the_best_result_keeps_its_rank_and_score():
    scores = floats(0.8, 0.79)

    raised, serving = shared(scores, floats([0.8, 0.1], [0.1, 0.79]))

    assert raised[0] == scores[0]
    assert raised[1] < raised[0]
    assert set(serving) <= {1}


def test_of_tools_that_are_alike_the_one_whose_server_meets_another_need_comes_first():
    scores = floats(0.9, 0.5, 0.5)
    needs = floats([0.9, 0.1, 0.1], [0.1, 0.5, 0.5])

    assert order(shared(scores, needs, sources=(0, 1, 0))[0]) == [0, 2, 1]
    assert order(shared(scores, needs, sources=(0, 0, 1))[0]) == [0, 1, 2]


def test_sentences_that_ask_for_nothing_hardly_move_what_the_whole_query_is_near_to():
    scores = floats(0.9, 0.8, 0.5)
    needs = floats([0.9, 0.85, 0.1], [0.1, 0.1, 0.7])

    assert order(shared(scores, needs, (False, False))[0]) == [0, 1, 2]
    assert order(shared(scores, needs, (True, True))[0]) == [0, 2, 1]


def test_thousands_of_tools_that_hardly_fit_take_no_likelihood_from_those_that_do():
    rng = np.random.default_rng(3)
    near = rng.uniform(0.2, 0.5, (3, 300)).astype(np.float32)
    far = rng.uniform(-0.1, 0.2, (3, 50_000)).astype(np.float32)
    whole, *needs = np.concatenate([near, far], axis=1)
    sources = np.arange(whole.size, dtype=np.int32) % 40

    raised, serving = share_places(whole, np.array(needs), ORDERS, sources)
    without, same = share_places(near[0], near[1:], ORDERS, sources[: near.shape[1]])

    assert np.array_equal(raised[: without.size], without)
    assert serving == same


def test_a_need_is_compared_together_with_the_whole_query():
    whole, need = floats(1.0, 0.0), floats(0.0, 1.0)
    item = floats(0.6, 0.8)
    vectors = np.stack([whole, need])

    (together,) = in_context((vectors @ item)[:, None], vectors)

    blend = need + CONTEXT * whole
    assert together == pytest.approx(blend @ item / np.linalg.norm(blend))


def test_no_score_is_lowered_and_excluded_items_stay_out():
    random = np.random.default_rng(0)
    scores = random.random(200).astype(np.float32).round(6)
    scores[::7] = -np.inf
    needs = random.random((5, 200)).astype(np.float32)
    needs[:, ::7] = -np.inf

    raised, serving = shared(scores, needs, [True] * len(needs))

    assert (raised >= scores - 1e-6).all()
    assert np.isneginf(raised[::7]).all()
    assert set(np.flatnonzero(raised > scores + 1e-5)) <= set(serving)


@pytest.mark.parametrize("method", ["hybrid", "dense"])
def test_two_sentences_bring_two_tools_first(method):
    """Only the proxy's own ranking changes; the ranking that it is compared with stays."""
    twins = [tool(f"send_mail_{i}", "send mail to people", server=f"mail{i}") for i in range(4)]
    catalog = snapshot(*twins, tool("make_chart", "draw chart of numbers kept in table", server="charts"))
    query = "Send mail to people. Draw chart of numbers."

    ranking = Engine(WordVectors()).search(query, catalog, options=SearchOptions(top_n=2, method=method))

    servers = {result.item.server for result in ranking.results}
    needs = [result.need for result in ranking.results]
    assert ("charts" in servers) or method == "dense"
    assert (max(needs) > 0) == (method == "hybrid")


def test_a_query_of_one_sentence_is_scored_unchanged():
    catalog = snapshot(tool("send_mail", "send mail to people"), tool("make_chart", "draw chart of numbers"))

    results = Engine(WordVectors()).search("send mail with chart of numbers", catalog).results
    assert {result.need for result in results} == {0}


def test_a_result_names_the_sentence_that_it_covers():
    twins = [tool(f"send_mail_{i}", "send mail to people", server=f"mail{i}") for i in range(4)]
    catalog = snapshot(*twins, tool("make_chart", "draw chart of numbers kept in table", server="charts"))

    ranking = Engine(WordVectors()).search("Send mail to people. Draw chart of numbers.", catalog)

    by_name = {result.item.name: result for result in ranking.results}
    assert by_name["make_chart"].serves == "Draw chart of numbers."
    assert by_name["make_chart"].matched == "Draw chart of numbers."
    assert all((result.serves is None) == (result.need == 0) for result in ranking.results)
