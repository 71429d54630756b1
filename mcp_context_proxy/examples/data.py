"""Where the example servers keep what they are given: one folder, named by the environment or private."""

import os
from pathlib import Path

from mcp_context_proxy.examples.kit import ToolError

VARIABLE = "MCP_EXAMPLE_DATA"
"""Environment variable that names the folder."""


def data_folder() -> Path:
    """The folder, created when it is not there yet.

    Raises:
        ToolError: The default folder under the system's temporary one belongs to somebody else.
    """
    if configured := os.environ.get(VARIABLE):
        folder = Path(configured)
        folder.mkdir(parents=True, exist_ok=True)
        return folder.resolve()
    return _private_folder()


def _private_folder() -> Path:
    import tempfile  # noqa: PLC0415

    owner = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = Path(tempfile.gettempdir()) / f"mcp-context-proxy-examples-{owner}"
    folder.mkdir(mode=0o700, exist_ok=True)
    # The temporary folder is everybody's: another user may have made this one, or a link, before us.
    if folder.is_symlink() or (hasattr(os, "getuid") and folder.stat().st_uid != os.getuid()):
        raise ToolError(f"{folder} belongs to somebody else; set {VARIABLE} to a folder of your own")
    return folder.resolve()
