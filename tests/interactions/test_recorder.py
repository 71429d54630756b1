"""Interactions are written together, off the way; whoever posts one hears of it once it is in the store."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import anyio
import pytest

from mcp_context_proxy.errors import ModelError, StoreError
from mcp_context_proxy.interactions.memory import InteractionMemory
from mcp_context_proxy.interactions.recorder import WAITING, InteractionRecorder
from mcp_context_proxy.store import Store, open_store

from .conftest import QUERY, Clock, Words, memory_in, said

pytestmark = pytest.mark.anyio


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


async def test_what_is_noted_is_kept_and_embedded_soon(memory: InteractionMemory) -> None:
    async with running(memory) as recorder:
        recorder.note(lambda: said("0.9"))
        recorder.note(lambda: said("0.5"))
        await recorder.drain()

        found = memory.semantic_search_interactions(QUERY)
    assert [one.interaction.content for one in found.results] == ["0.9", "0.5"]


async def test_what_is_posted_is_in_the_store_when_the_answer_comes(path, words: Words, clock: Clock) -> None:
    with open_store(path) as store, open_store(path) as elsewhere:
        async with running(memory_in(store, words, clock)) as recorder:
            answer = await recorder.post(said("0.5", agent=" planner "))
            (row,) = elsewhere.interactions.get([answer.id])

    assert answer == row
    assert answer.agent_name == "planner"


async def test_many_are_posted_at_once_and_each_hears_of_its_own(memory: InteractionMemory) -> None:
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


async def test_the_content_is_made_in_another_thread(memory: InteractionMemory) -> None:
    made: list[int] = []

    def make():
        made.append(threading.get_ident())
        return said("0.5")

    async with running(memory) as recorder:
        recorder.note(make)
        await recorder.drain()

    assert made != [threading.get_ident()]


async def test_one_that_cannot_be_told_costs_no_other(
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


async def test_what_came_while_there_was_no_model_is_embedded_once_it_is_back(
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


async def test_what_an_earlier_proxy_left_without_embedding_comes_along(
    memory: InteractionMemory, words: Words
) -> None:
    memory.add([said(f"0.{n}") for n in range(10, 60)])
    async with running(memory) as recorder:
        recorder.note(lambda: said("0.9"))
        await recorder.drain()

    assert memory.semantic_search_interactions(QUERY).without_embedding == 0
    assert len([text for texts in words.asked for text in texts if text != QUERY]) == 51


async def test_whoever_wants_to_find_what_was_just_said_does_not_wait_for_more_of_it(
    memory: InteractionMemory,
) -> None:
    async with running(memory) as recorder:
        for text in ("0.9", "0.5"):
            await recorder.post(said(text))
            await recorder.wait_for_recent()

            found = memory.semantic_search_interactions(QUERY)
            assert found.without_embedding == 0
    assert [one.interaction.content for one in found.results] == ["0.9", "0.5"]


async def test_what_is_left_is_written_when_the_proxy_stops(memory: InteractionMemory) -> None:
    async with running(memory) as recorder:
        for number in range(5):
            recorder.note(lambda number=number: said(f"number {number}"))

    assert kept(memory) == [f"number {number}" for number in range(5)]


async def test_of_too_many_that_wait_the_oldest_are_left_out(memory: InteractionMemory) -> None:
    async with running(memory) as recorder:
        for number in range(WAITING + 10):
            recorder.note(lambda number=number: said(f"number {number}"))
        await recorder.drain()

    assert kept(memory) == sorted(f"number {number}" for number in range(10, WAITING + 10))


async def test_a_store_that_fails_is_told_to_who_posts_and_once_in_the_log(
    memory: InteractionMemory, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    store.close()
    async with running(memory) as recorder:
        for _ in range(3):
            recorder.note(lambda: said("lost"))
            with pytest.raises(StoreError):
                await recorder.post(said("0.5"))

    assert caplog.text.count("waits in memory") == 1


async def test_what_a_store_refuses_for_a_while_is_kept_with_what_comes_after(
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
