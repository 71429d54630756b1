"""Measures the time that the approval of definitions adds to the first list of tools; run by hand.

    python benchmarks/approval.py [TOOLS] [--rounds N]

A catalog is built from the list of one server as at the start of a proxy: at the first start of all, when
every definition is recorded, and at a later one, when the record is read. Each is compared with a catalog
without approval, in turns; the median of the rounds counts. A refresh in which nothing has changed is
measured, too.

A catalog takes fifty times as long as the approval, so that is also measured by itself, in turns with
the one digest of each definition that the catalog had before there was approval: both parts of the
fingerprint, and the decisions about a list that the store knows. Times are those of the processor.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
from definitions import tools

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.documents import DocumentLibrary
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.downstream.listing import ServerListing
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.trust.approval import Approvals, Origin
from mcp_context_proxy.trust.fingerprints import Approvable, Candidate

ESCAPED_COLONS = (b"\\u003a", b"\\u003A")

encode_sorted = msgspec.json.Encoder(order="deterministic").encode


def main() -> None:
    """Print the medians in milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("tools", nargs="?", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=61)
    options = parser.parse_args()
    listed = tuple(json.dumps(entry).encode() for entry in tools(0, options.tools))
    times: dict[str, list[float]] = {}

    def timed(name: str, work: Callable[[], object]) -> None:
        gc.collect()
        began = time.process_time()
        work()
        times.setdefault(name, []).append((time.process_time() - began) * 1000)

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "store.sqlite3"
        origin = Origin("server", "notice", "connection")
        with open_store(path) as store:
            built(listed, Approvals(store.approvals)).refresh()
            first = candidates(listed)
            Approvals(store.approvals).rulings(origin, Approvable.TOOL, first, first.keys)
        for number in range(options.rounds):
            timed("without approval", built(listed, None).refresh)
            with open_store(path) as store:
                # As at a start, which has read the remembered listings by then.
                store.listings.get("server")
                catalog = built(listed, Approvals(store.approvals))
                timed("a later start", catalog.refresh)
                timed("nothing changed", catalog.refresh)
                timed("one digest of each", lambda: [one_digest(definition) for definition in listed])
                timed("fingerprints", lambda: fingerprints(listed))
                judged, approvals = candidates(listed), Approvals(store.approvals)
                timed("decisions", lambda: approvals.rulings(origin, Approvable.TOOL, judged, judged.keys))  # noqa: B023
            with open_store(Path(folder) / f"{number}.sqlite3") as store:
                timed("the first start of all", built(listed, Approvals(store.approvals)).refresh)
    print(f"{len(listed):,} tools, {sum(map(len, listed)):,} bytes; ms, median (fastest) of {options.rounds}")
    for name, found in times.items():
        print(f"{name:24} {statistics.median(found):8.2f} ({min(found):.2f})")
    parts = [times[name] for name in ("fingerprints", "decisions", "one digest of each")]
    added = [more + decided - digest for more, decided, digest in zip(*parts, strict=True)]
    fastest = min(parts[0]) + min(parts[1]) - min(parts[2])
    print(f"{'added to the first list':24} {statistics.median(added):8.2f} ({fastest:.2f})")


def candidates(listed: tuple[bytes, ...]) -> dict[str, Candidate]:
    """Return the definitions as they are judged."""
    return {
        name: Candidate.of(Approvable.TOOL, name, definition, definition)
        for name, definition in zip(map(str, range(len(listed))), listed, strict=True)
    }


def fingerprints(listed: tuple[bytes, ...]) -> list[str]:
    """Return the digests that tools have, by way of all that is approved."""
    return [one.fingerprint.of("server") for one in candidates(listed).values()]


def one_digest(definition: bytes) -> str:
    """Return the digest that a tool had before there was approval, as it was computed then."""
    encoded = encode_sorted(msgspec.json.decode(definition))
    whole = encoded.count(b":") == definition.count(b":")
    whole = whole and not any(each in definition for each in ESCAPED_COLONS)
    return hashlib.sha256(b"server\0" + (encoded if whole else definition)).hexdigest()


def built(listed: tuple[bytes, ...], approvals: Approvals | None) -> Catalog:
    """Return a catalog whose one server lists definitions that nobody has looked at."""
    client = SimpleNamespace(
        name="server",
        config=ServerConfig(name="server", command="server"),
        listing=ServerListing(tools=(*listed,)),
        introduction=SimpleNamespace(instructions=""),
    )
    return Catalog(
        ExposeConfig(),
        Limits(),
        lambda: cast(Any, (client,)),
        DocumentLibrary([], Limits()),
        configured=lambda: frozenset({"server"}),
        approvals=approvals,
    )


if __name__ == "__main__":
    main()
