"""Learned support in a ranking: it raises tools within bounds, and results say so."""

from math import inf
from typing import Any

import numpy as np
import pytest
from support.catalogs import WordVectors, snapshot, tool

from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.learning import MOST_ADDED_IF_GENERAL
from mcp_context_proxy.retrieval import FITTING, Support
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters


class Says:
    """Learned pairs, as a test wants them."""

    def __init__(self, most_added: float = inf, confirmed: bool = True, **cosines: float) -> None:
        self._supports = {
            ("srv", name): Support(c, "a query of before", 3, confirmed, most_added)
            for name, c in cosines.items()
        }

    def supported(self, query: np.ndarray, written: str | None = None) -> dict[tuple[str, str], Support]:
        return self._supports


@pytest.fixture
def catalog() -> Snapshot:
    return snapshot(
        tool("read_file", "Reads a file."),
        tool("send_mail", "Sends a mail."),
        tool("open_door", "Opens a door."),
    )


def ranked(engine: Engine, query: str, catalog: Snapshot) -> dict[str, Any]:
    ranking = engine.search(query, catalog)
    return {result.item.name: result for result in (*ranking.results, *ranking.near_misses)}


def test_a_tool_used_for_similar_queries_ranks_higher(catalog):
    query = "open a mail"
    before = list(ranked(Engine(WordVectors()), query, catalog))
    after = list(ranked(Engine(WordVectors(), learned=Says(read_file=0.9)), query, catalog))

    assert before.index("read_file") >= after.index("read_file")


def test_every_result_has_its_learned_part(catalog):
    results = ranked(Engine(WordVectors(), learned=Says(send_mail=0.8)), "read a mail", catalog)
    mail, other = results["send_mail"], results["read_file"]

    assert mail.learned == pytest.approx(0.8 - mail.cosine)
    assert mail.score == pytest.approx(
        mail.cosine + mail.learned + 0.02 * mail.lexical + mail.action + mail.need, abs=1e-5
    )
    assert "used before for a similar request" in mail.why
    assert (other.learned, other.support) == (0.0, None)
    assert "used before" not in other.why


def test_learning_never_lowers_a_score(catalog):
    query = "send a mail"
    static = ranked(Engine(WordVectors()), query, catalog)
    learned = ranked(Engine(WordVectors(), learned=Says(send_mail=0.0, read_file=-1.0)), query, catalog)

    assert {name: result.score for name, result in learned.items()} == {
        name: result.score for name, result in static.items()
    }


def test_a_tool_that_was_used_once_leaves_the_others_in_the_answer_until_it_is_used_again():
    catalog = snapshot(tool("post_letter", "Sends a letter."), tool("post_parcel", "Sends a parcel."))

    def shown(engine: Engine) -> set[str]:
        return {one.item.name for one in engine.search("send the post", catalog, options=FITTING).results}

    assert shown(Engine(WordVectors())) == {"post_letter", "post_parcel"}
    once = Says(confirmed=False, post_parcel=1.6)
    assert shown(Engine(WordVectors(), learned=once)) == {"post_letter", "post_parcel"}
    assert shown(Engine(WordVectors(), learned=Says(post_parcel=1.6))) == {"post_parcel"}


@pytest.mark.parametrize("most_added", [MOST_ADDED_IF_GENERAL, 1.0])
def test_weak_support_adds_no_more_than_a_share_of_the_own_cosine(catalog, most_added):
    learned = Says(most_added, open_door=1.0)
    results = ranked(Engine(WordVectors(), learned=learned), "send a mail", catalog)

    door = results["open_door"]
    assert door.cosine > 0
    assert door.learned == pytest.approx(most_added * door.cosine)
    assert next(iter(results)) == "send_mail"


def test_for_a_mere_topic_weak_support_brings_a_tool_no_nearer_than_the_nearest_is(catalog):
    learned = Says(10.0, open_door=1.0)
    results = ranked(Engine(WordVectors(), learned=learned), "send a mail", catalog)

    mail, door = results["send_mail"], results["open_door"]
    assert 11 * door.cosine > mail.cosine
    assert door.cosine + door.learned == pytest.approx(mail.cosine)
    assert next(iter(results)) == "send_mail"


def test_for_a_need_weak_support_can_make_a_tool_the_first(catalog):
    learned = Says(10.0, open_door=1.0)
    results = ranked(Engine(WordVectors(), learned=learned), "send a long mail about doors", catalog)

    assert next(iter(results)) == "open_door"


def test_an_exact_name_is_never_displaced(catalog):
    learned = Says(read_file=1.0, open_door=1.0)

    assert next(iter(ranked(Engine(WordVectors(), learned=learned), "send_mail", catalog))) == "send_mail"


def test_a_tool_that_filters_forbid_is_not_brought_in_by_use(catalog):
    engine = Engine(WordVectors(), learned=Says(read_file=1.0))
    ranking = engine.search("send a mail", catalog, Filters(servers=frozenset({"other"})))

    assert (ranking.results, ranking.near_misses) == ((), ())


def test_tools_with_the_same_name_on_other_servers_gain_nothing():
    catalog = snapshot(tool("send_mail", "Sends a mail."), tool("send_mail", "Sends a mail.", server="other"))
    ranking = Engine(WordVectors(), learned=Says(send_mail=1.0)).search("mail to send now", catalog)

    assert [(result.item.server, result.learned > 0) for result in ranking.results] == [
        ("srv", True),
        ("other", False),
    ]


def test_without_pairs_scores_are_the_same_as_without_learning(catalog):
    for query in ("send a mail", "file", "read_file", "nothing of the kind"):
        static = Engine(WordVectors()).search(query, catalog)
        learned = Engine(WordVectors(), learned=Says()).search(query, catalog)

        assert learned.results == static.results
        assert learned.near_misses == static.near_misses
