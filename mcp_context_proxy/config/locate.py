"""Where the configuration is: the named file, else the user's configuration folder.

Never the working directory: a repository someone opens must not be able to start programs.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from platformdirs import user_config_path

VARIABLE: Final = "MCP_CONTEXT_PROXY_CONFIG"
"""Environment variable that names the file."""
APP: Final = "mcp-context-proxy"
FILE_NAME: Final = "config.toml"


def find(environ: Mapping[str, str]) -> Path | None:
    """The file to load, or None when there is none. A file named by the variable is never passed over."""
    if named := environ.get(VARIABLE):
        return expand_home(named, environ)
    default = default_path(environ)
    return default if default.is_file() else None


def default_path(environ: Mapping[str, str]) -> Path:
    """Where a user's own configuration belongs."""
    folder = environ.get("XDG_CONFIG_HOME")
    if folder and sys.platform != "win32" and Path(folder).is_absolute():
        return Path(folder) / APP / FILE_NAME
    return user_config_path(APP, appauthor=False) / FILE_NAME


def expand_home(text: str, environ: Mapping[str, str]) -> Path:
    """`text` as a path, with a leading ``~`` replaced by the home folder."""
    if text == "~" or text.startswith(("~/", "~\\")):
        home = environ.get("HOME") or environ.get("USERPROFILE")
        return (Path(home) if home else Path.home()) / text[2:]
    return Path(text)
