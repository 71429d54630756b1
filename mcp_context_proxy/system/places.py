"""The place of the user's own configuration."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from platformdirs import user_config_path

APP: Final = "mcp-context-proxy"
FILE_NAME: Final = "config.toml"


def default_path(environ: Mapping[str, str]) -> Path:
    """Return the place of the user's own configuration."""
    folder = environ.get("XDG_CONFIG_HOME")
    if folder and sys.platform != "win32" and Path(folder).is_absolute():
        return Path(folder) / APP / FILE_NAME
    return user_config_path(APP, appauthor=False) / FILE_NAME
