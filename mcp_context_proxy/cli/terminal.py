"""Output for a person: text layout, facts about servers without their secrets, and progress.

Results go to stdout, everything else to stderr. Without a terminal the output is plain text, and a name is
never cut. Everything is cleaned and redacted as it is printed (`shown`), and is never markup.
"""

from __future__ import annotations

import io
import math
import re
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO, TypeVar

from msgspec.structs import replace
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from mcp_context_proxy.cli import echo_json, shown
from mcp_context_proxy.errors import some_of
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.system.process import date_of

if TYPE_CHECKING:
    from mcp_context_proxy.app.proxy import Proxy
    from mcp_context_proxy.config import Config
    from mcp_context_proxy.context.indexing import OnProgress
    from mcp_context_proxy.downstream.client import DownstreamClient


GAP: Final = 2
"""Spaces between two columns."""

USUAL: Final = 80
"""Cells of a line where nobody knows how many there are."""

USEFUL: Final = 16
"""Cells that a last column needs to say anything; with less room it gets a line of its own."""

STATUS_SECONDS: Final = 1.0
"""Time between two updates of the progress line."""

LINE_SECONDS: Final = 10.0
"""Time after which a download is reported without a terminal, and twice that for the next report."""

DOWNLOAD_SECONDS: Final = 60.0
"""Time that a command for a question, such as a search, waits for a server that is still downloaded."""

NAMED: Final = 4
"""Starting servers that the progress line names; the others are counted."""

Cell = str | Text
Data = TypeVar("Data", bound=Mapping[str, Any])

_WORD: Final = re.compile(r"(?:/\S*(?: [\w .-]{0,40}[\w.-]/\S*)*|\S+)\s*")
"""A word, or a path, whose folders may have spaces in their names, such as Application Support."""


class Terminal(Console):
    """A console on one of the standard streams."""

    def __init__(self, file: TextIO) -> None:
        if isinstance(file, io.TextIOWrapper):
            # A description in another script must not end the command in an old Windows console.
            file.reconfigure(errors="replace")
        super().__init__(file=file, markup=False, emoji=False, highlight=False)
        if not self.width:
            # A terminal that does not know its size, as in some containers: nothing would be printed at all.
            self.width = USUAL

    def on_broken_pipe(self) -> NoReturn:
        """Let the root command handle a reader that has gone."""
        raise BrokenPipeError

    def say(self, *parts: Cell, indent: int = 0) -> None:
        """Print one line, however long."""
        self._line(indent, *map(_text, parts))

    def _line(self, indent: int, *parts: Cell) -> None:
        self.print(Text.assemble(" " * indent, *parts), soft_wrap=True)

    def more(self, left: int, noun: str) -> None:
        """Print how many rows of a table are left out, if any are."""
        if left > 0:
            self.say(Text(f"... and {counted(left, noun)} more", style="dim"))

    def short(self, text: Cell, indent: int = 0) -> None:
        """Print one line, cut to the width."""
        cut = _text(text)
        cut.truncate(max(self.width - indent, USEFUL), overflow="ellipsis")
        self._line(indent, cut)

    def prose(self, text: Cell, indent: int = 0, hanging: int = 0) -> None:
        """Print a wrapped paragraph; lines after the first are moved in by `hanging`.

        A word that is longer than a line, such as a path, stays whole, so that it can be copied.
        """
        whole, breaks, used = _text(text), list[int](), 0
        room = max(self.width - indent, USEFUL)
        for word in _WORD.finditer(whole.plain):
            if used and used + cell_len(word[0].rstrip()) > room:
                breaks.append(word.start())
                room, used = max(self.width - indent - hanging, USEFUL), 0
            used += cell_len(word[0])
        for number, line in enumerate(whole.divide(breaks)):
            line.rstrip()
            self._line(indent + (hanging if number else 0), line)

    def note(self, text: str, style: str = "yellow") -> None:
        self.prose(Text(text, style=style))

    def aside(self, label: str, text: str, indent: int = 0) -> None:
        """Print a text that is less important, after its label."""
        self.prose(Text(f"{label}: {one_line(text)}", style="dim"), indent, hanging=len(label) + 2)

    def section(self, title: str) -> None:
        """Print a heading, with an empty line before it."""
        self.say()
        self.say(Text(title, style="bold"))

    def columns(
        self,
        rows: Iterable[Sequence[Cell]],
        indent: int = 0,
        right: Sequence[int] = (),
        useful: int = USEFUL,
        *,
        whole: bool = False,
    ) -> None:
        """Print aligned columns, those of `right` flush right; without rows nothing is printed.

        The last one gets the remaining room and is cut there. With less room than `useful` cells, it gets
        lines of its own. If it has to be told `whole`, it gets as many of these as it needs.
        """
        table = [[_text(cell) for cell in row] for row in rows]
        if not table:
            return
        *widths, last = [max(cell.cell_len for cell in column) for column in zip(*table, strict=True)]
        room = self.width - indent - sum(widths) - GAP * len(widths)
        stacked = room < (last if whole else min(useful, last))
        for row in table:
            line = Text()
            for number, (cell, width) in enumerate(zip(row[:-1], widths, strict=True)):
                padding = " " * (width - cell.cell_len)
                pair = (padding, cell) if number in right else (cell, padding)
                line = Text.assemble(line, *pair, " " * GAP)
            if not stacked:
                padding = " " * (last - row[-1].cell_len) if len(widths) in right else ""
                row[-1].truncate(room, overflow="ellipsis")
                line = Text.assemble(line, padding, row[-1])
            line.rstrip()
            self._line(indent, line)
            if stacked and row[-1]:
                (self.prose if whole else self.short)(row[-1], indent + GAP)


def results() -> Terminal:
    """Return the console for results: stdout."""
    return Terminal(sys.stdout)


def print_answer(as_json: bool, data: Data, show: Callable[[Terminal, Data], None]) -> None:
    """Print the answer of a command as JSON, or for a person by a function that gets the console for it."""
    if as_json:
        echo_json(data)
    else:
        show(results(), data)


def headings(*titles: str) -> list[Text]:
    return [Text(title, style="bold") for title in titles]


def messages() -> Terminal:
    """Return the console for everything else: stderr."""
    return Terminal(sys.stderr)


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as ``1 tool`` and ``1,024 tools``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(ms: float | None) -> str:
    """Return a time as a person reads it: ``3.1 ms``, ``420 ms`` or ``17.7 s``; ``-`` for None."""
    if ms is None:
        return "-"
    if ms < 9.95:
        return f"{ms:.1f} ms"
    return f"{ms:.0f} ms" if ms < 999.5 else f"{ms / 1000:,.1f} s"


def span(seconds: float, short: bool = False) -> str:
    """Return a length of time by its largest unit, such as ``3 days``, or in short ``3 d``."""
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit[: 3 if unit == 'minute' else 1]}" if short else counted(number, unit)
    return counted(round(seconds), "second")


def moment(seconds: float) -> str:
    """Return a time, in seconds since 1970, as the local date and time."""
    return date_of(seconds).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _text(cell: Cell) -> Text:
    """Return a cell as `shown`; one that had to be changed keeps only the style of the whole."""
    if isinstance(cell, str):
        return Text(shown(cell))
    plain = shown(cell.plain)
    return cell.copy() if plain == cell.plain else Text(plain, style=cell.style)


def marked(strays: Iterable[str]) -> Iterator[str]:
    """Mark stray lines, to be shown beside lines from stderr."""
    return (f"stdout: {line}" for line in strays)


@asynccontextmanager
async def open_started_proxy(config: Config, *, indexed: bool = True) -> AsyncIterator[Proxy]:
    """Open a proxy, wait for its servers, report those that have failed, and index its items."""
    from mcp_context_proxy.app.serve import open_proxy

    for complaint in replace(config, mistakes=()).complaints():
        messages().say(Text(f"mcp-context-proxy: {complaint}"))
    async with open_proxy(config) as proxy:
        settled = await settle(proxy, DOWNLOAD_SECONDS)
        for name, client in proxy.fleet.clients.items():
            if name not in settled:
                late = f"Server {name} is not waited for any longer: {client.standing}"
                messages().say(Text(late, style="yellow"))
        for name, cause in proxy.fleet.failures().items():
            known = "as last known" if proxy.fleet.clients[name].remembered else "unknown"
            failed = f"Server {name} has failed, and its items are {known}: {cause}"
            messages().say(Text(failed, style="yellow"))
        if indexed:
            await index(proxy)
        yield proxy


async def settle(proxy: Proxy, seconds_each: float = math.inf) -> dict[str, float]:
    """Wait until each server is ready or has failed once; return the seconds it took, by server.

    Those that take longer than `seconds_each`, such as for a download, are left out.
    """
    import anyio

    began = anyio.current_time()
    waiting = dict.fromkeys(proxy.fleet.clients)
    seconds: dict[str, float] = {}

    def progress() -> str:
        clients = [client for name, client in proxy.fleet.clients.items() if name in waiting]
        # First those that take longest: it is then known what the command waits for.
        clients.sort(key=lambda client: client.downloading is None)
        named = [one.name if one.downloading is None else f"{one.name}: {one.standing}" for one in clients]
        return f"Starting {some_of(named, NAMED)}" if named else "Reading the catalog"

    console = messages()
    with console.status(progress()) as status:

        async def wait(client: DownstreamClient) -> None:
            with anyio.move_on_after(seconds_each) as scope:
                await client.wait_first_connect()
            if not scope.cancelled_caught:
                seconds[client.name] = anyio.current_time() - began
            del waiting[client.name]
            status.update(progress())

        async def tell() -> None:
            lines = LINE_SECONDS
            while waiting:
                await anyio.sleep(STATUS_SECONDS)
                status.update(progress())
                downloads: dict[str, list[str]] = {}
                for client in proxy.fleet.clients.values():
                    if client.name in waiting and client.downloading is not None:
                        downloads.setdefault(client.standing, []).append(client.name)
                if downloads and not console.is_terminal and anyio.current_time() - began >= lines:
                    # Where nobody sees the status line, such as in CI, which stops what is silent for long.
                    lines *= 2
                    told = (f"{', '.join(names)}: {standing}" for standing, names in downloads.items())
                    console.say("; ".join(told))

        async with anyio.create_task_group() as telling:
            telling.start_soon(tell)
            async with anyio.create_task_group() as group:
                for client in proxy.fleet.clients.values():
                    group.start_soon(wait, client)
            telling.cancel_scope.cancel()
        if len(seconds) == len(proxy.fleet.clients):
            await proxy.wait_first_connect()
        else:
            await proxy.refresh.wait_for_starting_servers(0)
    return seconds


async def index(proxy: Proxy) -> None:
    with indexing() as report:
        await proxy.searcher.index(proxy.catalog.snapshot, report)


@contextmanager
def indexing(label: str = "Indexing") -> Iterator[OnProgress]:
    """Show a bar until the work is done; yields a function of the texts done, and of all texts."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    console = messages()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
