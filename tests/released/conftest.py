"""Compares the present with files of the release, so that nothing public changes by mistake."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(__file__).parent / "data"

AsReleased = Callable[[str, Any], None]


@pytest.fixture
def as_released() -> AsReleased:
    """Compare with a file; ``RELEASE=1 pytest tests/released`` writes it instead."""

    def compare(name: str, found: Any) -> None:
        path = DATA / name
        if os.environ.get("RELEASE"):
            text = json.dumps(found, indent=1, sort_keys=True, ensure_ascii=False)
            path.write_text(f"{text}\n", encoding="utf-8")
        hint = f"{name} has what was released; RELEASE=1 pytest tests/released writes a change that is meant"
        assert found == json.loads(path.read_text(encoding="utf-8")), hint

    return compare
