"""A person is asked before a call that the configuration or the tool wants confirmed."""

import json
from itertools import product
from typing import Any

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, host_of, inside
from support.raw_client import MODERN, PREFIX, RpcError, text_of
from support.servers import Server, Workshop, tool
from support.tables import each

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.config import load
from mcp_context_proxy.server.consent import (
    ARGUMENT_CHARACTERS,
    ARGUMENTS_SHOWN,
    VALUES_SHOWN,
    described_arguments,
)

CAPABLE = {"elicitation": {}}
ASKS_USER = {"_meta": {"anthropic/requiresUserInteraction": True}}
READS = {"annotations": {"readOnlyHint": True}}
DESTROYS = {"annotations": {"destructiveHint": True}}
MODERN_META = {PREFIX + "protocolVersion": MODERN, PREFIX + "clientCapabilities": CAPABLE}
ELICIT = {
    "method": "elicitation/create",
    "params": {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}},
}


def server(workshop: Workshop, confirm: str | None = None, **more: Any) -> Server:
    tools = [tool("read", **READS), tool("write"), tool("delete", **DESTROYS), tool("pay", **ASKS_USER)]
    settings = more.pop("settings", {}) | ({} if confirm is None else {"confirm": confirm})
    return workshop.server(more.pop("name", "s"), tools=more.pop("tools", tools), settings=settings, **more)


def refused(result: dict[str, Any], name: str, why: str) -> bool:
    return (
        bool(result["isError"])
        and text_of(result).startswith(f"s__{name} was not run: ")
        and why in text_of(result)
    )


class Person:
    """A person at a client of either era, who answers each question with one action."""

    def __init__(self, proxy: Proxy, era: str, action: str = "accept", **more: Any) -> None:
        self.action, self.questions = action, list[dict[str, Any]]()
        self.host = Host(proxy, era, CAPABLE, {"elicitation/create": self.answer}, **more)

    def answer(self, params: dict[str, Any]) -> dict[str, Any]:
        self.questions.append(params)
        return {"action": self.action, **({"content": {}} if self.action == "accept" else {})}

    async def call(self, name: str, arguments: Any = None) -> Any:
        """Call, and call again with the answer for as long as the result asks."""
        params: dict[str, Any] = {"name": name, "arguments": arguments or {}}
        result = await self.host.request("tools/call", params)
        while result.get("resultType") == "input_required":
            answers = {key: self.answer(asked["params"]) for key, asked in result["inputRequests"].items()}
            state = {"requestState": result["requestState"]} if "requestState" in result else {}
            result = await self.host.request("tools/call", params | {"inputResponses": answers} | state)
        return result

    @property
    def confirmations(self) -> list[str]:
        """The questions of the proxy itself."""
        return [each["message"] for each in self.questions if each["message"].startswith("May tool ")]


async def test_a_confirmed_call_names_server_tool_and_arguments_and_runs_once(
    workshop: Workshop, era: str
) -> None:
    downstream = server(workshop, "destructive")
    async with inside(workshop.config()) as proxy:
        person = Person(proxy, era)
        arguments = {"path": "/tmp/x", "force": True}
        direct = await person.call("s__delete", arguments)
        assert (len(person.questions), len(downstream.ledger.calls("delete"))) == (1, 1)
        through = await person.call("call_tool", {"name": "s__delete", "arguments": arguments})

    for question, result in zip(person.questions, (direct, through), strict=True):
        assert question["message"] == (
            "May tool 'delete' of server 's' be called? "
            "It may delete or overwrite something: it says so itself (destructiveHint).\n"
            'Arguments:\n- path: "/tmp/x"\n- force: true'
        )
        assert question["requestedSchema"] == {"type": "object", "properties": {}}
        assert json.loads(text_of(result))["arguments"] == arguments
    assert len(downstream.ledger.calls("delete")) == 2


async def test_a_person_is_asked_about_arguments_as_they_are_sent(workshop: Workshop, era: str) -> None:
    schema = {"type": "object", "properties": {"filePath": {"type": "string"}, "force": {"type": "boolean"}}}
    downstream = server(workshop, "destructive", tools=[tool("delete", inputSchema=schema, **DESTROYS)])
    async with inside(workshop.config()) as proxy:
        person = Person(proxy, era)
        await person.call(
            "call_tool", {"name": "s__delete", "arguments": {"file_path": "/x", "force": "true"}}
        )

    (sent,) = downstream.ledger.messages("tools/call")
    assert sent["params"]["arguments"] == {"filePath": "/x", "force": True}
    assert [one.partition("Arguments:")[2] for one in person.confirmations] == [
        '\n- filePath: "/x"\n- force: true'
    ]


TWICE = [
    '{"path": "/", "path": "/tmp/x"}',
    '{"of": {"path": "/", "p\\u0061th": "/tmp/x"}}',
    '{"all": [{"path": "/", "path": "/tmp/x"}]}',
]


async def test_arguments_that_servers_read_in_two_ways_are_not_asked_about_and_not_sent(
    workshop: Workshop, era: str
) -> None:
    """A server may take the first of two, and a person is shown one."""
    downstream = server(workshop, "destructive")
    async with inside(workshop.config()) as proxy:
        person = Person(proxy, era)
        meta = {} if era == "handshake" else MODERN_META
        through = [f'{{"name": "s__delete", "arguments": {given}}}' for given in TWICE]
        for name, given in (*product(["s__delete"], TWICE), *product(["call_tool"], through)):
            params = f'{{"name": "{name}", "arguments": {given}, "_meta": {json.dumps(meta)}}}'
            result = json.loads(await person.host.raw("tools/call", params))
            assert refused(result, "delete", "its arguments name 'path' twice"), given
        assert await person.call("s__delete", {"path": ["path", {"path": "/tmp/x"}]})

    assert len(person.questions) == len(downstream.ledger.calls("delete")) == 1


async def test_no_second_value_comes_in_with_the_answer_to_a_question_of_the_server(
    workshop: Workshop,
) -> None:
    inputs = {"inputRequests": {"one": ELICIT}, "requestState": "opaque"}
    downstream = server(workshop, "write", era="modern", calls={"write": [{"need_input": inputs}]})
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        params = {"name": "s__write", "arguments": {"path": "/tmp/x"}, "_meta": MODERN_META}
        asked = await host.request("tools/call", params)
        for _ in range(2):
            answers = {key: {"action": "accept"} for key in asked["inputRequests"]}
            again = params | {"inputResponses": answers, "requestState": asked["requestState"]}
            twice = json.dumps(again).replace('"path": "/tmp/x"', '"path": "/", "path": "/tmp/x"')
            result = json.loads(await host.raw("tools/call", twice))
            assert refused(result, "write", "its arguments name 'path' twice")
            asked = await host.request("tools/call", again)

    assert all('"/"' not in line for line in downstream.ledger.lines("tools/call"))


async def test_a_call_that_is_not_accepted_does_not_run_and_says_so(workshop: Workshop, era: str) -> None:
    downstream = server(workshop, "write")
    told = dict.fromkeys(("cancel", "nonsense"), "the question was closed without an answer.")
    told["decline"] = "the user declined; do not try again unless the user says so."
    async with inside(workshop.config()) as proxy:
        for action, why in told.items():
            person = Person(proxy, era, action)
            results = [await person.call("s__write"), await person.call("call_tool", {"name": "s__write"})]
            assert all(refused(result, "write", why) for result in results), action
            assert len(person.questions) == 2, action

    assert downstream.ledger.calls() == []


async def test_a_question_that_nobody_answers_ends_and_the_call_does_not_run(workshop: Workshop) -> None:
    class Absent(Host):
        async def ask(self, method: str, params: Any) -> bytes:
            await anyio.sleep_forever()
            raise AssertionError

    downstream = server(workshop, "write")
    async with inside(workshop.config(limits={"ask_seconds": 0.2})) as proxy:
        result = await Absent(proxy, "handshake", CAPABLE).call("s__write")

    assert refused(result, "write", "nobody answered within 0.2 s.")
    assert downstream.ledger.calls() == []


async def test_an_answer_that_comes_too_late_is_told_that_the_call_did_not_run(workshop: Workshop) -> None:
    downstream = server(workshop, "write")
    async with inside(workshop.config(limits={"ask_seconds": 0.1})) as proxy:
        host = Host(proxy, "modern", CAPABLE)
        first = await host.call("s__write")
        await until(lambda: first["requestState"] not in proxy.pending_input.waiting)
        (key,) = first["inputRequests"]
        params = {"name": "s__write", "arguments": {}, "requestState": first["requestState"]}
        with pytest.raises(RpcError, match="s__write was not run: unknown or expired requestState"):
            await host.request("tools/call", params | {"inputResponses": {key: {"action": "accept"}}})

    assert downstream.ledger.calls() == []


@pytest.mark.parametrize("through", [None, "call_tool"])
@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("turned off", "is turned off by servers.s.deny"),
        ("changed", "its definition changed; a person has to look"),
        ("removed", "it is no longer configured"),
    ],
)
async def test_a_call_runs_only_if_the_tool_is_still_what_the_person_was_asked_about(
    workshop: Workshop, through: str | None, change: str, why: str
) -> None:
    downstream = server(workshop, "write")
    workshop.server("other")
    config = workshop.config()

    class Slow(Host):
        """A host whose person takes time, in which something happens."""

        async def ask(self, method: str, params: Any) -> bytes:
            if change == "changed":
                spec = json.loads(downstream.path.read_text(encoding="utf-8"))
                spec["tools"] = [tool("write", "Writes whatever it likes.")]
                downstream.path.write_text(json.dumps(spec), encoding="utf-8")
                proxy.fleet.restart("s")
            else:
                downstream.settings["deny"] = ["write"]
                if change == "removed":
                    del workshop.servers["s"]
                await proxy.apply(load(workshop.config(), environ={}))
            await until(lambda: "s__write" not in proxy.catalog.snapshot.tools)
            return b'{"action": "accept", "content": {}}'

    async with inside(config) as proxy:
        host = Slow(proxy, "handshake", CAPABLE)
        arguments = {} if through is None else {"name": "s__write", "arguments": {}}
        result = await host.call(through or "s__write", arguments)

    assert result["isError"]
    assert why in text_of(result)
    assert downstream.ledger.calls() == []


async def test_a_call_that_is_cancelled_while_the_person_is_asked_does_not_run(workshop: Workshop) -> None:
    class Slow(Host):
        async def ask(self, method: str, params: Any) -> bytes:
            scope.cancel()
            await anyio.sleep_forever()
            raise AssertionError

    downstream = server(workshop, "write")
    async with inside(workshop.config()) as proxy:
        with anyio.CancelScope() as scope:
            await Slow(proxy, "handshake", CAPABLE).call("s__write")

    assert scope.cancelled_caught
    assert downstream.ledger.calls() == []


async def test_a_client_that_cannot_be_asked_is_refused_and_told_how_to_go_on(
    workshop: Workshop, era: str
) -> None:
    downstream = server(workshop, "write")
    advice = "Tell the user, who can use a client that supports elicitation, or change that setting"
    declared: list[dict[str, Any]] = [{}, {"elicitation": {"url": {}}}]
    async with inside(workshop.config()) as proxy:
        for host in [Host(proxy, era, capabilities) for capabilities in declared]:
            for result in (await host.call("s__write"), await host.call("call_tool", {"name": "s__write"})):
                why = "a person has to confirm it, by servers.s.confirm (config.toml:"
                assert refused(result, "write", why), host.capabilities
                assert "does not support elicitation/create" in text_of(result)
                assert advice in text_of(result)

    assert downstream.ledger.calls() == []


async def test_confirm_says_from_which_class_on_a_person_is_asked(workshop: Workshop, era: str) -> None:
    tools = {"delete": {"confirm": "never"}, "write": {"confirm": "write"}}
    asked: dict[str, tuple[dict[str, Any], list[str]]] = {
        "unset": ({}, []),
        "never": ({"confirm": "never"}, []),
        "destructive": ({"confirm": "destructive"}, ["delete"]),
        "write": ({"confirm": "write"}, ["write", "delete", "pay"]),
        "tool": ({"confirm": "destructive", "tools": tools}, ["write"]),
    }
    names = ("read", "write", "delete", "pay")
    for name, (settings, _) in asked.items():
        server(workshop, name=name, settings=settings)
    found: dict[str, list[str]] = {}
    async with inside(workshop.config()) as proxy:
        for name in asked:
            person = Person(proxy, era)
            for of_tool in names:
                await person.call(f"{name}__{of_tool}")
            found[name] = [message.split("'")[1] for message in person.confirmations]

    assert found == {name: expected for name, (_, expected) in asked.items()}


@pytest.mark.parametrize(
    ("downstream_era", "step"),
    [
        ("handshake", {"ask": ELICIT}),
        ("modern", {"need_input": {"inputRequests": {"one": ELICIT}, "requestState": "opaque"}}),
        ("modern", {"need_input": {"inputRequests": {"one": ELICIT}}}),
    ],
    ids=["handshake", "modern", "without a state"],
)
async def test_nobody_is_asked_twice_for_a_call_whose_server_asks_for_input(
    workshop: Workshop, era: str, downstream_era: str, step: dict[str, Any]
) -> None:
    downstream = server(workshop, "write", era=downstream_era, calls={"write": [step]})
    async with inside(workshop.config()) as proxy:
        person = Person(proxy, era)
        result = await person.call("s__write", {"text": "x"})

    assert "accept" in text_of(result)
    assert len(person.confirmations) == 1
    assert len(person.questions) == 2
    assert len(downstream.ledger.calls("write")) == (1 if downstream_era == "handshake" else 2)


async def test_consent_is_for_one_call_only_and_a_call_without_arguments_is_described_so(
    workshop: Workshop, era: str
) -> None:
    downstream = server(workshop, "write")
    async with inside(workshop.config()) as proxy:
        person = Person(proxy, era)
        await person.call("s__write")
        await person.call("s__write")

    told = "May tool 'write' of server 's' be called?\nIt gets no arguments."
    assert person.confirmations == [told, told]
    assert len(downstream.ledger.calls("write")) == 2


async def test_a_made_up_state_is_no_consent(workshop: Workshop) -> None:
    downstream = server(workshop, "write", era="modern")
    async with host_of(workshop.config(), "modern", CAPABLE) as host:
        params = {"name": "s__write", "arguments": {}, "requestState": "made up"}
        for more in ({}, {"inputResponses": {"one": {"action": "accept"}}}):
            with pytest.raises(RpcError, match="s__write was not run: unknown or expired requestState"):
                await host.request("tools/call", params | more)
        answers = {"input-1": {"action": "accept"}}
        unasked = await host.request("tools/call", {"name": "s__write", "inputResponses": answers})

    assert unasked["resultType"] == "input_required"
    assert downstream.ledger.calls() == []


@pytest.mark.parametrize(
    ("tool_name", "arguments", "principal"),
    [
        ("write", {"text": "other"}, None),
        ("delete", {"text": "x"}, None),
        ("write", {"text": "x"}, "another"),
    ],
    ids=["other arguments", "another tool", "another person"],
)
async def test_an_answer_counts_for_the_call_that_was_asked_about(
    workshop: Workshop, tool_name: str, arguments: Any, principal: str | None
) -> None:
    inputs = {"inputRequests": {"one": ELICIT}, "requestState": "opaque"}
    downstream = server(workshop, "write", era="modern", calls={"write": [{"need_input": inputs}]})
    async with inside(workshop.config()) as proxy:
        host, other = Host(proxy, "modern", CAPABLE), Host(proxy, "modern", CAPABLE, principal=principal)
        params = {"name": "s__write", "arguments": {"text": "x"}}
        moved = {"name": f"s__{tool_name}", "arguments": arguments}
        first = await host.request("tools/call", params)
        answer = {"inputResponses": {key: {"action": "accept"} for key in first["inputRequests"]}}
        answer["requestState"] = first["requestState"]
        with pytest.raises(RpcError, match="was not run"):
            await other.request("tools/call", moved | answer)
        asked = await host.request("tools/call", params | answer)
        answer = {"inputResponses": {"one": {"action": "accept"}}, "requestState": asked["requestState"]}
        with pytest.raises(RpcError, match="was not run"):
            await other.request("tools/call", moved | answer)

    assert len(downstream.ledger.calls()) == 1


async def test_calls_with_consent_that_wait_for_input_are_bounded(workshop: Workshop) -> None:
    inputs = {"inputRequests": {"one": ELICIT}, "requestState": "opaque"}
    server(workshop, "write", era="modern", calls={"write": [{"need_input": inputs}]})
    async with host_of(workshop.config(limits={"parked_calls": 1}), "modern", CAPABLE) as host:
        waiting = []
        for number in range(2):
            params = {"name": "s__write", "arguments": {"text": str(number)}}
            first = await host.request("tools/call", params)
            answers = {key: {"action": "accept"} for key in first["inputRequests"]}
            state = {"requestState": first["requestState"]}
            await host.request("tools/call", params | {"inputResponses": answers} | state)
            answers = {"one": {"action": "accept"}}
            waiting.append(params | {"inputResponses": answers, "requestState": "opaque"})
        with pytest.raises(RpcError, match="was not run"):
            await host.request("tools/call", waiting[0])
        result = await host.request("tools/call", waiting[1])

    assert "accept" in text_of(result)


async def test_a_tool_that_demands_its_user_is_asked_about_through_a_call_tool(
    workshop: Workshop, era: str
) -> None:
    downstream = server(workshop)
    async with inside(workshop.config()) as proxy:
        person = Person(proxy, era)
        await person.call("call_tool", {"name": "s__pay", "arguments": {"amount": 5}})
        person.action = "decline"
        result = await person.call("call_tool", {"name": "s__pay", "arguments": {"amount": 6}})

    assert person.questions[0]["message"] == (
        "May tool 'pay' of server 's' be called?\nArguments:\n- amount: 5"
    )
    assert refused(result, "pay", "the user declined")
    assert len(downstream.ledger.calls("pay")) == 1


async def test_a_tool_that_demands_its_user_is_listed_for_a_client_that_cannot_be_asked(
    workshop: Workshop,
) -> None:
    downstream = server(workshop)
    async with host_of(workshop.config(expose={"mode": "search"}), "handshake") as host:
        before = await host.names()
        result = await host.call("call_tool", {"name": "s__pay"})
        after = await host.names()
        await until(lambda: ("notifications/tools/list_changed", {}) in host.told)
        direct = await host.call("s__pay")

    assert refused(result, "pay", "it demands that the user is asked, and through call_tool")
    assert "Call s__pay itself, which the list of tools has from now on, so that the host asks." in text_of(
        result
    )
    assert "s__pay" not in before
    assert "s__pay" in after
    assert "isError" not in direct
    assert len(downstream.ledger.calls("pay")) == 1


async def test_a_modern_client_that_cannot_be_asked_finds_the_tool_in_the_list_of_its_context(
    workshop: Workshop,
) -> None:
    server(workshop)
    async with host_of(workshop.config(expose={"mode": "search"}), "modern") as host:
        handle = await host.data("set_context", {"query": "quite something else"})
        context = {"io.github.mcp-context-proxy/context": handle["context_id"]}
        plain = await host.call("call_tool", {"name": "s__pay"})
        arguments = {"name": "s__pay", "context_id": handle["context_id"]}
        result = await host.call("call_tool", arguments)
        names = await host.names(**context)

    assert refused(plain, "pay", "Call s__pay itself, so that the host asks.")
    assert 'set include = "always" for it' in text_of(plain)
    assert refused(result, "pay", "which the list of tools has from now on")
    assert "s__pay" in names


async def test_a_changed_setting_counts_for_the_next_call(workshop: Workshop, era: str) -> None:
    downstream = server(workshop, "never")
    async with inside(workshop.config()) as proxy:
        person = Person(proxy, era)
        await person.call("s__write")
        downstream.settings["confirm"] = "write"
        await proxy.apply(load(workshop.config(), environ={}))
        await until(lambda: proxy.catalog.snapshot.tools["s__write"].asked_by)
        await person.call("s__write")

    assert len(person.confirmations) == 1
    assert len(downstream.ledger.entries("start")) == 1


async def test_configured_secrets_are_not_shown_in_a_question(workshop: Workshop, era: str) -> None:
    server(workshop, "write", settings={"env": {"KEY": "hunter2-and-more"}})
    async with inside(workshop.config()) as proxy:
        person = Person(proxy, era)
        result = await person.call("s__write", {"url": "https://x/?k=hunter2-and-more"})

    (question,) = person.confirmations
    assert "hunter2" not in question
    assert "[redacted" in question
    assert "hunter2-and-more" in text_of(result)


def shown(arguments: Any) -> str:
    return described_arguments(json.dumps(arguments).encode(), lambda text: text)


@each("name", ["password", "apiKey", "access_token", "client-secret", "pin"])
def test_values_under_names_of_secrets_are_hidden_at_any_depth(name: str) -> None:
    told = shown({name: "s3cret", "more": [{name: 1234, "kept": "seen"}], "page_token": "p1"})

    assert "s3cret" not in told
    assert "1234" not in told
    assert "seen" in told
    assert "p1" in told


def test_arguments_hide_nothing_and_cannot_forge_a_line() -> None:
    told = shown({"a": "x\u202ey\u200bz\n- b: 1\x1b[2J", "c\n- d": 1})

    assert told.splitlines() == ['- a: "xyz\\n- b: 1"', "- c - d: 1"]


def test_no_argument_hides_another_of_a_similar_name() -> None:
    told = shown({"a": 1, "a\u200b": 2, "a\n": 3})
    inside = shown({"x": {"a": 1, "a\u200b": 2, "a\n": 3}})

    assert inside == '- x: {"a": 1, "a′": 2, "a′′": 3}'
    assert [line.rpartition(" ")[2] for line in told.splitlines()] == ["1", "2", "3"]


def test_long_and_many_arguments_are_cut_and_counted() -> None:
    told = shown({"long": "x" * 5000, "list": list(range(1000)), **{f"n{each}": each for each in range(50)}})

    first, second, *others = told.splitlines()
    assert first.endswith("characters]")
    assert len(first) < ARGUMENT_CHARACTERS + 100
    assert "and 980 more" in second
    assert len(others) == ARGUMENTS_SHOWN - 1
    assert others[-1] == "- … and 32 more arguments"


def test_a_secret_in_the_name_of_an_argument_is_found_although_a_character_hides_in_it() -> None:
    named = {"tok_\u200b9f8e": {"tok_9f\u200b8e": 1}}
    told = described_arguments(json.dumps(named).encode(), lambda text: text.replace("tok_9f8e", "***"))

    assert told == '- ***: {"***": 1}'


def test_no_argument_fills_the_question_so_that_another_is_not_seen() -> None:
    deep: Any = 1
    for _ in range(5):
        deep = {f"n{each}": deep for each in range(9)}
    looked_up: list[str] = []

    told = described_arguments(
        json.dumps({"deep": deep, "path": "/"}).encode(), lambda text: looked_up.append(text) or text
    )

    assert told.splitlines()[1] == '- path: "/"'
    assert len(looked_up) < 3 * VALUES_SHOWN


@each(
    ("raw", "told"),
    [
        (b"[" * 100 + b"]" * 100, "(200 bytes, nested too deeply to be shown)"),
        (b"{" + b'"n": ' + b"1" * 5000 + b"}", "(5,007 bytes that cannot be read)"),
        (b'"text"', '- (not an object): "text"'),
        (b"{}", ""),
    ],
)
def test_odd_arguments_are_described(raw: bytes, told: str) -> None:
    assert described_arguments(raw, lambda text: text) == told
