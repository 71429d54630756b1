"""JSON-RPC envelopes: only the routing members are decoded, the payload stays the bytes that came."""

import gc
import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from support.tables import each

from mcp_context_proxy.front.conversation import params_of
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import MalformedError, RequestError

IDS = st.integers(min_value=-(10**17), max_value=10**17) | st.text(
    st.characters(codec="utf-8", exclude_characters='"\\', exclude_categories=["Cc", "Cs"]),
    min_size=1,
    max_size=32,
)
JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(codec="utf-8")),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters(codec="utf-8")), inner),
    max_leaves=8,
)


@given(IDS, JSONS)
def test_a_payload_keeps_its_bytes(request_id: int | str, payload: object) -> None:
    text = json.dumps(payload, indent=1).encode()
    frame = b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (json.dumps(request_id).encode(), text)

    message = envelope.decode(frame)

    assert message.id == request_id
    assert bytes(message.result) == text
    assert message.method is UNSET


@given(IDS, JSONS)
def test_a_reply_is_json_with_that_result(request_id: int | str, payload: object) -> None:
    reply = json.loads(envelope.reply(request_id, json.dumps(payload).encode()))

    assert reply == {"jsonrpc": "2.0", "id": request_id, "result": payload}


@given(IDS, JSONS)
@example(-10000, "x" * 199)
def test_the_id_of_an_unreadable_message_is_found_at_its_start_or_end(
    request_id: int | str, payload: object
) -> None:
    text = json.dumps(payload, ensure_ascii=False).replace('"id"', '"di"').encode()
    spelled = json.dumps(request_id, ensure_ascii=False).encode()
    first = b'{"jsonrpc":"2.0","id":%b,"result":%b,"x":NaN}' % (spelled, text)
    last = b'{"jsonrpc":"2.0","result":{"x":NaN,"y":%b},"id": %b}' % (text, spelled)

    assert envelope.salvage_id(first, first) == request_id
    assert envelope.salvage_id(last, last) == request_id


def test_an_id_that_is_no_text_is_none() -> None:
    for inside in (b"\xff", b"\xed\xa0\x80", b"a\xc3", b"\x01", b"a\nb"):
        frame = b'{"jsonrpc":"2.0","id":"%b","method":"ping"}' % inside
        with pytest.raises(envelope.MalformedError):
            envelope.decode_from_client(frame)
        assert envelope.salvage_id(frame, frame) is None
    assert envelope.salvage_id(b'{"id":"\xc3\xa9"', b"") == "\u00e9"


@each(
    "frame",
    [
        "",
        "garbage",
        '{"idx":7}',
        '{"id":null}',
        '{"id":[1]}',
        '{"id":1.5}',
        '{"id":1e9}',
        '{"id":' + "9" * 30,
    ],
)
def test_without_a_recognisable_id_none_is_invented(frame: str) -> None:
    assert envelope.salvage_id(frame.encode(), frame.encode()) is None


@each(
    "frame",
    [
        b"",
        b"[]",
        b"null",
        b"7",
        b'"x"',
        b"{",
        b'{"id":1,"result":{"a":NaN}}',
        b'{"id":1,"result":{"a":"\xff"}}',
        b'{"id":1,"result":"\xed\xa0\x80"}',
        b'{"id":{}}',
        b'{"id":true}',
        b'{"method":7}',
        b'{"method":null}',
        b'{"id":1} trailing',
        b'{"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_text_that_is_no_message_is_malformed(frame: bytes) -> None:
    with pytest.raises(MalformedError):
        envelope.decode(frame)


def test_what_is_malformed_leaves_nothing_for_the_garbage_collector() -> None:
    gc.collect()

    for _ in range(20):
        with suppress(MalformedError):
            envelope.decode_from_server(b'{"id":{}}')

    assert gc.collect() == 0


def test_the_kind_of_a_message_follows_from_its_members() -> None:
    request = envelope.decode(envelope.request(1, "ping", None))
    notification = envelope.decode(envelope.notification("x"))
    error = envelope.decode(envelope.error_reply(None, -32700, "no", {"a": 1}))

    assert (request.id, request.method) == (1, "ping")
    assert notification.id is UNSET
    assert error.id is None
    assert envelope.decode_error(error.error).code == -32700  # type: ignore[arg-type]


@each("raw", [b'"x"', b"[]", b'{"code":"x"}', b'{"code":1.5}', b"null"])
def test_a_malformed_error_is_an_internal_error(raw: bytes) -> None:
    from msgspec import Raw

    assert envelope.decode_error(Raw(raw)).code == envelope.INTERNAL_ERROR


@each(
    ("sent", "read"),
    [
        (rb"\ud83d\ude00", "\U0001f600"),
        (rb"\ud83d", "\ufffd"),
        (rb"\ude00 x", "\ufffd x"),
        (rb"\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
        (rb"\\ud83d \ud83d", "\\ud83d \ufffd"),
        (rb"\u00e9 \ud83d \"", 'é \ufffd "'),
    ],
)
def test_lone_surrogates_are_replaced_and_other_characters_kept(sent: bytes, read: str) -> None:
    message = envelope.decode(b'{"id":1,"result":{"text":"%b"}}' % sent)

    assert isinstance(message.result, Raw)
    assert json.loads(bytes(message.result)) == {"text": read}


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode))
def test_any_bytes_are_a_message_or_an_error(data: bytes) -> None:
    try:
        message = envelope.decode(data)
    except envelope.MalformedError:
        envelope.salvage_id(data, data)
    else:
        assert isinstance(message, envelope.Envelope)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=12,
)


@given(
    st.dictionaries(
        st.sampled_from(["jsonrpc", "id", "method", "params", "result", "error", "x"]), JSON_VALUES
    ),
    st.booleans(),
)
def test_a_payload_is_unchanged_in_any_envelope(message: dict[str, Any], escaped: bool) -> None:
    data = json.dumps(message, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    try:
        decoded = envelope.decode(data)
    except envelope.MalformedError:
        return
    for member in ("params", "result", "error"):
        if member in message:
            raw = getattr(decoded, member)
            assert json.loads(bytes(raw)) == message[member]


@each(
    ("frame", "code", "why"),
    [
        ('{"jsonrpc":"2.0","id":1,', -32700, "truncated"),
        ('{"jsonrpc":"2.0","id":1,"method":"a\xff"}', -32700, "not UTF-8"),
        ('[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600, "batch"),
        ('{"jsonrpc":"2.0","id":1,"method":5}', -32600, "method"),
        ('{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600, "id"),
        ('{"jsonrpc":"2.0","id":1.5,"method":"ping"}', -32600, "id"),
        ('{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600, "jsonrpc"),
        ('{"id":1,"method":"ping"}', -32600, "jsonrpc"),
        ('{"jsonrpc":"2.0","id":1}', -32600, "neither"),
    ],
)
def test_an_invalid_request_is_reported_with_the_reason(frame: str, code: int, why: str) -> None:
    with pytest.raises(MalformedError, match=why) as malformed:
        envelope.decode_from_client(frame.encode("latin-1"))

    assert malformed.value.code == code


@each("params", ["[1]", "null", "5", '"text"'])
def test_params_that_are_no_object_are_refused(params: str) -> None:
    frame = f'{{"jsonrpc":"2.0","id":1,"method":"ping","params":{params}}}'
    with pytest.raises(RequestError, match="params must be an object") as refused:
        params_of(envelope.decode_from_client(frame.encode()))

    assert refused.value.code == -32602


@pytest.mark.parametrize("frame", ['{"id":null,"error":{}}', '{"id":7.5,"result":5,"params":[]}'])
def test_anything_that_looks_like_a_reply_is_taken_as_one(frame: str) -> None:
    assert envelope.decode_from_client(frame.encode()).method is UNSET


@each(("raw", "number"), [("5", 5), ("-0.5", -0.5), ("true", None), ('"5"', None), ("nothing", None)])
def test_only_numbers_are_decoded_as_numbers(raw: str, number: float | None) -> None:
    assert envelope.number(Raw(raw.encode())) == number
