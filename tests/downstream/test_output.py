"""What a server prints to stdout that is no message: its beginning is kept, harmless and without secrets."""

from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream.output import Strays


def test_the_first_stray_lines_are_kept_once_each_without_terminal_control_sequences() -> None:
    strays = Strays("loud")
    for line in (b"Usage:", b"\x1b[31m --all\x1b[0m", b"", b"Usage:", b"1", b"2", b"3", b"4"):
        strays.add(line)

    assert strays.lines == ("Usage:", "--all", "1", "2", "3")


def test_a_secret_is_redacted_even_where_the_line_is_cut() -> None:
    secret = "s3cr3t" * 100
    strays = Strays("loud", Redactor([("TOKEN", secret)]))
    strays.add(b"x" * 80 + secret.encode() + b"y" * 3_000_000)

    assert strays.lines[0].startswith("x" * 80 + "[redacted TOKEN]")
    assert len(strays.lines[0]) == 120
