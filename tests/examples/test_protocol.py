"""The protocol of the example servers in both eras, as hosts and proxies may rely on it."""

import json
import os
import subprocess
from contextlib import asynccontextmanager

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client
from mcp.shared.exceptions import MCPError
from support.tables import each

from mcp_context_proxy.examples import servers

MODERN = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
PATIENCE = 30
HUGE = 10**12
"""A limit whose primes would take days to count."""


class Raw:
    """A client that sends and receives lines as they are."""

    def __init__(self, process):
        self.process = process
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def send(self, message):
        text = message if isinstance(message, str) else json.dumps(message)
        await self.process.stdin.send(text.encode() + b"\n")

    async def receive(self):
        return json.loads(await self._lines.receive_until(b"\n", 1 << 20))

    async def ask(self, method, params=None, request_id=1):
        await self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params or {}})
        return await self.receive()


@pytest.fixture
def raw(tmp_path):
    @asynccontextmanager
    async def connected(name):
        environment = {**os.environ, "MCP_EXAMPLE_DATA": str(tmp_path)}
        with anyio.fail_after(PATIENCE):
            async with await anyio.open_process(servers()[name], stderr=None, env=environment) as process:
                yield Raw(process)
                await process.stdin.aclose()
                await process.wait()

    return connected


@pytest.fixture
async def text(raw):
    """A client of one server for all rows of a table."""
    async with raw("text") as client:
        yield client


@pytest.fixture
async def notes(connect, era):
    """A client of the SDK for all rows of a table."""
    async with connect("notes", era) as client:
        yield client


@each(
    ("asked", "given"),
    [
        ("2025-11-25", "2025-11-25"),
        ("2025-06-18", "2025-06-18"),
        ("2025-03-26", "2025-03-26"),
        ("2024-11-05", "2024-11-05"),
        ("1999-01-01", "2025-11-25"),
    ],
)
async def test_the_handshake_gives_the_asked_version_or_the_newest(text, asked, given):
    answer = await text.ask("initialize", {"protocolVersion": asked, "capabilities": {}})

    assert answer["result"]["protocolVersion"] == given
    assert answer["result"]["serverInfo"]["name"] == "example-text"
    assert answer["result"]["capabilities"] == {"tools": {}}


async def test_discovery_names_all_versions_and_how_long_it_holds(raw):
    async with raw("notes") as client:
        result = (await client.ask("server/discover", {"_meta": MODERN}))["result"]

    assert result["supportedVersions"][0] == "2026-07-28"
    assert result["capabilities"] == {"tools": {}, "prompts": {}, "resources": {}}
    assert (result["resultType"], result["ttlMs"], result["cacheScope"]) == ("complete", 300_000, "public")
    assert result["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] == "example-notes"


async def test_both_eras_are_served_by_one_process_and_nothing_of_one_shows_in_the_other(raw):
    async with raw("text") as client:
        await client.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
        modern = await client.ask("tools/list", {"_meta": MODERN})
        handshake = await client.ask("tools/list")

    assert modern["result"]["resultType"] == "complete"
    assert handshake["result"].keys() == {"tools"}


@each(
    ("message", "code"),
    [
        pytest.param("{", -32700, id="no JSON"),
        pytest.param("[]", -32600, id="batch"),
        pytest.param({"jsonrpc": "2.0", "id": None, "method": "ping"}, -32600, id="no id"),
        pytest.param({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, -32600, id="before the handshake"),
        pytest.param(
            {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": MODERN, "cursor": "x"}},
            -32602,
            id="cursor never given",
        ),
        pytest.param(
            {"jsonrpc": "2.0", "id": 1, "method": "no/such", "params": {"_meta": MODERN}},
            -32601,
            id="unknown method",
        ),
        pytest.param(
            {"jsonrpc": "2.0", "id": 1, "method": "ping", "params": {"_meta": MODERN}},
            -32601,
            id="ping is gone in the modern era",
        ),
        pytest.param(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "tools/list",
                "params": {"_meta": {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}},
            },
            -32602,
            id="no capabilities",
        ),
    ],
)
async def test_a_bad_request_gets_its_error_code_and_the_next_one_is_served(text, message, code):
    await text.send(message)
    answer = await text.receive()
    assert (await text.ask("ping"))["result"] == {}

    assert answer["error"]["code"] == code


async def test_an_unknown_version_is_refused_with_the_known_ones(text):
    meta = MODERN | {"io.modelcontextprotocol/protocolVersion": "2030-01-01"}
    error = (await text.ask("tools/list", {"_meta": meta}))["error"]

    assert error["code"] == -32022
    assert error["data"]["requested"] == "2030-01-01"
    assert "2026-07-28" in error["data"]["supported"]


async def test_a_line_beyond_the_limit_is_refused_and_the_next_one_read(text):
    await text.send('"' + "x" * (17 << 20) + '"')
    assert (await text.receive())["error"]["code"] == -32700
    assert (await text.ask("ping"))["result"] == {}


async def test_half_of_a_surrogate_pair_comes_back_escaped(raw):
    """A lone surrogate cannot be encoded as UTF-8, but is valid in JSON."""
    async with raw("text") as client:
        arguments = {"text": "a\ud800", "style": "upper"}
        params = {"name": "change_case", "arguments": arguments, "_meta": MODERN}
        answer = await client.ask("tools/call", params)

    assert answer["result"]["content"] == [{"type": "text", "text": "A\ud800"}]


@each("name", servers())
def test_the_end_of_input_ends_the_process_without_an_error(name, tmp_path):
    environment = {**os.environ, "MCP_EXAMPLE_DATA": str(tmp_path)}
    done = subprocess.run(
        servers()[name], check=False, input=b"", capture_output=True, env=environment, timeout=PATIENCE
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


async def test_the_end_of_input_ends_the_process_while_a_call_runs(raw):
    async with raw("calculator") as client:
        arguments = {"name": "count_primes", "arguments": {"limit": HUGE}}
        params = {**arguments, "_meta": MODERN | {"progressToken": "p"}}
        assert (await client.ask("tools/call", params))["method"] == "notifications/progress"
        await client.process.stdin.aclose()
        assert await client.process.wait() == 0


async def test_an_unknown_tool_is_an_error_of_the_request(connect, era):
    async with connect("text", era) as client:
        with pytest.raises(MCPError, match="unknown tool 'no_such'") as caught:
            await client.call_tool("no_such", {})

    assert caught.value.code == -32602


@each(
    ("arguments", "complaint"),
    [
        pytest.param({}, "title is missing (Short headline)", id="missing"),
        pytest.param({"title": 1}, "title must be of type string, not integer", id="type"),
        pytest.param({"title": "x", "tag": ["a"]}, "did you mean tags?", id="misspelt"),
        pytest.param(
            {"title": "x", "tags": ["a", True]}, "tags[1] must be of type string, not boolean", id="inner"
        ),
        pytest.param({"title": None}, "title must be of type string, not null", id="null"),
        pytest.param({"title": " "}, "title must not be empty", id="refused by the tool"),
    ],
)
async def test_wrong_arguments_are_explained_to_the_model(notes, arguments, complaint):
    result = await notes.call_tool("create_note", arguments)

    assert result.is_error
    assert complaint in result.content[0].text


async def test_arguments_out_of_bounds_or_outside_a_choice_name_what_is_allowed(connect):
    async with connect("issues") as client:
        limit = await client.call_tool("list_issues", {"limit": 0, "state": "gone"})

    assert "limit must be from 1 to 200; got 0" in limit.content[0].text
    assert "state must be one of open, closed, all; got 'gone'" in limit.content[0].text


async def test_null_for_an_optional_argument_counts_as_left_out(connect):
    async with connect("notes") as client:
        result = await client.call_tool("create_note", {"title": "x", "tags": None, "body": None})

    assert not result.is_error


async def test_a_long_call_reports_progress_from_nothing_to_its_total(raw):
    async with raw("calculator") as client:
        meta = MODERN | {"progressToken": "p"}
        params = {"name": "count_primes", "arguments": {"limit": 5_000_000}, "_meta": meta}
        await client.send({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        *frames, answer = [message async for message in until(client, 1)]

    progress = [frame["params"]["progress"] for frame in frames]
    assert answer["result"]["structuredContent"] == {"result": 348_513}
    assert progress == sorted(set(progress))
    assert (progress[0], progress[-1]) == (0, 5_000_000)
    assert {frame["params"]["progressToken"] for frame in frames} == {"p"}


async def test_the_client_of_the_sdk_hears_of_the_progress(connect, era):
    heard = anyio.Event()

    async def hear(progress, total, message):
        assert (progress, total, message) == (0, HUGE, "0 primes below 0")
        heard.set()
        tasks.cancel_scope.cancel()

    async with connect("calculator", era) as client, anyio.create_task_group() as tasks:
        tasks.start_soon(count_until_cancelled, client, hear)

    assert heard.is_set()


async def test_a_call_without_a_progress_token_reports_nothing(raw):
    async with raw("calculator") as client:
        params = {"name": "count_primes", "arguments": {"limit": 5_000_000}, "_meta": MODERN}
        assert "result" in await client.ask("tools/call", params)


async def test_cancelled_calls_stop_and_give_their_threads_back(connect, era):
    """Eight calls that would take days, with four worker threads: the ninth call is answered all the same."""
    async with connect("calculator", era) as client:
        for _ in range(8):
            async with anyio.create_task_group() as tasks:

                async def cancel(*_progress, scope=tasks.cancel_scope):
                    scope.cancel()

                tasks.start_soon(count_until_cancelled, client, cancel)
        result = await client.call_tool("calculate", {"expression": "1 + 1"})

    assert result.structured_content == {"result": 2}


async def count_until_cancelled(client: Client, cancel):
    await client.call_tool("count_primes", {"limit": HUGE}, progress_callback=cancel)


async def test_a_cancelled_request_is_not_answered(raw):
    async with raw("calculator") as client:
        meta = MODERN | {"progressToken": 7}
        params = {"name": "count_primes", "arguments": {"limit": HUGE}, "_meta": meta}
        await client.ask("tools/call", params, request_id="long")
        await client.send(
            {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "long"}}
        )
        await client.send({"jsonrpc": "2.0", "id": "next", "method": "ping"})
        answers = [message async for message in until(client, "next")]

    assert [message for message in answers if message.get("id") == "long"] == []


async def until(client, request_id):
    while True:
        message = await client.receive()
        yield message
        if message.get("id") == request_id:
            return


async def test_notes_are_resources_too(connect, era):
    async with connect("notes", era) as client:
        await client.call_tool("create_note", {"title": "Tea", "body": "green"})
        [resource] = (await client.list_resources()).resources
        [template] = (await client.list_resource_templates()).resource_templates
        [content] = (await client.read_resource(resource.uri)).contents

    assert str(resource.uri) == "note://1"
    assert resource.title == "Tea"
    assert template.uri_template == "note://{id}"
    assert content.text == "# Tea\n\ngreen\n"


@each(("era", "code"), [("legacy", -32002), ("2026-07-28", -32602)])
async def test_a_missing_resource_has_the_code_of_its_era(connect, era, code):
    async with connect("notes", era) as client:
        for uri in ("note://99", "note://99999999999999999999", "note://x", "other://1"):
            with pytest.raises(MCPError) as caught:
                await client.read_resource(uri)
            assert caught.value.code == code, uri


async def test_prompts_are_listed_and_filled_in(connect, era):
    async with connect("notes", era) as client:
        await client.call_tool("create_note", {"title": "Tea", "body": "green"})
        prompts = {prompt.name: prompt for prompt in (await client.list_prompts()).prompts}
        summary = await client.get_prompt("summarize_note", {"note_id": "1", "length": "five words"})
        review = await client.get_prompt("weekly_review")
        with pytest.raises(MCPError, match="the notes have no number 9"):
            await client.get_prompt("summarize_note", {"note_id": "9"})

    assert [argument.required for argument in prompts["summarize_note"].arguments] == [True, False]
    assert summary.messages[0].content.text == "Summarize this note in five words.\n\n# Tea\n\ngreen"
    assert "## Tea" in review.messages[0].content.text
