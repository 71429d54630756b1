"""A stream of events is cut the same way however it arrives, and an unusable event is passed over."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each

from mcp_context_proxy.protocol.framing import EDGE_BYTES, EventFramer, Oversized, ServerSentEvent

LINES = st.sampled_from(
    [
        "",
        "data: \u2028\U0001f642",
        "nothing: of use",
        "\ufeffdata: marked",
        ":",
        ": kept alive",
        "data: {}",
        "data:x",
        "data",
        "event: endpoint",
        "id: 7",
        "id",
        "retry: 20",
    ]
)
ENDS = st.sampled_from(["\n", "\r\n", "\r"])


def framed(data: bytes, step: int, limit: int = 1 << 20) -> list[ServerSentEvent | Oversized]:
    framer = EventFramer(limit)
    return [event for at in range(0, len(data), step) for event in framer.feed(data[at : at + step])]


@given(st.lists(st.tuples(LINES, ENDS)), st.integers(1, 9))
def test_events_are_the_same_whatever_ends_their_lines_and_wherever_the_stream_is_cut(
    lines: list[tuple[str, str]], step: int
) -> None:
    # A bare return before a line feed would be one line end, not two.
    mixed = "".join(line + (end if end != "\r" else "\r\n") for line, end in lines).encode()
    plain = "".join(line + "\n" for line, _ in lines).encode()
    returns = "".join(line + "\r" for line, _ in lines).encode()

    whole = framed(plain, len(plain) or 1)

    assert framed(mixed, step) == framed(returns, step) == framed(plain, step) == whole


def test_an_event_has_name_data_id_and_retry_time() -> None:
    stream = b"\xef\xbb\xbfevent: endpoint\ndata: a\ndata:b\nid: 7\nretry: 1500\n\ndata: c\n\n"

    assert framed(stream, 1) == [
        ServerSentEvent(b"endpoint", b"a\nb", b"7", 1.5),
        ServerSentEvent(b"message", b"c", b"7", None),
    ]


@each(
    "line", [b"id: \x00", b"id: " + b"7" * 2000, b"retry: " + b"9" * 5000, b"retry: -1", b"retry: \xb2", b"x"]
)
def test_unknown_and_invalid_fields_are_ignored(line: bytes) -> None:
    assert framed(line + b"\ndata: 1\n\n", 4) == [ServerSentEvent(b"message", b"1")]


def test_invalid_utf8_is_replaced_and_the_rest_is_unchanged() -> None:
    assert framed(b"data: \xff\xc3\xa4\n\n", 3) == [ServerSentEvent(b"message", "\ufffdä".encode())]


@each("event", [b"data: begin" + b"x" * 9000 + b"end", b"data: begin\n" + b"data:x\n" * 5000 + b"data: end"])
@each("step", [7, 1000, 100_000])
def test_an_event_over_the_limit_is_skipped_and_reported_with_both_ends(event: bytes, step: int) -> None:
    over, after = framed(b"id: 1\n" + event + b"\n\ndata: 2\n\n", step, limit=5000)

    assert isinstance(over, Oversized)
    assert over.size > over.limit == 5000
    assert len(over.head) == len(over.tail) == EDGE_BYTES
    assert over.head.startswith(b"begin")
    assert over.tail.endswith(b"end")
    assert after == ServerSentEvent(b"message", b"2", b"1")


@each("step", [7, 1000, 100_000])
def test_a_comment_of_any_length_costs_no_event(step: int) -> None:
    comment = b":" + b"x" * 9000 + b"\n"

    assert framed(comment + b"data: 1\n" + comment + b"\n", step, limit=5000) == [
        ServerSentEvent(b"message", b"1")
    ]


def test_an_endless_event_takes_no_more_memory_than_the_limit_twice() -> None:
    limit = 1 << 20
    framer = EventFramer(limit)
    tracemalloc.start()
    try:
        list(framer.feed(b"data: begun"))
        for piece in [b"x" * 65536] * 100 + [b"\ndata:" * 10_000] * 100:
            assert list(framer.feed(piece)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 2 * limit + (1 << 20)


def test_comments_and_empty_lines_do_not_fill_the_buffer() -> None:
    assert framed((b": still there\n" * 50 + b"\n") * 20 + b"data: 1\n\n", 11, limit=100) == [
        ServerSentEvent(b"message", b"1")
    ]


@pytest.mark.parametrize("line", [b"data:ab\n", b"data:\n", b"data: a longer line of the event\n"])
def test_an_event_of_very_many_lines_takes_no_more_memory_than_its_bytes_twice(line: bytes) -> None:
    limit = 1 << 20
    framer, piece = EventFramer(limit), line * 1024
    list(framer.feed(b"data:begun\n"))
    tracemalloc.start()
    try:
        for _ in range(limit // len(piece) // 2):
            list(framer.feed(piece))
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken <= 2 * limit // 2
    (event,) = framer.feed(b"\n")
    assert isinstance(event, ServerSentEvent)
    assert event.data.count(b"\n") == 1024 * (limit // len(piece) // 2)
