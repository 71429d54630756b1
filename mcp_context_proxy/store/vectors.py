"""Vectors in SQLite: float32, little-endian, by model and content hash."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np

from mcp_context_proxy.items import Vector
from mcp_context_proxy.store.database import Database

KEYS_PER_QUERY = 500
"""SQLite's oldest limit on parameters is 999."""
STORED = np.dtype("<f4")
"""Little-endian everywhere, so that a store can move between machines."""

_UPSERT = """
INSERT INTO vectors (model_id, key, vector, checksum) VALUES (?, ?, ?, ?)
ON CONFLICT (model_id, key) DO UPDATE SET vector = excluded.vector, checksum = excluded.checksum
WHERE vector <> excluded.vector OR checksum IS NOT excluded.checksum
"""


class SqliteVectors:
    """The vector table of a store."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def get(self, model_id: str, keys: Sequence[bytes]) -> dict[bytes, Vector]:
        """Those of ``keys`` that are known; one that is not what was put there is not."""
        found: dict[bytes, Vector] = {}
        for start in range(0, len(keys), KEYS_PER_QUERY):
            some = keys[start : start + KEYS_PER_QUERY]
            marks = ",".join("?" * len(some))
            rows = self._database.rows(
                f"SELECT key, vector, checksum FROM vectors WHERE model_id = ? AND key IN ({marks})",
                (model_id, *some),
            )
            found |= {
                key: decoded_vector(blob)
                for key, blob, checksum in rows
                if is_vector(blob) and checksum in (None, _checksum(model_id, key, blob))
            }
        return found

    def put(self, model_id: str, vectors: Mapping[bytes, Vector]) -> None:
        """Keep the vectors in one transaction."""
        blobs = [(key, vector.astype(STORED).tobytes()) for key, vector in vectors.items()]
        rows = [(model_id, key, blob, _checksum(model_id, key, blob)) for key, blob in blobs]
        with self._database.transaction() as connection:
            connection.executemany(_UPSERT, rows)

    def clear(self) -> None:
        """Forget all of them."""
        with self._database.transaction() as connection:
            connection.execute("DELETE FROM vectors")


def _checksum(model_id: str, key: bytes | None, blob: bytes) -> int:
    """Of a vector in its place: one that was put beside another text is as wrong as one that was changed."""
    return zlib.crc32(blob, zlib.crc32(key or b"", zlib.crc32(model_id.encode())))


def is_vector(blob: object) -> bool:
    """Whether a blob is an array of float32."""
    return isinstance(blob, bytes) and len(blob) % STORED.itemsize == 0


def decoded_vector(blob: bytes) -> Vector:
    """The array that a blob is."""
    return np.frombuffer(blob, STORED).astype(np.float32)
