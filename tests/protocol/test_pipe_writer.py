"""Lines written to a pipe: whole, in order and a piece at a time, whoever reads them and whenever."""

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import anyio
import pytest

from mcp_context_proxy.protocol.framing import GATHERED, PIECE_BYTES, PipeReader, PipeWriter

FRAMES = [
    b"first",
    b"gathered",
    b"d" * PIECE_BYTES,
    b"after a large one",
    b"a" * (3 * PIECE_BYTES + 5),
    b"behind a long one",
    b"b" * PIECE_BYTES,
    b"c" * (PIECE_BYTES + 1),
    b"last",
]


@dataclass
class Pipe:
    """A pipe of the system with the writer under test, and a reader that may start late."""

    writer: PipeWriter
    transport: asyncio.WriteTransport
    read_fd: int
    received: bytearray = field(default_factory=bytearray)

    async def read_all(self) -> bytes:
        """Read until the pipe is closed."""
        reader = PipeReader(self.received.extend)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: reader, os.fdopen(self.read_fd, "rb", 0))
        with anyio.fail_after(30):
            await reader.ended.wait()
        transport.close()
        return bytes(self.received)


@pytest.fixture
async def pipe() -> AsyncIterator[Pipe]:
    read_fd, write_fd = os.pipe()
    writer = PipeWriter()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_write_pipe(lambda: writer, os.fdopen(write_fd, "wb", 0))
    yield Pipe(writer, transport, read_fd)
    if not transport.is_closing():
        transport.abort()


async def test_frames_of_all_sizes_arrive_whole_and_in_order(pipe: Pipe) -> None:
    for frame in FRAMES:
        pipe.writer.write_line(frame)

    async with anyio.create_task_group() as group:

        async def close_when_written() -> None:
            await pipe.writer.writable.wait()
            pipe.transport.close()

        group.start_soon(close_when_written)
        received = await pipe.read_all()

    assert received == b"".join(frame + b"\n" for frame in FRAMES)
    assert pipe.writer.unwritten == 0


async def test_small_frames_of_one_step_are_written_a_few_at_a_time_after_the_first(pipe: Pipe) -> None:
    for number in range(100):
        pipe.writer.write_line(b"%d" % number)
        if number == GATHERED - 1:
            at_once = os.read(pipe.read_fd, 1 << 16)
    soon = os.read(pipe.read_fd, 1 << 16)
    waiting = pipe.writer.unwritten
    await asyncio.sleep(0)
    rest = os.read(pipe.read_fd, 1 << 16)

    assert at_once == b"0\n"
    assert soon.count(b"\n") % GATHERED == 0
    assert 0 < waiting == len(rest)
    assert rest.count(b"\n") < GATHERED
    assert at_once + soon + rest == b"".join(b"%d\n" % number for number in range(100))
    assert pipe.writer.unwritten == 0
    os.close(pipe.read_fd)


async def test_a_pipe_that_nobody_reads_gets_a_piece_of_a_large_frame_and_no_more(pipe: Pipe) -> None:
    frame = b"a" * (20 * PIECE_BYTES)
    pipe.writer.write_line(frame)
    for _ in range(100):
        await asyncio.sleep(0)

    assert not pipe.writer.writable.is_set()
    assert pipe.transport.get_write_buffer_size() <= PIECE_BYTES
    assert pipe.writer.unwritten > 19 * PIECE_BYTES
    os.close(pipe.read_fd)


async def test_what_is_left_at_the_end_is_handed_over_whole(pipe: Pipe) -> None:
    for frame in FRAMES:
        pipe.writer.write_line(frame)
    pipe.writer.hand_over()
    pipe.transport.close()

    assert await pipe.read_all() == b"".join(frame + b"\n" for frame in FRAMES)


async def test_a_writer_whose_reader_goes_away_in_the_middle_of_a_frame_waits_for_nothing(pipe: Pipe) -> None:
    pipe.writer.write_line(b"a" * (20 * PIECE_BYTES))
    os.close(pipe.read_fd)
    with anyio.fail_after(30):
        await pipe.writer.writable.wait()
        await pipe.writer.closed.wait()
    pipe.writer.write_line(b"b")

    assert pipe.writer.unwritten == 0
