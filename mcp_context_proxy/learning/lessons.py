"""What one use of a tool says of pairs; a repetition says nothing new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

from mcp_context_proxy.items import Vector
from mcp_context_proxy.learning import pairs as arithmetic
from mcp_context_proxy.learning.pairs import Pair, ToolKey, key_of
from mcp_context_proxy.learning.signals import Use

NEW_IN_A_SESSION: Final = 20
"""Pairs of one tool that one session can begin: a loop teaches no more than a person does."""
SESSIONS_KEPT: Final = 1_000
"""Whose uses are remembered, so that a repetition counts once."""
QUERY_CHARACTERS: Final = 1_000
"""Kept of a query."""


class Lessons:
    """Pairs as uses change them."""

    def __init__(self, store_queries: bool) -> None:
        """Remember no session yet; `store_queries` says whether pairs keep the text of their query."""
        self._store_queries = store_queries
        self._seen: OrderedDict[str, dict[ToolKey, set[bytes]]] = OrderedDict()
        self._taught: dict[tuple[bytes, ToolKey], str] = {}

    def of(
        self, use: Use, near: Mapping[ToolKey, Pair], model_id: str, vector: Vector, now: float
    ) -> list[Pair]:
        """The pairs that a use changes, or begins.

        Args:
            use: Of a tool.
            near: The pair of each tool whose query is the same.
            model_id: Of the model that made the vector.
            vector: Of the query.
            now: Seconds since 1970.
        """
        return [*self._used(use, near, model_id, vector, now), *self._passed_over(use, near, now)]

    def _used(
        self, use: Use, near: Mapping[ToolKey, Pair], model_id: str, vector: Vector, now: float
    ) -> list[Pair]:
        """The pair that the use is about, if it says anything new."""
        known = near.get(use.tool)
        key = key_of(use.query) if known is None else known.key
        of_session = self._of_session(use.session).setdefault(use.tool, set())
        if key in of_session or (known is None and len(of_session) >= NEW_IN_A_SESSION):
            return []
        of_session.add(key)
        self._taught[key, use.tool] = use.session
        if known is not None:
            return [arithmetic.used_again(known, use.signal, now)]
        query = use.query[:QUERY_CHARACTERS] if self._store_queries else None
        confidence = arithmetic.first_confidence(use.signal)
        return [Pair(key, use.tool, query, vector, model_id, confidence, 1, now, now)]

    def _passed_over(self, use: Use, near: Mapping[ToolKey, Pair], now: float) -> list[Pair]:
        """Pairs of tools that were shown and not used, by another session than the one that taught them."""
        return [
            arithmetic.passed_over(pair, now)
            for tool, pair in near.items()
            if tool in use.shown and tool != use.tool and self._taught.get((pair.key, tool)) != use.session
        ]

    def _of_session(self, session: str) -> dict[ToolKey, set[bytes]]:
        seen = self._seen.setdefault(session, {})
        self._seen.move_to_end(session)
        if len(self._seen) > SESSIONS_KEPT:
            forgotten, _ = self._seen.popitem(last=False)
            self._taught = {pair: by for pair, by in self._taught.items() if by != forgotten}
        return seen
