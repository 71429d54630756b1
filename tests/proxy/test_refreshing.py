"""The catalog is taken apart in a thread, and a stop does not wait for its end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import anyio
import pytest

from mcp_context_proxy.app.proxy import CatalogRefresh
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.documents import DocumentLibrary
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.downstream.listing import LISTS, ServerListing
from mcp_context_proxy.system.threads import in_thread

pytestmark = pytest.mark.anyio

PATIENCE = 30.0


class Slow(tuple[bytes, ...]):
    """A list of which the second entry comes once the stop has been asked for."""

    def __new__(cls, entry: bytes, number: int) -> Slow:
        made = super().__new__(cls, [entry] * number)
        made.reached, made.asked, made.taken = threading.Event(), threading.Event(), 0
        return made

    reached: threading.Event
    asked: threading.Event
    taken: int

    def __iter__(self) -> Iterator[bytes]:
        for entry in super().__iter__():
            self.taken += 1
            if self.taken == 2:
                self.reached.set()
                assert self.asked.wait(PATIENCE)
            yield entry


ENTRIES = {
    "tools": b'{"name":"x","inputSchema":{"type":"object"}}',
    "prompts": b'{"name":"x"}',
    "resources": b'{"uri":"note://1","name":"x"}',
    "templates": b'{"uriTemplate":"note://{id}","name":"x"}',
    "skills": b'{"uri":"skill://x/SKILL.md","frontmatter":{"name":"x","description":"y"},"resources":[]}',
}


def test_every_kind_of_list_is_tried() -> None:
    assert set(ENTRIES) == set(LISTS)


@pytest.mark.parametrize("name", ENTRIES)
async def test_a_stop_does_not_wait_for_a_large_list(name: str) -> None:
    slow = Slow(ENTRIES[name], 1_000)
    client: Any = SimpleNamespace(
        name="evil",
        config=ServerConfig(name="evil", command="x"),
        listing=ServerListing(**{name: cast(Any, slow)}),
        introduction=SimpleNamespace(instructions=""),
        tool_embeddings={},
        skill_embeddings={},
    )
    library = DocumentLibrary([], Limits())
    catalog = Catalog(
        ExposeConfig(), Limits(), lambda: [client], library, configured=lambda: frozenset({"evil"})
    )
    before = catalog.snapshot
    refresh = CatalogRefresh(catalog, cast(Any, None), library, asyncio.Event(), first_list_seconds=0.0)
    with anyio.fail_after(PATIENCE):
        async with anyio.create_task_group() as group:
            group.start_soon(refresh.run)
            assert await in_thread(slow.reached.wait, PATIENCE)
            group.cancel_scope.cancel()
            slow.asked.set()

    assert slow.taken == 2
    assert catalog.snapshot is before
    slow.asked.set()
    catalog.refresh()
    assert catalog.snapshot is not before
