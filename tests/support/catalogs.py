"""Small catalogs, and an embedder that needs no model: words have fixed directions."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from mcp_context_proxy.errors import ModelError
from mcp_context_proxy.items import Document, IncludeMode, Kind, Snapshot, Source, Tool
from mcp_context_proxy.retrieval.forms import WordList
from mcp_context_proxy.retrieval.queries import ReadQuery, read_query
from support.general_requests import GENERAL_REQUESTS


class WordVectors:
    """A text is the sum of its words; whether anything fails is decided by `error`.

    Remembers the texts it was asked to embed, but for the general requests every catalog is compared with.
    """

    def __init__(self, error: ModelError | None = None) -> None:
        self.error = error
        self.calls: list[list[str]] = []

    def embed(
        self, texts: Sequence[str], on_progress: Callable[[int, int], None] | None = None
    ) -> np.ndarray:
        if texts is not GENERAL_REQUESTS:
            self.calls.append(list(texts))
        if self.error is not None:
            raise self.error
        if on_progress is not None:
            on_progress(len(texts), len(texts))
        return np.array([self._vector(text) for text in texts], np.float32)

    @property
    def texts(self) -> list[str]:
        return [text for call in self.calls for text in call]

    def _vector(self, text: str) -> np.ndarray:
        total = sum(self._direction(word) for word in text.lower().split() or [""])
        return total / np.linalg.norm(total)

    @staticmethod
    @cache
    def _direction(word: str) -> np.ndarray:
        seed = int.from_bytes(
            hashlib.sha256(word.strip(".,:").encode("utf-8", "replace")).digest()[:8], "big"
        )
        return np.random.default_rng(seed).standard_normal(32)


def tool(
    name: str,
    description: str = "",
    *,
    server: str = "srv",
    schema: Any = None,
    include: IncludeMode = IncludeMode.AGENT,
    marked: bool = True,
) -> Tool:
    """A tool; unless its definition is `marked`, the same one of another server has just the same."""
    definition = {"name": name, "description": description, "inputSchema": schema or {}}
    raw = json.dumps(definition | ({"_meta": {"server": server}} if marked else {})).encode()
    fingerprint = hashlib.sha256(server.encode() + raw).hexdigest()
    return Tool(server, name, f"{server}__{name}", raw, fingerprint, include)


def rule(name: str, description: str = "", text: str = "") -> Document:
    return Document(Kind.RULE, name, description, text, hashlib.sha256(text.encode()).hexdigest())


def snapshot(*items: Tool | Document, generation: int = 1) -> Snapshot:
    """Items by owner."""
    owned: dict[str, list[Tool | Document]] = {}
    for item in items:
        owned.setdefault(item.server if isinstance(item, Tool) else f"{item.kind}s", []).append(item)
    sources = tuple(Source(key, tuple(group)) for key, group in owned.items())
    return Snapshot(generation, sources)


def read(query: str, stands_for: Mapping[str, str] | None = None) -> ReadQuery:
    """A query as it is read without a catalog, so that no word of it is known as one of a tool."""
    return read_query(query, lambda _term: False, lambda: WordList([]), stands_for or {})
