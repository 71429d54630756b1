"""One set-up for the promises about every pair: three fronts, replicas, both eras, and servers of five kinds.

The real command serves clients that have no SDK in them. One client of each front and era does all tests.
"""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from every_front.cases import EXACT, FAILED, LOGGED, MESSAGE, QUESTIONS, SERVERS, UPDATED
from support.fronts import EVERY_FRONT_AND_REPLICAS, opening
from support.postgres import PostgresServer, postgres  # noqa: F401 - a fixture
from support.proxies import HttpProxy, http_proxy
from support.raw_client import RawClient
from support.replicas import balanced
from support.servers import Server, Workshop, tool


def spec(name: str, era: str, kind: str) -> dict[str, Any]:
    uri = f"note://{name}/1"
    # A handshake-era server over HTTP that keeps no stream open can only speak up during a call.
    say = "notify" if (era, kind) == ("handshake", "http") else "announce"
    asking = {
        tool_name: [{"ask": {"method": method, "params": params}}]
        if era == "handshake"
        else [{"need_input": {"inputRequests": {"q": {"method": method, "params": params}}}}]
        for tool_name, (method, params, _) in QUESTIONS.items()
    }
    refusal = {"code": -32050, "message": "not today", "data": {"until": [1.0e-7, None]}}
    calls = {
        **asking,
        "confirmed": asking["elicit"],
        "report": [{"progress": 3}],
        "log": [{"notify": {"method": MESSAGE, "params": LOGGED}}],
        "refuse": [{"error": refusal}],
        "hop": [{"error": {"code": -32000, "message": "gone", "data": {"since": None}}}],
        "old_code": [{"error": {"code": -32042, "message": "sign in", "data": {"elicitations": []}}}],
        "new_code": [{"error": {"code": -32021, "message": "no", "data": {"requiredCapabilities": {}}}}],
        "fail": [{"result": FAILED}],
        "hang": [{"wait_cancelled": True}],
        "exact": [{"raw_result": EXACT}],
        "touch": [{say: {"method": UPDATED, "params": {"uri": uri}}}],
    }
    only = tool(f"only_{name}", **{"x-unknown": {"kept": None}})
    return {
        "era": era,
        "tools": [*(tool(each) for each in (*calls, "echo")), only],
        "calls": calls,
        "capabilities": {
            "tools": {"listChanged": True},
            "resources": {"listChanged": True, "subscribe": True},
            "prompts": {},
            "completions": {},
            "logging": {},
        },
        "resources": [{"uri": uri, "name": "one", "x-unknown": [None]}],
        "templates": [{"uriTemplate": f"page://{name}/{{id}}", "name": "page"}],
        "prompts": [{"name": "greet", "description": "Greets", "arguments": [{"name": "who"}]}],
    }


EXPOSE: dict[str, Any] = {"expose": {"mode": "all"}}


@pytest.fixture(scope="package")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path_factory.mktemp("every_front"))
    for name, (era, kind) in SERVERS.items():
        makers = {"stdio": workshop.server, "http": workshop.http_server, "sse": workshop.sse_server}
        settings = {"era": era, "tools": {"confirmed": {"confirm": "write"}}}
        makers[kind](name, settings=settings, **spec(name, era, kind))
    yield workshop
    workshop.close()


@pytest.fixture(scope="package")
def setup(workshop: Workshop) -> tuple[dict[str, Server], Path]:
    return workshop.servers, workshop.config(**EXPOSE)


@pytest.fixture(scope="package")
def served(setup: tuple[dict[str, Server], Path]) -> Iterator[HttpProxy]:
    with http_proxy(setup[1]) as proxy:
        yield proxy


@pytest.fixture(scope="package")
def replicas(workshop: Workshop, postgres: PostgresServer) -> Iterator[str]:  # noqa: F811
    """The URL of a balancer before three replicas, which keeps no client at one of them."""
    with balanced(workshop, postgres, "every_front", **EXPOSE) as cluster:
        yield cluster.base


@pytest.fixture(**EVERY_FRONT_AND_REPLICAS | {"scope": "package"})
async def client(request: pytest.FixtureRequest) -> AsyncIterator[RawClient]:
    """A client that can do nothing of its own, so that its calls share the connections to servers."""
    async with opening(request) as opened:
        await opened.until_listed(*(f"{name}__echo" for name in SERVERS))
        yield opened


@pytest.fixture(params=list(SERVERS.values()), ids=list(SERVERS))
def server(request: pytest.FixtureRequest, setup: tuple[dict[str, Server], Path]) -> Server:
    names = {kind: name for name, kind in SERVERS.items()}
    return setup[0][names[request.param]]
