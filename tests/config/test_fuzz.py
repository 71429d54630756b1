"""Whatever is in the file, loading gives a configuration or a `ConfigError`, never anything else."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_context_proxy.config import Config, load
from mcp_context_proxy.errors import ConfigError

TOML = (
    (Path(__file__).parents[2] / "config.example.toml")
    .read_text(encoding="utf-8")
    .replace("\n# ", "\n")[-6500:]
)
TOML_SMALL = """
[servers.a]
command = "npx"
args = ["-y", "${A:-b}"]
env = { T = "${HOME}" }
tools.t.include = "always"
[search]
tools = { top_n = 2 }
[[documents]]
kind = "rule"
path = "."
[http]
port = 1
token_file = "~/x"
"""
JSON = """{"mcpServers": {"a b": {"command": "x", "args": ["${A:-b}"], "env": {"T": 1}, "disabled": false},
 "c": {"type": "http", "url": "https://${HOST:-h}/sse", "headers": {"A": "$${x}"}}}, "inputs": [], /* c */}"""
PIECES = st.sampled_from(
    [
        "[",
        "]",
        "{",
        "}",
        '"',
        "'",
        "=",
        ",",
        ".",
        "\n",
        "#",
        "${",
        "${A}",
        "$",
        "1",
        "-1",
        "nan",
        "true",
        "null",
        "[[",
        "]]",
        "\0",
        "é",
        "\ud7ff",
        "~",
        "__",
        "//",
        "/*",
        "mcpServers",
        "servers",
        "url",
        "command",
        "path",
        "[a]",
        '"""',
        "\\u0000",
        "\\ud800",
        "1979-05-27",
        ":",
        "[]",
        "{}",
        '""',
        "9" * 5000,
    ]
)
EDITS = st.lists(st.tuples(st.floats(0, 1), st.integers(0, 12), PIECES), max_size=6)


def mutated(text: str, edits: list[tuple[float, int, str]]) -> bytes:
    for place, cut, piece in edits:
        at = int(place * len(text))
        text = text[:at] + piece + text[at + cut :]
    return text.encode("utf-8")


def loads_or_tells(data: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(data)
        try:
            assert isinstance(load(file, {"HOME": folder}), Config)
        except ConfigError as error:
            assert error.problems
            lines = data.count(b"\n") + 1
            assert all(problem.line is None or 1 <= problem.line <= lines for problem in error.problems)
            str(error).encode("utf-8", "surrogatepass")


@pytest.mark.parametrize(("text", "name"), [(TOML, "c.toml"), (TOML_SMALL, "c.toml"), (JSON, "c.json")])
@given(edits=EDITS)
def test_a_mutated_file_loads_or_reports_a_problem(text, name, edits):
    loads_or_tells(mutated(text, edits), name)


@given(data=st.binary(max_size=80), name=st.sampled_from(["c.toml", "c.json", "c"]))
def test_any_bytes_load_or_report_a_problem(data, name):
    loads_or_tells(data, name)
