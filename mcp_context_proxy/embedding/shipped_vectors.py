"""Vectors that come with the package: those of the tools of well-known servers, made with the packaged model.

Half of the tools that people connect are the same as everybody's. Embedding them takes seconds at the first
search of each installation; reading their vectors from a file takes milliseconds, and memory only for those
that are used. A vector is found by the hash of the whole text that is embedded, the server's name included,
so a text of another version, under another name or in another form is embedded as before. One model's vectors
are of no use to another: the file names its model, by the id that changes with its files and settings.

``scripts/build_shipped_vectors.py`` writes the files; PROVENANCE.md beside them says of which tools.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from mcp_context_proxy.embedding.embedder import unit_rows
from mcp_context_proxy.embedding.folder import digest
from mcp_context_proxy.items import Vector
from mcp_context_proxy.system.later import np

if TYPE_CHECKING:
    from numpy.typing import NDArray

SHIPPED = Path(__file__).parent / "shipped"
MANIFEST, KEYS, VECTORS = "manifest.json", "keys.npy", "vectors.npy"

KEY_BYTES: Final = 16
"""First bytes of a hash that are kept: too many for anybody to make a text with the key of another."""

STORED: Final = "<f2"
"""Half precision: a cosine moves by at most 0.00005. Bytes would move it by 0.001."""

logger = logging.getLogger(__name__)


class ShippedVectors(Struct, frozen=True, eq=False):
    """The vectors of one model, by the hash of their texts; mapped, so that only those used take memory."""

    keys: NDArray[np.uint64]
    """[2, vectors]: the two halves of each key, ordered by the first."""
    vectors: NDArray[np.float16]
    """[vectors, dimensions], of norm 1."""

    def get(self, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Return the vectors that are there of some texts, given by their SHA-256."""
        if not keys:
            return {}
        wanted = halves(keys)
        places = np.searchsorted(self.keys[0], wanted[0]).clip(max=self.keys.shape[1] - 1)
        found = np.flatnonzero((self.keys[:, places] == wanted).all(axis=0))
        rows = unit_rows(self.vectors[places[found]].astype(np.float32))
        return dict(zip((keys[at] for at in found.tolist()), rows, strict=True))


def halves(keys: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return [2, keys]: the first bytes of each hash, as two numbers."""
    kept = b"".join(key[:KEY_BYTES] for key in keys)
    return np.frombuffer(kept, "<u8").reshape(-1, 2).T.astype(np.uint64)


@cache
def shipped_vectors(model_id: str, folder: Path = SHIPPED) -> ShippedVectors | None:
    """Open the packaged vectors of a model; None if they are another's, or, with a warning, if damaged."""
    try:
        facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if facts["model_id"] != model_id:
            return None
        for name in (KEYS, VECTORS):
            if digest(folder / name) != facts["sha256"][name]:
                raise ValueError(f"{name} has another hash than {MANIFEST} says")
        # Keys are read: each search of them looks at all. Of the vectors only some rows are.
        keys = np.load(folder / KEYS, allow_pickle=False).astype(np.uint64)
        return ShippedVectors(keys, np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False))
    except (OSError, ValueError, KeyError, TypeError) as error:
        logger.warning("The packaged vectors in %s cannot be used: %s. Reinstall the package.", folder, error)
        return None
