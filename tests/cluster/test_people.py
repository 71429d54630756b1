"""People at several replicas: their tokens are renewed, and nobody sees anything of another anywhere."""

import itertools
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support import wires
from support.issuer import AUDIENCE, Issuer, issuing
from support.postgres import PostgresServer
from support.proxies import command, requests_of
from support.raw_client import OWN, RawClient, RpcError, text_of
from support.replicas import NOTE, Cluster, balanced, ping, session_at
from support.servers import Workshop, tool

pytestmark = pytest.mark.cluster

SECRET = "the-query-of-ben-alone"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as running:
        yield running


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, postgres: PostgresServer, issuer: Issuer
) -> Iterator[Cluster]:
    """Three replicas that believe an issuer."""
    workshop = Workshop(tmp_path_factory.mktemp("people"))
    workshop.server("work", tools=[tool("echo", "Repeat a text")], resources=[NOTE])
    more: dict[str, Any] = {
        "auth": issuer.settings(roles={"owners": "admin"}),
        "http": {"resource_url": AUDIENCE},
        "context": {"manage_tool": True},
        "interactions": {"enabled": True, "recall_tool": True},
    }
    with balanced(workshop, postgres, "people", tokens=True, **more) as running:
        yield running
    workshop.close()


async def test_a_named_token_that_a_command_adds_or_revokes_counts_at_every_replica(
    cluster: Cluster, http: httpx2.AsyncClient
) -> None:
    configs = [cluster.replicas[0].folder / f"{name}.toml" for name in "abc"]

    token = await ran(configs[0], "token", "add", "anna")
    await until(cluster, http, token, accepted=True)
    assert "anna" in await ran(configs[1], "token", "list")
    await ran(configs[2], "token", "revoke", "anna")
    await until(cluster, http, token, accepted=False)


async def ran(config: Path, *words: str) -> str:
    return (await anyio.run_process(command(config, *words))).stdout.decode().strip()


async def until(cluster: Cluster, http: httpx2.AsyncClient, token: str, *, accepted: bool) -> None:
    headers = {"authorization": f"Bearer {token}"}
    with anyio.fail_after(30):
        for base in cluster.bases:
            while True:
                answer = await http.get(f"{base}/api/v1/status", headers=headers)
                if (answer.status_code != 401) == accepted:
                    break
                await anyio.sleep(0.1)


async def test_what_replicas_keep_of_somebodys_sessions_is_printed_and_erased_with_the_rest(
    cluster: Cluster, http: httpx2.AsyncClient
) -> None:
    config = cluster.replicas[0].folder / "a.toml"

    async def kept_of(name: str, *more: str) -> list[dict[str, Any]]:
        printed = [
            json.loads(line) for line in (await ran(config, "store", "person", name, *more)).splitlines()
        ]
        return [row for row in printed if row["table"] == "contexts"]

    for name in ("carla", "carl"):
        token = await ran(config, "token", "add", name)
        await until(cluster, http, token, accepted=True)
        headers = {"authorization": f"Bearer {token}"}
        await session_at(cluster.base, http, token=headers["authorization"])
        async with wires.http(cluster.base, "modern", headers=headers) as client:
            await client.call("set_context", {"query": SECRET})
    await ran(config, "token", "revoke", "carla")

    kept = await kept_of("carla", "--erase")
    assert {(row["kind"], row["state"].get("query")) for row in kept} == {
        ("session", None),
        ("handle", SECRET),
    }
    assert (len(await kept_of("carla")), len(await kept_of("carl"))) == (0, 2)


@pytest.fixture
async def http() -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(timeout=60) as opened:
        yield opened


def bearer(issuer: Issuer, subject: str, number: int = 1, **more: Any) -> dict[str, str]:
    """The header with one of somebody's tokens."""
    return {"authorization": f"Bearer {issuer.token(subject, jti=f'{subject}{number}', **more)}"}


async def test_sessions_and_handles_go_on_with_a_renewed_token_at_every_replica(
    cluster: Cluster, issuer: Issuer, http: httpx2.AsyncClient
) -> None:
    anna = bearer(issuer, "anna")
    session = await session_at(cluster.base, http, token=anna["authorization"])
    async with wires.http(cluster.base, "modern", headers=anna) as client:
        item = {"action": "add", "type": "tool", "name": "work__echo"}
        handle = (await client.data("manage_context", item))["context_id"]
    listed = {"context_id": handle, "action": "list"}
    for number, base in enumerate(cluster.bases, 2):
        renewed, ben = bearer(issuer, "anna", number), bearer(issuer, "ben", number)
        own = await http.post(f"{base}/mcp", json=ping(), headers=session | renewed)
        other = await http.post(f"{base}/mcp", json=ping(), headers=session | ben)
        assert (own.status_code, other.status_code) == (200, 404)
        async with wires.http(base, "modern", headers=renewed) as client:
            assert "work__echo" in text_of(await client.call("manage_context", listed))
        async with wires.http(base, "modern", headers=ben) as client:
            assert "unknown or expired" in text_of(await client.call("manage_context", listed))


async def test_nobody_is_shown_anything_of_another_at_any_replica(
    cluster: Cluster, issuer: Issuer, http: httpx2.AsyncClient
) -> None:
    """Each list, method, resource, operation of the OpenAPI document, metric and log is asked for."""
    anna, ben = bearer(issuer, "anna"), bearer(issuer, "ben")
    owner = bearer(issuer, "olga", roles=["owners"])
    ids = list[str]()
    async with AsyncExitStack() as stack:
        for base, era in itertools.product(cluster.bases, ("handshake", "modern")):
            client = await stack.enter_async_context(wires.http(base, era, headers=ben))
            await client.call("search_available_tools", {"query": SECRET})
            assert SECRET in text_of(await client.call("work__echo", {"text": SECRET}))
            ids.append((await client.data("set_context", {"query": SECRET}))["context_id"])
        for base in cluster.bases:
            await http.post(f"{base}/api/v1/context", json={"query": SECRET}, headers=ben)
            said = {"content": SECRET}
            assert (
                await http.post(f"{base}/api/v1/interactions", json=said, headers=owner)
            ).status_code == 200
        with anyio.fail_after(60):
            while True:
                own = (await http.get(f"{cluster.bases[0]}/api/v1/requests?limit=100", headers=ben)).json()
                if len({one["id"] for one in own["requests"]}) >= 9:
                    break
                await anyio.sleep(0.05)
        ids += [one["id"] for one in own["requests"]][:2]
        for base in cluster.bases:
            own = (await http.get(f"{base}/api/v1/sessions", headers=ben)).json()["sessions"]
            ids += [one["id"] for one in own][:1]
        assert len(ids) >= 11
        described = (await http.get(f"{cluster.bases[0]}/api/v1/openapi.json", headers=anna)).json()
        operations = [
            *requests_of(described, ids[-4:]),
            *(("GET", path, None) for path in ("/metrics", "/healthz", "/readyz", "/api/v1/logs")),
        ]
        assert len(operations) > 30
        for base in cluster.bases:
            assert SECRET in (await http.get(f"{base}/api/v1/requests", headers=owner)).text
            for method, path, body in operations:
                more = {} if body is None else {"json": body}
                answer = await http.request(method, f"{base}{path}", headers=anna, **more)
                told = answer.text.replace(path, "")
                for one in ids:
                    told = told.replace(f"'{one}'", "") if one in path else told
                assert SECRET not in told, path
                assert not [one for one in ids if one in told], path
            for era in ("handshake", "modern"):
                client = await stack.enter_async_context(wires.http(base, era, headers=anna))
                await asks_for_everything(client, ids)


async def asks_for_everything(client: RawClient, ids: list[str]) -> None:
    """Ask with every method for each of somebody else's ids; nothing of theirs may be in any answer."""
    asked: list[tuple[str, dict[str, Any]]] = [
        *((method, {}) for method in ("tools/list", "resources/list", "prompts/list", "skills/list")),
        ("resources/templates/list", {}),
    ]
    for place in ("requests", "current", *(f"requests/{one}" for one in ids)):
        asked.append(("resources/read", {"uri": f"context://{place}"}))
    for one in ids:
        for name, arguments in {
            "read_result": {"id": one},
            "set_context": {"query": "x", "context_id": one},
            "manage_context": {"action": "list", "context_id": one},
            "recall": {"query": SECRET},
            "search_available_tools": {"query": "x", "context_id": one},
        }.items():
            asked.append(("tools/call", {"name": name, "arguments": arguments}))
        asked.append(("tools/list", {"_meta": {OWN + "context": one}}))
    for method, params in asked:
        try:
            answer = json.dumps(await client.request(method, params))
        except RpcError as error:
            answer = f"{error}{error.data}"
        assert SECRET not in answer.replace(json.dumps(params), ""), (method, params)
