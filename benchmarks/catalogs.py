"""Catalogs of any size from lists of real tools: the same ones again and again under other server names.

Each copy has two words of its own. Its vectors are those of the text that it is a copy of, moved by a fixed
random step to a cosine of about 0.9, so that copies crowd together as near-duplicates do.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from mcp_context_proxy.catalog.definitions import parse_tools
from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.host_profiles import NAME_CHARACTERS
from mcp_context_proxy.downstream.listing import filed
from mcp_context_proxy.embedding import Embedder
from mcp_context_proxy.items import Snapshot, Source, Tool

LISTS = Path(__file__).parents[1] / "tests" / "data" / "tools"
WORDS = ("alpha", "harbour", "meadow", "copper", "lantern", "orchard", "summit", "violet", "walnut", "zephyr")
LISTED_TOGETHER = 10_000
"""Tools whose definitions come together: as many as a proxy takes of one server."""
STEP = 0.48
"""Length of the step away from a vector of length 1: 1 / sqrt(1 + 0.48 ** 2) is a cosine of 0.9."""

_MARK = re.compile(r"-c\d+(?= )|\s*\b(?:" + "|".join(WORDS) + r")\b")


class Copies:
    """Vectors of copies, from those of their originals."""

    def __init__(self, originals: Embedder) -> None:
        self._originals = originals
        self._known: dict[str, np.ndarray] = {}

    def embed(
        self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        """One row per text."""
        del on_progress
        of = [_MARK.sub("", text) for text in texts]
        if missing := [text for text in dict.fromkeys(of) if text not in self._known]:
            self._known |= zip(missing, self._originals.embed(missing), strict=True)
        rows = np.array([self._known[text] for text in of])
        steps = np.array(
            [np.random.default_rng(_seed(text)).standard_normal(rows.shape[1]) for text in texts]
        )
        rows = rows + STEP * steps / np.linalg.norm(steps, axis=1, keepdims=True)
        moved: np.ndarray = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
        return moved


def lists_in(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The tools of each ``tools/list`` result in a folder, by the name of its ``.json`` or ``.json.gz``."""
    return {path.name.split(".")[0]: _read(path) for path in sorted(folder.glob("*.json*"))}


def snapshot(size: int, lists: dict[str, list[dict[str, Any]]]) -> Snapshot:
    """So many tools, the same every time; their definitions are where a proxy has those of large servers."""
    servers = (
        (f"{name}-c{copy}", tools, copy) for copy in itertools.count() for name, tools in lists.items()
    )
    entries = ((key, tool, copy) for key, tools, copy in servers for tool in tools)
    left, by_server = itertools.islice(entries, size), dict[str, list[Tool]]()
    while made := [_made(*one) for one in itertools.islice(left, LISTED_TOGETHER)]:
        written = filed(tuple(tool.written for tool in made))
        for tool, own in zip(made, written, strict=True):
            by_server.setdefault(tool.server, []).append(replace(tool, written=own))
    return Snapshot(1, tuple(Source(key, tuple(tools)) for key, tools in by_server.items()))


def published(lists: dict[str, list[dict[str, Any]]]) -> Snapshot:
    """The tools as a proxy has them whose servers are configured under the names of the lists."""
    sources = []
    for server, tools in lists.items():
        definitions = [json.dumps(tool).encode() for tool in tools]
        parsed = parse_tools(ServerConfig(name=server), definitions, iter, (NAME_CHARACTERS,), Limits())
        sources.append(Source(server, parsed.tools))
    return Snapshot(1, tuple(sources))


def with_one_change(before: Snapshot) -> Snapshot:
    """The catalog after one tool of its largest server has another description."""
    at = max(range(len(before.sources)), key=lambda at: len(before.sources[at].items))
    source, generation = before.sources[at], before.generation + 1
    tool = source.items[0]
    assert isinstance(tool, Tool)
    words = f"It was changed for the {generation}th time just now."
    entry = {"name": tool.name, "inputSchema": {}, "description": words}
    changed = replace(source, items=(_made(tool.server, entry, 0), *source.items[1:]))
    return Snapshot(generation, (*before.sources[:at], changed, *before.sources[at + 1 :]))


def _read(path: Path) -> list[dict[str, Any]]:
    data = path.read_bytes()
    return list(json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["tools"])


def _made(server: str, entry: dict[str, Any], copy: int) -> Tool:
    word = f"{WORDS[copy % len(WORDS)]} {WORDS[copy // len(WORDS) % len(WORDS)]}"
    description = f"{entry.get('description', '')} {word}"
    definition = json.dumps({**entry, "description": description}).encode()
    fingerprint = hashlib.sha256(server.encode() + b"\0" + definition).hexdigest()
    return Tool(server, entry["name"], f"{server}__{entry['name']}", definition, fingerprint)


def _seed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
