"""Requests for something that does not exist, and requests that are wrong."""

import json
import subprocess
import threading
from collections import Counter
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from support.proxies import command
from support.raw_client import PATIENCE, RawClient, RpcError
from support.servers import Workshop, tool
from support.tables import each

INVALID = [
    pytest.param("tools/call", {"name": 42}, id="a name that is a number"),
    pytest.param("tools/call", {}, id="no name"),
    pytest.param("tools/call", {"name": "old__echo", "arguments": [1]}, id="arguments that are a list"),
    pytest.param("tools/call", {"name": "search_available_tools", "arguments": {"query": {}}}, id="no query"),
    pytest.param("tools/call", {"name": "call_tool", "arguments": {"name": None}}, id="no tool to call"),
    pytest.param("tools/call", {"name": "set_context", "arguments": {"context_id": 7}}, id="no context"),
    pytest.param("tools/list", {"cursor": 42}, id="a cursor that is a number"),
    pytest.param("resources/read", {}, id="no uri"),
    pytest.param("resources/read", {"uri": ["x"]}, id="a uri that is a list"),
    pytest.param("resources/read", {"uri": "file:///etc/passwd"}, id="a file"),
    pytest.param("resources/subscribe", {"uri": None}, id="nothing to subscribe to"),
    pytest.param("prompts/get", {"name": {}}, id="a prompt that is an object"),
    pytest.param("prompts/get", {"name": "old__greet", "arguments": 7}, id="arguments that are a number"),
    pytest.param("completion/complete", {}, id="nothing to complete"),
    pytest.param("completion/complete", {"ref": {"type": "ref/odd"}, "argument": 1}, id="an odd reference"),
    pytest.param("logging/setLevel", {"level": "loud"}, id="an odd level"),
    pytest.param("subscriptions/listen", {"notifications": 7}, id="an odd subscription"),
    pytest.param("no/such/method", {"x": [None]}, id="an unknown method"),
]
OURS = {-32600, -32601, -32602, -32603}
"""What JSON-RPC has for us to say; others are a server's own, or speak of another hop or of a library."""

INSIDE = ("Traceback", 'File "', "pydantic", "msgspec", "site-packages", ".py", "object at 0x", "Error(")


@each(("method", "params"), INVALID)
async def test_the_answer_to_an_invalid_request_shows_nothing_of_the_proxys_insides(
    client: RawClient, method: str, params: dict[str, Any]
) -> None:
    try:
        told = json.dumps(await client.request(method, params))
    except RpcError as error:
        # Of the protocol's own: a header that does not say what the body does, a resource that is not there.
        codes = OURS | ({-32020} if client.modern else {-32002})
        assert error.code in codes, error
        assert error.message
        told = f"{error.message} {json.dumps(error.data)}"

    assert [sign for sign in INSIDE if sign in told] == []


UNREADABLE = {
    "a number beyond all": "1e999",
    "a number of too many digits": "9" * 5_000,
    "half a character": '"\\ud800"',
    **{f"{depth} levels": "[" * depth + "]" * depth for depth in (500, 880, 920, 950, 965, 980)},
    "deeper than any parser reads": '{"a":' * 5_000 + "1" + "}" * 5_000,
}
"""JSON that is valid, and that a decoder may still not read."""

PLACES = [
    ("tools/call", '{"name":"old__echo","arguments":{},"_meta":{"progressToken":%s}}'),
    ("tools/call", '{"name":"old__echo","arguments":{},"_meta":{"io.github.mcp-context-proxy/query":%s}}'),
    ("tools/call", '{"name":"old__echo","arguments":{},"_meta":%s}'),
    ("tools/call", '{"name":"search_available_tools","arguments":{"query":"x","top_n":%s}}'),
    ("tools/call", '{"name":"call_tool","arguments":%s}'),
    ("tools/list", '{"cursor":%s}'),
    ("prompts/get", '{"name":"with_context","arguments":%s}'),
    ("completion/complete", '{"ref":{"type":"ref/prompt","name":%s},"argument":{"name":"a","value":"x"}}'),
    ("resources/read", '{"uri":%s}'),
    ("subscriptions/listen", '{"notifications":{"resourceSubscriptions":[%s]}}'),
    ("initialize", '{"protocolVersion":%s,"capabilities":{},"clientInfo":{"name":"x","version":"1"}}'),
    ("no/such/method", '{"x":%s}'),
]


@pytest.mark.parametrize("value", UNREADABLE.values(), ids=UNREADABLE)
def test_json_that_cannot_be_read_has_one_answer_and_ends_nothing(tmp_path: Path, value: str) -> None:
    """Over standard streams, where one message that is not taken may be the end of all others."""
    # One of its own: the proxies of the other tests read the servers of the folder's workshop.
    workshop = Workshop(tmp_path)
    workshop.server("old", tools=[tool("echo")])
    hello = '{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"x","version":"1"}}'
    lines = [f'{{"jsonrpc":"2.0","id":0,"method":"initialize","params":{hello}}}']
    lines += [
        f'{{"jsonrpc":"2.0","id":{number},"method":"{method}","params":{params % value}}}'
        for number, (method, params) in enumerate(PLACES, 1)
    ]
    lines += [
        f'{{"jsonrpc":"2.0","method":"notifications/cancelled","params":{params % value}}}'
        for params in ('{"requestId":%s}', "%s")
    ]
    lines += [f'{{"jsonrpc":"2.0","id":"ask-1","error":{{"code":{value},"message":"x"}}}}']
    lines += ['{"jsonrpc":"2.0","id":"last","method":"ping"}']
    expected = {*range(1, len(PLACES) + 1), "last"}
    errors = workshop.folder / "errors"
    with (
        errors.open("wb") as stderr,
        subprocess.Popen(
            command(workshop.config(), "serve"), stdin=PIPE, stdout=PIPE, stderr=stderr, text=True
        ) as process,
    ):
        # Only half a second is given to what is under way when the input ends.
        overdue = threading.Timer(PATIENCE, process.kill)
        overdue.start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("".join(f"{line}\n" for line in lines))
        process.stdin.flush()
        answers: list[dict[str, Any]] = []
        while expected.difference(answer.get("id") for answer in answers):
            line = process.stdout.readline()
            assert line, errors.read_text(encoding="utf-8")
            answers.append(json.loads(line))
        process.stdin.close()
        answers += [json.loads(line) for line in process.stdout]
        assert process.wait() == 0
        overdue.cancel()
    counted = Counter(answer["id"] for answer in answers if "method" not in answer)

    assert "Traceback" not in errors.read_text(encoding="utf-8")
    assert counted["last"] == 1
    for number, (method, _) in enumerate(PLACES, 1):
        assert counted[number] == 1, (number, method)
    assert not [answer for answer in answers if "internal error" in json.dumps(answer)]


async def test_an_unknown_method_is_refused(client: RawClient) -> None:
    with pytest.raises(RpcError) as refused:
        await client.request("no/such/method")

    assert refused.value.code == -32601


async def test_a_cursor_that_the_proxy_did_not_give_is_refused(client: RawClient) -> None:
    for method in ("tools/list", "resources/list", "prompts/list", "resources/templates/list"):
        with pytest.raises(RpcError) as refused:
            await client.request(method, {"cursor": "17"})
        assert refused.value.code == -32602


async def test_a_call_of_an_unknown_tool_is_answered_with_the_nearest_names(client: RawClient) -> None:
    for result in (await client.call("old__ecko"), await client.call("call_tool", {"name": "old__ecko"})):
        assert result["isError"] is True
        assert "old__echo" in result["content"][0]["text"]
        assert "search_available_tools" in result["content"][0]["text"]
