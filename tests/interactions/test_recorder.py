"""Interactions are written together, off the way; whoever posts one hears of it once it is in the store."""

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest
from support.clocks import Clock

from mcp_context_proxy.errors import ModelError, StoreError
from mcp_context_proxy.interactions import WAITING, InteractionMemory, InteractionRecorder
from mcp_context_proxy.store.opening import open_store

from .conftest import QUERY, Words, memory_in, said


@asynccontextmanager
async def running(memory: InteractionMemory) -> AsyncIterator[InteractionRecorder]:
    recorder = InteractionRecorder(memory)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(recorder.run)
            yield recorder
            group.cancel_scope.cancel()


def kept(memory: InteractionMemory) -> list[str]:
    return sorted(one.interaction.content for one in memory.recent(limit=WAITING * 2).results)


async def test_a_noted_interaction_is_soon_stored_and_embedded(memory: InteractionMemory) -> None:
    async with running(memory) as recorder:
        recorder.note(lambda: said("0.9"))
        recorder.note(lambda: said("0.5"))
        await recorder.drain()

        found = memory.semantic_search_interactions(QUERY)
    assert [one.interaction.content for one in found.results] == ["0.9", "0.5"]


async def test_a_posted_interaction_is_stored_before_the_answer(path, words: Words, clock: Clock) -> None:
    with open_store(path) as store, open_store(path) as elsewhere:
        async with running(memory_in(store, words, clock)) as recorder:
            answer = await recorder.post(said("0.5", agent=" planner "))
            (row,) = elsewhere.interactions.get([answer.id])

    assert answer == row
    assert answer.agent_name == "planner"


async def test_many_concurrent_posts_each_get_their_own_answer(memory: InteractionMemory) -> None:
    answers = []
    async with running(memory) as recorder, anyio.create_task_group() as group:

        async def post(number: int) -> None:
            answers.append((number, await recorder.post(said(f"number {number}"))))

        for number in range(50):
            group.start_soon(post, number)
            recorder.note(lambda: said("noted"))

    assert len(answers) == 50
    assert all(answer.content == f"number {number}" for number, answer in answers)
    assert len({answer.id for _, answer in answers}) == 50


async def test_contents_are_built_in_another_thread(memory: InteractionMemory) -> None:
    made: list[int] = []

    def make():
        made.append(threading.get_ident())
        return said("0.5")

    async with running(memory) as recorder:
        recorder.note(make)
        await recorder.drain()

    assert made != [threading.get_ident()]


async def test_an_interaction_that_cannot_be_built_affects_no_other(
    memory: InteractionMemory, caplog: pytest.LogCaptureFixture
) -> None:
    def broken():
        raise ValueError("cannot be told")

    async with running(memory) as recorder:
        recorder.note(broken)
        recorder.note(lambda: said("0.5"))
        await recorder.drain()

    assert kept(memory) == ["0.5"]
    assert "an interaction could not be recorded" in caplog.text


async def test_interactions_without_a_model_are_embedded_once_it_is_back(
    memory: InteractionMemory, words: Words
) -> None:
    words.error = ModelError("words", "it is gone", "bring it back")
    async with running(memory) as recorder:
        await recorder.post(said("0.5"))
        await recorder.drain()
        assert memory.recent().known == 1
        words.error = None
        recorder.note(lambda: said("0.7"))
        await recorder.drain()

    found = memory.semantic_search_interactions(QUERY)
    assert [one.interaction.content for one in found.results] == ["0.7", "0.5"]


async def test_interactions_left_without_an_embedding_by_an_earlier_run_are_embedded(
    memory: InteractionMemory, words: Words
) -> None:
    memory.add([said(f"0.{n}") for n in range(10, 60)])
    async with running(memory) as recorder:
        recorder.note(lambda: said("0.9"))
        await recorder.drain()

    assert memory.semantic_search_interactions(QUERY).without_embedding == 0
    assert len([text for texts in words.asked for text in texts if text != QUERY]) == 51


async def test_a_search_flushes_pending_interactions_without_waiting_for_a_batch(
    memory: InteractionMemory,
) -> None:
    async with running(memory) as recorder:
        for text in ("0.9", "0.5"):
            await recorder.post(said(text))
            await recorder.wait_for_recent()

            found = memory.semantic_search_interactions(QUERY)
            assert found.without_embedding == 0
    assert [one.interaction.content for one in found.results] == ["0.9", "0.5"]


async def test_pending_interactions_are_written_when_the_proxy_stops(memory: InteractionMemory) -> None:
    async with running(memory) as recorder:
        for number in range(5):
            recorder.note(lambda number=number: said(f"number {number}"))

    assert kept(memory) == [f"number {number}" for number in range(5)]


async def test_a_full_queue_drops_the_oldest_interactions(memory: InteractionMemory) -> None:
    async with running(memory) as recorder:
        for number in range(WAITING + 10):
            recorder.note(lambda number=number: said(f"number {number}"))
        await recorder.drain()

    assert kept(memory) == sorted(f"number {number}" for number in range(10, WAITING + 10))


def _make_unusable(path: Path) -> None:
    path.unlink()
    path.mkdir()


async def test_a_failing_store_is_reported_to_each_poster_and_logged_once(
    memory: InteractionMemory, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _make_unusable(path)
    async with running(memory) as recorder:
        for _ in range(3):
            recorder.note(lambda: said("lost"))
            with pytest.raises(StoreError):
                await recorder.post(said("0.5"))

    assert caplog.text.count("waits in memory") == 1


@pytest.mark.slow
async def test_interactions_that_could_not_be_written_are_retried_with_later_ones(
    memory: InteractionMemory, path: Path
) -> None:
    async with running(memory) as recorder:
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            recorder.note(lambda: said("while it is held"))
            with pytest.raises(StoreError):
                await recorder.post(said("posted while it is held"))
        await recorder.post(said("posted afterwards"))
    assert kept(memory) == ["posted afterwards", "while it is held"]
