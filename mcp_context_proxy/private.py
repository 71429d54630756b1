"""What the proxy keeps is for its owner alone, whatever the umask says and whoever could read it before."""

from __future__ import annotations

import contextlib
import stat
import sys
from pathlib import Path

OTHERS = stat.S_IRWXG | stat.S_IRWXO


def make_folder(folder: Path) -> None:
    """Make a folder, and those above it, of mode 0700; what is there already stays as it is.

    Raises:
        OSError: it cannot be made.
    """
    # `mkdir(parents=True)` gives those above the mode of the umask: who may write there may replace it.
    for missing in [one for one in (*reversed(folder.parents), folder) if not one.exists()]:
        missing.mkdir(mode=stat.S_IRWXU, exist_ok=True)


def close_to_others(file: Path) -> bool:
    """Let others neither read nor write a file; whether they could. Somebody else's stays as it is."""
    if sys.platform == "win32":
        return False
    with contextlib.suppress(OSError):
        mode = stat.S_IMODE(file.stat().st_mode)
        if mode & OTHERS:
            file.chmod(mode & stat.S_IRWXU)
            return True
    return False
