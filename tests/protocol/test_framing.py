"""Lines of bounded size from any chunking, against a reference too simple to be wrong."""

import tracemalloc
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_context_proxy.protocol.framing import EDGE_BYTES, LineFramer, Oversized

LIMIT = 600
"""More than both edges of an oversized line together."""

PIECES = st.sampled_from(
    [b"", b"\n", b"\r\n", b" ", b"{}", b"x" * LIMIT, b"y" * 250, b"\xff\xfe", "é".encode()]
)
STREAMS = st.lists(PIECES | st.binary(max_size=40), max_size=30).map(b"".join)


def reference(data: bytes, limit: int) -> list[bytes | Oversized]:
    found: list[bytes | Oversized] = []
    for line in data.split(b"\n")[:-1]:
        if len(line) > limit:
            found.append(Oversized(len(line), line[:EDGE_BYTES], line[-EDGE_BYTES:], limit))
        elif line.strip(b" \t\r"):
            found.append(line.strip(b" \t\r"))
    return found


def framed(chunks: Iterable[bytes], limit: int) -> list[bytes | Oversized]:
    framer = LineFramer(limit)
    return [frame for chunk in chunks for frame in framer.feed(chunk)]


def cut(data: bytes, places: list[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in pairwise(bounds)]


@given(STREAMS, st.lists(st.integers(min_value=0), max_size=20))
def test_however_a_stream_is_cut_into_chunks_its_lines_are_the_same(data: bytes, places: list[int]) -> None:
    assert framed(cut(data, places), LIMIT) == reference(data, LIMIT)


@given(STREAMS)
def test_one_byte_at_a_time_gives_the_same_lines(data: bytes) -> None:
    assert framed([data[i : i + 1] for i in range(len(data))], LIMIT) == reference(data, LIMIT)


def test_windows_line_ends_and_blank_lines_are_removed() -> None:
    assert framed([b'{"a":1}\r\n\r\n \n{"b":2}\n'], LIMIT) == [b'{"a":1}', b'{"b":2}']


def test_a_line_of_exactly_the_limit_is_accepted_and_a_longer_one_is_not() -> None:
    fits, over = framed([b"a" * LIMIT + b"\n" + b"b" * (LIMIT + 1) + b"\n"], LIMIT)

    assert fits == b"a" * LIMIT
    assert over == Oversized(LIMIT + 1, b"b" * EDGE_BYTES, b"b" * EDGE_BYTES, LIMIT)


def test_an_oversized_line_keeps_both_ends_and_its_size() -> None:
    line = b'{"id":7,' + b"x" * 5000 + b',"end":1}'

    (found,) = framed(cut(line + b"\n", list(range(0, 5000, 99))), LIMIT)

    assert found == Oversized(len(line), line[:EDGE_BYTES], line[-EDGE_BYTES:], LIMIT)


def test_the_line_after_an_oversized_one_is_complete() -> None:
    assert framed([b"x" * 5000, b"x" * 10, b'\n{"a":', b"1}\n"], LIMIT)[1:] == [b'{"a":1}']


def test_an_endless_line_is_not_buffered() -> None:
    framer = LineFramer(LIMIT)

    tracemalloc.start()
    try:
        for _ in range(10_000):
            assert list(framer.feed(b"x" * 1000)) == []
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 100_000


@pytest.mark.parametrize("size", [65_536, 1 << 20])
def test_a_long_line_in_small_chunks_is_searched_once(size: int) -> None:
    # Were each chunk searched from the start, this would take minutes.
    framer = LineFramer(64 << 20)
    for _ in range(size // 64):
        assert list(framer.feed(b"x" * 64)) == []

    assert list(framer.feed(b"\n")) == [b"x" * size]


@pytest.mark.parametrize("times", [1, 8], ids=["allowed", "over the limit"])
def test_a_line_takes_no_more_than_what_is_buffered_and_its_copy(times: int) -> None:
    limit, chunk = 1 << 20, b"x" * 65_536
    framer = LineFramer(limit)
    tracemalloc.start()
    try:
        for _ in range(times * limit // len(chunk)):
            assert list(framer.feed(chunk)) == []
        assert len(list(framer.feed(b"\n"))) == 1
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert peak < 2.3 * limit
