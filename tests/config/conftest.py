from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mcp_context_proxy.config import Config, load
from mcp_context_proxy.errors import ConfigError

Load = Callable[..., Config]
Problems = Callable[..., list[str]]


@pytest.fixture
def load_text(tmp_path: Path) -> Load:
    """Write a text to a file and load it."""

    def load_text(
        text: str | bytes,
        name: str = "config.toml",
        environ: Mapping[str, str] | None = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> Config:
        file = tmp_path / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
        return load(file, environ or {}, overrides or {})

    return load_text


@pytest.fixture
def problems(load_text: Load, tmp_path: Path) -> Problems:
    """The problems of a text as ``LINE KEY: MESSAGE``, in order, whether or not they stop everything."""

    def problems(*args: Any, **kwargs: Any) -> list[str]:
        try:
            config = load_text(*args, **kwargs)
            found = [*config.mistakes, *(one for off in config.off.values() for one in off.problems)]
        except ConfigError as error:
            found = [*error.problems]
        assert found, "there is a problem"
        in_order = sorted(found, key=lambda one: one.line or 0)
        told = [
            f"{one.line} {one.key}: {'; '.join(filter(None, (one.message, one.remedy)))}" for one in in_order
        ]
        return [text.replace(str(tmp_path), "TMP") for text in told]

    return problems
