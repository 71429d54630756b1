"""Folders of rules and references, written for a test."""

from pathlib import Path
from typing import Any


class Documents:
    """A folder of each kind."""

    def __init__(self, folder: Path) -> None:
        self._folders = {"rule": folder / "rules", "reference": folder / "references"}

    def add(self, kind: str, name: str, include: str, text: str, priority: int = 500) -> None:
        """Write a document."""
        folder = self._folders[kind]
        folder.mkdir(exist_ok=True)
        front = f"---\ninclude: {include}\npriority: {priority}\n---\n"
        (folder / f"{name}.md").write_text(f"{front}{text}\n", encoding="utf-8")

    @property
    def table(self) -> list[dict[str, Any]]:
        """The folders, as the configuration names them."""
        return [{"kind": kind, "path": str(folder)} for kind, folder in self._folders.items()]
