"""The rate of calls of a person holds for all replicas, profiles and ways of calling together."""

import httpx2
import pytest
from support.proxies import http_proxy
from support.raw_client import MODERN, PREFIX
from support.servers import Workshop, tool
from support.shop import TOKEN, environment

from mcp_context_proxy.server.gateway import Quota
from mcp_context_proxy.trust import THE_USER, Principal, Profile, Role

META = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}
CALL = {
    "json": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "work__echo", "arguments": {}, "_meta": META},
    },
    "headers": {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": "work__echo",
    },
}


def named(name: str) -> Principal:
    return Principal(name, Role.USE)


def admitted(quota: Quota, principal: Principal, *, spread: bool) -> int:
    return sum(quota.take(principal, spread=spread) for _ in range(100))


def test_each_of_several_replicas_admits_its_share_of_calls_without_a_session() -> None:
    quota = Quota(12.0)
    assert admitted(quota, named("alone"), spread=True) == 12
    quota.replicas = lambda: 3
    assert admitted(quota, named("ada"), spread=True) == 4
    # The calls of a session all come to its home.
    assert admitted(quota, named("bob"), spread=False) == 12


def test_a_low_rate_admits_calls_at_many_replicas() -> None:
    quota = Quota(1.0)
    quota.replicas = lambda: 8
    assert admitted(quota, named("ada"), spread=True) == 1


@pytest.mark.parametrize("person", [named("ada"), THE_USER])
def test_whoever_has_clients_of_several_profiles_has_one_rate(person: Principal) -> None:
    quota = Quota(2.0)
    within = [person.within(Profile(name)) for name in ("chat", "coding")]

    assert [quota.take(one) for one in (*within, person)] == [True, True, False]
    assert quota.take(named("ben"))


async def test_neither_a_profile_nor_the_api_gives_anybody_more_calls(workshop: Workshop) -> None:
    workshop.server("work", tools=[tool("echo")])
    config = workshop.config(limits={"calls_per_second": 0.01}, clients={"chat": {}, "coding": {}})
    with http_proxy(config, auth=True, env=environment()) as proxy:
        who = {"authorization": f"Bearer {TOKEN}"}
        async with httpx2.AsyncClient(base_url=proxy.base, timeout=20, headers=who) as client:
            while (await client.get("/readyz")).status_code != 200:
                pass
            answers = [await client.post(path, **CALL) for path in ("/mcp/p/chat", "/mcp/p/coding", "/mcp")]
            over_rest = await client.post("/api/v1/call", json={"tool": "work__echo"})

    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert over_rest.status_code == 429
    assert "limits.calls_per_second" in over_rest.json()["detail"]
