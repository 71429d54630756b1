"""Small real MCP servers, rules and references that ship with the product, for its demo and its tests.

Nothing here is imported by the proxy, and nothing here imports the proxy: a server starts as a process of
its own and must be up in a blink.
"""

import sys
from pathlib import Path

SERVERS = ("calculator", "calendar", "clock", "files", "issues", "notes", "tables", "text")
"""Module names in this package, which are also the keys in a configuration."""


def servers() -> dict[str, list[str]]:
    """The command of each example server, by its key."""
    return {name: [sys.executable, "-m", f"{__name__}.{name}"] for name in SERVERS}


def documents() -> dict[str, Path]:
    """The folder of the example rules and that of the references, by the kind of document in it."""
    here = Path(__file__).parent
    return {"rule": here / "rules", "reference": here / "references"}
