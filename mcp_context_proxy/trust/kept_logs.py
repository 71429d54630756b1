"""Kept logs: what the proxy and its servers have said, in the state folder, without secrets.

Each server has files of its own, and so has the proxy. They are written like the audit, in batches, by any
number of proxies, and rotated. A disk that is full costs lines, and never a call.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.limits import MIB
from mcp_context_proxy.config.secrets import Secret, redact_logs
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust.audit import state_folder
from mcp_context_proxy.trust.audit_file import AuditFile

FOLDER: Final = "logs"
"""Folder of the files, in the state folder."""

PROXY: Final = ""
"""Key of the proxy's own messages, among the names of servers."""

FILE_BYTES: Final = MIB
"""Size from which a file is rotated: a day of a server that says a line a second."""

FILES: Final = 3
"""Files of one server, the older ones among them."""

WRITE_SECONDS: Final = 0.5
"""Time for which lines are gathered."""

WAITING: Final = 5_000
"""Lines that wait to be written; of further ones, the oldest are dropped."""

LINE_CHARACTERS: Final = 2_000
"""Length to which a line is cut."""


class KeptLogs(logging.Handler):
    """The kept logs of a configuration; as a handler, it keeps the proxy's own messages.

    Any thread may log. `run` owns the writing.
    """

    def __init__(self, folder: Path | None) -> None:
        """Keep logs in the state folder; without one, nothing is kept."""
        super().__init__(logging.INFO)
        self._folder = None if folder is None else folder / FOLDER
        self._waiting: deque[tuple[str, bytes]] = deque(maxlen=WAITING)
        self._writing = threading.Lock()

    def note(self, name: str, text: str, level: str | None = None) -> None:
        """Keep a line of a server, or of the proxy."""
        entry = {"time": round(time.time(), 3), "kind": level or "stderr", "text": text[:LINE_CHARACTERS]}
        entry["pid"] = os.getpid()
        try:
            self._waiting.append((name, msgspec.json.encode(entry)))
        except UnicodeEncodeError:  # a lone surrogate has no bytes
            entry["text"] = str(entry["text"]).encode("utf-8", "replace").decode()
            self._waiting.append((name, msgspec.json.encode(entry)))

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a message of the proxy; see `logging.Handler`."""
        self.note(PROXY, self.format(record), record.levelname.lower())

    async def run(self) -> None:
        """Write until cancelled, and then what is left."""
        try:
            while self._folder is not None:
                await anyio.sleep(WRITE_SECONDS)
                if self._waiting:
                    await in_thread(self.flush)
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await in_thread(self.flush)

    def flush(self) -> None:
        """Write all that waits. Blocks; see `logging.Handler`."""
        if self._folder is None:
            return
        with self._writing:
            lines: dict[str, list[bytes]] = {}
            while self._waiting:
                name, line = self._waiting.popleft()
                lines.setdefault(name, []).append(line)
            for name, batch in lines.items():
                file = self._file(self._folder, name)
                try:
                    while batch:
                        del batch[: file.append(batch)]
                except OSError:
                    continue  # a log about the log would not be written either

    def entries(self, name: str, most: int, after: float = 0.0) -> list[dict[str, Any]]:
        """Return the latest lines of a server, or of the proxy, that are newer than a time. Blocks."""
        if self._folder is None:
            return []
        self.flush()
        try:
            found = (entry for entry in self._file(self._folder, name).entries() if entry["time"] > after)
            return list(deque(found, maxlen=most))
        except OSError:
            return []

    @staticmethod
    def _file(folder: Path, name: str) -> AuditFile:
        return AuditFile(folder, FILE_BYTES, FILES, name=f"server-{name}" if name else "proxy")


def kept_logs(config: Config) -> KeptLogs:
    """Return the kept logs of a configuration."""
    return KeptLogs(state_folder(config))


def keep_messages(logs: KeptLogs, secrets: Iterable[Secret]) -> None:
    """Have messages of the proxy kept from now on, from level info up; other handlers keep their levels."""
    root = logging.getLogger()
    for handler in root.handlers:
        handler.setLevel(max(handler.level, root.level))
    root.addHandler(logs)
    redact_logs(secrets)
    logger = logging.getLogger("mcp_context_proxy")
    logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))


def shown(entries: list[Mapping[str, Any]]) -> Iterator[str]:
    """Yield kept lines as a person reads them, with the local time."""
    for entry in entries:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["time"]))
        yield f"{at}  {entry['text']}"
