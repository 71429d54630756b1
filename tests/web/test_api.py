"""The REST API over the HTTP front: contexts, sessions, requests, searches."""

import json
import socket
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from starlette.applications import Starlette
from support.chat import ChatService
from support.proxies import HttpProxy, http_proxy
from support.raw_client import PATIENCE
from support.servers import Workshop
from support.shop import HOSTILE, TOKEN, shop
from support.tables import each
from support.wires import http

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.protocol.eras import CONTEXT_KEY
from mcp_context_proxy.web import Api, Given, NoParameters, Operation, route

API = "/api/v1"


async def context(api: httpx2.AsyncClient, query: str, **more: Any) -> dict[str, Any]:
    response = await api.post(f"{API}/context", json={"query": query, **more})
    assert response.status_code == 200, response.text
    return response.json()


def modes(answer: dict[str, Any]) -> dict[str, str]:
    return {item["name"]: item["include_mode"] for item in answer["items"]}


async def test_a_query_is_answered_with_the_context_for_a_model(api: httpx2.AsyncClient) -> None:
    answer = await context(api, "send a mail to the team")

    assert (
        modes(answer).items()
        >= {
            "tone": "always",
            "post__clock": "always",
            "post__send_mail": "agent",
            "addresses": "agent",
        }.items()
    )
    assert not modes(answer).keys() & {"secrets", "post__wipe"}
    sent = next(item for item in answer["items"] if item["name"] == "post__send_mail")
    assert (sent["type"], sent["server"]) == ("tool", "post")
    assert sent["score"] > 0.3
    assert sent["tokens"] > 10
    assert "send mail" in sent["why"]
    assert "description" not in sent
    assert answer["tokens"] == sum(item["tokens"] for item in answer["items"])


async def test_a_served_context_is_recorded_and_can_be_fetched(api: httpx2.AsyncClient) -> None:
    first = await context(api, "send a mail to the team")
    second = await context(api, "find an old mail")

    again = await api.get(f"{API}/requests/{first['id']}")
    latest = (await api.get(f"{API}/requests", params={"limit": 2})).json()

    assert again.json() == first
    assert [one["id"] for one in latest["requests"]] == [second["id"], first["id"]]
    assert latest["tokens_behind"] > first["tokens"]


async def test_a_context_that_is_only_previewed_is_not_recorded(api: httpx2.AsyncClient) -> None:
    looked = await context(api, "find an old mail", record=False)

    assert (await api.get(f"{API}/requests/{looked['id']}")).status_code == 404


async def test_items_have_descriptions_and_priorities_on_request(
    api: httpx2.AsyncClient,
) -> None:
    several = {"tools": {"top_n": 5}}
    answer = await context(api, "mail to customers, browse the old ones", describe=True, options=several)
    by_name = {item["name"]: item for item in answer["items"]}

    assert by_name["archive__browse"]["description"] == HOSTILE
    assert by_name["mailing"]["description"].startswith("Mail to customers")
    assert by_name["mailing"]["priority"] == 900
    assert "priority" not in by_name["archive__browse"]


async def test_a_request_may_change_how_much_is_selected(api: httpx2.AsyncClient) -> None:
    few = await context(api, "mail", options={"tools": {"top_n": 1}, "documents": {"top_n": 1}})

    assert sum(item["include_mode"] == "agent" for item in few["items"]) == 2
    assert few["options"]["tools"]["top_n"] == 1


async def test_a_request_may_override_every_selection_option(
    api: httpx2.AsyncClient,
) -> None:
    near = {"expansion_depth": 2, "expansion_threshold": 0.2, "expansion_top_n": 2}
    others = {"history": 3, "retain_requests": 0, "expand_results": True}
    wanted = {"preset": "aggressive", "documents": {"preset": "conservative"}, **near, **others}
    answer = await context(api, "send a mail", options=wanted)
    options = answer["options"]

    assert (options["tools"]["top_n"], options["documents"]["top_n"]) == (3, 10)
    assert {name: options[name] for name in (*near, *others)} == {**near, **others}
    assert "expansion" in modes(answer).values()


async def test_a_session_can_be_listed_and_changed_and_its_host_is_notified(
    api: httpx2.AsyncClient, proxy: HttpProxy
) -> None:
    async with http(proxy.base, headers={"authorization": f"Bearer {TOKEN}"}) as host:
        await host.until_listed("post__clock")
        await host.call("search_available_tools", {"query": "find an old mail"})
        sessions = (await api.get(f"{API}/sessions")).json()["sessions"]
        session = next(one for one in sessions if one["query"] == "find an old mail")
        url = f"{API}/sessions/{session['id']}/context"
        changes = {
            "add": [
                {"type": "rule", "name": "secrets"},
                {"type": "tool", "name": "wipe", "server": "post"},
            ],
            "remove": [{"type": "rule", "name": "tone"}],
            "options": {"max_tokens": 5000},
        }
        heard = len(host.notified("notifications/tools/list_changed"))

        changed = (await api.patch(url, json=changes)).json()
        await host.until(lambda host: len(host.notified("notifications/tools/list_changed")) > heard)
        listed = await host.names()
        again = (await api.get(url)).json()
        answer = await context(api, "find an old mail", session=session["id"])

    assert modes(changed) == {"secrets": "manual", "post__wipe": "manual", "post__clock": "always"}
    assert changed["removed"] == [{"type": "rule", "name": "tone"}]
    assert changed["options"]["max_tokens"] == 5000
    assert again == changed
    assert "post__wipe" in listed
    assert modes(answer)["secrets"] == "manual"
    assert "tone" not in modes(answer)
    assert answer["session"] == session["id"]


async def test_a_tool_that_is_turned_off_is_neither_found_nor_added(
    api: httpx2.AsyncClient, proxy: HttpProxy
) -> None:
    async with http(proxy.base, headers={"authorization": f"Bearer {TOKEN}"}) as host:
        await host.until_listed("post__clock")
        sessions = (await api.get(f"{API}/sessions")).json()["sessions"]
        add = {"add": [{"type": "tool", "name": "post__forward_mail"}]}
        refused = await api.patch(f"{API}/sessions/{sessions[-1]['id']}/context", json=add)
    answer = await context(api, "send a mail on to somebody")
    found = await api.get(f"{API}/tools/search", params={"query": "send a mail on to somebody"})

    assert refused.status_code == 404
    assert "'post__forward_mail' is turned off by servers.post.deny[0] (config.toml:" in refused.text
    assert found.status_code == 200, found.text
    assert "post__send_mail" in found.text
    assert "forward_mail" not in found.text + json.dumps(modes(answer))


async def test_a_context_handle_of_a_modern_client_is_listed_as_a_session(
    api: httpx2.AsyncClient, proxy: HttpProxy
) -> None:
    async with http(proxy.base, "modern", headers={"authorization": f"Bearer {TOKEN}"}) as host:
        answer = await host.data("set_context", {"query": "tidy up the mailbox"})
        handle = answer["context_id"]
        sessions = (await api.get(f"{API}/sessions")).json()["sessions"]
        session = next(one for one in sessions if one["query"] == "tidy up the mailbox")
        add = {"add": [{"type": "tool", "name": "post__wipe"}]}
        await api.patch(f"{API}/sessions/{session['id']}/context", json=add)
        listed = await host.names(**{CONTEXT_KEY: handle})

    assert session["kind"] == "handle"
    assert handle not in str(sessions)
    assert "post__wipe" in listed


async def test_requests_can_be_filtered_by_session(api: httpx2.AsyncClient, proxy: HttpProxy) -> None:
    await context(api, "find an old mail")
    async with http(proxy.base, headers={"authorization": f"Bearer {TOKEN}"}) as host:
        await host.call("search_available_tools", {"query": "who wrote the oldest mail"})
        sessions = (await api.get(f"{API}/sessions")).json()["sessions"]
        session = next(one for one in sessions if one["query"] == "who wrote the oldest mail")
        own = (await api.get(f"{API}/requests", params={"session": session["id"]})).json()["requests"]

    assert [one["query"] for one in own] == ["who wrote the oldest mail"]
    assert own[0]["id"] == session["latest_request"]
    assert own[0]["origin"] == "search"


async def test_a_change_with_one_unknown_name_changes_nothing(
    api: httpx2.AsyncClient, proxy: HttpProxy
) -> None:
    async with http(proxy.base, headers={"authorization": f"Bearer {TOKEN}"}) as host:
        await host.call("search_available_tools", {"query": "a query of its own"})
        sessions = (await api.get(f"{API}/sessions")).json()["sessions"]
        session = next(one for one in sessions if one["query"] == "a query of its own")
        url = f"{API}/sessions/{session['id']}/context"
        add = [{"type": "rule", "name": "secrets"}, {"type": "tool", "name": "post__send_male"}]

        refused = await api.patch(url, json={"add": add, "remove": [{"type": "rule", "name": "tone"}]})
        after = (await api.get(url)).json()

    assert refused.status_code == 404
    assert "did you mean post__send_mail" in refused.json()["detail"]
    assert after == session


async def test_a_search_for_tools_reports_its_method_and_counts(api: httpx2.AsyncClient) -> None:
    parameters = {"query": "mail", "top_k": "2", "server": "post"}
    answer = (await api.get(f"{API}/tools/search", params=parameters)).json()

    assert answer["query"] == "mail"
    assert {one["server"] for one in answer["results"]} == {"post"}
    assert [one["name"] for one in answer["results"]] == ["post__send_mail", "post__list_mail"]
    assert answer["results"][0]["input_schema"]["properties"] == {"text": {"type": "string"}}
    facts = answer["metadata"]
    assert (facts["result_count"], facts["used_llm_rerank"]) == (2, False)
    assert facts["filters_applied"] == {"server": "post"}
    assert facts["latency_ms"] > 0


async def test_a_search_returns_ten_tools_unless_it_says_how_many(api: httpx2.AsyncClient) -> None:
    described = (await api.get(f"{API}/openapi.json")).json()["paths"]["/tools/search"]["get"]
    (top_k,) = [one for one in described["parameters"] if one["name"] == "top_k"]

    assert top_k["schema"]["default"] == 10


async def test_a_found_tool_has_a_field_for_each_figure_of_its_calls(api: httpx2.AsyncClient) -> None:
    answer = (await api.get(f"{API}/tools/search", params={"query": "mail"})).json()

    figures = ("title", "calls", "success_rate", "avg_latency_ms", "p95_latency_ms")
    assert answer["metadata"]["fits"]
    assert [answer["results"][0][name] for name in figures] == [None, 0, None, None, None]


async def test_a_search_narrowed_to_few_tools_returns_the_nearest_where_none_fits(
    api: httpx2.AsyncClient,
) -> None:
    parameters = {"query": "paint the fence green", "server": "post"}
    answer = (await api.get(f"{API}/tools/search", params=parameters)).json()
    everywhere = (await api.get(f"{API}/tools/search", params={"query": "paint the fence green"})).json()

    assert answer["results"]
    assert all(one["tokens"] > 0 for one in answer["results"])
    assert not answer["metadata"]["fits"]
    assert "Nothing fits among the" in answer["metadata"]["note"]
    assert (everywhere["results"], everywhere["metadata"]["fits"]) == ([], False)


async def test_a_search_with_use_llm_has_the_order_of_another_model(
    workshop: Workshop, service: ChatService
) -> None:
    service.reply = lambda asked: asked.say("2, 1")
    config = workshop.config(**shop(workshop), rerank={"endpoint": service.url, "model": "small"})
    searched = f"{API}/tools/search?query=mail&server=post&top_k=1"
    with http_proxy(config) as proxy:
        async with httpx2.AsyncClient(base_url=proxy.base, timeout=30) as client:
            with anyio.fail_after(PATIENCE):
                while len((await client.get(searched)).json()["results"]) < 1:
                    pass
            before = (await client.get(searched)).json()
            after = (await client.get(searched + "&use_llm=true")).json()
            record = (await client.get(f"{API}/requests/{after['metadata']['request_id']}")).json()

    assert (before["results"][0]["name"], after["results"][0]["name"]) == (
        "post__send_mail",
        "post__list_mail",
    )
    assert (before["metadata"]["used_llm_rerank"], before["metadata"]["rerank"]) == (False, None)
    assert after["metadata"]["used_llm_rerank"]
    assert record["rerank"]["reason"] == after["metadata"]["rerank"] == f"ordered by small at {service.url}"
    assert len(service.requests) == 1


async def test_use_llm_without_a_model_says_what_to_set(api: httpx2.AsyncClient) -> None:
    answer = (await api.get(f"{API}/tools/search?query=mail&use_llm=true")).json()

    assert not answer["metadata"]["used_llm_rerank"]
    assert "set rerank.model" in answer["metadata"]["rerank"]


async def test_a_search_applies_and_reports_its_filters(api: httpx2.AsyncClient) -> None:
    parameters = {"query": "mail", "tags": "post, read", "exclude_destructive": "false", "strict": "true"}
    answer = (await api.get(f"{API}/tools/search", params=parameters)).json()

    assert [one["name"] for one in answer["results"]] == ["post__list_mail"]
    record = (await api.get(f"{API}/requests/{answer['metadata']['request_id']}")).json()
    assert answer["metadata"]["filters_applied"] == record["filters"] == {"tags": ["post", "read"]}
    (found,) = answer["results"]
    assert found["category"] == {"name": "post", "origin": "derived"}
    assert found["tags"] == [{"name": "post", "origin": "derived"}, {"name": "read", "origin": "derived"}]


async def test_a_search_whose_filters_leave_nothing_names_the_excluded_tools(api: httpx2.AsyncClient) -> None:
    parameters = {"query": "send a mail", "read_only": "true", "category": "post", "max_latency_ms": "9"}
    answer = (await api.get(f"{API}/tools/search", params=parameters)).json()

    assert answer["results"] == []
    assert answer["metadata"]["filters_applied"] == {
        "category": "post",
        "read_only": True,
        "max_latency_ms": 9.0,
    }
    assert answer["metadata"]["note"].startswith(
        "No item meets the filters (category post, read_only true, max_latency_ms 9.0). "
        "Left out by them: post__send_mail (by read_only)"
    )


async def test_a_repeated_search_is_recorded_each_time(api: httpx2.AsyncClient) -> None:
    url = f"{API}/tools/search"
    first = (await api.get(url, params={"query": "the very same mail"})).json()
    second = (await api.get(url, params={"query": "the very same mail"})).json()
    ids = [answer["metadata"].pop("request_id") for answer in (first, second)]
    records = [(await api.get(f"{API}/requests/{one}")).json() for one in ids]

    assert first["results"] == second["results"]
    assert ids[0] != ids[1]
    assert [record["id"] for record in records] == ids
    assert records[0]["items"] == records[1]["items"]


@pytest.mark.parametrize("rebuild", ["false", "true"])
async def test_reindexing_does_not_interrupt_searches(api: httpx2.AsyncClient, rebuild: str) -> None:
    parameters = {"query": "send a mail to somebody", "top_k": "1"}
    before = (await api.get(f"{API}/tools/search", params=parameters)).json()["results"]
    answer = (await api.post(f"{API}/reindex", params={"rebuild": rebuild})).json()
    while not answer["complete"]:
        answer = (await api.post(f"{API}/reindex")).json()
    after = (await api.get(f"{API}/tools/search", params=parameters)).json()["results"]

    assert answer == {"tools": 6, "documents": 4, "indexed": 8, "total": 8, "complete": True}
    assert after == before


@each(
    ("method", "path", "body", "status", "detail"),
    [
        ("GET", "/requests?limit=0", None, 422, "limit"),
        ("GET", "/requests?limit=many", None, 422, "limit"),
        ("GET", "/requests?limits=1", None, 422, "limits"),
        ("GET", "/requests?limit=1&limit=2", None, 422, "twice"),
        ("GET", "/requests/nothing", None, 404, "no request 'nothing'"),
        ("GET", "/sessions/nobody/context", None, 404, "no session 'nobody'"),
        ("PATCH", "/sessions/nobody/context", "{}", 404, "no session 'nobody'"),
        ("GET", "/tools/search", None, 422, "query"),
        ("GET", "/tools/search?query=%20", None, 422, "query"),
        ("GET", "/tools/search?query=x&server=pots", None, 404, "Did you mean 'post'?"),
        (
            "GET",
            "/tools/search?query=x&category=posts",
            None,
            404,
            "no category 'posts'. Did you mean 'post'?",
        ),
        ("GET", "/tools/search?query=x&tags=post,raed", None, 404, "Did you mean 'read'"),
        ("GET", "/tools/search?query=x&any_tags=sned", None, 404, "Did you mean 'send'"),
        ("GET", "/tools/search?query=x&language=klingon", None, 404, "There is no language 'klingon'"),
        ("GET", "/tools/search?query=x&read_only=perhaps", None, 422, "read_only"),
        ("GET", "/tools/search?query=x&max_latency_ms=0", None, 422, "max_latency_ms"),
        ("GET", "/tools/search?query=x&max_latency_ms=nan", None, 422, "max_latency_ms"),
        ("GET", "/tools/search?query=x&min_success_rate=1.1", None, 422, "min_success_rate"),
        ("POST", "/reindex?rebuild=2", None, 422, "rebuild"),
        ("GET", "/reindex", None, 405, "Method Not Allowed"),
        ("POST", "/context", "", 400, "not JSON"),
        ("POST", "/context", "{", 400, "not JSON"),
        ("POST", "/context", "[" * 100_000, 422, ""),
        ("POST", "/context", "[]", 422, "object"),
        ("POST", "/context", "{}", 422, "query"),
        ("POST", "/context", '{"query": "x", "querry": "y"}', 422, "querry"),
        ("POST", "/context", '{"query": "x", "options": {"tools": {"top_n": 0}}}', 422, "top_n"),
        ("POST", "/context", '{"query": "x", "session": "nobody"}', 404, "no session 'nobody'"),
        ("POST", "/context", '{"query": "' + "x" * (5 << 20) + '"}', 413, "bytes"),
        ("DELETE", "/context", None, 405, "Method Not Allowed"),
        ("GET", "/nowhere", None, 404, "Not Found"),
        ("GET", "/requests/a%0Ab", None, 404, "no request"),
        ("GET", "/%0A", None, 404, "Not Found"),
    ],
)
async def test_errors_are_answered_as_problem_details(
    api: httpx2.AsyncClient, method: str, path: str, body: str | None, status: int, detail: str
) -> None:
    headers = {"content-type": "application/json"}
    response = await api.request(method, API + path, content=body, headers=headers)

    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["status"] == status
    assert detail in response.json()["detail"]


async def test_a_client_that_disconnects_during_its_body_logs_no_traceback(
    api: httpx2.AsyncClient, proxy: HttpProxy
) -> None:
    host, port = proxy.base.removeprefix("http://").split(":")
    head = f"POST {API}/context HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
    with socket.create_connection((host, int(port))) as gone:
        gone.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 99\r\n\r\n{{".encode())
    await context(api, "find an old mail")

    assert "Traceback" not in (proxy.folder / "config.log").read_text(encoding="utf-8")


async def test_a_body_without_a_json_content_type_is_refused(api: httpx2.AsyncClient) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        response = await api.post(f"{API}/context", content='{"query": "x"}', headers={"content-type": kind})
        assert response.status_code == 415


@pytest.mark.parametrize("path", ["/sessions", "/requests", "/openapi.json", "/nowhere"])
async def test_every_operation_needs_the_token(proxy: HttpProxy, path: str) -> None:
    async with httpx2.AsyncClient(base_url=proxy.base) as stranger:
        without = await stranger.get(API + path)
        wrong = await stranger.get(API + path, headers={"authorization": "Bearer another"})
        in_query = await stranger.get(f"{API}{path}?token={TOKEN}")

    assert (without.status_code, wrong.status_code, in_query.status_code) == (401, 401, 401)


async def test_no_answer_may_be_cached(api: httpx2.AsyncClient) -> None:
    assert (await api.get(f"{API}/requests")).headers["cache-control"] == "no-store"


async def test_a_very_long_query_is_cut(api: httpx2.AsyncClient) -> None:
    answer = await context(api, "find an old mail. " * 10_000)

    assert "archive__find_mail" in modes(answer)
    assert len(answer["query"]) == 4000


@each("path", ["/servers", "/servers/new", "/config", "/servers/post"])
@each("method", ["POST", "PUT", "PATCH", "DELETE"])
async def test_no_request_adds_changes_or_removes_a_server(
    api: httpx2.AsyncClient, method: str, path: str
) -> None:
    entry = {"name": "new", "command": "sh", "args": ["-c", "id"]}
    for prefix in (API, ""):
        assert (await api.request(method, f"{prefix}{path}", json=entry)).status_code in {404, 405}


class LockedApi(Api):
    @Operation("GET", "/locked", answer=NoParameters)
    async def _read(self, given: Given) -> NoParameters:
        """Reads a store that another process has locked."""
        raise StoreError(Path("interactions.db"), "database is locked")


async def test_a_store_that_cannot_be_used_is_a_503_that_says_so() -> None:
    app = Starlette(routes=[route(LockedApi().operations())])
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.get("/locked")

    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"] == ("The store cannot be used: store interactions.db: database is locked.")
