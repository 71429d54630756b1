"""Folders of documents, built from a table of paths and texts."""

from pathlib import Path

import pytest
from support.documents import Write


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """An empty folder beside which a test can put others."""
    folder = tmp_path / "docs"
    folder.mkdir()
    return folder


@pytest.fixture
def write(docs: Path) -> Write:
    """Write files, by their paths below the folder."""

    def written(files: dict[str, str | bytes]) -> Path:
        for name, content in files.items():
            path = docs / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
        return docs

    return written
