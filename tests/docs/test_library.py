"""docs/library.md: its example runs as it stands, and names what can be imported."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import mcp_context_proxy
from mcp_context_proxy import library

from .conftest import Page, page


@pytest.fixture
def text() -> Page:
    return page("docs/library.md")


def printed_by(example: str, folder: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", example],
        cwd=folder,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_the_example_runs_and_selects(text: Page, tmp_path: Path) -> None:
    example, _ = text.blocks("python")
    lines = printed_by(example, tmp_path)

    assert lines[0].split()[:3] == ["always", "rule", "tone"]
    assert lines[1].split()[:3] == ["agent", "tool", "local__send_mail"]
    assert "'mail'" in lines[-1]
    assert "'tone'" not in lines[-1]
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_interactions_runs_and_recalls(text: Page, tmp_path: Path) -> None:
    _, example = text.blocks("python")
    (line,) = printed_by(example, tmp_path)

    assert line.startswith("planner We ship on Friday. 0.")
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_can_be_imported_from_the_package(text: Page) -> None:
    for name in library.__all__:
        assert getattr(mcp_context_proxy, name) is getattr(library, name)
    imported = re.findall(r"from mcp_context_proxy import (.*)", text.text)
    assert len(imported) == 2
    assert set(", ".join(imported).split(", ")) <= set(library.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Proxy'"):
        _ = mcp_context_proxy.Proxy  # type: ignore[attr-defined]
