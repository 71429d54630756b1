"""Whatever a server answers, its own call fails at once by id, and the connection goes on."""

import json
from typing import Any

import pytest
from support.proxies import Host, host_of, inside
from support.raw_client import PREFIX, RpcError
from support.servers import Workshop, tool
from support.tables import each

from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream.client import redacted
from mcp_context_proxy.errors import (
    AuthorizationError,
    BadAnswerError,
    CallInterruptedError,
    DownstreamError,
    RemoteError,
    ServerUnavailableError,
)

LIMITS = {"message_bytes": 100_000}


def hexed(line: bytes) -> list[dict[str, Any]]:
    return [{"hex": line.hex()}, {"answered": True}]


RESULT = b'{"content":[{"type":"text","text":"ok"}]}'

UNUSABLE = {
    "not JSON": [{"raw": '{"jsonrpc":"2.0","id":ID,"result":{"a":}}'}, {"answered": True}],
    "NaN": [{"raw": '{"jsonrpc":"2.0","id":ID,"result":{"a":NaN}}'}, {"answered": True}],
    "not UTF-8": hexed(b'{"jsonrpc":"2.0","id":ID,"result":{"a":"\xff\xfe"}}\n'),
    "null": [{"raw": '{"jsonrpc":"2.0","id":ID,"result":null}'}, {"answered": True}],
    "a number": [{"raw": '{"jsonrpc":"2.0","id":ID,"result":5}'}, {"answered": True}],
    "a list": [{"raw": '{"jsonrpc":"2.0","id":ID,"result":[]}'}, {"answered": True}],
    "nothing": [{"raw": '{"jsonrpc":"2.0","id":ID}'}, {"answered": True}],
    "the id last": [{"raw": '{"jsonrpc":"2.0","result":{"a":NaN},"id":ID}'}, {"answered": True}],
    "too deep": [{"nested": 40_000}],
    "too large": [{"large": 200_000}],
    "half and more": hexed(b'{"jsonrpc":"2.0","id":ID,"result":{"content":[{"type"\n'),
}

USABLE = {
    "CRLF": hexed(b'{"jsonrpc":"2.0","id":ID,"result":%b}\r\n' % RESULT),
    "blank lines": hexed(b'\n\r\n  \n{"jsonrpc":"2.0","id":ID,"result":%b}\n\n' % RESULT),
    "garbage before": hexed(b'Starting...\n[1,2]\n"x"\n{}\n{"jsonrpc":"2.0","id":ID,"result":%b}\n' % RESULT),
    "two chunks": [
        {"hex": b'{"jsonrpc":"2.0","id":ID,"res'.hex()},
        *hexed(b'ult":%b}\n' % RESULT),
    ],
    "id as text": hexed(b'{"jsonrpc":"2.0","id":"ID","result":%b}\n' % RESULT),
    "id as float": hexed(b'{"jsonrpc":"2.0","id":ID.0,"result":%b}\n' % RESULT),
    "no version": hexed(b'{"id":ID,"result":%b}\n' % RESULT),
    "spaces": hexed(b'  { "jsonrpc" : "2.0" , "id" : ID , "result" : %b }  \n' % RESULT),
    "foreign ids before": hexed(
        b'{"jsonrpc":"2.0","id":99999,"result":{}}\n{"jsonrpc":"2.0","id":null,"result":{}}\n'
        b'{"jsonrpc":"2.0","id":"x","error":{"code":1,"message":"m"}}\n'
        b'{"jsonrpc":"2.0","id":ID,"result":%b}\n' % RESULT
    ),
    "an id of too many digits before": hexed(
        b'{"jsonrpc":"2.0","id":"%b","result":{}}\n{"jsonrpc":"2.0","id":ID,"result":%b}\n'
        % (b"9" * 5_000, RESULT)
    ),
    "an answer twice": hexed(b'{"jsonrpc":"2.0","id":ID,"result":%b}\n' % RESULT * 2),
    "error null": hexed(b'{"jsonrpc":"2.0","id":ID,"result":%b}\n' % RESULT),
}


def named(answers: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    """The steps of a tool for each answer."""
    return {name.replace(" ", "_"): steps for name, steps in answers.items()}


async def test_an_unusable_response_fails_its_call_and_no_other(workshop: Workshop, era: str) -> None:
    calls = named(UNUSABLE)
    server = workshop.server("odd", era=era, tools=[tool(name) for name in (*calls, "good")], calls=calls)
    async with inside(workshop.config(limits=LIMITS)) as proxy:
        host = Host(proxy, "handshake")
        results = {name: (await host.call(f"odd__{name}"), await host.call("odd__good")) for name in calls}
        restarts = proxy.fleet.clients["odd"].restarts

    for name, (bad, good) in results.items():
        assert bad["isError"] is True, name
        assert "'odd'" in bad["content"][0]["text"], name
        assert "isError" not in good, name
    assert restarts == 0
    assert len(server.ledger.entries("start")) == 1


async def test_a_usable_response_is_accepted_however_it_is_framed(workshop: Workshop) -> None:
    calls = named(USABLE)
    workshop.server("odd", tools=[tool(name) for name in (*calls, "good")], calls=calls)
    async with host_of(workshop.config(), "handshake") as host:
        results = {name: (await host.call(f"odd__{name}"), await host.call("odd__good")) for name in calls}

    assert {name: odd for name, (odd, _) in results.items()} == dict.fromkeys(calls, json.loads(RESULT))
    assert [name for name, (_, good) in results.items() if "isError" in good] == []


async def test_a_response_over_the_limit_is_reported_with_its_size_and_the_limit(workshop: Workshop) -> None:
    workshop.server("big", tools=[tool("dump")], calls={"dump": [{"large": 20_000_000}]})
    async with inside(workshop.config()) as proxy:
        result = await Host(proxy, "handshake").call("big__dump")

    assert result["isError"] is True
    text = result["content"][0]["text"]
    assert "20,000," in text
    assert "16,777,216" in text


async def test_a_response_just_under_the_limit_arrives_whole(workshop: Workshop) -> None:
    workshop.server("big", tools=[tool("dump")], calls={"dump": [{"large": 16_000_000}]})
    async with inside(workshop.config(results={"max_tokens": 0})) as proxy:
        result = await Host(proxy, "handshake").call("big__dump")

    assert result["content"][0]["text"] == "x" * 16_000_000


async def test_a_deep_result_passes_unchanged_and_one_too_deep_for_the_parsers_of_hosts_fails_with_an_error(
    workshop: Workshop, era: str
) -> None:
    calls = {f"dig{depth}": [{"nested": depth}] for depth in (100, 116, 500)}
    workshop.server("deep", tools=[tool(name) for name in calls], calls=calls)
    async with inside(workshop.config()) as proxy:
        results = [await Host(proxy, era).call(f"deep__{name}") for name in calls]

    for depth, result in zip((100, 116), results, strict=False):
        assert json.dumps(result["structuredContent"]["deep"]) == "[" * depth + "]" * depth
    assert results[2]["isError"] is True
    assert "deeper than 120 levels" in results[2]["content"][0]["text"]


@pytest.mark.parametrize(
    "number", ["1e999", "-2.5E+400", "9" * 309, "9" * 300 + "e10", "-" + "9" * 210 + "E+99"]
)
async def test_a_number_that_hosts_cannot_read_costs_its_own_result(
    workshop: Workshop, era: str, number: str
) -> None:
    """Some hosts end the connection over it, and with that all servers."""
    raw = f'{{"content":[],"structuredContent":{{"text":"a \\" {number}","x":{number}}}}}'
    calm = raw.replace(f":{number}", ':1e-999,"y":0e999')
    workshop.server(
        "odd",
        tools=[tool("odd"), tool("calm"), tool("log"), tool("fail")],
        calls={
            "odd": [{"raw_result": raw}],
            "calm": [{"raw_result": calm}],
            "log": [{"raw": LOGGED.replace("NUMBER", number)}],
            "fail": [{"raw": FAILED.replace("NUMBER", number)}, {"answered": True}],
        },
    )
    async with host_of(workshop.config(), era) as host:
        odd, passed = await host.call("odd__odd"), await host.call("odd__calm")
        await host.call("odd__log", **({} if era == "handshake" else {PREFIX + "logLevel": "debug"}))
        with pytest.raises(RpcError) as failed:
            await host.call("odd__fail")

    assert odd["isError"] is True
    assert "a number too large" in odd["content"][0]["text"]
    assert passed["structuredContent"]["text"] == f'a " {number}'
    told = json.dumps([failed.value.data, host.told, host.notifications])
    assert told.count("left out: it has a number") == 2
    assert "Infinity" not in told


LOGGED = '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"error","data":[NUMBER]}}'
FAILED = '{"jsonrpc":"2.0","id":ID,"error":{"code":-32050,"message":"no","data":{"x":NUMBER}}}'


async def test_a_lone_surrogate_escaped_in_a_result_does_no_harm(workshop: Workshop, era: str) -> None:
    raw = '{"content":[{"type":"text","text":"a\\\\ud800b"}],"structuredContent":{"x":"\\\\udfff"}}'.replace(
        "\\\\", "\\"
    )
    workshop.server("odd", tools=[tool("odd"), tool("good")], calls={"odd": [{"raw_result": raw}]})
    async with host_of(workshop.config(), era) as host:
        odd = await host.call("odd__odd")
        good = await host.call("odd__good")

    assert odd["content"][0]["text"] == "a\ufffdb"
    assert odd["structuredContent"] == {"x": "\ufffd"}
    assert "isError" not in good


async def test_a_malformed_error_is_still_an_error(workshop: Workshop) -> None:
    """Some hosts end over a code of more than 32 bits."""
    errors = ['"broken"', '{"code":2147483648,"message":"m"}', '{"code":1e3}']
    calls = {
        f"bad{number}": [{"raw": f'{{"jsonrpc":"2.0","id":ID,"error":{error}}}'}, {"answered": True}]
        for number, error in enumerate(errors)
    }
    workshop.server("odd", tools=[tool(name) for name in calls], calls=calls)
    async with host_of(workshop.config(), "handshake") as host:
        for name in calls:
            with pytest.raises(Exception, match="malformed error"):
                await host.call(f"odd__{name}")


async def test_responses_out_of_order_reach_their_own_callers(workshop: Workshop) -> None:
    import anyio

    flag = workshop.flag("go")
    workshop.server("slow", tools=[tool("later"), tool("now")], calls={"later": [{"wait": str(flag)}]})
    async with inside(workshop.config()) as proxy, anyio.create_task_group() as group:
        host = Host(proxy, "handshake")
        answers: dict[str, Any] = {}

        async def call(name: str) -> None:
            answers[name] = await host.call(f"slow__{name}")

        group.start_soon(call, "later")
        await proxy_call(host, answers)
        flag.touch()

    assert json.loads(answers["now"]["content"][0]["text"])["name"] == "now"
    assert json.loads(answers["later"]["content"][0]["text"])["name"] == "later"


async def proxy_call(host: Host, answers: dict[str, Any]) -> None:
    answers["now"] = await host.call("slow__now")
    assert "later" not in answers


class UnheardOfError(DownstreamError):
    """A failure of a kind that nobody has thought of."""


@each(
    "error",
    [
        RemoteError("s", -1, "it is hunter2hunter2"),
        BadAnswerError("s", "with hunter2hunter2"),
        CallInterruptedError("s", "tool 'x'", "said hunter2hunter2"),
        ServerUnavailableError("s", "failed", "hunter2hunter2"),
        AuthorizationError("s", "hunter2hunter2 is wrong"),
        UnheardOfError("s", "it wrote hunter2hunter2\u200b"),
    ],
)
async def test_an_error_of_any_kind_is_shown_without_secrets(error: DownstreamError) -> None:
    shown = str(redacted(error, Redactor([("PASSWORD", "hunter2hunter2")])))

    assert "hunter2" not in shown
    assert "PASSWORD" in shown
    assert "\u200b" not in shown
