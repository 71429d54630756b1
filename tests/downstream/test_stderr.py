"""A server's stderr: drained, its end kept, a share of it logged, nothing secret in any of it."""

import logging

import pytest
from support.tables import each

from mcp_context_proxy.config import Limits
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream.stdio import Output

LIMITS = Limits(stderr_kept_bytes=1000, stderr_lines_per_second=10)


def tail(**options: object) -> Output:
    return Output(server="loud", limits=LIMITS, **options)  # type: ignore[arg-type]


def test_the_last_lines_are_kept_in_order_including_an_unfinished_one() -> None:
    kept = tail()
    for number in range(100):
        kept.feed_stderr(f"line {number}\n".encode())
    kept.feed_stderr(b"and")
    kept.feed_stderr(b" so on")

    assert kept.stderr_lines()[-3:] == ("line 98", "line 99", "and so on")
    assert len(kept.stderr_lines()) == 20


def test_the_notices_with_which_npm_ends_do_not_hide_its_errors() -> None:
    kept = tail()
    kept.feed_stderr(
        b"npm error code 1\nnpm notice\nnpm notice New minor version of npm available!\nnpm notice\n"
    )

    assert kept.stderr_lines() == ("npm error code 1",)


def test_no_more_of_a_flood_is_looked_at_than_is_shown() -> None:
    looked_at = []

    def redact(text: str) -> str:
        looked_at.append(text)
        return text

    kept = tail(redact=redact)
    kept.feed_stderr(b"x\n" * 500)

    assert len(kept.stderr_lines()) == 20
    assert len(looked_at) < 25


def test_a_line_without_an_end_is_bounded() -> None:
    kept = tail()
    for _ in range(1000):
        kept.feed_stderr(b"\x1b[31m\x00" + b"y" * 10_000)

    assert len(kept._kept) <= 2 * LIMITS.stderr_kept_bytes
    assert kept.stderr_lines() == (f"{'y' * 150} ... {'y' * 150}",)


def test_a_long_line_keeps_the_name_of_an_exception_and_the_end_where_a_reason_stands() -> None:
    kept = tail()
    kept.feed_stderr(
        b"ModuleNotFoundError: No module named 'mcp.server.fastmcp'. " + b"x" * 900 + b" 'mcp<2'\n"
    )

    (line,) = kept.stderr_lines()
    assert line.startswith("ModuleNotFoundError: No module named 'mcp.server.fastmcp'. x")
    assert line.endswith("x 'mcp<2'")
    assert len(line) == 305


def test_terminal_control_sequences_and_invisible_characters_are_removed() -> None:
    kept = tail()
    kept.feed_stderr(
        "\x1b]0;owned\x07 red\x1b[31m \u202eevil \U000e0041a\U000e0100b\u115f\ufe00 \ue000.\n".encode()
    )

    assert kept.stderr_lines() == ("red evil ab .",)


@each(
    "pieces",
    [
        (b"MCP server listening on http://localhost:3001/mcp\n",),
        (b"MCP server listening on htt", b"p://localhost:3001/mcp\n"),
        (b"https://example.com/docs\n" * 20 + b"Server at:", b" http://localhost:3001/mcp"),
    ],
)
def test_the_url_at_which_a_program_serves_is_found_wherever_its_output_is_divided(
    pieces: tuple[bytes, ...],
) -> None:
    kept, told = tail(), list[str]()
    kept.on_address = lambda: told.append(kept.address)
    for piece in pieces:
        kept.feed_stderr(piece)

    assert told == ["http://localhost:3001/mcp"]


def test_a_port_at_which_a_program_listens_is_found_without_a_url() -> None:
    kept = tail()
    kept.on_address = lambda: None
    for piece in (b"Using the server on port 5432\nHTTP server listening on port 30", b"01\n"):
        kept.feed_stderr(piece)

    assert kept.address == "port 3001"


def test_a_secret_is_redacted_even_if_it_came_in_pieces_or_encoded() -> None:
    kept = tail(redact=Redactor([("TOKEN", "s3cr3t value")]))
    for piece in (b"key s3c", b"r3t va", b"lue\n", b"and s3cr3t%20value, czNjcjN0IHZhbHVl\n"):
        kept.feed_stderr(piece)

    assert kept.stderr_lines() == ("key [redacted TOKEN]", "and [redacted TOKEN], [redacted TOKEN]")


def test_a_hundred_lines_a_second_are_logged_and_the_rest_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 1.0
    kept = tail(clock=lambda: now)
    with caplog.at_level(logging.DEBUG):
        kept.feed_stderr(b"line\n" * 50)
        now = 2.5
        kept.feed_stderr(b"after\n")

    assert caplog.messages == ["loud: line"] * 10 + ["loud: 40 more lines were not logged", "loud: after"]
