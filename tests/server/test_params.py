"""Params that would be taken for something else are refused, in words that say which and why."""

import json
from typing import Any

from support.tables import each

from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.server.gateway import params_fault

CAPABLE = {"io.modelcontextprotocol/clientCapabilities": {}}
PROMPT = {"type": "ref/prompt", "name": "greet"}
ARGUMENT = {"name": "who", "value": "y"}


def fault(method: str, given: dict[str, Any], *, modern: bool = False) -> str | None:
    return params_fault(method, envelope.members(json.dumps(given).encode()), modern=modern)


@each(
    ("method", "given", "said"),
    [
        ("tools/call", {}, "needs name"),
        ("tools/call", {"name": 5}, "needs name"),
        ("tools/call", {"name": "x", "arguments": [1]}, "arguments of tools/call must be an object"),
        ("tools/list", {"cursor": 5}, "cursor of tools/list must be a string"),
        ("prompts/get", {"name": "x", "arguments": 7}, "arguments of prompts/get must be an object"),
        ("resources/read", {"uri": ["x"]}, "needs uri, a string"),
        ("completion/complete", {"ref": {}, "argument": ARGUMENT}, "ref/prompt with a name"),
        (
            "completion/complete",
            {"ref": {"type": "ref/resource", "name": "x"}, "argument": ARGUMENT},
            "a uri",
        ),
        ("completion/complete", {"ref": PROMPT, "argument": {"name": "who"}}, "a name and a value"),
        ("completion/complete", {"ref": PROMPT}, "needs argument"),
        ("tools/list", {"_meta": 5}, "_meta must be an object"),
        ("tools/list", {"_meta": {"progressToken": {}}}, "progressToken"),
        ("tools/list", {"_meta": {"progressToken": True}}, "progressToken"),
        ("tools/list", {"_meta": {"progressToken": 1.5}}, "progressToken"),
    ],
)
def test_params_of_a_wrong_type_are_reported(method: str, given: dict[str, Any], said: str) -> None:
    assert said in (fault(method, given) or "")


@each("level", ["loud", 7, None])
def test_an_unknown_log_level_in_meta_is_reported(level: Any) -> None:
    meta = {**CAPABLE, "io.modelcontextprotocol/logLevel": level}

    assert "must be one of debug, info" in (fault("tools/list", {"_meta": meta}, modern=True) or "")
    assert fault("tools/list", {"_meta": meta}) is None


def test_capabilities_in_meta_that_are_no_object_are_reported() -> None:
    meta = {"io.modelcontextprotocol/clientCapabilities": 5}

    assert "must be an object" in (fault("tools/list", {"_meta": meta}, modern=True) or "")
    assert fault("tools/list", {"_meta": meta}) is None


@each(
    ("method", "given"),
    [
        ("tools/list", {}),
        ("tools/list", {"cursor": None, "_meta": None}),
        ("tools/call", {"name": "x", "arguments": '{"a": 1}'}),
        ("tools/call", {"name": "x", "arguments": None, "x-unknown": [None]}),
        ("prompts/get", {"name": "x", "arguments": {"n": 5}}),
        ("completion/complete", {"ref": PROMPT, "argument": ARGUMENT, "context": {"arguments": {"a": "b"}}}),
        ("tools/list", {"_meta": {"progressToken": 0, "com.example/x": [None]}}),
        ("tools/list", {"_meta": {"progressToken": ""}}),
        ("com.example/unknown", {"name": 5}),
    ],
)
def test_params_that_the_protocol_allows_are_accepted(method: str, given: dict[str, Any]) -> None:
    assert fault(method, given) is None
