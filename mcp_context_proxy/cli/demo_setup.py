"""What the demo runs in: a temporary folder with a configuration of the example servers, gone afterwards."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

from mcp_context_proxy import examples
from mcp_context_proxy.errors import ContextProxyError

if TYPE_CHECKING:
    from mcp import Client

LOG_SHOWN: Final = 15
"""Lines of the proxy's own messages that are shown when it fails."""

DEADLINE_SECONDS: Final = 60.0
"""For the whole demo: it takes a few seconds, and must not hang on a machine where something is broken."""


class DemoError(ContextProxyError):
    """The demo could not be shown; the text has the proxy's own messages."""


@dataclass(frozen=True, slots=True)
class Stage:
    """The temporary folder and what is in it."""

    folder: Path
    config: Path
    log: Path
    """What the proxy writes to stderr."""

    @property
    def data(self) -> Path:
        """Where the example servers keep what they are given."""
        return self.folder / "data"


@contextmanager
def stage() -> Iterator[Stage]:
    """A folder for one run of the demo.

    Raises:
        DemoError: there is no place for one.
    """
    try:
        temporary = tempfile.TemporaryDirectory(prefix="mcp-context-proxy-demo-", ignore_cleanup_errors=True)
    except OSError as error:
        raise DemoError(f"the demo needs a temporary folder, and there can be none: {error}") from None
    with temporary as name:
        folder = Path(name)
        made = Stage(folder, folder / "config.toml", folder / "proxy.log")
        made.config.write_text(_config(made), encoding="utf-8")
        yield made


@asynccontextmanager
async def connected(command: Sequence[str], stage: Stage, log: TextIO) -> AsyncIterator[Client]:
    """The SDK's client to a server over stdio, as a host would start it."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    program, *args = command
    # In the temporary folder: in the user's, a file named like a Python module would be imported instead.
    server = StdioServerParameters(
        command=program,
        args=args,
        env={**os.environ, examples.DATA_VARIABLE: str(stage.data)},
        cwd=stage.folder,
    )
    async with Client(stdio_client(server, errlog=log)) as client:
        yield client


def proxy_command(stage: Stage) -> list[str]:
    """The proxy in front of the example servers."""
    return [sys.executable, "-m", "mcp_context_proxy", "--config", str(stage.config)]


def failure(stage: Stage, error: BaseException) -> DemoError:
    """What went wrong, with the last the proxy had to say."""
    lines = stage.log.read_text(encoding="utf-8", errors="replace").splitlines() if stage.log.exists() else []
    reason = str(error) or type(error).__name__
    return DemoError("\n  ".join([f"the demo failed: {reason}", *lines[-LOG_SHOWN:]]))


def _config(stage: Stage) -> str:
    lines = ["[store]", f"path = {_toml(str(stage.folder / 'store.sqlite3'))}"]
    # What is shown must not depend on how fast the machine is.
    lines += ["[limits]", f"indexing_wait_seconds = {DEADLINE_SECONDS:.1f}"]
    for name, (program, *args) in examples.servers().items():
        lines += [
            f"[servers.{name}]",
            f"command = {_toml(program)}",
            f"args = {_toml(args)}",
            f"env = {_table({examples.DATA_VARIABLE: str(stage.data)})}",
            f"cwd = {_toml(str(stage.folder))}",
        ]
    for kind, folder in examples.documents().items():
        lines += ["[[documents]]", f"kind = {_toml(kind)}", f"path = {_toml(str(folder))}"]
    return "\n".join(lines) + "\n"


def _toml(value: str | list[str]) -> str:
    """Strings of JSON are strings of TOML; a dollar in a path is no variable."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${")


def _table(table: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{key} = {_toml(value)}" for key, value in table.items()) + " }"
