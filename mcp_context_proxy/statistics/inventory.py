"""What there is to be used, and what its definitions cost a model: counted once for each version of a tool.

Nobody waits for that, so it is done bit by bit, with pauses in which calls go on.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from mcp_context_proxy.clock import time_of_day
from mcp_context_proxy.items import Item, Snapshot
from mcp_context_proxy.store import StatisticsStore
from mcp_context_proxy.store.usage import DefinitionRow

PAUSE_SECONDS: Final = 0.001
"""After each definition that is counted, in which others can have the interpreter: 3,000 take 4 s so."""


class Inventory:
    """The definitions of a snapshot. Blocking, but for `behind` and `outdated`."""

    def __init__(
        self,
        store: StatisticsStore,
        snapshot: Callable[[], Snapshot],
        tokens: Callable[[Item], int],
        listed_whole: Callable[[Snapshot], bool],
        clock: Callable[[], float] = time_of_day,
        known: Callable[[Mapping[str, int]], None] = lambda _: None,
    ) -> None:
        """Prepare to count.

        Args:
            store: Remembers what was counted.
            snapshot: All there is now.
            tokens: What an item costs a model to read.
            listed_whole: Whether everything is listed, so that nothing is saved.
            clock: Seconds since 1970.
            known: Told what was counted in earlier runs, by fingerprint, so that nobody counts it again.
        """
        self._store, self._snapshot, self._tokens, self._known = store, snapshot, tokens, known
        self._listed_whole, self._clock = listed_whole, clock
        self._counted: Snapshot | None = None
        self.behind: int | None = None
        """What a model would read if everything were listed; None where it is, and until it is counted."""

    @property
    def outdated(self) -> bool:
        """Whether there is something else now than what was counted."""
        return self._counted is not self._snapshot()

    def count(self, check: Callable[[], None]) -> None:
        """Count what is new, and remember it. `check` is called often, and raises when that is to end.

        Raises:
            StoreError: it could not be remembered; it is known all the same.
        """
        snapshot, now = self._snapshot(), self._clock()
        before = self._store.definitions()
        known = {row.fingerprint: row.tokens for row in before}
        self._known(known)
        rows: dict[str, list[DefinitionRow]] = defaultdict(list)
        for tool in snapshot.tools.values():
            tokens = known.get(tool.fingerprint)
            if tokens is None:
                check()
                tokens = self._tokens(tool)
                time.sleep(PAUSE_SECONDS)
            rows[tool.server].append(DefinitionRow(tool.server, tool.name, tool.fingerprint, tokens, now))
        documents = 0
        for document in snapshot.documents.values():
            check()
            documents += self._tokens(document)
        everything = documents + sum(row.tokens for of_server in rows.values() for row in of_server)
        self.behind = None if self._listed_whole(snapshot) else everything
        self._counted = snapshot
        for server, of_server in rows.items():
            if _versions(of_server) != _versions(row for row in before if row.server == server):
                self._store.put_definitions(server, of_server)


def _versions(rows: Iterable[DefinitionRow]) -> set[tuple[str, str]]:
    return {(row.tool, row.fingerprint) for row in rows}
