"""Small real MCP servers, rules and references that ship with the product, for its demo and its tests.

The proxy imports none of the servers, and they import nothing of the proxy: each starts as a process of its
own, with ``python -m mcp_context_proxy.examples NAME``, and must be up at once.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path

SERVERS = {
    "calculator": "stateless",
    "calendar": "desk",
    "clock": "stateless",
    "files": "files",
    "issues": "desk",
    "notes": "desk",
    "text": "stateless",
}
"""The servers by name, which is also the key in a configuration, each with its module in this package."""

DATA_VARIABLE = "MCP_EXAMPLE_DATA"
"""Environment variable that names the folder where the servers keep their data."""


def servers() -> dict[str, list[str]]:
    """The command of each example server, by its key."""
    return {name: [sys.executable, "-m", __name__, name] for name in SERVERS}


def documents() -> dict[str, Path]:
    """The folders of the example rules and references, by the kind of document."""
    from pathlib import Path  # noqa: PLC0415 - no server waits for it

    here = Path(__file__).parent
    return {"rule": here / "rules", "reference": here / "references"}
