"""Learned pairs: how a use is recorded, stored, and forgotten."""

import multiprocessing
import os
import signal
import sqlite3
import subprocess
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.clocks import Clock
from support.commands import forked_program
from support.words import Words

from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.learning import MOST_ADDED_IN_DOUBT, NEW_IN_A_SESSION, Signal, Use, moved
from mcp_context_proxy.learning.tier import LearnedTier, UseRecorder
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.statistics import DAY
from mcp_context_proxy.system.threads import assigned
from mcp_context_proxy.trust import ACTING, Principal, Role

MAIL, CHAT = ("office", "send_mail"), ("office", "send_chat")
QUERY = "tell my colleague about the meeting"


@pytest.fixture
def tier(words: Words, clock: Clock, path: Path) -> Any:
    with open_store(path) as store:
        yield LearnedTier(words, store.learned, clock=clock)


def use(query: str = QUERY, tool: tuple[str, str] = MAIL, session: str = "a", **more: Any) -> Use:
    return Use(query, tool, more.pop("signal", Signal.FOUND), session, **more)


def test_a_tool_used_for_a_query_is_supported_for_similar_queries(tier, words):
    tier.learn(use())

    (supported,) = tier.supported(words.one("tell my colleague about the party")).items()
    assert supported[0] == MAIL
    assert 0.5 < supported[1].cosine < 0.9
    assert (supported[1].query, supported[1].uses) == (QUERY, 1)
    assert tier.supported(words.one("resize an image")) == {}


def test_a_query_that_is_understood_otherwise_is_found_as_it_was_written(tier, words):
    understood = words.one("resize an image")

    assert tier.supported(understood, QUERY) == {}
    tier.learn(use())
    assert tier.supported(understood) == {}
    assert tier.supported(understood, QUERY) == tier.supported(words.one(QUERY))
    assert tier.supported(words.one(QUERY), "resize an image") == tier.supported(words.one(QUERY))


def test_support_stays_below_the_cosine_and_grows_with_confidence(tier, words):
    tier.learn(use())
    once = tier.supported(words.one(QUERY))[MAIL].cosine
    for session in "bcdef":
        tier.learn(use(session=session))
    often = tier.supported(words.one(QUERY))[MAIL].cosine

    assert once == pytest.approx(1 - 0.10 - 0.10 * 0.25, abs=1e-5)
    assert once < often < 0.9


def test_one_call_that_nothing_had_shown_raises_only_a_tool_that_is_near_by_itself(tier, words):
    tier.learn(use(signal=Signal.UNLISTED))
    once = tier.supported(words.one(QUERY))[MAIL]
    tier.learn(use(signal=Signal.UNLISTED, session="b"))
    confirmed = tier.supported(words.one(QUERY))[MAIL]

    assert once.most_added == MOST_ADDED_IN_DOUBT
    assert not confirmed.is_weak


@pytest.mark.parametrize("signal", [Signal.FOUND, Signal.LISTED, Signal.STATED])
def test_one_call_of_a_shown_tool_or_with_a_goal_counts_in_full(tier, words, signal):
    tier.learn(use(signal=signal))

    assert not tier.supported(words.one(QUERY))[MAIL].is_weak


@pytest.mark.parametrize(("hours", "confirmed"), [(0.5, False), (2, True)])
def test_a_similar_request_at_another_time_confirms_a_call_that_nothing_had_shown(
    tier, words, clock, hours, confirmed
):
    tier.learn(use(signal=Signal.UNLISTED))
    clock.now += hours * 3_600
    tier.learn(use("tell my colleague about the budget", signal=Signal.UNLISTED, session="b"))

    found = tier.supported(words.one(QUERY))[MAIL]
    assert found.query == QUERY
    assert found.is_weak is not confirmed


def test_other_tools_are_left_out_only_after_a_use_in_another_session_or_for_another_query(
    tier, words, clock
):
    def narrows() -> bool:
        return tier.supported(words.one(QUERY))[MAIL].narrows

    tier.learn(use())
    tier.learn(use())
    assert not narrows()
    tier.learn(use(session="b"))
    assert narrows()

    tier.forget(lambda _: True)
    tier.learn(use(session="c"))
    assert not narrows()
    clock.now += 7_200
    tier.learn(use("tell my colleague about the budget", session="c"))
    assert narrows()


def test_a_call_of_a_shown_tool_confirms_one_that_nothing_had_shown(tier, words):
    tier.learn(use(signal=Signal.UNLISTED))
    tier.learn(use("tell my colleague about the budget", session="b"))

    assert not tier.supported(words.one(QUERY))[MAIL].is_weak


def test_support_fades_with_time(tier, words, clock):
    tier.learn(use())
    before = tier.supported(words.one(QUERY))[MAIL].cosine
    clock.now += 20 * DAY

    assert tier.supported(words.one(QUERY))[MAIL].cosine < before


def test_in_one_session_a_repetition_counts_once(tier):
    for _ in range(5):
        tier.learn(use())
    tier.learn(use(session="b"))

    assert [pair.uses for pair in tier.pairs] == [2]


def test_queries_that_are_nearly_the_same_are_one_pair(tier):
    tier.learn(use())
    tier.learn(use(query=QUERY.upper() + ".", session="b"))

    assert [(pair.query, pair.uses) for pair in tier.pairs] == [(QUERY, 2)]


def test_one_session_can_begin_only_a_few_pairs_of_a_tool(tier):
    for number in range(3 * NEW_IN_A_SESSION):
        tier.learn(use(query=f"number{number} word{number} thing{number}"))

    assert len(tier.pairs) == NEW_IN_A_SESSION


def test_a_tool_that_is_passed_over_in_another_session_loses_confidence(tier, clock):
    tier.learn(use())
    tier.learn(use(tool=CHAT, session="a", shown=(MAIL, CHAT)))
    (unchanged,) = [pair.confidence for pair in tier.pairs if pair.tool == MAIL]
    tier.learn(use(tool=CHAT, session="b", shown=(MAIL, CHAT)))
    (lowered,) = [pair.confidence for pair in tier.pairs if pair.tool == MAIL]

    assert unchanged == 0.75
    assert lowered < unchanged


async def test_a_loop_in_one_session_lowers_what_it_passes_over_once(tier):
    tier.learn(use())
    recorder = UseRecorder(tier)
    for _ in range(50):
        recorder.learn(use(tool=CHAT, session="b", shown=(MAIL, CHAT)))
        await recorder.flush()

    (lowered,) = [pair.confidence for pair in tier.pairs if pair.tool == MAIL]
    assert lowered == moved(0.75, Signal.PASSED_OVER)


def test_other_spellings_of_a_query_in_one_session_lower_what_they_pass_over_once(tier):
    tier.learn(use())
    for marks in range(20):
        tier.learn(use(QUERY + "!" * marks, CHAT, session="b", shown=(MAIL, CHAT)))

    (lowered,) = [pair.confidence for pair in tier.pairs if pair.tool == MAIL]
    assert lowered == moved(0.75, Signal.PASSED_OVER)


async def test_a_use_that_could_not_be_learned_is_learned_when_it_comes_again(tier, words):
    recorder = UseRecorder(tier)
    words.error = ModelError("words", "not loaded yet", "wait")
    recorder.learn(use())
    await recorder.flush()
    words.error = None
    recorder.learn(use())
    await recorder.flush()

    assert [pair.tool for pair in tier.pairs] == [MAIL]


def test_a_passed_over_tool_without_a_pair_learns_nothing(tier):
    tier.learn(use(tool=CHAT, session="b", shown=(MAIL, CHAT)))

    assert [pair.tool for pair in tier.pairs] == [CHAT]


def test_pairs_survive_a_restart(tier, words, clock, path):
    tier.learn(use())
    with open_store(path) as store:
        again = LearnedTier(words, store.learned, clock=clock)

        assert again.supported(words.one(QUERY)) == tier.supported(words.one(QUERY))


def test_without_a_store_pairs_end_with_the_process(tier, words, clock, path):
    tier.learn(use())
    for file in path.parent.iterdir():
        file.unlink()
    with open_store(path) as store:
        assert LearnedTier(words, store.learned, clock=clock).supported(words.one(QUERY)) == {}


def test_pairs_of_another_model_are_embedded_again_if_their_text_is_stored(words, clock, path):
    other = Words("other", dimensions=16)
    with open_store(path) as store:
        LearnedTier(words, store.learned, clock=clock).learn(use())
        LearnedTier(words, store.learned, False, clock).learn(use(query="something else entirely", tool=CHAT))
        tier = LearnedTier(other, store.learned, clock=clock)

        assert list(tier.supported(other.one(QUERY))) == [MAIL]
        assert tier.supported(other.one("something else entirely")) == {}


def test_pairs_forgotten_by_another_process_are_noticed(tier, words, clock, path):
    tier.learn(use())
    tier.refresh()
    with open_store(path) as store:
        LearnedTier(words, store.learned, clock=clock).forget(lambda _pair: True)
    tier.refresh()

    assert tier.supported(words.one(QUERY)) == {}


def test_pruning_happens_at_start_and_daily_and_reaches_the_store(tier, words, clock, path):
    tier.learn(use())
    tier.refresh()
    clock.now += 31 * DAY
    tier.learn(use(tool=CHAT, query="another need of mine"))
    tier.refresh()

    assert [pair.tool for pair in tier.pairs] == [CHAT]
    with open_store(path) as store:
        assert [pair.tool for pair in store.learned.all()] == [CHAT]

        clock.now += 31 * DAY
        restarted = LearnedTier(words, store.learned, clock=clock)
        assert restarted.pairs == ()
        restarted.refresh()
        assert store.learned.all() == []


@pytest.mark.slow
def test_a_locked_store_stops_neither_learning_nor_searching(tier, words, path, caplog):
    tier.learn(use())
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    done = threading.Event()

    def learn() -> None:
        tier.learn(use(tool=CHAT))
        done.set()

    thread = threading.Thread(target=learn)
    thread.start()
    try:
        assert list(tier.supported(words.one(QUERY))) == [MAIL], "a search does not wait for the write"
        assert not done.is_set()
        thread.join(30)
    finally:
        other.close()

    assert set(tier.supported(words.one(QUERY))) == {MAIL, CHAT}
    assert "waits in memory" in caplog.text
    with open_store(path) as store:
        assert [pair.tool for pair in store.learned.all()] == [MAIL]
        tier.refresh()
        assert {pair.tool for pair in store.learned.all()} == {MAIL, CHAT}, "now there is room for it"


@pytest.mark.slow
def test_a_store_that_is_locked_on_its_first_use_of_a_day_gives_what_was_learned(tier, words, clock, path):
    """On that day its age is noted, which is a write."""
    tier.learn(use())
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("DELETE FROM areas WHERE area IN ('aged', 'used')")
    other.execute("BEGIN IMMEDIATE")
    try:
        with open_store(path) as store:
            again = LearnedTier(words, store.learned, clock=clock)
            assert list(again.supported(words.one(QUERY))) == [MAIL]
    finally:
        other.close()


def test_damaged_rows_are_ignored(tier, words, clock, path):
    tier.learn(use())
    tier.learn(use(tool=CHAT))
    with closing(sqlite3.connect(path)) as connection, connection:
        bad = np.full(64, np.nan, "<f4").tobytes()
        connection.execute("UPDATE learned SET vector = ? WHERE tool = ?", (bad, CHAT[1]))
    with open_store(path) as store:
        assert list(LearnedTier(words, store.learned, clock=clock).supported(words.one(QUERY))) == [MAIL]


def test_without_a_model_nothing_is_learned_and_nothing_is_lost(tier, words):
    words.error = ModelError("model", "gone", "mend it")
    with pytest.raises(ModelError):
        tier.learn(use())
    words.error = None
    tier.learn(use())

    assert len(tier.pairs) == 1


def _learn_for_ever(path: str, told: Any) -> None:
    words = Words()
    with open_store(Path(path)) as store:
        tier = LearnedTier(words, store.learned)
        for number in range(1_000_000):
            query = f"alpha{number} beta{number} gamma{number}"
            tier.learn(Use(query, ("s", f"tool{number}"), Signal.FOUND, f"session {number}"))
            told.send(number)


OWN = Principal("ann", Role.USE)
"""A principal with a token of its own."""


def test_the_uses_of_a_named_principal_count_in_its_own_searches_only(tier, words):
    tier.learn(use())
    tier.learn(use(tool=CHAT, owner="ann"))
    tier.learn(use(query="resize an image", tool=CHAT, owner="ben"))

    assert set(tier.supported(words.one(QUERY))) == {MAIL}
    with assigned(ACTING, OWN):
        assert set(tier.supported(words.one(QUERY))) == {MAIL, CHAT}
        assert tier.supported(words.one("resize an image")) == {}


def test_what_everybody_has_learned_is_not_changed_by_a_named_principal(tier):
    tier.learn(use())
    tier.learn(use(tool=CHAT, owner="ann", session="b", shown=(MAIL, CHAT)))
    tier.learn(use(owner="ann", session="c"))

    (shared,) = tier.index.pairs
    assert (shared.uses, shared.confidence) == (1, 0.75)
    assert sorted((pair.owner, pair.tool[1]) for pair in tier.pairs) == [
        ("", "send_mail"),
        ("ann", "send_chat"),
        ("ann", "send_mail"),
    ]


def test_a_remembered_answer_of_one_principal_is_not_that_of_another(tier):
    everybody = tier.generation()
    tier.learn(use(owner="ann"))

    assert tier.generation() == everybody
    with assigned(ACTING, OWN):
        assert tier.generation() != everybody


@pytest.mark.slow
def test_uses_that_waited_for_the_store_are_learned_as_if_it_had_never_failed(tier, words, clock, path):
    other = sqlite3.connect(path, isolation_level=None)
    with open_store(path) as store:
        meanwhile = LearnedTier(words, store.learned, clock=clock)
        meanwhile.learn(use(session="elsewhere"))
        store.close()
    other.execute("BEGIN IMMEDIATE")
    tier.learn(use(session="here"))
    tier.learn(use(session="here"))
    other.close()
    tier.refresh()

    assert [(pair.uses, pair.tool) for pair in tier.pairs] == [(2, MAIL)]
    with open_store(path) as store:
        assert [pair.uses for pair in store.learned.all()] == [2]


TEACHER = """
import sys
from pathlib import Path
from mcp_context_proxy.learning import Signal, Use
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.store.opening import open_store
sys.path[:0] = [sys.argv[2]]
from conftest import Words
print("ready", flush=True)
sys.stdin.readline()
with open_store(Path(sys.argv[1])) as store:
    tier = LearnedTier(Words(), store.learned)
    for number in range(30):
        tier.learn(Use("tell my colleague", ("s", "own"), Signal.FOUND, f"{sys.argv[3]} {number}"))
        tier.learn(Use("book a room", ("s", "same"), Signal.FOUND, f"session {number}"))
"""


def test_two_processes_lose_no_use_and_count_no_repetition(path):
    """Both see the same sessions use one tool, and different sessions use the other."""
    command = forked_program(TEACHER, path, Path(__file__).parent)
    both = [
        subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("one", "other")
    ]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.wait(60) for process in both] == [0, 0]
    for process in both:
        process.communicate()

    with open_store(path) as store:
        assert {pair.tool[1]: pair.uses for pair in store.learned.all()} == {"own": 60, "same": 30}


def test_many_who_teach_the_same_end_with_what_one_has_taught(words, clock, tmp_path):
    """Each use is seen by all of them: the same session, the same query."""

    def taught(name: str, teachers: int) -> list[tuple[Any, ...]]:
        stores = [open_store(tmp_path / name) for _ in range(teachers)]
        tiers = [LearnedTier(words, store.learned, clock=clock) for store in stores]
        for number in range(20):
            for tier in tiers:
                tier.learn(use(f"query{number % 10} word{number % 10}", session=f"s{number}"))
        pairs = [(pair.key, pair.confidence, pair.uses) for pair in stores[0].learned.all()]
        for store in stores:
            store.close()
        return pairs

    assert taught("many", 8) == taught("one", 1)


@pytest.mark.slow
def test_a_pair_that_was_learned_survives_kill_9(tmp_path):
    """At random moments; every use that `learn` returned from is in the store, and the store is sound."""
    random = np.random.default_rng(3)
    context = multiprocessing.get_context("spawn")
    for attempt in range(6):
        path = tmp_path / f"{attempt}.sqlite3"
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_learn_for_ever, args=(str(path), send))
        process.start()
        send.close()
        until, last = int(random.integers(1, 60)), -1
        while last < until:
            assert receive.poll(60)
            last = receive.recv()
        os.kill(process.pid, signal.SIGKILL)
        while receive.poll(0):
            try:
                last = receive.recv()
            except EOFError:
                break
        process.join(60)
        receive.close()
        with open_store(path) as store:
            assert store.warning is None
            kept = {pair.tool[1] for pair in store.learned.all()}
        assert {f"tool{number}" for number in range(last + 1)} <= kept


def test_each_tool_is_supported_by_its_strongest_pair(tier, words, clock):
    """Against the definition, pair by pair."""
    for number in range(60):
        clock.now += DAY / 3
        for again in range(number % 3 + 1):
            tier.learn(
                use(f"{QUERY} number {number % 20} {number}", ("office", f"t{number % 7}"), f"s{again}")
            )
    query = words.one(f"{QUERY} number 5")
    found = tier.supported(query)

    expected: dict[tuple[str, str], float] = {}
    for pair in tier.pairs:
        cosine = float(pair.vector @ query)
        if cosine >= 0.5:
            counted = cosine - 0.10 - 0.10 * (1 - pair.confidence_at(clock.now))
            expected[pair.tool] = max(counted, expected.get(pair.tool, -1))
    assert len(expected) == 7
    assert {tool: support.cosine for tool, support in found.items()} == pytest.approx(expected)
