"""Questions of servers over the real fronts, in the handshake era."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.proxies import command, http_proxy
from support.servers import Workshop, tool
from support.wires import http, sse, stdio

ELICIT = {"message": "Which one?", "requestedSchema": {"type": "object", "properties": {}}}
ANSWERS: dict[str, Any] = {"elicitation/create": lambda params: {"action": "decline"}}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workshop = Workshop(tmp_path_factory.mktemp("asking"))
    calls = {"ask": [{"ask": {"method": "elicitation/create", "params": ELICIT}}]}
    workshop.server("old", tools=[tool("ask")], calls=calls)
    need = {"inputRequests": {"q": {"method": "elicitation/create", "params": ELICIT}}, "requestState": "s"}
    workshop.server("new", era="modern", tools=[tool("ask")], calls={"ask": [{"need_input": need}]})
    return workshop.config()


@pytest.fixture(scope="module")
def base(config: Path) -> Iterator[str]:
    with http_proxy(config) as proxy:
        yield proxy.base


@pytest.mark.parametrize("front", ["stdio", "http", "sse"])
async def test_a_servers_request_reaches_the_client_and_the_answer_the_server(
    front: str, config: Path, request: pytest.FixtureRequest
) -> None:
    options: Any = {"capabilities": {"elicitation": {}}, "answers": ANSWERS}
    if front == "stdio":
        opening = stdio(command(config), **options)
    else:
        opening = (http if front == "http" else sse)(request.getfixturevalue("base"), **options)
    async with opening as client:
        await client.until_listed("old__ask", "new__ask")
        old = await client.call("old__ask")
        new = await client.call("new__ask")

    messages = [asked["params"]["message"] for asked in client.asked]
    assert messages == ["[server 'old' asks] Which one?", "[server 'new' asks] Which one?"]
    assert json.loads(old["content"][0]["text"]) == {"action": "decline"}
    assert json.loads(new["content"][0]["text"]) == {"answers": {"q": {"action": "decline"}}, "state": "s"}
