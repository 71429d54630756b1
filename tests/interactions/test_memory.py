"""Recall of interactions: their order, their owner, and the ones that are forgotten."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.clocks import Clock

from mcp_context_proxy.errors import ModelError, StoreError
from mcp_context_proxy.interactions import Interaction, InteractionMemory, Recall
from mcp_context_proxy.store.memory import CALL, SEARCH, InteractionScope
from mcp_context_proxy.store.opening import Store, open_store

from .conftest import DAY, NOW, QUERY, SECRET, Words, memory_in, remembered, said


def contents(found: Recall) -> list[str]:
    return [one.interaction.content for one in found.results]


def test_a_recent_interaction_ranks_before_a_slightly_nearer_old_one(memory: InteractionMemory) -> None:
    remembered(memory, said("0.9", days=30), said("0.7", days=1))
    found = memory.semantic_search_interactions(QUERY)

    assert contents(found) == ["0.7", "0.9"]
    assert [one.score for one in found.results] == pytest.approx([0.665, 0.193], abs=5e-4)
    assert [one.cosine for one in found.results] == pytest.approx([0.7, 0.9], abs=1e-6)
    assert (found.method, found.known, found.without_embedding, found.note) == ("semantic", 2, 0, None)


def test_without_decay_the_nearest_interaction_ranks_first(memory: InteractionMemory) -> None:
    remembered(memory, said("0.9", days=30), said("0.7", days=1))

    assert contents(memory.semantic_search_interactions(QUERY, time_decay_factor=1.0)) == ["0.9", "0.7"]


def test_equal_scores_rank_the_latest_first(memory: InteractionMemory) -> None:
    remembered(memory, said("0.5", agent="a"), said("0.50", agent="b"), said("0.500", days=3, agent="c"))
    found = memory.semantic_search_interactions(QUERY, time_decay_factor=1.0)

    assert [one.interaction.agent_name for one in found.results] == ["b", "a", "c"]


def test_equal_interactions_are_one_result_with_their_number(memory: InteractionMemory) -> None:
    remembered(memory, said("0.5", days=3), said("0.5", days=1, agent="coder"), said("0.5", kind=CALL))
    found = memory.semantic_search_interactions(QUERY)

    assert [(one.interaction.agent_name, one.times) for one in found.results] == [
        ("planner", 1),
        ("coder", 2),
    ]


def test_results_are_nearly_as_near_as_the_nearest(memory: InteractionMemory) -> None:
    remembered(memory, said("0.8"), said("0.45"), said("0.43"))

    assert contents(memory.semantic_search_interactions(QUERY)) == ["0.8", "0.45"]


def test_top_k_limits_the_results(memory: InteractionMemory) -> None:
    remembered(memory, *(said(f"0.{n}") for n in range(11, 40)))

    assert len(memory.semantic_search_interactions(QUERY).results) == 10
    assert contents(memory.semantic_search_interactions(QUERY, top_k=2)) == ["0.39", "0.38"]


def test_interactions_that_differ_only_in_an_id_leave_places_to_others(memory: InteractionMemory) -> None:
    calls = [said(f"0.{n}", kind=CALL) for n in range(70, 80)]
    remembered(memory, *calls, said("0.6"), said("0.5"), said("0.45", kind="note"))

    assert contents(memory.semantic_search_interactions(QUERY, top_k=6)) == [
        *("0.79", "0.78", "0.77"),
        *("0.6", "0.5", "0.45"),
    ]
    assert len(memory.semantic_search_interactions(QUERY, top_k=12).results) == 12
    assert contents(memory.semantic_search_interactions(QUERY, interaction_type=CALL, top_k=4)) == [
        *("0.79", "0.78", "0.77", "0.76"),
    ]


def test_a_question_that_was_asked_before_hides_no_answer(memory: InteractionMemory) -> None:
    asked = [said(f"{QUERY} {number}", kind=SEARCH) for number in "abcd"]
    remembered(memory, said(QUERY, kind=SEARCH), *asked, said("0.5"), said("0.4", kind=CALL), said("0.2"))

    found = contents(memory.semantic_search_interactions(QUERY))
    assert [one for one in found if not one.startswith(QUERY)] == ["0.5", "0.4"]
    assert contents(memory.semantic_search_interactions(QUERY, top_k=3)) == [QUERY, "0.5", "0.4"]


@pytest.mark.parametrize(
    ("old", "found"), [("0.8", ["0.52", "0.51", "0.8"]), ("0.54", ["0.52", "0.51", "0.50"])]
)
def test_an_old_interaction_that_is_by_far_the_most_relevant_keeps_the_last_place(
    memory: InteractionMemory, old: str, found: list[str]
) -> None:
    remembered(memory, said(old, days=60), said("0.52"), said("0.51"), said("0.50"), said("0.49"))

    assert contents(memory.semantic_search_interactions(QUERY, top_k=3)) == found
    assert contents(memory.semantic_search_interactions(QUERY, top_k=1)) == ["0.52"]


def test_unrelated_interactions_are_not_found(memory: InteractionMemory) -> None:
    remembered(memory, said("0"), said("-0.5"), said("0.1"))

    assert contents(memory.semantic_search_interactions(QUERY)) == ["0.1"]


def test_one_agent_or_all_agents_can_be_searched(memory: InteractionMemory) -> None:
    remembered(memory, said("0.9", agent="planner"), said("0.8", agent="coder"), said("0.7", agent="coder"))

    assert contents(memory.semantic_search_interactions(QUERY, "coder")) == ["0.8", "0.7"]
    assert contents(memory.semantic_search_interactions(QUERY, "nobody")) == []
    assert contents(memory.semantic_search_interactions(QUERY)) == ["0.9", "0.8", "0.7"]
    assert memory.semantic_search_interactions(QUERY, "coder").known == 2


def test_interactions_of_one_type_can_be_searched(memory: InteractionMemory) -> None:
    remembered(memory, said("0.9"), said("0.8", kind=CALL), said("0.7", kind=CALL, agent="coder"))

    assert contents(memory.semantic_search_interactions(QUERY, interaction_type=CALL)) == ["0.8", "0.7"]
    assert contents(memory.semantic_search_interactions(QUERY, "coder", interaction_type=CALL)) == ["0.7"]


def test_an_agent_is_found_under_the_name_it_gave_however_it_is_spaced(memory: InteractionMemory) -> None:
    (kept,) = remembered(memory, said("0.9", agent="  the\u200b planner \n"))

    assert kept.agent_name == "the planner"
    assert contents(memory.semantic_search_interactions(QUERY, "the  planner")) == ["0.9"]


def test_interactions_without_an_embedding_are_found_by_their_words_and_counted(
    memory: InteractionMemory,
) -> None:
    remembered(memory, said("0.5"))
    memory.add([said("0.9", days=1), said("0.8", days=1, agent="coder")])
    found = memory.semantic_search_interactions(QUERY)

    assert contents(found) == ["0.5"]
    assert (found.known, found.without_embedding) == (3, 2)
    assert found.note is not None
    assert "2 interactions have no embedding and could be compared by words only" in found.note
    (by_words,) = memory.semantic_search_interactions("the 0.8 of the coder").results
    assert (by_words.interaction.content, by_words.cosine) == ("0.8", None)
    assert memory.semantic_search_interactions(QUERY, "planner").without_embedding == 1


def test_an_interaction_of_this_minute_is_counted_and_nobody_is_told_to_embed_it(
    memory: InteractionMemory, clock: Clock
) -> None:
    memory.add([said("0.9")])
    found = memory.semantic_search_interactions(QUERY)

    assert (found.without_embedding, found.note) == (1, None)
    clock.now += 120
    assert "backfill" in (memory.semantic_search_interactions(QUERY).note or "")


def test_without_an_embedding_of_the_query_the_latest_are_returned_with_a_note(
    memory: InteractionMemory, words: Words
) -> None:
    remembered(memory, said("0.9", days=3), said("0.1", days=1), said("0.5", days=2, agent="coder"))
    remembered(memory, said("we ship on Friday", days=9))
    words.error = ModelError("words", "it is gone", "bring it back")
    found = memory.semantic_search_interactions(QUERY)

    assert contents(found) == ["0.1", "0.5", "0.9", "we ship on Friday"]
    assert (found.method, found.results[0].score) == ("recent", None)
    by_words = memory.semantic_search_interactions("when do we ship")
    assert (by_words.method, contents(by_words)) == ("words", ["we ship on Friday"])
    assert found.note is not None
    assert "it is gone" in found.note
    assert contents(memory.semantic_search_interactions(QUERY, "planner", top_k=1)) == ["0.1"]


def test_the_latest_interactions_can_be_listed(memory: InteractionMemory) -> None:
    remembered(memory, said("0.9", days=3), said("0.1", days=1), said("0.5", days=2, agent="coder"))

    assert contents(memory.recent(limit=2)) == ["0.1", "0.5"]
    assert contents(memory.recent("coder")) == ["0.5"]


def test_a_model_compares_only_its_own_embeddings(store: Store, words: Words, clock: Clock) -> None:
    remembered(memory_in(store, words, clock), said("0.9"))
    other = memory_in(store, Words("others", 32), clock)
    found = other.semantic_search_interactions(QUERY)

    assert (contents(found), found.without_embedding) == ([], 1)
    other.embed(other.unembedded(0, 10))
    assert contents(other.semantic_search_interactions(QUERY)) == ["0.9"]


def test_changes_by_another_process_are_noticed(path, words: Words, clock: Clock) -> None:
    with open_store(path) as mine, open_store(path) as theirs:
        memory, other = memory_in(mine, words, clock), memory_in(theirs, words, clock)
        first, second = remembered(memory, said("0.9"), said("0.5"))
        assert contents(other.semantic_search_interactions(QUERY)) == ["0.9", "0.5"]
        remembered(other, said("0.7"))
        assert contents(memory.semantic_search_interactions(QUERY)) == ["0.9", "0.7", "0.5"]
        other.forget_one(first.id)
        remembered(other, said("0.4"))
        assert contents(memory.semantic_search_interactions(QUERY)) == ["0.7", "0.5", "0.4"]
        assert not memory.forget_one(first.id)
        assert memory.forget_one(second.id)
        assert contents(other.semantic_search_interactions(QUERY)) == ["0.7", "0.4"]


@settings(max_examples=30)
@given(st.data())
def test_search_agrees_with_the_store_after_any_changes(data: st.DataObject) -> None:
    """Against the definition: everything that is there, scored one by one."""
    words, clock = Words(), Clock(NOW)
    with open_store("memory") as store:
        memory = memory_in(store, words, clock)
        there: dict[int, tuple[float, float]] = {}
        for _ in range(data.draw(st.integers(1, 8))):
            fresh = data.draw(
                st.lists(st.tuples(st.sampled_from(range(1, 100, 2)), st.integers(0, 80)), max_size=4)
            )
            kept = remembered(memory, *(said(f"0.{cosine:02}", days) for cosine, days in fresh))
            there |= {one.id: (c / 100, d) for one, (c, d) in zip(kept, fresh, strict=True)}
            if there and data.draw(st.booleans()):
                gone = data.draw(st.sampled_from(sorted(there)))
                memory.forget_one(gone)
                del there[gone]
            found = memory.semantic_search_interactions(QUERY, top_k=100)
            nearest = max((cosine for cosine, _ in there.values()), default=0)
            newest: dict[float, float] = {}
            for cosine, days in there.values():
                if cosine > 0.55 * nearest:
                    newest[cosine] = min(days, newest.get(cosine, days))
            expected = sorted((cosine * 0.95**days for cosine, days in newest.items()), reverse=True)
            assert [one.score for one in found.results] == pytest.approx(expected, abs=1e-6)
            assert sum(one.times for one in found.results) == sum(
                cosine in newest for cosine, _ in there.values()
            )


def test_configured_secrets_are_redacted_before_they_are_stored(memory: InteractionMemory, path) -> None:
    (kept,) = memory.add([said(f"log in with {SECRET} and sk-abcdefghijklmnopqrstuvwxyz")])

    assert kept.content == "log in with [redacted PASSWORD] and [redacted]"
    assert SECRET.encode() not in b"".join(file.read_bytes() for file in path.parent.glob("store.sqlite3*"))


def test_secrets_in_the_names_of_agents_and_types_are_redacted(memory: InteractionMemory) -> None:
    (kept,) = memory.add([Interaction(f"agent {SECRET}", f"note {SECRET}", "hello", NOW)])

    assert kept.agent_name == "agent [redacted PASSWORD]"
    assert kept.interaction_type == "note [redacted PASSWORD]"


def test_a_secret_at_the_end_of_a_cut_text_is_redacted(memory: InteractionMemory) -> None:
    (kept,) = memory.add([said("x" * 3995 + SECRET)])

    assert len(kept.content) == 4000
    assert SECRET[:5] not in kept.content


def test_lone_surrogates_and_invisible_characters_are_removed(memory: InteractionMemory) -> None:
    (kept,) = remembered(memory, said("good\ud800 mor\u200bning\x1b[31m\x00"))

    assert kept.content == "good morning"


def test_a_time_in_the_future_is_stored_as_now(memory: InteractionMemory) -> None:
    (kept,) = remembered(memory, said("0.5", days=-400))

    assert kept.time == NOW
    assert memory.semantic_search_interactions(QUERY).results[0].score == pytest.approx(0.5)


def test_over_the_limit_the_interactions_recorded_last_are_kept(
    store: Store, words: Words, clock: Clock
) -> None:
    memory = memory_in(store, words, clock, rows=3)
    remembered(memory, said("0.1"), said("0.3"))
    remembered(memory, said("0.4", days=50), said("0.5"))

    assert sorted(contents(memory.recent())) == ["0.3", "0.4", "0.5"]
    assert contents(memory.semantic_search_interactions(QUERY, time_decay_factor=1.0)) == [
        "0.5",
        "0.4",
        "0.3",
    ]


def test_searches_and_calls_push_out_each_other_before_what_was_said(
    store: Store, words: Words, clock: Clock
) -> None:
    memory = memory_in(store, words, clock, rows=4)
    remembered(memory, said("0.9"), said("0.8"))
    for number in range(10, 16):
        remembered(memory, said(f"0.{number}", kind=SEARCH if number % 2 else CALL))
    assert sorted(contents(memory.recent())) == ["0.14", "0.15", "0.8", "0.9"]

    remembered(memory, said("0.7"), said("0.6"))
    assert sorted(contents(memory.recent())) == ["0.14", "0.15", "0.6", "0.7"]


def test_expired_interactions_are_deleted_with_the_next_one(store: Store, words: Words, clock: Clock) -> None:
    memory = memory_in(store, words, clock, days=7)
    remembered(memory, said("0.1", days=400))
    assert contents(memory.recent()) == ["0.1"], "what is told late is kept for as long as anything"
    clock.now += 8 * DAY
    remembered(memory, said("0.2"))

    assert contents(memory.recent()) == ["0.2"]
    assert contents(memory.semantic_search_interactions(QUERY)) == ["0.2"]


def test_forgotten_interactions_are_erased_from_all_files(memory: InteractionMemory, path) -> None:
    remembered(memory, said("the treasure is under the oak", agent="pirate"), said("0.5"))
    gone = memory.forget(InteractionScope(agent_name="pirate"))

    kept = b"".join(file.read_bytes() for file in path.parent.glob("store.sqlite3*"))
    assert gone == 1
    assert b"treasure" not in kept
    assert contents(memory.recent()) == ["0.5"]


@pytest.mark.parametrize(
    ("scope", "left"),
    [
        (InteractionScope(), []),
        (InteractionScope(agent_name="coder"), ["0.21", "0.22"]),
        (InteractionScope(interaction_type=CALL), ["0.21", "0.3"]),
        (InteractionScope(before=NOW - 5 * DAY), ["0.21", "0.3"]),
        (InteractionScope("planner", "message"), ["0.22", "0.3"]),
    ],
)
def test_forgetting_deletes_exactly_the_matching_interactions(
    memory: InteractionMemory, scope: InteractionScope, left: list[str]
) -> None:
    remembered(memory, said("0.21"), said("0.22", days=9, kind=CALL), said("0.3", days=1, agent="coder"))
    assert memory.forget(scope) == 3 - len(left)

    assert sorted(contents(memory.semantic_search_interactions(QUERY))) == left
    assert sorted(contents(memory.recent())) == left


def test_a_damaged_embedding_is_ignored_by_search(memory: InteractionMemory, store: Store) -> None:
    remembered(memory, said("0.9"), said("0.5"))
    with store.database.transaction() as connection:
        connection.execute("UPDATE interaction_vectors SET vector = X'0102' WHERE interaction = 1")

    assert contents(memory.semantic_search_interactions(QUERY)) == ["0.5"]


def test_a_failing_store_raises_an_error(memory: InteractionMemory, store: Store) -> None:
    store.close()

    with pytest.raises(StoreError):
        memory.add([said("0.5")])
    with pytest.raises(StoreError):
        memory.semantic_search_interactions(QUERY)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        ("PROJ-1147", "Status of PROJ-1147: blocked by the schema change."),
        ("did we deploy PROJ-1147?", "Status of PROJ-1147: blocked by the schema change."),
        ("what did commit 0caa7612 do", "Commit 0caa7612 bumps the version."),
        ("has PROJ-9999 moved", None),
        ("who checks ISO27001", "The auditor of ISO 27001 comes in May."),
        ("what does E1047 mean", "E1047 means that the label is unknown."),
        *((f"what about {code}", None) for code in ("PROJ-0001147", "INC0012345", "CVE-2026-1147", "E1048")),
    ],
)
def test_an_identifier_in_the_query_finds_what_has_it_and_nothing_else(
    memory: InteractionMemory, query: str, wanted: str | None
) -> None:
    remembered(
        memory,
        said("Status of PROJ-1147: blocked by the schema change.", days=9),
        said("PROJ-1307 deployed to staging."),
        said("PROJ-11477 is blocked as well."),
        said("Commit 0caa7612 bumps the version."),
        said("Commit 138efef9 bumps the version."),
        said("E1047 means that the label is unknown."),
        said("The auditor of ISO 27001 comes in May."),
    )
    found = memory.semantic_search_interactions(query)

    assert contents(found) == ([wanted] if wanted else [])


def test_a_single_word_finds_what_has_it_however_many_have_it(memory: InteractionMemory) -> None:
    having = [said(f"The customer Acme wants invoices sorted by the day of order {at}.") for at in range(12)]
    remembered(memory, said("about them"), *having)
    found = memory.semantic_search_interactions("about Acme", top_k=20)

    assert sum("Acme" in content for content in contents(found)) == len(having)


def test_types_have_a_decay_and_a_boost_of_their_own(store: Store, words: Words, clock: Clock) -> None:
    types = {"message": {"time_decay_factor": 1.0}, "call": {"boost": 2.0}}
    memory = memory_in(store, words, clock, types=types)
    remembered(memory, said("0.6", days=30), said("0.5", kind=CALL), said("0.9", days=30, kind="search"))
    found = memory.semantic_search_interactions(QUERY)

    assert [(one.interaction.content, round(one.score, 3)) for one in found.results] == [
        ("0.5", 1.0),
        ("0.6", 0.6),
        ("0.9", 0.193),
    ]


@pytest.mark.parametrize("numbers", [{"time_decay_factor": 1.5}, {"time_decay_factor": 0.0}, {"top_k": 0}])
@pytest.mark.parametrize("bad", [float("nan"), None])
def test_numbers_outside_their_bounds_are_refused(
    memory: InteractionMemory, numbers: dict, bad: float | None
) -> None:
    if bad is not None:
        numbers = {"time_decay_factor": bad}
    with pytest.raises(ValueError, match="must be"):
        memory.semantic_search_interactions(QUERY, **numbers)
