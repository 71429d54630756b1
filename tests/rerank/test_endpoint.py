"""A chat service that answers well, badly, late and never: at worst the order is the one there was."""

import socket
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from support.chat import Asked, ChatService
from support.clocks import Clock

from mcp_context_proxy.config import Config, Limits, RerankConfig
from mcp_context_proxy.retrieval.reranker import RETRY_SECONDS, Reranker, reranker_for, reranker_model_for
from mcp_context_proxy.retrieval.reranker_models import ANSWER_BYTES

from .conftest import names

PATIENT, HASTY = Limits(rerank_seconds=30.0), Limits(rerank_seconds=0.2)
KEY = "sk-very-secret-key"
AS_IT_WAS = ["a", "b", "c"]


def reranker(service: ChatService, limits: Limits = PATIENT, clock: Any = None, **settings: Any) -> Reranker:
    config = RerankConfig(**{"mode": "auto", "endpoint": service.url, "model": "small", **settings})
    more = {} if clock is None else {"clock": clock}
    return Reranker(config.mode, reranker_model_for(config, limits), limits, **more)


async def test_the_model_decides_the_order_and_the_answer_says_so(service, close):
    service.reply = lambda asked: asked.say("5, 3")
    async with reranker(service, api_key=KEY) as asking:
        ranking, outcome = await asking.rerank(close)

    assert names(ranking.results) == ["e", "c", "a"]
    assert outcome.used
    assert outcome.reason == f"ordered by small at {service.url}"
    (asked,) = service.requests
    assert asked.headers["Authorization"] == f"Bearer {KEY}"
    assert asked.body["model"] == "small"
    assert asked.data[0] == {"request": "query"}
    assert [line["name"] for line in asked.data[1:]] == [f"srv__{name}" for name in "abcde"]


async def test_never_asks_no_model(service, close):
    async with reranker(service, mode="never") as asking:
        ranking, outcome = await asking.rerank(close)

    assert (ranking, outcome, service.requests) == (close, None, [])


async def test_a_search_can_override_the_configured_mode(service, close):
    async with reranker(service, mode="never") as asking:
        _, outcome = await asking.rerank(close, mode="always")
    assert outcome is not None
    assert outcome.used

    async with reranker(service, mode="always") as asking:
        assert await asking.rerank(close, mode="never") == (close, None)


def answering(status: int, content: Any) -> Callable[[Asked], None]:
    return lambda asked: asked.answer(status, content)


def saying(text: str | None) -> Callable[[Asked], None]:
    return lambda asked: asked.say(text)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        pytest.param(saying("I would take the 2nd one."), "its answer is no list of numbers", id="prose"),
        pytest.param(saying("0, 17"), "its answer is no list of numbers", id="out of range"),
        pytest.param(saying(None), "its answer is no list of numbers", id="null"),
        pytest.param(answering(200, {"choices": []}), "its answer is no list of numbers", id="no choice"),
        pytest.param(answering(200, b"<html>"), "its answer does not follow the API", id="HTML"),
        pytest.param(answering(200, {"choices": "x"}), "its answer does not follow the API", id="shape"),
        pytest.param(answering(200, b"[" * 100_000), "its answer does not follow the API", id="deep"),
        pytest.param(answering(500, b"out of memory"), "HTTP status 500: out of memory", id="500"),
        pytest.param(answering(401, f"bad key {KEY}".encode()), "set rerank.api_key", id="401"),
        pytest.param(answering(404, b""), "rerank.endpoint ends as its documentation says", id="404"),
        pytest.param(answering(200, b"x" * (ANSWER_BYTES + 1)), "far longer than some numbers", id="long"),
    ],
)
async def test_an_unusable_answer_leaves_the_order_unchanged(service, close, reply, told, caplog):
    service.reply = reply
    async with reranker(service, api_key=KEY) as asking:
        ranking, outcome = await asking.rerank(close)

    assert names(ranking.results) == AS_IT_WAS
    assert not outcome.used
    assert told in outcome.reason
    assert KEY not in outcome.reason + caplog.text


async def test_duplicate_unknown_and_missing_numbers_are_corrected(service, close):
    service.reply = saying("2, 2, 99, 0, 4")
    async with reranker(service) as asking:
        ranking, _ = await asking.rerank(close)

    assert names(ranking.results) == ["b", "d", "a"]
    assert names(ranking.others) == ["c", "e", "f"]


async def test_a_service_that_refuses_a_temperature_is_asked_without_it(service, close):
    def reply(asked: Asked) -> None:
        if "temperature" in asked.body:
            asked.answer(400, {"error": {"message": "Unsupported value: temperature"}})
        else:
            asked.say("3, 1, 2")

    service.reply = reply
    async with reranker(service) as asking:
        ranking, _ = await asking.rerank(close)
        await asking.rerank(replace(close, query="another"))

    assert names(ranking.results) == ["c", "a", "b"]
    assert ["temperature" in asked.body for asked in service.requests] == [True, False, False]


async def test_a_missing_answer_is_waited_for_no_longer_than_the_limit(service, close):
    service.reply = service.never
    async with reranker(service, HASTY) as asking:
        ranking, outcome = await asking.rerank(close)

    assert names(ranking.results) == AS_IT_WAS
    assert "no answer within 0.2 s" in outcome.reason


async def test_a_slow_answer_is_waited_for_no_longer_than_the_limit(service, close):
    def reply(asked: Asked) -> None:
        handler = asked._handler
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        while not service.released.wait(0.02):
            handler.wfile.write(b" ")
            handler.wfile.flush()

    service.reply = reply
    async with reranker(service, HASTY) as asking:
        ranking, outcome = await asking.rerank(close)

    assert names(ranking.results) == AS_IT_WAS
    assert "no answer within 0.2 s" in outcome.reason


async def test_an_unreachable_service_leaves_the_order_unchanged(service, close):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
        async with reranker(service, endpoint=url) as asking:
            ranking, outcome = await asking.rerank(close)

    assert names(ranking.results) == AS_IT_WAS
    assert "it cannot be reached" in outcome.reason


async def test_a_failed_service_is_not_asked_again_until_a_pause_is_over(service, close):
    service.reply, clock = answering(500, b""), Clock()
    async with reranker(service, clock=clock) as asking:
        await asking.rerank(close)
        _, resting = await asking.rerank(close)
        assert len(service.requests) == 1
        assert resting.reason.startswith("not asked again so soon after a failure: small at")

        service.reply, clock.now = saying("2, 1"), RETRY_SECONDS + 1
        _, outcome = await asking.rerank(close)
    assert outcome.used


async def test_the_answer_to_the_same_question_is_cached(service, close):
    async with reranker(service) as asking:
        first, _ = await asking.rerank(close)
        again, outcome = await asking.rerank(close)
        await asking.rerank(replace(close, query="another"))

    assert names(first.results) == names(again.results) == ["b", "a", "c"]
    assert outcome.used
    assert outcome.reason.endswith("as before")
    assert len(service.requests) == 2


async def test_without_a_model_the_outcome_names_the_setting(close):
    ranking, outcome = await reranker_for(Config()).rerank(close, mode="always")

    assert names(ranking.results) == AS_IT_WAS
    assert "set rerank.model" in outcome.reason
