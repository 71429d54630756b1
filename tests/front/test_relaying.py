"""Whatever way a host comes, in either era: payloads pass as they are, and faults are named alike."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fronts import EVERY_FRONT, opening
from support.proxies import HttpProxy, http_proxy
from support.raw_client import HANDSHAKE, MODERN, PREFIX, RawClient, RpcError
from support.servers import Server, Workshop, tool

from mcp_context_proxy.front.conversation import MOST_VALUES

pytestmark = pytest.mark.anyio

EXACT = (
    '{"big":123456789012345678901234567890,"tiny":1.0e-07,"precise":0.12345678901234567890123,'
    '"huge":1e400,"minus":-0,"dup":1,"dup":2,"text":"\\u00e9\u2028", "none" : null}'
)
"""What no decoder and encoder gives back as it was."""


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    workshop = Workshop(tmp_path_factory.mktemp("relaying"))
    error = {"code": -32050, "message": "no", "data": {"until": [1.0e-7, None]}}
    calls = {
        "exact": [{"raw_result": f'{{"content":[],"structuredContent":{EXACT}}}'}],
        "refuse": [{"error": error}],
    }
    server = workshop.server("work", tools=[tool(name) for name in ("echo", *calls)], calls=calls)
    yield server, workshop.config()
    workshop.close()


@pytest.fixture
def server(setup: tuple[Server, Path]) -> Server:
    return setup[0]


@pytest.fixture(scope="module")
def served(setup: tuple[Server, Path]) -> Iterator[HttpProxy]:
    with http_proxy(setup[1]) as running:
        yield running


@pytest.fixture(**EVERY_FRONT)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[RawClient]:
    async with opening(request) as opened:
        await opened.until_listed("work__echo")
        yield opened


def call(client: RawClient, request_id: str, arguments: str, meta: str | None = None) -> str:
    own = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}} if client.modern else {}
    return (
        f'{{"jsonrpc":"2.0","id":"{request_id}","method":"tools/call","params":{{"name":"work__echo",'
        f'"arguments":{arguments},"_meta":{json.dumps(own) if meta is None else meta}}}}}'
    )


async def answered(client: RawClient, request_id: str, text: str) -> Any:
    answer = client.expect(request_id)
    await client.wire.send(text)
    return await answer


async def test_results_pass_byte_for_byte(client: RawClient) -> None:
    await client.call("work__exact")

    assert f'"structuredContent":{EXACT}' in client.texts[-1]


async def test_arguments_pass_byte_for_byte(client: RawClient, server: Server) -> None:
    await answered(client, "exact", call(client, "exact", EXACT))

    assert EXACT in server.ledger.lines("tools/call")[-1]


async def test_arguments_of_very_many_values_pass(client: RawClient, server: Server) -> None:
    arguments = json.dumps(dict.fromkeys(map(str, range(10 * MOST_VALUES)), 0))

    await answered(client, "many", call(client, "many", arguments))

    assert arguments in server.ledger.lines("tools/call")[-1]


async def test_the_data_of_errors_pass_as_they_are(client: RawClient) -> None:
    with pytest.raises(RpcError) as refused:
        await client.call("work__refuse")

    assert (refused.value.code, refused.value.data) == (-32050, {"until": [1.0e-7, None]})


async def test_a_message_for_the_sdk_of_very_many_values_is_refused(client: RawClient) -> None:
    much = {"x": dict.fromkeys(map(str, range(MOST_VALUES)), 0)}
    said = {"protocolVersion": HANDSHAKE, "capabilities": {"experimental": much}, "clientInfo": {}}

    with pytest.raises(RpcError) as refused:
        await client.request("initialize" if client.era == "handshake" else "server/discover", said)

    assert refused.value.code == -32600
    assert f"{MOST_VALUES:,} values" in str(refused.value)
    assert await client.call("work__echo", {})


@pytest.mark.parametrize("meta", ["7", '"x"', "[]", "true"])
async def test_meta_of_a_wrong_type_is_an_invalid_parameter(client: RawClient, meta: str) -> None:
    with pytest.raises(RpcError) as refused:
        await answered(client, "meta", call(client, "meta", "{}", meta))

    assert refused.value.code == -32602
    assert "_meta must be an object" in str(refused.value)


async def test_an_id_that_is_answered_can_be_used_again_at_once(client: RawClient) -> None:
    for _ in range(100):
        assert await answered(client, "again", call(client, "again", "{}"))
