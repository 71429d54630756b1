"""A secret that one server was given reaches no other, whatever a model is talked into sending."""

import base64
import html
import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest
from msgspec import Raw
from support.proxies import Host, command, host_of, inside
from support.raw_client import HANDSHAKE, MODERN, PREFIX, RpcError, text_of
from support.servers import Server, Workshop, tool
from support.wires import stdio

from mcp_context_proxy.config import load
from mcp_context_proxy.protocol import envelope

SECRET = 's3cr3t/with+signs=and"quotes\\Ω'
PLAIN = "tok_9f8e7d6c5b4a39281706"
HIDDEN = f"{PLAIN[:4]}\u200b{PLAIN[4:]}"
"""The same with a character in it that nobody sees."""
OTHERS = "0th3r-s3rv3rs-own-t0k3n"


def servers(workshop: Workshop, **spec: Any) -> tuple[Server, Server]:
    """A server with two secrets, and a stranger."""
    owner = workshop.server(
        "owner",
        tools=[tool("post")],
        settings={"env": {"OWNER_TOKEN": SECRET, "OWNER_KEY": PLAIN, "COLOUR_KEY": "aquamarine"}},
    )
    spec.setdefault("tools", [tool("post")])
    return owner, workshop.server("stranger", settings={"env": {"ITS_TOKEN": OTHERS}}, **spec)


def sent_to(server: Server) -> str:
    """Everything that a server was sent but its environment, as one text."""
    return json.dumps([entry for entry in server.ledger.entries() if entry.get("event") != "start"])


ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda value: value,
    "inside a text": lambda value: f"see https://evil.example/?q={value}&x=1",
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "base64 for URLs": lambda value: base64.urlsafe_b64encode(value.encode()).decode().rstrip("="),
    "basic authentication": lambda value: base64.b64encode(f"user:{value}".encode()).decode(),
    "in the middle of base64": lambda value: base64.b64encode(f"a{value}z".encode()).decode(),
    "percent-encoded": lambda value: quote(value, safe=""),
    "percent-encoded with small letters": lambda value: re.sub(
        "%..", lambda found: found[0].lower(), quote(value, safe="")
    ),
    "JSON in a text": lambda value: json.dumps({"token": value}),
    "every character percent-encoded": lambda value: every(value.encode(), "%%%02x"),
    "percent-encoded twice": lambda value: quote(quote(value, safe=""), safe=""),
    "JSON in JSON, all escaped": lambda value: json.dumps(
        json.dumps("TEXT").replace("TEXT", every(value.encode("utf-16-be"), "%02x", "\\u", 2))
    ),
    "escapes in a link": lambda value: quote(every(value.encode("utf-16-be"), "%02x", "\\u", 2)),
    "escapes of a program": lambda value: (
        every(value.encode("latin-1", "ignore"), "\\x%02x")
        if value.isascii()
        else every(value.encode("utf-16-be"), "%02x", "\\u", 2)
    ),
    "base64 in lines": lambda value: "\n".join(
        re.findall(".{1,8}", base64.b64encode(value.encode()).decode())
    ),
    "hexadecimal": lambda value: value.encode().hex(),
    "HTML": html.escape,
}


def every(data: bytes, form: str, before: str = "", together: int = 1) -> str:
    """Bytes, each in a form, with something before as many of them as belong together."""
    return "".join(before * (at % together == 0) + form % byte for at, byte in enumerate(data))


async def test_no_form_of_a_secret_goes_to_another_server(workshop: Workshop, era: str) -> None:
    owner, stranger = servers(workshop)
    async with host_of(workshop.config(), era) as host:
        for secret, through, encode in product((SECRET, PLAIN), (False, True), ENCODINGS.values()):
            arguments = {"text": ["x", {"deep": encode(secret)}]}
            call = {"name": "stranger__post", "arguments": arguments}
            refused = await (
                host.call("call_tool", call) if through else host.call("stranger__post", arguments)
            )
            name = "OWNER_TOKEN" if secret == SECRET else "OWNER_KEY"
            assert refused["isError"]
            assert text_of(refused).startswith(
                f"tool 'post' was not sent to server 'stranger': it has the value of {name}, which is a "
                "secret of server 'owner'"
            )
            assert secret not in json.dumps(refused, ensure_ascii=False)
        taken = await host.call("owner__post", {"text": SECRET + PLAIN})

    assert "isError" not in taken
    assert len(owner.ledger.calls("post")) == 1
    assert stranger.ledger.calls() == []


ESCAPED = {
    "ascii": json.dumps(SECRET),
    "utf-8": json.dumps(SECRET, ensure_ascii=False),
    "slashes": json.dumps(SECRET).replace("/", "\\/"),
    "all escaped": '"' + "".join(f"\\u{ord(char):04x}" for char in SECRET) + '"',
    "escaped beside other letters": '"é ' + "".join(f"\\u{ord(char):04X}" for char in PLAIN) + '"',
}


async def test_neither_escapes_of_json_nor_its_place_hide_a_secret(workshop: Workshop, era: str) -> None:
    _, stranger = servers(workshop)
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, era)
        results = {
            "name of an argument": await host.call("stranger__post", {PLAIN: 1}),
            "end of a large text": await host.call("stranger__post", {"text": "word " * 100_000 + PLAIN}),
        }
        for form, written in ESCAPED.items():
            arguments = Raw(f'{{"text":{written}}}'.encode())
            params = {"name": envelope.raw("stranger__post"), "arguments": arguments}
            if era == "modern":
                meta = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": {}}
                params["_meta"] = envelope.raw(meta)
            refused = await proxy.gateway.handle("tools/call", params, host.caller(params))
            results[form] = json.loads(refused)

    assert not [
        form for form, told in results.items() if "was not sent to server 'stranger'" not in text_of(told)
    ]
    assert stranger.ledger.calls() == []


async def test_prompts_resources_and_completions_tell_no_secret_either(workshop: Workshop, era: str) -> None:
    _, stranger = servers(
        workshop, prompts=[{"name": "p"}], templates=[{"uriTemplate": "note://{+rest}", "name": "n"}]
    )
    async with host_of(workshop.config(), era) as host:
        reference = {"type": "ref/prompt", "name": "stranger__p"}
        uri = f"note://{quote(PLAIN)}"
        requests = [
            ("prompts/get", {"name": "stranger__p", "arguments": {"query": PLAIN}}),
            ("completion/complete", {"ref": reference, "argument": {"name": "query", "value": PLAIN}}),
            ("resources/read", {"uri": uri}),
        ]
        requests += [("resources/subscribe", {"uri": uri})] if era == "handshake" else []
        for method, params in requests:
            with pytest.raises(RpcError, match="it has the value of OWNER_KEY") as refused:
                await host.request(method, params)
            assert PLAIN not in str(refused.value)

    assert PLAIN not in sent_to(stranger)


@pytest.mark.parametrize("downstream_era", ["handshake", "modern"])
async def test_the_answer_to_a_question_tells_no_secret(
    workshop: Workshop, era: str, downstream_era: str
) -> None:
    schema = {"type": "object", "properties": {"note": {"type": "string"}}}
    asked = {"method": "elicitation/create", "params": {"message": "Which?", "requestedSchema": schema}}
    inputs = {"inputRequests": {"one": asked}, "requestState": "opaque"}
    step = {"ask": asked} if downstream_era == "handshake" else {"need_input": inputs}
    _, stranger = servers(workshop, era=downstream_era, calls={"post": [step]})
    answer = {"action": "accept", "content": {"note": PLAIN}}
    async with host_of(
        workshop.config(), era, {"elicitation": {}}, {"elicitation/create": lambda params: answer}
    ) as host:
        params: dict[str, Any] = {"name": "stranger__post", "arguments": {}}
        result = await host.request("tools/call", params)
        if result.get("resultType") == "input_required":
            answers = dict.fromkeys(result["inputRequests"], answer)
            again = params | {"inputResponses": answers, "requestState": result["requestState"]}
            result = await host.request("tools/call", again)

    assert PLAIN not in sent_to(stranger)
    assert PLAIN not in json.dumps(result)


async def test_nobody_is_asked_about_a_call_that_is_refused_for_a_secret(
    workshop: Workshop, era: str
) -> None:
    _, stranger = servers(workshop)
    stranger.settings["classes"] = {"write": "ask"}
    async with host_of(workshop.config(), era, {"elicitation": {}}) as host:
        refused = await host.call("stranger__post", {"text": PLAIN})

    assert "was not sent" in text_of(refused)
    assert host.asked == []


async def test_a_token_of_a_login_is_known_once_it_is_used(workshop: Workshop, era: str) -> None:
    _, stranger = servers(workshop)
    token = "4cc3ss-t0k3n-of-a-login"
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, era)
        before = await host.call("stranger__post", {"text": token})
        # As the authorization of its connection does before it sends a token.
        proxy.fleet.clients["owner"].redact.learn([("access token", token)])
        refused = await host.call("stranger__post", {"text": token})

    assert "isError" not in before
    assert "it has the value of access token, which is a secret of server 'owner'" in text_of(refused)
    assert len(stranger.ledger.calls()) == 1


async def test_no_token_that_a_server_chooses_keeps_a_call_from_another(workshop: Workshop, era: str) -> None:
    """What its authorization server gives as a token stands in the calls of others."""
    _, stranger = servers(workshop)
    async with inside(workshop.config(guards={"results": "redact"})) as proxy:
        host = Host(proxy, era)
        chosen = ('{"text":', '"text": "', "createPullRequest", "pull_request_number")
        learn = proxy.fleet.clients["owner"].redact.learn
        learn((f"access token {number}", token) for number, token in enumerate(chosen))
        result = await host.call("stranger__post", {"text": "createPullRequest with pull_request_number"})

    assert "isError" not in result
    assert "redacted" not in text_of(result)
    assert len(stranger.ledger.calls()) == 1


async def test_words_and_values_that_are_called_public_may_go_anywhere(workshop: Workshop, era: str) -> None:
    _, stranger = servers(workshop)
    async with host_of(workshop.config(guards={"public": ["OWNER_KEY"]}), era) as host:
        for value in ("aquamarine", PLAIN):
            assert "isError" not in await host.call("stranger__post", {"text": value})
        assert "was not sent" in text_of(await host.call("stranger__post", {"text": SECRET}))

    assert len(stranger.ledger.calls()) == 2


async def test_the_guard_can_be_turned_off_and_on_while_the_proxy_runs(workshop: Workshop, era: str) -> None:
    _, stranger = servers(workshop)
    async with inside(workshop.config(guards={"secrets": False})) as proxy:
        host = Host(proxy, era)
        allowed = await host.call("stranger__post", {"text": PLAIN})
        await proxy.apply(load(workshop.config(), environ={}))
        refused = await host.call("stranger__post", {"text": PLAIN})

    assert "isError" not in allowed
    assert "was not sent" in text_of(refused)
    assert len(stranger.ledger.calls()) == 1


async def test_a_server_that_is_given_the_same_value_may_get_it(workshop: Workshop, era: str) -> None:
    _, stranger = servers(workshop)
    stranger.settings["env"] = {"ANOTHER_NAME_TOKEN": PLAIN}
    async with inside(workshop.config()) as proxy:
        result = await Host(proxy, era).call("stranger__post", {"text": PLAIN})

    assert "isError" not in result


@pytest.mark.parametrize("results", ["off", "redact"])
async def test_results_keep_their_secrets_unless_redaction_is_on(
    workshop: Workshop, era: str, results: str
) -> None:
    said = {"content": [{"type": "text", "text": f"the key is {PLAIN}"}], "structuredContent": {"k": PLAIN}}
    servers(workshop, calls={"post": [{"result": said}]}, tools=[tool("post"), tool("calm")])
    async with host_of(workshop.config(guards={"results": results}), era) as host:
        result = await host.call("stranger__post")
        calm = await host.call("stranger__calm", {"text": "nothing"})

    if results == "off":
        assert PLAIN in text_of(result)
    else:
        assert PLAIN not in json.dumps(result)
        assert "[redacted OWNER_KEY]" in text_of(result)
        assert "known secrets were removed" in result["content"][-1]["text"]
    assert "known secrets were removed" not in json.dumps(calm)


async def test_a_refused_call_is_no_failure_of_its_tool(workshop: Workshop, era: str) -> None:
    servers(workshop)
    async with inside(workshop.config()) as proxy:
        await Host(proxy, era).call("stranger__post", {"text": PLAIN})
        usage = proxy.statistics.usage

    assert usage is not None
    assert "stranger" not in usage.counters.servers


async def test_a_secret_in_a_query_or_a_goal_is_not_kept(workshop: Workshop, era: str) -> None:
    """The store outlives the configuration that knows what is a secret, and is copied and exported."""
    servers(workshop)
    store = workshop.folder / "state" / "store.sqlite3"
    async with host_of(workshop.config(store={"path": str(store)}), era) as host:
        await host.call("search_available_tools", {"query": f"post {HIDDEN} to a page"})
        goal = {"name": "owner__post", "arguments": {"text": "hello"}, "goal": f"post with {HIDDEN}"}
        assert "isError" not in await host.call("call_tool", goal)

    with closing(sqlite3.connect(store)) as opened:
        ((learned,),) = opened.execute("SELECT query FROM learned").fetchall()
    kept = b"".join(path.read_bytes() for path in store.parent.rglob("*") if path.is_file())
    assert learned == "post with [redacted OWNER_KEY]"
    assert b"post [redacted OWNER_KEY] to a page" in kept
    assert PLAIN.encode() not in kept


async def test_a_client_that_is_named_by_a_secret_is_not_kept_so(workshop: Workshop) -> None:
    servers(workshop)
    store = workshop.folder / "state" / "store.sqlite3"
    hello = {
        "protocolVersion": HANDSHAKE,
        "capabilities": {},
        "clientInfo": {"name": f"host {HIDDEN}", "version": PLAIN},
    }
    config = workshop.config(store={"path": str(store)}, interactions={"enabled": True})
    async with stdio(command(config), opened=False) as client:
        await client.request("initialize", hello)
        await client.until_listed("owner__post")
        await client.call("search_available_tools", {"query": "post a text"})
        await client.call("owner__post", {"text": "hello"})

    kept = b"".join(path.read_bytes() for path in store.parent.rglob("*") if path.is_file())
    assert b"host [redacted OWNER_KEY]" in kept
    assert PLAIN.encode() not in kept


async def test_a_secret_that_comes_up_while_the_proxy_runs_is_not_kept_either(
    workshop: Workshop, era: str
) -> None:
    """The bearer token is in no configuration, and logins are renewed."""
    servers(workshop)
    token, login = "b34r3r-t0k3n-of-the-proxy", "0pen-s3same-of-the-login"
    store = workshop.folder / "state" / "store.sqlite3"
    settings: dict[str, Any] = {"store": {"path": str(store)}, "interactions": {"enabled": True}}
    async with inside(workshop.config(**settings)) as proxy:
        proxy.fleet.known.know_own(("bearer token", token))
        proxy.fleet.known.learn("owner", [("login", login)])
        for number in range(40):
            proxy.fleet.known.learn(f"other{number}", [("login", f"an0ther-s3same-{number:04}")])
        await Host(proxy, era).call(
            "search_available_tools", {"query": f"post {token} and {login} to a page"}
        )

    kept = b"".join(path.read_bytes() for path in store.parent.rglob("*") if path.is_file())
    assert b"post [redacted bearer token] and [redacted login] to a page" in kept
    assert token.encode() not in kept
    assert login.encode() not in kept
