"""Something a person should mend in a file of theirs: it is told, and the rest goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a file or folder; never a failure."""

    file: Path
    line: int | None
    """1-based; None when it is about the file as a whole."""
    message: str
    """What is wrong, what became of the file, and what is allowed."""

    def __str__(self) -> str:
        # A file name may hold a newline or half a character: it must not write lines of its own in a log.
        place = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(self.file))
        return f"{place}: {self.message}" if self.line is None else f"{place}:{self.line}: {self.message}"
