"""Measures the time that the approval of definitions adds to the first list of tools; run by hand.

    python benchmarks/approval.py [TOOLS] [--rounds N]

A catalog is built from the list of one server as at the start of a proxy: at the first start of all, when
every definition is recorded, and at a later one, when the record is read. Each is compared with a catalog
without approval, in turns; the median of the rounds counts. A refresh in which nothing has changed is
measured, too. Times are those of the processor, which a busy machine changes less.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from definitions import tools

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.document_library import DocumentLibrary
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.downstream.listing import ServerListing
from mcp_context_proxy.store import open_store
from mcp_context_proxy.trust.approval import Approvals


def main() -> None:
    """Print the medians in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tools", nargs="?", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    listed = tuple(definitions(options.tools))
    plain, later, again, first = [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite3"
        with open_store(path) as store:
            built(listed, Approvals(store.approvals)).refresh()
        for number in range(options.rounds):
            plain.append(timed(built(listed, None).refresh))
            with open_store(path) as store:
                # As at a start, which has read the remembered listings by then.
                store.listings.get("server")
                catalog = built(listed, Approvals(store.approvals))
                later.append(timed(catalog.refresh))
                again.append(timed(catalog.refresh))
            with open_store(Path(folder) / f"{number}.sqlite3") as store:
                first.append(timed(built(listed, Approvals(store.approvals)).refresh))
    print(f"{len(listed):,} tools, {sum(map(len, listed)):,} bytes; ms, median (fastest) of {options.rounds}")
    for name, found in (
        ("without approval", plain),
        ("a later start", later),
        ("the first start of all", first),
        ("nothing changed", again),
    ):
        print(f"{name:24} {statistics.median(found):8.2f} ({min(found):.2f})")
    added = [after - before for before, after in zip(plain, later, strict=True)]
    print(f"added at a later start   {statistics.median(added):8.2f} ({min(later) - min(plain):.2f})")


def definitions(count: int) -> list[bytes]:
    """Return encoded definitions of realistic size."""
    return [json.dumps(entry).encode() for entry in tools(0, count)]


def built(listed: tuple[bytes, ...], approvals: Approvals | None) -> Catalog:
    # A copy, so that nothing is known of it.
    client = SimpleNamespace(
        name="server",
        config=ServerConfig(name="server", command="server"),
        listing=ServerListing(tools=(*listed,)),
        introduction=True,
        tool_embeddings={},
        skill_embeddings={},
    )
    return Catalog(
        ExposeConfig(),
        Limits(),
        lambda: cast(Any, (client,)),
        DocumentLibrary([], Limits()),
        configured=lambda: frozenset({"server"}),
        approvals=approvals,
    )


def timed(work: Callable[[], object]) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


if __name__ == "__main__":
    main()
