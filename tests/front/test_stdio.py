"""The stdio front: every byte that a host may send."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import command
from support.raw_client import HANDSHAKE, MODERN, PREFIX, RawClient, RpcError
from support.servers import Server, Workshop, tool
from support.tables import each
from support.wires import StdioWire, stdio

from mcp_context_proxy.front.conversation import COMPLAINTS

ECHO = '{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":"work__echo","arguments":%s}}'


@pytest.fixture(scope="module")
async def opened(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[tuple[RawClient, Server]]:
    workshop = Workshop(tmp_path_factory.mktemp("stdio"))
    calls: dict[str, Any] = {"hang": [{"wait_cancelled": True}]}
    server = workshop.server("work", tools=[tool(name) for name in ("echo", *calls)], calls=calls)
    async with stdio(command(workshop.config(limits={"message_bytes": 1_000_000}))) as client:
        await client.until_listed("work__echo")
        yield client, server


@pytest.fixture
def client(opened: tuple[RawClient, Server]) -> RawClient:
    return opened[0]


@pytest.fixture
def server(opened: tuple[RawClient, Server]) -> Server:
    return opened[1]


async def write(client: RawClient, data: bytes) -> None:
    wire = client.wire
    assert isinstance(wire, StdioWire)
    await wire.write(data)


async def still_works(client: RawClient) -> bool:
    return "isError" not in await client.call("work__echo", {"text": "still"})


@each(
    "line",
    [
        b"garbage",
        b"[]",
        b"[1]",
        b'"text"',
        b"null",
        b"17",
        b"{}",
        b'{"jsonrpc":"2.0"}',
        b"\xff\xfe\xfd",
        b'{"jsonrpc":"2.0","method":"x","params":NaN}',
        b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":[],"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":true,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":1e999,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":"\xff","method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":"\x01","method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":424242,"result":{}}',
        b'{"jsonrpc":"2.0","id":"ask-9","error":{"code":1,"message":"m"}}',
        b'{"jsonrpc":"2.0","method":"notifications/unknown","params":{"a":[]}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":999}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":{}}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled"}',
        b'{"jsonrpc":"2.0","method":7}',
        b"\x00",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
async def test_an_invalid_line_affects_no_other_request(client: RawClient, line: bytes) -> None:
    await write(client, line + b"\n")

    assert await still_works(client)


@each(
    "line",
    [
        b'{"jsonrpc":"2.0","id":ID,"method":',
        b'{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"work__echo","arguments":{"a":NaN}}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"work__echo","arguments":[]}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"work__echo","arguments":7}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":7}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"tools/call"}',
        b'{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":[]}',
        b'{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":"x"}',
        b'{"jsonrpc":"2.0","id":ID,"method":"resources/read","params":{"uri":[]}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"resources/read"}',
        b'{"jsonrpc":"2.0","id":ID,"method":"prompts/get","params":{"name":null}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"completion/complete","params":{"ref":7}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"completion/complete"}',
        b'{"jsonrpc":"2.0","id":ID,"method":"logging/setLevel","params":{}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"logging/setLevel","params":{"level":[]}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"","params":{}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"tools/call","params":{"name":"work__echo","_meta":7,"arguments":[]}}',
        b'{"jsonrpc":"2.0","id":ID,"method":"x","params":{"a":"\xff"}}',
    ],
)
async def test_an_invalid_request_is_refused_under_its_id(client: RawClient, line: bytes) -> None:
    answer = client.expect(31_415)

    await write(client, line.replace(b"ID", b"31415") + b"\n")

    with anyio.fail_after(10), pytest.raises(RpcError):
        await answer
    assert await still_works(client)


@pytest.mark.parametrize(
    "line",
    [
        b"[]",
        b"[1]",
        b"{}",
        b'{"jsonrpc":"2.0","id":null,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":1.5,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":1e3,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":true,"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":{},"method":"tools/list"}',
        b'{"jsonrpc":"2.0","id":null,"method":"tools/list","params":[]}',
        b'{"id":null,"method":"tools/list"}',
    ],
    ids=lambda line: line.decode(),
)
async def test_every_readable_message_that_is_no_request_is_answered_as_invalid(
    client: RawClient, line: bytes
) -> None:
    before = len(client.null_errors)

    await write(client, line + b"\n")

    await until(lambda: len(client.null_errors) > before)
    told = client.null_errors[-1]
    assert told["code"] == -32600
    assert "message that cannot be read" in told["message"]
    assert "JSONRPC" not in told["message"]
    assert ("its id must be a string or an integer" in told["message"]) == line.startswith(b'{"jsonrpc"')
    assert ("batch" in told["message"]) == line.startswith(b"[")


OPENED = {"capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}


async def test_each_message_of_a_batch_is_answered_where_the_version_has_batches(
    workshop: Workshop,
) -> None:
    workshop.server("work", tools=[tool("echo")])
    async with stdio(command(workshop.config()), opened=False) as client:
        await client.request("initialize", {"protocolVersion": "2025-03-26", **OPENED})
        await client.until_listed("work__echo")
        answers = [client.expect(number) for number in (71, 72, 73)]
        batch = [
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 71, "method": "ping"},
            {"jsonrpc": "2.0", "id": 72, "method": "tools/call", "params": {"name": "work__echo"}},
            {"jsonrpc": "2.0", "id": 73, "method": "no/such"},
        ]
        await write(client, json.dumps(batch).encode() + b"\n")
        with anyio.fail_after(10):
            assert await answers[0] == {}
            assert "isError" not in await answers[1]
            with pytest.raises(RpcError, match="not found"):
                await answers[2]

        for line in (b"[" * 100_000, b"[]", b"[[1]]", b"[1]"):
            await write(client, line + b"\n")
        assert await still_works(client)


async def test_a_message_over_the_limit_is_refused_under_its_id_with_size_and_limit(
    client: RawClient,
) -> None:
    answer = client.expect(27_182)

    await write(client, (ECHO % ("27182", json.dumps({"text": "x" * 1_100_000}))).encode() + b"\n")

    with anyio.fail_after(10), pytest.raises(RpcError, match=r"1,100,\d\d\d bytes, limit 1,000,000"):
        await answer
    assert await still_works(client)


async def test_windows_line_ends_blank_lines_and_split_lines_are_accepted(client: RawClient) -> None:
    answers = [client.expect(number) for number in (501, 502, 503)]
    lines = [ECHO % (number, '{"text":"é"}') for number in (501, 502, 503)]
    data = ("\r\n\r\n \n" + "\r\n".join(lines) + "\r\n").encode()

    for start in range(0, len(data), 37):
        await write(client, data[start : start + 37])

    with anyio.fail_after(10):
        for answer in answers:
            assert (await answer)["content"]


async def test_a_duplicate_request_id_is_refused_or_answered_but_never_lost(client: RawClient) -> None:
    line = (ECHO % ('"twin"', "{}")).encode() + b"\n"
    first = client.expect("twin")

    await write(client, line)
    await first
    second = client.expect("twin")
    await write(client, line)

    assert (await second)["content"]


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_the_id_of_a_cancelled_request_can_be_reused_at_once(
    client: RawClient, server: Server, era: str
) -> None:
    meta = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}} if era == "modern" else {}
    running = len(server.ledger.calls("hang")) + 1
    await client.start("tools/call", {"name": "work__hang", "_meta": meta}, "again")
    await server.ledger.until(lambda ledger: len(ledger.calls("hang")) == running)
    arguments = f'{{"precise":0.12345678901234567890123}},"_meta":{json.dumps(meta)}'
    echo = ECHO % ('"again"', arguments)
    cancelled = '{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"again"}}'

    answer = client.expect("again")
    await write(client, f"{cancelled}\n{echo}\n".encode())

    assert "isError" not in await answer
    assert arguments.partition(",")[0] in server.ledger.lines("tools/call")[-1]


async def test_requests_sent_before_initialize_is_answered_belong_to_its_session(
    workshop: Workshop,
) -> None:
    told = {"method": "notifications/message", "params": {"level": "info", "data": "said"}}
    capabilities: dict[str, Any] = {"tools": {}, "logging": {}}
    workshop.server("work", tools=[tool("say")], calls={"say": [{"notify": told}]}, capabilities=capabilities)
    said = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    messages = [
        {"id": 1, "method": "initialize", "params": said},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "logging/setLevel", "params": {"level": "error"}},
        {"id": 3, "method": "tools/list"},
    ]
    async with stdio(command(workshop.config()), opened=False) as client:
        answers = [client.expect(request_id) for request_id in (1, 2, 3)]
        lines = [json.dumps({"jsonrpc": "2.0"} | message) + "\n" for message in messages]
        await write(client, "".join(lines).encode())
        for answer in answers:
            assert await answer is not None
        client._next_id = 3
        await client.until_listed("work__say")
        await client.call("work__say")

        assert client.notified("notifications/message") == []


async def test_before_the_handshake_only_what_the_protocol_allows_is_answered(workshop: Workshop) -> None:
    async with stdio(command(workshop.config()), opened=False) as client:
        with pytest.raises(RpcError) as refused:
            await client.request("tools/list")
        assert refused.value.code in {-32600, -32602, -32002}
        await client.request("ping")


async def test_the_requested_protocol_version_is_agreed_on(workshop: Workshop) -> None:
    for version in ("2024-11-05", "2025-11-25"):
        async with stdio(command(workshop.config()), opened=False) as client:
            said = await client.request(
                "initialize",
                {
                    "protocolVersion": version,
                    "capabilities": {},
                    "clientInfo": {"name": "raw", "version": "1"},
                },
            )
            assert said["protocolVersion"] == version


async def test_an_unknown_modern_version_is_refused_with_the_supported_ones(workshop: Workshop) -> None:
    async with stdio(command(workshop.config()), opened=False) as client:
        with pytest.raises(RpcError) as refused:
            await client.request(
                "tools/list",
                **{PREFIX + "protocolVersion": "2099-01-01", PREFIX + "clientCapabilities": {}},
            )

    assert refused.value.code == -32022
    assert "2026-07-28" in refused.value.data["supported"]


async def test_a_flood_of_notifications_is_not_answered_and_blocks_nothing(
    client: RawClient,
) -> None:
    methods = ("unknown", "progress", "roots/list_changed", "initialized", "cancelled")
    lines = [f'{{"jsonrpc":"2.0","method":"notifications/{method}"}}\n' for method in methods]
    before = len(client.texts)

    await write(client, "".join(lines * 2000).encode())

    assert await still_works(client)
    assert len(client.texts) == before + 1


async def test_a_flood_of_invalid_messages_does_not_fill_the_log(workshop: Workshop, tmp_path: Path) -> None:
    workshop.server("work", tools=[tool("echo")])
    log = tmp_path / "log"
    with log.open("w", encoding="utf-8") as stderr:
        async with stdio(command(workshop.config()), stderr=stderr) as client:
            await write(client, b'{"secret": "said-5b1e"}\n' * 3000)
            await client.until(lambda client: len(client.null_errors) > COMPLAINTS)

    told = log.read_text(encoding="utf-8")
    assert 0 < len(told.splitlines()) <= 2 * COMPLAINTS
    assert "said-5b1e" not in told


async def test_a_request_over_the_limit_is_refused_at_once_and_affects_no_other(workshop: Workshop) -> None:
    flag = workshop.flag("go on")
    calls = {"wait": [{"wait": str(flag)}, {"result": {"content": []}}]}
    server = workshop.server("work", tools=[tool("wait")], calls=calls)
    async with stdio(command(workshop.config(limits={"in_flight": 2}))) as client:
        await client.until_listed("work__wait")
        waiting = [(await client.start("tools/call", {"name": "work__wait"}))[1] for _ in range(2)]
        await server.ledger.until(lambda ledger: len(ledger.calls("wait")) == 2)
        with pytest.raises(RpcError, match="busy"):
            await client.call("work__wait")
        flag.touch()
        results = [await one for one in waiting]

    assert [result["content"] for result in results] == [[], []]


async def test_arguments_and_results_are_never_logged(workshop: Workshop, tmp_path: Path) -> None:
    given, answered, refused = "argument-7c1e", "answer-0b5d", "refusal-99aa"
    calls = {
        "say": [{"result": {"content": [{"type": "text", "text": answered}]}}],
        "refuse": [{"error": {"code": -32050, "message": refused}}],
        "die": [{"exit": 1}],
    }
    workshop.server("work", tools=[tool(name) for name in calls], calls=calls)
    log = tmp_path / "log"
    with log.open("w", encoding="utf-8") as stderr:
        run = command(workshop.config(), "--log-level", "debug")
        async with stdio(run, stderr=stderr) as client:
            await client.until_listed("work__say")
            said = await client.call("work__say", {"text": given})
            with pytest.raises(RpcError, match=refused):
                await client.call("work__refuse", {"text": given})
            await client.call("work__die", {"text": given})
            await client.call("search_available_tools", {"query": given})

    told = log.read_text(encoding="utf-8")
    assert answered in json.dumps(said)
    assert told
    assert not [word for word in (given, answered, refused) if word in told]
