"""Identity over real HTTP: people of an issuer, their sessions, their roles, and the end of their tokens."""

import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import anyio
import httpx2
import pytest
from support import wires
from support.issuer import AUDIENCE, Issuer, issuing
from support.ledger import until
from support.proxies import HttpProxy, http_proxy
from support.raw_client import ACCEPT, HANDSHAKE, MODERN, OWN, PATIENCE, PREFIX, WHO, message
from support.servers import Server, Workshop, tool

from mcp_context_proxy.front.auth import WRONG_AT_ONCE
from mcp_context_proxy.front.issuer import principal_name
from mcp_context_proxy.trust.tokens import FILE_NAME, TokenFile

META = {
    PREFIX + "protocolVersion": MODERN,
    PREFIX + "clientInfo": {"name": "raw", "version": "1"},
    PREFIX + "clientCapabilities": {},
    OWN + "format": "json",
}
ROLES = {"viewers": "view", "operators": "operate", "owners": "admin", "monitors": "metrics"}


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as running:
        yield running


@pytest.fixture(scope="module")
def server_and_proxy(
    issuer: Issuer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, HttpProxy]]:
    workshop = Workshop(tmp_path_factory.mktemp("identity"))
    go = workshop.flag("go")
    calls: dict[str, Any] = {"slow": [{"wait": str(go)}], "hang": [{"wait_cancelled": True}]}
    server = workshop.server("work", tools=[tool("echo"), tool("slow"), tool("hang")], calls=calls)
    workshop.server("vault", tools=[tool("open_the_vault")])
    groups = {"*": {"servers": ["work"]}, "bankers": {"servers": ["vault"]}}
    auth = issuer.settings(leeway_seconds=0.0, roles=ROLES, groups=groups)
    store = {"path": str(workshop.folder / "state" / "store.db")}
    memory = {"enabled": True, "recall_tool": True}
    config = workshop.config(auth=auth, http={"resource_url": AUDIENCE}, store=store, interactions=memory)
    with http_proxy(config, auth=True) as running:
        yield server, running
    workshop.close()


@pytest.fixture
def server(server_and_proxy: tuple[Server, HttpProxy]) -> Server:
    return server_and_proxy[0]


@pytest.fixture
async def client(proxy: HttpProxy) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=proxy.base, timeout=30) as opened:
        with anyio.fail_after(60):
            while (await opened.get("/readyz")).status_code != 200:
                pass
        yield opened


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def called(
    client: httpx2.AsyncClient, who: dict[str, str], name: str, **arguments: Any
) -> dict[str, Any]:
    """The result of a call in the modern era."""
    headers = ACCEPT | who | {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": name}
    body = message("tools/call", name=name, arguments=arguments, _meta=META)
    answer = (await client.post("/mcp", json=body, headers=headers)).text
    found: dict[str, Any] = json.loads(answer[answer.index("{") :].splitlines()[0])
    return found


async def test_somebody_without_a_token_is_led_to_the_issuer(
    client: httpx2.AsyncClient, issuer: Issuer
) -> None:
    refused = await client.post("/mcp", json=message("ping"), headers=ACCEPT)
    forged = await client.post("/mcp", json=message("ping"), headers=ACCEPT | bearer("e30.b.c"))
    paths = ["/.well-known/oauth-protected-resource", "/.well-known/oauth-protected-resource/mcp"]
    told = [(await client.get(path)).json() for path in paths]

    place = 'resource_metadata="https://proxy.example.com/.well-known/oauth-protected-resource/mcp"'
    assert refused.status_code == forged.status_code == 401
    assert refused.headers["www-authenticate"] == f"Bearer {place}"
    assert forged.headers["www-authenticate"].startswith('Bearer error="invalid_token", error_description="')
    assert told[0] == told[1]
    assert told[0]["resource"] == AUDIENCE
    assert told[0]["authorization_servers"] == [issuer.url]


async def test_what_begins_with_no_header_is_a_token_of_the_proxy_and_wrong_ones_are_guesses(
    workshop: Workshop, issuer: Issuer
) -> None:
    own = "correct.horse.battery-staple"
    config = workshop.config(auth=issuer.settings(), http={"resource_url": AUDIENCE})
    with http_proxy(config, auth=True, env=dict(os.environ) | {"MCP_CONTEXT_PROXY_TOKEN": own}) as proxy:
        async with httpx2.AsyncClient(base_url=proxy.base, timeout=PATIENCE) as client:

            async def status(token: str) -> int:
                return (await client.get("/api/v1/requests", headers=bearer(token))).status_code

            served = [await status(own), await status(issuer.token("anna"))]
            guessed = Counter[int]()

            async def guess(token: str) -> None:
                guessed[await status(token)] += 1

            async with anyio.create_task_group() as group:
                for number in range(3 * WRONG_AT_ONCE):
                    group.start_soon(guess, f"wrong.horse.{number}")

    assert served == [200, 200]
    assert guessed.keys() == {401, 429}
    assert guessed[401] >= WRONG_AT_ONCE


async def test_sessions_and_handles_go_on_with_a_new_token_of_the_same_person_alone(
    client: httpx2.AsyncClient, issuer: Issuer
) -> None:
    first, refreshed, other = (
        bearer(issuer.token(name, jti=name + number))
        for name, number in (("anna", "1"), ("anna", "2"), ("ben", "1"))
    )
    opened = await client.post("/mcp", json=message("initialize", **WHO), headers=ACCEPT | first)
    session = ACCEPT | {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}
    made = await called(client, first, "set_context", query="say it again")
    handle = {"query": "still mine", "context_id": made["result"]["structuredContent"]["context_id"]}

    assert (await client.post("/mcp", json=message("ping"), headers=session | refreshed)).status_code == 200
    assert (await client.post("/mcp", json=message("ping"), headers=session | other)).status_code == 404
    assert "structuredContent" in (await called(client, refreshed, "set_context", **handle))["result"]
    assert "unknown or expired" in json.dumps(await called(client, other, "set_context", **handle))


async def soon(client: httpx2.AsyncClient) -> float:
    """A time at which a token can expire: after a few requests, which take longer on a busy machine."""
    began = time.time()
    await client.get("/livez")
    now = time.time()
    return now + 3 + 50 * (now - began)


async def test_the_end_of_a_token_ends_its_streams_and_no_call(
    client: httpx2.AsyncClient, issuer: Issuer, server: Server, proxy: HttpProxy
) -> None:
    who = bearer(issuer.token("anna", exp=int(await soon(client))))
    opened = await client.post("/mcp", json=message("initialize", **WHO), headers=ACCEPT | who)
    session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}
    listen = {"mcp-protocol-version": MODERN, "mcp-method": "subscriptions/listen"}
    body = message("subscriptions/listen", notifications={"toolsListChanged": True}, _meta=META)
    streams: list[dict[str, Any]] = [
        {"method": "GET", "url": "/mcp", "headers": session | who | {"accept": "text/event-stream"}},
        {"method": "GET", "url": "/sse", "headers": who},
        {"method": "POST", "url": "/mcp", "json": body, "headers": ACCEPT | listen | who},
    ]
    ended, results = list[int](), list[dict[str, Any]]()

    async def read(request: dict[str, Any]) -> None:
        async with client.stream(**request) as stream:
            async for _ in stream.aiter_bytes():
                pass
            ended.append(stream.status_code)

    async def slow() -> None:
        results.append(await called(client, who, "work__slow"))

    async with anyio.create_task_group() as group:
        for request in streams:
            group.start_soon(read, request)
        group.start_soon(slow)
        await server.ledger.until(lambda ledger: ledger.calls("slow"))
        await until(lambda: len(ended) == len(streams))
        late = await client.post("/mcp", json=message("ping"), headers=ACCEPT | who)
        (proxy.folder / "go").touch()

    assert ended == [200] * 3
    assert late.status_code == 401
    assert "expired" in late.headers["www-authenticate"]
    assert "result" in results[0]


REACHED = {
    "use": {"GET /api/v1/requests", "GET /api/v1/sessions"},
    "view": {
        "GET /api/v1/status",
        "GET /api/v1/servers",
        "GET /api/v1/tools",
        "GET /api/v1/logs",
        "GET /api/v1/audit",
        "GET /api/v1/approvals",
        "GET /api/v1/statistics/tools",
        "GET /api/v1/statistics/searches",
        "GET /api/v1/statistics/timeline",
        "GET /api/v1/metrics/search",
        "GET /metrics",
    },
    "operate": {"POST /api/v1/servers/work/restart", "POST /api/v1/reindex"},
    "admin": {"DELETE /api/v1/interactions?older_than_days=1"},
}
"""Requests by the role that they need, one of each kind."""


@pytest.mark.parametrize(
    ("groups", "role"),
    [([], "use"), (["viewers"], "view"), (["viewers", "operators"], "operate"), (["owners"], "admin")],
)
async def test_a_role_opens_what_it_names_and_what_lower_ones_do(
    client: httpx2.AsyncClient, issuer: Issuer, groups: list[str], role: str
) -> None:
    who = bearer(issuer.token("carla", roles=groups))
    order = list(REACHED)
    for needed, requests in REACHED.items():
        for request in requests:
            method, _, path = request.partition(" ")
            answer = await client.request(method, path, headers=who)
            refused = answer.status_code == 403 and "or the role" in answer.text
            assert refused == (order.index(needed) > order.index(role)), request


@pytest.mark.parametrize("named", [False, True])
async def test_a_token_for_metrics_reads_them_and_reaches_nothing_else(
    client: httpx2.AsyncClient, proxy: HttpProxy, issuer: Issuer, named: bool
) -> None:
    tokens, token = TokenFile(proxy.folder / "state" / FILE_NAME), issuer.token("ann", roles=["monitors"])
    if named:
        token = tokens.add("prometheus", role="metrics")
    who, owner = bearer(token), bearer(issuer.token("olga", roles=["owners"]))
    described = (await client.get("/api/v1/openapi.json", headers=owner)).json()["paths"]
    places = [(method, f"/api/v1{path}") for path, methods in described.items() for method in methods]
    with anyio.fail_after(PATIENCE):
        while (answer := await client.get("/metrics", headers=who)).status_code == 401:
            pass

    assert "mcp_context_proxy_calls_total" in answer.text
    assert (await client.get("/healthz", headers=who)).json().keys() == {"status"}
    for method, path in [*places, ("POST", "/mcp"), ("GET", "/mcp"), ("GET", "/sse"), ("POST", "/messages/")]:
        refused = await client.request(method, path, headers=who, json={})
        assert (refused.status_code, refused.text) == (403, "This token is for /metrics alone.\n"), path


async def test_nobody_gives_orders_to_a_server_beyond_the_reach_of_their_groups(
    client: httpx2.AsyncClient, issuer: Issuer
) -> None:
    operator, owner = (bearer(issuer.token("oscar", roles=[role])) for role in ("operators", "owners"))
    described = (await client.get("/api/v1/openapi.json", headers=operator)).json()["paths"]
    orders = [path for path in described if "{server}" in path]
    bodies = {"approve": {"names": ["open_the_vault"], "hash": "0" * 40}, "reject": {"names": ["echo"]}}

    async def vault() -> tuple[str, int | None]:
        servers = (await client.get("/api/v1/status", headers=owner)).json()["servers"]
        return next((one["state"], one["pid"]) for one in servers if one["name"] == "vault")

    while (before := await vault())[0] != "ready":
        pass
    for path in orders:
        answer = await client.post(
            f"/api/v1{path.replace('{server}', 'vault')}",
            headers=operator,
            json=bodies.get(path.rpartition("/")[2]),
        )
        assert answer.status_code == 403, path
        assert "'vault'" in answer.text
    own = await client.post("/api/v1/servers/work/enable", headers=operator)

    assert len(orders) == 5
    assert await vault() == before
    assert own.status_code == 200


async def test_the_memory_of_all_agents_is_listed_only_for_those_who_may_search_it(
    proxy: HttpProxy, issuer: Issuer, era: str
) -> None:
    listed = list[bool]()
    for groups in ([], ["viewers"]):
        who = bearer(issuer.token("carla", roles=groups))
        async with wires.http(proxy.base, era, headers=who) as host:
            listed.append("recall" in await host.names())
            refused = (await host.call("recall", {"query": "x"})).get("isError", False)
            assert refused == (not groups)

    assert listed == [False, True]


async def test_one_person_sees_nothing_of_another_below_view(
    client: httpx2.AsyncClient, issuer: Issuer
) -> None:
    secret = "the query of ben alone"
    anna, ben, viewer = (
        bearer(issuer.token(name, roles=roles))
        for name, roles in (("anna", []), ("ben", []), ("vera", ["viewers"]))
    )
    await called(client, ben, "search_available_tools", query=secret)
    await client.post("/api/v1/context", json={"query": secret}, headers=ben)
    own = (await client.get("/api/v1/requests", headers=ben)).json()["requests"]
    described = (await client.get("/api/v1/openapi.json", headers=anna)).json()["paths"]
    places = [
        "/metrics",
        "/healthz",
        *(f"/api/v1{path}" for path, methods in described.items() if "get" in methods),
    ]
    ids = [one["id"] for one in own if one["query"] == secret]
    for place in places:
        for one in ids:
            concrete = place.replace("{request}", one).replace("{session}", one).replace("{tool}", one)
            answer = await client.get(concrete, headers=anna, params={"query": "x", "name": "work__echo"})
            told = answer.text.replace(one, "") if one in concrete else answer.text
            assert secret not in told, concrete
            assert one not in told, concrete

    assert len(ids) == 2
    assert secret in (await client.get("/api/v1/requests", headers=viewer)).text
    assert (await client.get(f"/api/v1/requests/{ids[0]}", headers=viewer)).status_code == 200


async def test_groups_decide_which_servers_somebody_reaches(
    client: httpx2.AsyncClient, issuer: Issuer
) -> None:
    anna, banker = bearer(issuer.token("anna")), bearer(issuer.token("bo", groups=["bankers"]))
    refused = await called(client, anna, "vault__open_the_vault")
    ran = await called(client, banker, "vault__open_the_vault")

    assert "unknown tool" in json.dumps(refused)
    assert not ran["result"].get("isError")
    assert not (await called(client, anna, "work__echo"))["result"].get("isError")


async def test_the_audit_names_the_person_with_each_call(client: httpx2.AsyncClient, issuer: Issuer) -> None:
    await called(client, bearer(issuer.token("anna")), "work__echo", text="a value of anna")
    viewer = bearer(issuer.token("vera", roles=["viewers"]))
    answer = (await client.get("/api/v1/audit?tool=echo&limit=500", headers=viewer)).json()
    entries = [one["facts"] for one in answer["entries"]]

    mine = [one for one in entries if one.get("subject") == "anna"]
    assert mine
    assert {one["principal"][:4] for one in mine} == {"jwt:"}
    assert "a value of anna" not in json.dumps(answer)
    assert "anna" in answer["entries"][0]["summary"]


@pytest.fixture
def names(proxy: HttpProxy) -> TokenFile:
    return TokenFile(proxy.folder / "state" / FILE_NAME)


async def until_known(client: httpx2.AsyncClient, token: str) -> dict[str, str]:
    """The header of a token, once the proxy accepts it."""
    with anyio.fail_after(60):
        while (await client.get("/api/v1/requests", headers=bearer(token))).status_code != 200:
            await anyio.lowlevel.checkpoint()
    return bearer(token)


@pytest.mark.parametrize("era", [MODERN, HANDSHAKE])
async def test_a_revoked_token_ends_a_call_under_way_and_its_server_and_its_client_are_told(
    client: httpx2.AsyncClient, server: Server, names: TokenFile, era: str
) -> None:
    who = await until_known(client, names.add("nora"))
    opened = await client.post("/mcp", json=message("initialize", **WHO), headers=ACCEPT | who)
    headers = (
        ACCEPT | who | {"mcp-protocol-version": era, "mcp-method": "tools/call", "mcp-name": "work__hang"}
    )
    headers |= {"mcp-session-id": opened.headers["mcp-session-id"]} if era == HANDSHAKE else {}
    body = message("tools/call", name="work__hang", arguments={}, _meta=META if era == MODERN else {})
    answers, begun = list[httpx2.Response](), anyio.Event()
    hung, cancelled = len(server.ledger.calls("hang")), len(server.ledger.entries("cancelled"))

    async def hang() -> None:
        async with client.stream("POST", "/mcp", json=body, headers=headers) as answer:
            begun.set()
            await answer.aread()
            answers.append(answer)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(hang)
            await server.ledger.until(lambda ledger: len(ledger.calls("hang")) > hung)
            if era == HANDSHAKE:
                await begun.wait()
            names.revoke("nora")
        await server.ledger.until(lambda ledger: len(ledger.entries("cancelled")) > cancelled)

    if era == MODERN:
        assert answers[0].status_code == 401
        assert "not known here" in answers[0].text
    else:
        [(_, last)] = [event async for event in wires.events(answers[0])]
        assert json.loads(last)["id"] == body["id"]
        assert "may or may not have run" in json.loads(last)["error"]["message"]
    assert (await client.get("/api/v1/requests", headers=who)).status_code == 401


async def test_the_tokens_of_a_person_are_revoked_with_what_is_open_and_a_later_one_is_accepted(
    client: httpx2.AsyncClient, server: Server, names: TokenFile, issuer: Issuer
) -> None:
    now, ended = int(time.time()), list[int]()
    old, new = (bearer(issuer.token("paul", iat=now - ago)) for ago in (100, 0))
    other = bearer(issuer.token("quinn", iat=now - 100))
    opened = await client.post("/mcp", json=message("initialize", **WHO), headers=ACCEPT | old)
    session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}
    hung = len(server.ledger.calls("hang"))

    async def listen() -> None:
        headers = {"accept": "text/event-stream"} | session | old
        async with client.stream("GET", "/mcp", headers=headers) as events:
            ended.append(events.status_code)
            async for _ in events.aiter_bytes():
                pass

    async def hang() -> None:
        headers = {"mcp-protocol-version": MODERN, "mcp-method": "tools/call", "mcp-name": "work__hang"}
        body = message("tools/call", name="work__hang", arguments={}, _meta=META)
        ended.append((await client.post("/mcp", json=body, headers=ACCEPT | old | headers)).status_code)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(listen)
            group.start_soon(hang)
            await server.ledger.until(lambda ledger: len(ledger.calls("hang")) > hung)
            names.revoke(principal_name(issuer.url, "paul"), now=now - 50)

    async def ping(who: dict[str, str]) -> httpx2.Response:
        return await client.post("/mcp", json=message("ping"), headers=ACCEPT | session | who)

    refused = await ping(old)
    assert sorted(ended) == [200, 401]
    assert refused.status_code == 401
    assert "was revoked here" in refused.text
    assert (await ping(new)).status_code == 200
    assert (await client.get("/api/v1/requests", headers=other)).status_code == 200


@pytest.mark.slow
async def test_a_session_whose_named_token_expired_goes_on_with_the_next_one_of_that_name(
    client: httpx2.AsyncClient, names: TokenFile
) -> None:
    who = await until_known(client, names.add("olga", expires=await soon(client)))
    opened = await client.post("/mcp", json=message("initialize", **WHO), headers=ACCEPT | who)
    session = {"mcp-session-id": opened.headers["mcp-session-id"], "mcp-protocol-version": HANDSHAKE}
    stream = {"accept": "text/event-stream"}
    with anyio.fail_after(60):
        async with client.stream("GET", "/mcp", headers=session | who | stream) as events:
            async for _ in events.aiter_bytes():
                pass
    expired = await client.post("/mcp", json=message("ping"), headers=ACCEPT | session | who)
    names.revoke("olga")
    again = await until_known(client, names.add("olga"))
    goes_on = await client.post("/mcp", json=message("ping"), headers=ACCEPT | session | again)

    assert (events.status_code, expired.status_code, goes_on.status_code) == (200, 401, 200)
