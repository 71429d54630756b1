"""Output of a server that is no message: its beginning is kept, made harmless and without secrets."""

from mcp_context_proxy.config import Limits
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.downstream.stdio import Output


def test_the_first_stray_lines_are_kept_once_each_without_terminal_control_sequences() -> None:
    output = Output(server="loud", limits=Limits())
    for line in (b"Usage:", b"\x1b[31m --all\x1b[0m", b"", b"Usage:", b"1", b"2", b"3", b"4"):
        output.add_stray(line)

    assert output.strays == ["Usage:", "--all", "1", "2", "3"]


def test_a_secret_is_redacted_even_where_the_line_is_cut() -> None:
    secret = "s3cr3t" * 100
    output = Output(server="loud", limits=Limits(), redact=Redactor([("TOKEN", secret)]))
    output.add_stray(b"x" * 80 + secret.encode() + b"y" * 3_000_000)

    assert output.strays[0].startswith("x" * 80 + "[redacted TOKEN]")
    assert len(output.strays[0]) == 120
