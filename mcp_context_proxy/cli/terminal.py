"""What a person reads: plain text where the output is no terminal, never cut where a name would be lost.

Texts of servers come from strangers: they are cleaned of what a terminal would obey, and are never markup.

What may be told of a server: where it is and how it failed, never its secrets.

Left out are the environment and the headers; replaced are values that came from variables, credentials in
URLs, and arguments that by their name are secrets.

What is being waited for, shown on stderr while it lasts; silent where that is no terminal.
"""

from __future__ import annotations

import io
import re
import shlex
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

import anyio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.secrets import Redactor, secret_arguments, secrets_of
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.lifecycle import ServerState
from mcp_context_proxy.protocol.text import clean

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy
    from mcp_context_proxy.context.background_indexing import OnProgress


GAP: Final = 2
"""Spaces between two columns."""

USEFUL: Final = 16
"""Cells that a last column needs to say anything; with less room it gets a line of its own."""

Cell = str | Text


class Terminal(Console):
    """A console on one of the standard streams."""

    def __init__(self, file: TextIO) -> None:
        if isinstance(file, io.TextIOWrapper):
            # A description in another script must not end the command in an old Windows console.
            file.reconfigure(errors="replace")
        super().__init__(file=file, markup=False, emoji=False, highlight=False)

    def on_broken_pipe(self) -> NoReturn:
        """Leave it to the root command how a reader that has gone is answered."""
        raise BrokenPipeError

    def say(self, *parts: Cell, indent: int = 0) -> None:
        """One line, however long."""
        self.print(Text.assemble(" " * indent, *parts), soft_wrap=True)

    def short(self, text: Cell, indent: int = 0) -> None:
        """One line, cut to the width."""
        cut = _text(text)
        cut.truncate(max(self.width - indent, USEFUL), overflow="ellipsis")
        self.say(cut, indent=indent)

    def prose(self, text: Cell, indent: int = 0, hanging: int = 0) -> None:
        """A paragraph, wrapped; lines after the first are moved in by `hanging`."""
        whole = _text(text)
        first = whole.wrap(self, max(self.width - indent, USEFUL))[0]
        first.rstrip()
        self.say(first, indent=indent)
        rest = whole[len(first) :]
        for part in rest.wrap(self, max(self.width - indent - hanging, USEFUL)):
            part.rstrip()
            if words := part[len(part.plain) - len(part.plain.lstrip()) :]:
                self.say(words, indent=indent + hanging)

    def section(self, title: str) -> None:
        """A heading, with an empty line before it."""
        self.say()
        self.say(Text(title, style="bold"))

    def columns(
        self,
        rows: Iterable[Sequence[Cell]],
        indent: int = 0,
        right: Sequence[int] = (),
        useful: int = USEFUL,
    ) -> None:
        """Aligned columns. The last one takes the room that is left and is cut there.

        Where that is too little to say anything, it gets lines of its own. Without rows nothing is shown.

        Args:
            rows: Of the same number of cells each.
            indent: Spaces before each row.
            right: Columns that are set flush right.
            useful: Cells below which the last column is too narrow.
        """
        table = [[_text(cell) for cell in row] for row in rows]
        if not table:
            return
        *widths, last = [max(cell.cell_len for cell in column) for column in zip(*table, strict=True)]
        room = self.width - indent - sum(widths) - GAP * len(widths)
        stacked = room < min(useful, last)
        for row in table:
            line = _aligned(row[:-1], widths, right)
            if stacked:
                line.rstrip()
                self.say(line, indent=indent)
                self.short(row[-1], indent + GAP)
                continue
            padding = last - row[-1].cell_len if len(widths) in right else 0
            row[-1].truncate(room, overflow="ellipsis")
            line = Text.assemble(line, " " * padding, row[-1])
            line.rstrip()
            self.say(line, indent=indent)


def _aligned(row: Sequence[Text], widths: Sequence[int], right: Sequence[int]) -> Text:
    line = Text()
    for number, (cell, width) in enumerate(zip(row, widths, strict=True)):
        padding = " " * (width - cell.cell_len)
        line = Text.assemble(line, *((padding, cell) if number in right else (cell, padding)), " " * GAP)
    return line


def results() -> Terminal:
    """Where what was asked for goes."""
    return Terminal(sys.stdout)


def messages() -> Terminal:
    """Where everything else goes."""
    return Terminal(sys.stderr)


def one_line(text: str) -> str:
    """Somebody else's text, harmless and on one line."""
    return " ".join(clean(text).split())


def counted(number: int, what: str) -> str:
    """Such as ``1 tool`` and ``1,024 tools``."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def _text(cell: Cell) -> Text:
    return Text(cell) if isinstance(cell, str) else cell.copy()


HIDDEN: Final = "***"

STDERR_SHOWN: Final = 5
"""Lines of a failed server's last output."""

_REDACTED: Final = r"\[redacted [^\]]*\]"
_USER_INFO: Final = re.compile(rf"(?<=://)(?:{_REDACTED}|[^/?#\s@])+@")
_QUERY: Final = re.compile(rf"(?<=://)((?:{_REDACTED}|[^\s?#])*)\?(?:{_REDACTED}|[^\s#'\"])*")


def address(config: ServerConfig) -> str:
    """The command line, or the URL."""
    if config.url is not None:
        return redacted(config, config.url)
    words = [config.command or "", *_without_secrets(config.args)]
    return redacted(config, shlex.join(words).replace(f"'{HIDDEN}'", HIDDEN))


def failure(client: DownstreamClient) -> str:
    """Why a server is not ready; empty when it is, or was never started."""
    return (
        ""
        if client.state in {ServerState.READY, ServerState.ASLEEP}
        else redacted(client.config, client.cause)
    )


def last_output(client: DownstreamClient) -> tuple[str, ...]:
    """The last lines a server wrote to stderr; those it repeats at each restart once."""
    lines = dict.fromkeys(redacted(client.config, line) for line in reversed(client.stderr))
    return tuple(lines)[:STDERR_SHOWN][::-1]


def strays(client: DownstreamClient) -> tuple[str, ...]:
    """What a server printed first to stdout that is no message."""
    return tuple(redacted(client.config, line) for line in client.strays)


def marked(strays: Iterable[str]) -> Iterator[str]:
    """The stray lines for a person, who sees them beside lines from stderr."""
    return (f"stdout: {line}" for line in strays)


def findings(proxy: Proxy) -> Iterator[tuple[str, str]]:
    """What was withheld or cut of what servers listed, and why, with the server; '' where it is of none."""
    for finding in proxy.catalog.snapshot.findings:
        server, colon, message = finding.partition(": ")
        known = bool(colon) and server in proxy.fleet.clients
        yield (server, one_line(message)) if known else ("", one_line(finding))


def redacted(config: ServerConfig, text: str) -> str:
    """A text without this server's secrets, harmless and on one line."""
    text = Redactor(secrets_of(config))(text)
    return one_line(_QUERY.sub(rf"\1?{HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", text)))


def _without_secrets(arguments: Sequence[str]) -> list[str]:
    shown = [*arguments]
    for position, _, value in secret_arguments(arguments):
        shown[position] = shown[position].removesuffix(value) + HIDDEN
    return shown


NAMED: Final = 4
"""Servers that the line names; of more, it gives the number."""


async def settle(proxy: Proxy, console: Console) -> dict[str, float]:
    """Wait until each server is ready or has failed once; return the seconds it took, by server."""
    began = anyio.current_time()
    waiting = dict.fromkeys(proxy.fleet.clients)
    seconds: dict[str, float] = {}
    with console.status(_starting(list(waiting))) as status:

        async def wait(client: DownstreamClient) -> None:
            await client.wait_first_connect()
            seconds[client.name] = anyio.current_time() - began
            del waiting[client.name]
            status.update(_starting(list(waiting)))

        async with anyio.create_task_group() as group:
            for client in proxy.fleet.clients.values():
                group.start_soon(wait, client)
        await proxy.wait_first_connect()
    return seconds


async def index(proxy: Proxy, console: Console) -> None:
    """Index all there is."""
    with indexing(console) as report:
        await proxy.searcher.index(proxy.catalog.snapshot, report)


@contextmanager
def indexing(console: Console, what: str = "Indexing") -> Iterator[OnProgress]:
    """A bar that is gone when the work is done; takes how many texts are indexed, of how many."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _starting(names: list[str]) -> str:
    if not names:
        return "Reading what there is"
    named = ", ".join(names[:NAMED])
    more = len(names) - NAMED
    return f"Starting {named} and {more} more" if more > 0 else f"Starting {named}"
