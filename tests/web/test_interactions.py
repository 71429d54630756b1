"""Interactions over the REST API: posted, found again, forgotten."""

import time
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from support.proxies import http_proxy
from support.servers import Workshop, tool

PATH = "/api/v1/interactions"
DAY = 86_400.0


@pytest.fixture
async def forgetful(api: httpx2.AsyncClient) -> AsyncIterator[httpx2.AsyncClient]:
    """The API of a proxy that remembers nothing yet."""
    await forget(api)
    yield api


async def forget(api: httpx2.AsyncClient, **narrowed: Any) -> int:
    answer = await api.delete(PATH, params={"older_than_days": 0, **narrowed})
    assert answer.status_code == 200, answer.text
    return int(answer.json()["forgotten"])


async def post(api: httpx2.AsyncClient, content: str, **more: Any) -> dict[str, Any]:
    answer = await api.post(PATH, json={"content": content, **more})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def found(api: httpx2.AsyncClient, **wanted: Any) -> dict[str, Any]:
    answer = await api.get(PATH, params=wanted)
    assert answer.status_code == 200, answer.text
    return answer.json()


def contents(answer: dict[str, Any]) -> list[str]:
    return [result["content"] for result in answer["results"]]


async def test_posted_interactions_are_found_by_meaning(forgetful: httpx2.AsyncClient) -> None:
    before = time.time()
    kept = await post(forgetful, "the deployment is on friday", agent_name="planner")
    await post(forgetful, "lunch is at noon", agent_name="planner")
    answer = await found(forgetful, query="when do we ship the new version")

    assert kept["agent_name"] == "planner"
    assert kept["interaction_type"] == "message"
    assert before <= kept["time"] <= time.time()
    assert contents(answer)[0] == "the deployment is on friday"
    assert answer["results"][0]["id"] == kept["id"]
    assert (answer["method"], answer["known"], answer["without_embedding"]) == ("semantic", 2, 0)
    assert answer["results"][0]["score"] >= answer["results"][0]["cosine"] > 0


async def test_old_interactions_count_less(forgetful: httpx2.AsyncClient) -> None:
    text = "the deployment is on friday"
    await post(forgetful, text, time=time.time() - 30 * DAY)
    answer = await found(forgetful, query=text)
    undecayed = await found(forgetful, query=text, time_decay_factor=1)

    assert answer["results"][0]["cosine"] == pytest.approx(1, abs=1e-3)
    assert undecayed["results"][0]["score"] > 1, "its words count beside its meaning"
    assert answer["results"][0]["score"] == pytest.approx(
        0.95**30 * undecayed["results"][0]["score"], abs=1e-3
    )


async def test_one_or_all_agents_and_types_can_be_searched(forgetful: httpx2.AsyncClient) -> None:
    await post(forgetful, "deploy on friday", agent_name="planner")
    await post(forgetful, "deploy it now", agent_name="coder", interaction_type="decision")
    forgetful.headers["x-agent-name"] = "hook"
    await post(forgetful, "deploy with care")
    del forgetful.headers["x-agent-name"]

    assert contents(await found(forgetful, query="deploy", agent_name="planner")) == ["deploy on friday"]
    assert contents(await found(forgetful, query="deploy", agent_name="hook")) == ["deploy with care"]
    assert contents(await found(forgetful, interaction_type="decision")) == ["deploy it now"]
    assert len((await found(forgetful, query="deploy"))["results"]) == 3
    assert len((await found(forgetful, query="deploy", top_k=2))["results"]) == 2


async def test_without_a_query_the_latest_come_first(forgetful: httpx2.AsyncClient) -> None:
    await post(forgetful, "the first", time=time.time() - 2 * DAY)
    await post(forgetful, "the last")
    await post(forgetful, "the second", time=time.time() - DAY)
    answer = await found(forgetful, top_k=2)

    assert contents(answer) == ["the last", "the second"]
    assert (answer["query"], answer["method"], answer["results"][0]["score"]) == (None, "recent", None)


async def test_searches_over_the_api_are_remembered_for_the_agent_in_the_header(
    forgetful: httpx2.AsyncClient,
) -> None:
    headers = {"X-Agent-Name": "hook"}
    await forgetful.get("/api/v1/tools/search", params={"query": "send a mail"}, headers=headers)
    await forgetful.post("/api/v1/context", json={"query": "find an old mail"}, headers=headers)
    looked = {"query": "only looked at", "record": False}
    await forgetful.post("/api/v1/context", json=looked, headers=headers)
    answer = await found(forgetful, agent_name="hook", interaction_type="search")

    assert sorted(contents(answer)) == ["find an old mail", "send a mail"]


async def test_interactions_can_be_deleted_by_id_age_and_agent(forgetful: httpx2.AsyncClient) -> None:
    kept = await post(forgetful, "one", agent_name="planner")
    await post(forgetful, "two", agent_name="planner", time=time.time() - 9 * DAY)
    await post(forgetful, "three", agent_name="coder")

    gone = await forgetful.delete(f"{PATH}/{kept['id']}")
    again = await forgetful.delete(f"{PATH}/{kept['id']}")
    assert (gone.json(), again.status_code) == ({"forgotten": 1}, 404)
    assert await forget(forgetful, older_than_days=7) == 1
    assert contents(await found(forgetful)) == ["three"]
    assert await forget(forgetful, agent_name="coder") == 1


@pytest.mark.parametrize("unknown", ["abc", "-1", "1.5", "%C2%B2", "9" * 30])
async def test_deleting_an_unknown_interaction_is_not_found(api: httpx2.AsyncClient, unknown: str) -> None:
    assert (await api.delete(f"{PATH}/{unknown}")).status_code == 404


async def test_deleting_needs_a_filter(api: httpx2.AsyncClient) -> None:
    answer = await api.delete(PATH)

    assert answer.status_code == 422
    assert "older_than_days" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"content": " \n"}, "content must not be blank."),
        (
            {"content": "x", "interaction_type": "two words"},
            "interaction_type cannot be read. At most 64 letters, digits, '_', '.' and '-'.",
        ),
        ({"content": "x", "agent_name": ""}, "agent_name must not be empty."),
        ({"content": "x", "time": -1}, "time must be at least 0."),
        ({"content": "x", "unknown": 1}, "unknown is not known; known are "),
        ({"content": "x", "agentname": "a"}, "agentname is not known; did you mean agent_name?"),
        ({"agent_name": "planner"}, "content is missing."),
    ],
)
async def test_an_invalid_interaction_is_refused(
    api: httpx2.AsyncClient, body: dict[str, Any], told: str
) -> None:
    answer = await api.post(PATH, json=body)

    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(told)


async def test_a_long_text_is_cut_and_the_answer_has_the_stored_text(forgetful: httpx2.AsyncClient) -> None:
    kept = await post(forgetful, "word" * 5000)

    assert len(kept["content"]) == 4000
    assert contents(await found(forgetful)) == [kept["content"]]


async def test_if_interactions_are_off_every_operation_is_refused_with_the_reason(workshop: Workshop) -> None:
    workshop.server("work", tools=[tool("echo")])
    with http_proxy(workshop.config()) as running:
        async with httpx2.AsyncClient(base_url=running.base) as client:
            answers = [
                await client.post(PATH, json={"content": "x"}),
                await client.get(PATH),
                await client.delete(PATH, params={"older_than_days": 0}),
                await client.delete(f"{PATH}/1"),
            ]

    assert [answer.status_code for answer in answers] == [403] * 4
    assert all("enabled = true under [interactions]" in answer.json()["detail"] for answer in answers)
