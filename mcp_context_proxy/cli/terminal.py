"""What a person reads: plain text where the output is no terminal, never cut where a name would be lost.

Texts of servers come from strangers: they are cleaned of what a terminal would obey, and are never markup.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import Final, NoReturn, TextIO

from rich.console import Console
from rich.text import Text

from mcp_context_proxy.wire.text import clean

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
