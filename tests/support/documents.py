"""Folders of rules and references, written for a test."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mcp_context_proxy.catalog.documents import Loaded
from mcp_context_proxy.items import Document

Write = Callable[[dict[str, str | bytes]], Path]
"""Writes files, by their paths below a folder, and gives that folder."""

by_both_ways = pytest.mark.parametrize(
    "by_descriptor", [pytest.param(True, id="by descriptor"), pytest.param(False, id="by real path")]
)


def only(loaded: Loaded) -> Document:
    """The one document that was loaded."""
    (document,) = loaded.documents
    return document


def told(loaded: Loaded, root: Path) -> list[str]:
    """The findings, with paths below a folder."""
    return [str(finding).removeprefix(str(root) + "/") for finding in loaded.findings]


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
