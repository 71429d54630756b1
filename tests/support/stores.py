"""Stores with something in every table, and a way to read all of it."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from mcp_context_proxy.items import Vector
from mcp_context_proxy.store.memory import Interaction, InteractionScope, Pair
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.store.statistics import (
    HOUR,
    DefinitionRow,
    SearchRow,
    SearchUsage,
    ToolUsage,
    UsageSlot,
)
from mcp_context_proxy.store.tables import RequestRow, ToolSession

MODEL = "model"
NOW = 20_000.0 * 24 * HOUR
"""Seconds since 1970."""
DIMENSIONS = 16
"""Fewer than real ones: what is damaged here is the file, whatever is in it."""

MEMORY_DISK = Path("/dev/shm")


@contextmanager
def quick_folder() -> Iterator[Path]:
    """A folder in memory where the system has such, since flushing to a disk is not on trial."""
    with tempfile.TemporaryDirectory(dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None) as folder:
        yield Path(folder)


def vector(seed: int, dimensions: int = DIMENSIONS) -> Vector:
    values = np.random.default_rng(seed).normal(size=dimensions)
    return (values / np.linalg.norm(values)).astype(np.float32)


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


def add(store: Store, numbers: Sequence[int]) -> None:
    """Put something with each of these numbers into every table."""
    slot = UsageSlot.of(NOW)
    store.vectors.put(MODEL, {key(n): vector(n) for n in numbers})
    rows = [RequestRow(f"r{n}", NOW + n, f"s{n % 3}", b'{"n":%d}' % n, f"o{n % 2}") for n in numbers]
    store.requests.put(rows, 10_000, 0.0)
    for n in numbers:
        store.listings.put(f"server {n}", NOW, b"listing %d" % n)
    store.learned.put(
        Pair(key(n), ("s", f"t{n}"), f"query {n}", vector(n), MODEL, 0.5, 1, NOW, NOW) for n in numbers
    )
    store.statistics.add(
        [(slot, ToolUsage("s", f"t{n}", 1, 0, 1, 2.0, 3, NOW, {n: 1})) for n in numbers],
        {slot: SearchUsage(len(numbers), 1, ms=2.0, latency={1: 1})},
        [
            SearchRow(f"r{n}", NOW + n, key(n), "q", "search", 1, "s__t", None, None, 1.0, False)
            for n in numbers
        ],
    )
    store.statistics.put_definitions("s", [DefinitionRow("s", f"t{n}", f"f{n}", n, NOW) for n in numbers])
    store.tool_sessions.add([ToolSession("s", f"t{n}", "session", NOW) for n in numbers], 0.0, 10_000)
    said = [Interaction("agent", "message", f"said {n}", NOW + n) for n in numbers]
    kept = store.interactions.put(said, NOW, 10_000, 0.0)
    store.interactions.put_vectors(MODEL, {row.id: vector(row.id) for row in kept})


def reads(store: Store, some: Sequence[int]) -> list[Callable[[], object]]:
    """Everything there is to be asked of a store."""
    return [
        lambda: store.vectors.get(MODEL, [key(n) for n in some]),
        lambda: store.requests.latest(100),
        lambda: store.requests.latest(100, "s1"),
        lambda: store.requests.latest_of("o1", 100),
        lambda: [store.requests.get(f"r{n}") for n in some],
        lambda: [store.listings.get(f"server {n}") for n in some],
        store.learned.all,
        store.learned.count,
        store.statistics.tools,
        store.statistics.searched,
        store.statistics.calls,
        lambda: store.statistics.searches(100),
        store.statistics.definitions,
        lambda: store.tool_sessions.counted(0.0),
        store.tool_sessions.tools,
        lambda: store.interactions.vectors(MODEL, 0, 100),
        lambda: store.interactions.unembedded(MODEL, 0, 100),
        lambda: store.interactions.latest(100, InteractionScope()),
        store.interactions.kinds,
        lambda: store.interactions.count(InteractionScope("agent", "message", NOW + 5)),
        lambda: store.interactions.get([*some]),
    ]
