"""Messages fitted to an era: only the members that a hop demands are written anew."""

import json
from typing import Any

import pytest
from support.tables import each

from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.eras import Era

P = "io.modelcontextprotocol/"


def meta(value: dict[str, Any]) -> eras.Meta:
    return eras.meta_of(members({"_meta": value}))


def members(value: dict[str, Any]) -> envelope.Members:
    return envelope.members(json.dumps(value).encode())


def downward(params: dict[str, Any], to: Era, **introduction: Any) -> Any:
    sender = eras.Sender()
    for name, value in introduction.items():
        setattr(sender, name, value)
    return json.loads(envelope.encode(eras.fit_params_to_server(members(params), to, sender)))


def upward(method: str, result: Any, to: Era) -> Any:
    return json.loads(eras.fit_result_to_client(method, json.dumps(result).encode(), to))


@pytest.mark.parametrize("to", list(Era))
def test_params_for_a_server_lose_proxy_keys_and_keep_foreign_ones(to: Era) -> None:
    meta = {
        "com.example/k": {"a": None},
        "traceparent": "00-1",
        eras.QUERY_KEY: "secret",
        eras.CONTEXT_KEY: "secret",
        "progressToken": "theirs",
        P + "clientInfo": {"name": "them"},
    }

    sent = downward({"name": "x", "_meta": meta, "x": [None]}, to)

    assert sent["x"] == [None]
    kept = {key: value for key, value in sent["_meta"].items() if not key.startswith(P)}
    assert kept == {"com.example/k": {"a": None}, "traceparent": "00-1"}
    assert P + "clientInfo" not in sent["_meta"]


def test_params_for_a_handshake_server_gain_nothing() -> None:
    assert downward({"name": "x"}, Era.HANDSHAKE, capabilities={}, client_info={}) == {"name": "x"}


def test_params_for_a_modern_server_carry_the_envelope() -> None:
    sent = downward({}, Era.MODERN, capabilities={"sampling": {}}, client_info={"name": "c"})

    assert sent["_meta"] == {
        P + "protocolVersion": "2026-07-28",
        P + "clientCapabilities": {"sampling": {}},
        P + "clientInfo": {"name": "c"},
    }


def test_input_responses_are_sent_to_modern_servers_only() -> None:
    params = {"name": "x", "inputResponses": {"a": 1}, "requestState": "s"}

    assert downward(params, Era.HANDSHAKE) == {"name": "x"}
    assert downward(params, Era.MODERN)["requestState"] == "s"


@pytest.mark.parametrize("to", list(Era))
def test_params_for_a_server_never_ask_for_a_task(to: Era) -> None:
    """Tasks are not relayed: a call that asks for one is an ordinary call."""
    capabilities = {
        "sampling": {"x": None},
        "tasks": {"list": {}},
        "extensions": {P + "tasks": {}, "com.example/x": {"y": [None]}},
    }
    kept = {"sampling": {"x": None}, "extensions": {"com.example/x": {"y": [None]}}}

    for given in (capabilities, envelope.raw(capabilities)):
        sent = downward({"name": "x", "task": {"ttl": 1}}, to, capabilities=given)
        meta = sent.pop("_meta", {})
        assert sent == {"name": "x"}
        assert meta.get(P + "clientCapabilities", kept) == kept


@each("meta", [None, 7, "x", []])
def test_meta_that_is_no_object_is_dropped(meta: Any) -> None:
    assert downward({"a": 1, "_meta": meta}, Era.HANDSHAKE) == {"a": 1}


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
def test_results_for_a_modern_client_have_a_type_and_server_info(method: str) -> None:
    assert upward(method, {"content": [], "x": None}, Era.MODERN) == {
        "content": [],
        "x": None,
        "resultType": "complete",
        "_meta": {P + "serverInfo": envelope.value(eras.SERVER_INFO)},
    }


@each("method", sorted(eras.CACHEABLE))
def test_cacheable_results_for_a_modern_client_say_for_how_long(method: str) -> None:
    fitted = upward(method, {}, Era.MODERN)

    assert (fitted["ttlMs"], fitted["cacheScope"]) == (0, "private")
    said = upward(method, {"ttlMs": 7, "cacheScope": "public"}, Era.MODERN)
    assert (said["ttlMs"], said["cacheScope"]) == (7, "private")


@each(
    ("said", "kept"),
    [
        ("0", 0),
        ("3600000", 3_600_000),
        ("3600001", 3_600_000),
        ("9" * 5000, 3_600_000),
        ("-1", 0),
        ("1e400", 0),
        ("60000.5", 0),
        ("true", 0),
        ("null", 0),
        ('"60000"', 0),
        ("[" * 300 + "]" * 300, 0),
    ],
)
def test_results_for_a_modern_client_may_be_cached_for_an_hour_at_most(said: str, kept: int) -> None:
    came = b'{"contents":[],"ttlMs":%b}' % said.encode()
    fitted = json.loads(eras.fit_result_to_client("resources/read", came, Era.MODERN))

    assert fitted["ttlMs"] == kept


def test_questions_for_a_modern_client_are_not_cacheable() -> None:
    fitted = upward("resources/read", {"resultType": "input_required", "requestState": "s"}, Era.MODERN)

    assert fitted["resultType"] == "input_required"
    assert "ttlMs" not in fitted


def test_results_for_a_modern_client_name_the_proxy_and_not_the_server() -> None:
    fitted = upward("tools/call", {"_meta": {P + "serverInfo": {"name": "them"}, "k": 1}}, Era.MODERN)

    assert fitted["_meta"] == {P + "serverInfo": envelope.value(eras.SERVER_INFO), "k": 1}


def test_results_for_a_handshake_client_have_nothing_of_the_modern_era() -> None:
    modern = {
        "contents": [],
        "resultType": "complete",
        "ttlMs": 1,
        "cacheScope": "public",
        "_meta": {P + "serverInfo": {}, "k": 1},
    }

    assert upward("resources/read", modern, Era.HANDSHAKE) == {"contents": [], "_meta": {"k": 1}}


def test_results_that_need_no_change_for_a_handshake_client_keep_their_bytes() -> None:
    came = b'{ "content" : [ ], "structuredContent": {"n": 1.0e-07} }'

    assert eras.fit_result_to_client("tools/call", came, Era.HANDSHAKE) == came


@each("structured", [[1], "x", 7, None, True])
def test_structured_content_that_is_no_object_is_left_out_for_a_handshake_client(
    structured: Any,
) -> None:
    result = {"content": [{"type": "text", "text": "1"}], "structuredContent": structured}

    assert upward("tools/call", result, Era.HANDSHAKE) == {"content": result["content"]}
    assert upward("tools/call", result, Era.MODERN)["structuredContent"] == structured


def test_structured_content_without_text_becomes_text_for_a_handshake_client() -> None:
    image = b'{"type":"image","data":"AA==","mimeType":"image/png","x":1.0e-07}'
    came = b'{"content":[ ' + image + b' ],"structuredContent":["caf\xc3\xa9", 1.0e-07]}'
    bare = {"content": [], "structuredContent": [{"n": 1}]}

    fitted = eras.fit_result_to_client("tools/call", came, Era.HANDSHAKE)

    assert image in fitted
    assert json.loads(fitted)["content"][1] == {"type": "text", "text": '["café", 1.0e-07]'}
    assert upward("tools/call", bare, Era.HANDSHAKE) == {"content": [{"type": "text", "text": '[{"n": 1}]'}]}


def test_only_a_complete_envelope_is_modern() -> None:
    whole = {P + "protocolVersion": "2026-07-28", P + "clientCapabilities": {}}

    assert meta(whole).is_modern
    for key in whole:
        assert not meta({k: v for k, v in whole.items() if k != key}).is_modern
    assert not meta(whole | {P + "protocolVersion": "2025-11-25"}).is_modern
    assert not meta(whole | {P + "clientCapabilities": []}).is_modern


def test_a_meta_is_read_as_it_came_each_time_and_conversions_leave_it_alone() -> None:
    own = {P + "serverInfo": {"name": "s", "version": "1"}, "x": 1}
    came = members({"content": [], "_meta": own})

    assert upward("tools/call", {"content": [], "_meta": own}, Era.HANDSHAKE)["_meta"] == {"x": 1}
    assert {key: json.loads(bytes(raw)) for key, raw in eras.meta_of(came).items()} == own
    assert eras.meta_of({"_meta": envelope.Raw(b"[]")}) == eras.meta_of({}) == {}
