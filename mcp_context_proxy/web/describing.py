"""What an item is beside its name, by the catalog as it is now: a record of a request has names only."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from mcp_context_proxy.context.request import ContextItem
from mcp_context_proxy.items import Document, Kind, Snapshot
from mcp_context_proxy.web.context_forms import Item
from mcp_context_proxy.wire.text import clean

DESCRIPTION_CHARACTERS = 2000
"""Of a description that is shown: a person reads no more of one item among many."""


class Describer:
    """Puts items in the form of the API, with descriptions and priorities of one snapshot or without any."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._tools = {} if snapshot is None else snapshot.tools
        documents = () if snapshot is None else snapshot.documents.values()
        self._documents: dict[tuple[Kind, str], Document] = {(one.kind, one.name): one for one in documents}

    def items(self, items: Iterable[ContextItem]) -> list[Item]:
        """The items in the form of the API; one that has gone from the catalog stays a name."""
        return [self._described(item) for item in items]

    def _described(self, item: ContextItem) -> Item:
        plain: Item = msgspec.convert(item, Item, from_attributes=True)
        if (document := self._documents.get((item.type, item.name))) is not None:
            return msgspec.structs.replace(
                plain, description=_short(document.description), priority=document.priority
            )
        if item.type is Kind.TOOL and (tool := self._tools.get(item.name)) is not None:
            return msgspec.structs.replace(plain, description=_short(tool.description))
        return plain


def _short(text: str) -> str:
    return clean(text[:DESCRIPTION_CHARACTERS])
