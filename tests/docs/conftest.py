"""The documentation as it stands, and the blocks of code in it."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcp_context_proxy.cli import COMMANDS, cli

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Page:
    """One markdown file."""

    path: Path
    text: str

    def blocks(self, language: str) -> Iterator[str]:
        """The fenced blocks of a language."""
        return (match["text"] for match in _FENCE.finditer(self.text) if match["language"] == language)

    def commands(self, program: str) -> Iterator[str]:
        """Lines of its shell blocks that begin with a program."""
        for block in self.blocks("sh"):
            yield from (line for line in block.splitlines() if line.split(" ")[0] == program)


def page(name: str) -> Page:
    return Page(ROOT / name, (ROOT / name).read_text(encoding="utf-8"))


PAGES = [
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "distribution/claude-code/README.md",
    *(
        f"{p.parent.name}/{p.name}"
        for folder in ("docs", "benchmarks", "distribution")
        for p in ROOT.glob(f"{folder}/*.md")
    ),
]


@pytest.fixture(scope="session")
def pages() -> list[Page]:
    return [page(name) for name in sorted(PAGES)]


@pytest.fixture
def understood() -> Callable[[list[str]], None]:
    """Reads a command line as the program would, and runs nothing."""

    def read(arguments: list[str]) -> None:
        at = next(at for at, word in enumerate(arguments) if word in COMMANDS)
        with cli.make_context("mcp-context-proxy", arguments[:at]) as context:
            command = cli.get_command(context, arguments[at])
            assert command is not None
            command.make_context(arguments[at], arguments[at + 1 :], parent=context)

    return read


@pytest.fixture
def changelog() -> Page:
    return page("CHANGELOG.md")


@pytest.fixture
def readme() -> Page:
    return page("README.md")


@pytest.fixture
def commands() -> Page:
    return page("docs/commands.md")


@pytest.fixture
def configuration() -> Page:
    return page("docs/configuration.md")


@pytest.fixture
def api() -> Page:
    return page("docs/api.md")


@pytest.fixture
def how_it_works() -> Page:
    return page("docs/how-it-works.md")


@pytest.fixture
def ranking() -> Page:
    return page("docs/ranking.md")
