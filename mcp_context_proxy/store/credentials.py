"""Credentials that replicas share: logins to servers and named tokens, sealed with a key of theirs.

The database never holds the key. A row is sealed (AES-256-GCM) for its kind and name: one that somebody
without the key has made, changed or moved is none. A row without content says that a credential was given up,
so that no old copy of it returns.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final
from weakref import WeakValueDictionary

import anyio
from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.tables import keys_of
from mcp_context_proxy.errors import ContextProxyError, StoreError
from mcp_context_proxy.store.database import Tables
from mcp_context_proxy.store.migrations import CREDENTIALS
from mcp_context_proxy.store.opening import Store
from mcp_context_proxy.store.tables import LeaseStore

logger = logging.getLogger(__name__)

LOGIN: Final = "login"
TOKEN: Final = "token"

LOOK_SECONDS: Final = 1.0
"""Time between two looks at what others have changed: that long may a revoked credential still be used."""

NONCE_BYTES: Final = 12

ANOTHER_KEY: Final = (
    "sealed with another key than this configuration has: set cluster.key (or cluster.key_file) to that of "
    "the others, or add a former key to cluster.other_keys"
)


class SealedRow(Struct, frozen=True):
    """A credential as the database has it."""

    kind: str
    name: str
    sealed: bytes
    """Empty if the credential was given up."""
    key_mark: str
    revision: int


class CredentialStore(Tables):
    """Sealed credentials."""

    def revision(self) -> int:
        return self._database.revision(CREDENTIALS)

    def all(self) -> list[SealedRow]:
        return self._database.read(SealedRow, "FROM credentials ORDER BY kind, name")

    def get(self, kind: str, name: str) -> SealedRow | None:
        rest = "FROM credentials WHERE kind = ? AND name = ?"
        return next(iter(self._database.read(SealedRow, rest, (kind, name))), None)

    def put(self, row: SealedRow) -> SealedRow | None:
        """Replace a row that is still at this revision, 0 for none; return the new one, None if it is not."""
        with self._database.transaction(CREDENTIALS) as transaction:
            query = "SELECT revision FROM credentials WHERE kind = ? AND name = ?"
            known = transaction.execute(query, (row.kind, row.name)).fetchone()
            if (0 if known is None else known[0]) != row.revision:
                return None
            written = replace(row, revision=transaction.next_revision(CREDENTIALS))
            transaction.put_rows("credentials", ("kind", "name"), [written])
        return written


def mark_of(key: bytes) -> str:
    """Return the mark of a key: equal for equal keys, and useless for finding one."""
    return hmac.digest(key, b"mcp-context-proxy cluster key", hashlib.sha256).hex()


class Seal:
    """Seals with the first of some keys, and opens entries sealed with any of them."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = {
            mark_of(key): hmac.digest(key, b"mcp-context-proxy credentials", hashlib.sha256) for key in keys
        }
        self.mark = mark_of(keys[0])

    def sealed(self, kind: str, name: str, content: bytes) -> bytes:
        """Return content that only the holders of the key can read or make."""
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - only for replicas

        nonce = os.urandom(NONCE_BYTES)
        return nonce + AESGCM(self._keys[self.mark]).encrypt(nonce, content, _place(kind, name))

    def opened(self, row: SealedRow) -> bytes | None:
        """Return the content of a row; None if it was not sealed for this place with one of the keys."""
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

        key, nonce = self._keys.get(row.key_mark), row.sealed[:NONCE_BYTES]
        if key is None or len(nonce) < NONCE_BYTES:
            return None
        try:
            return AESGCM(key).decrypt(nonce, row.sealed[NONCE_BYTES:], _place(row.kind, row.name))
        except InvalidTag:
            return None


def _place(kind: str, name: str) -> bytes:
    return f"1\0{kind}\0{name}".encode()


class Credential(Struct, frozen=True):
    """A credential as this replica can read it."""

    content: bytes | None
    """None if it was given up, or cannot be read."""
    revision: int
    """0 if there never was one."""
    readable: bool = True


NEVER: Final = Credential(None, 0)


class SharedCredentials:
    """The credentials of all replicas, as they were at the latest look. Blocking and thread-safe."""

    def __init__(
        self,
        store: CredentialStore,
        leases: LeaseStore,
        seal: Seal,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self.leases, self._seal, self._clock = store, leases, seal, clock
        self._lock, self._looking = threading.Lock(), threading.Lock()
        self._known: Mapping[tuple[str, str], Credential] = {}
        self._revision: int | None = None
        self._looked = -LOOK_SECONDS
        self._unreadable = 0
        self._unwritten: dict[tuple[str, str], Callable[[], bool]] = {}
        self._writing = threading.RLock()
        self._turns: WeakValueDictionary[tuple[str, str], anyio.Lock] = WeakValueDictionary()

    @property
    def has_looked(self) -> bool:
        """Return whether the store could ever be read."""
        return self._revision is not None

    @property
    def problem(self) -> str | None:
        """A problem with the key, for a person; None when all is well."""
        if not self._unreadable:
            return None
        what = "a login or named token" if self._unreadable == 1 else f"{self._unreadable} logins and tokens"
        return f"the store has {what}, {ANOTHER_KEY}. Nothing of it is changed"

    def look(self, *, now: bool = False) -> None:
        """Take over the changes of others, if it is time.

        Raises `StoreError` if the store cannot be read and `now` was asked for; known credentials stay known.
        """
        with self._looking:
            if not now and self._clock() - self._looked < LOOK_SECONDS:
                return
            try:
                self._write_unwritten()
                first = self._revision is None
                revision = self._store.revision()
                if revision != self._revision:
                    self._take(revision, self._store.all())
                if first:
                    self._seal_anew()
            except StoreError:
                # Logged by the store. What has been revoked meanwhile is noticed as soon as it is back.
                if now:
                    raise
            finally:
                self._looked = self._clock()

    def _take(self, revision: int, rows: Sequence[SealedRow]) -> None:
        known = {(row.kind, row.name): self._credential(row) for row in rows}
        before, unreadable = self._unreadable, sum(not each.readable for each in known.values())
        with self._lock:
            # What was written here since the revision was read may not be among the rows.
            later = {place: found for place, found in self._known.items() if found.revision > revision}
            self._known, self._revision, self._unreadable = known | later, revision, unreadable
        if unreadable != before and self.problem is not None:
            logger.warning("%s", self.problem)

    def _credential(self, row: SealedRow) -> Credential:
        if not row.sealed:
            return Credential(None, row.revision)
        content = self._seal.opened(row)
        return Credential(content, row.revision, readable=content is not None)

    def _seal_anew(self) -> None:
        """Seal with the first key the entries sealed with another one of ours: at the start, and then never.

        While the key is being changed, replicas with either as the first one run side by side.
        """
        for row in self._store.all():
            content = self._seal.opened(row) if row.sealed and row.key_mark != self._seal.mark else None
            if content is not None:
                self.write(row.kind, row.name, content, row.revision)

    def known(self, kind: str, name: str) -> Credential:
        """Return a credential as it was at the latest look, or as it was last written here."""
        with self._lock:
            return self._known.get((kind, name), NEVER)

    def all_known(self, kind: str) -> dict[str, Credential]:
        """Return all credentials of a kind, also those that were given up, by name."""
        with self._lock:
            return {name: found for (of_kind, name), found in self._known.items() if of_kind == kind}

    def read(self, kind: str, name: str) -> Credential:
        """Return a credential as it is in the store now; raises `StoreError` if the store cannot be read."""
        self._write_unwritten()
        row = self._store.get(kind, name)
        found = NEVER if row is None else self._credential(row)
        self._note(kind, name, found)
        return found

    def write(self, kind: str, name: str, content: bytes | None, after: int) -> bool:
        """Replace a credential that is still at this revision; return False if another replica was faster.

        Without content it is given up, for which the key is not needed. Raises `StoreError` if the store
        cannot be written; whether it was written is not known.
        """
        sealed = b"" if content is None else self._seal.sealed(kind, name, content)
        written = self._store.put(SealedRow(kind, name, sealed, self._seal.mark, after))
        if written is not None:
            self._note(kind, name, Credential(content, written.revision))
        return written is not None

    def _note(self, kind: str, name: str, found: Credential) -> None:
        with self._lock:
            if self._known.get((kind, name), NEVER).revision <= found.revision:
                self._known = {**self._known, (kind, name): found}

    def turn(self, kind: str, name: str) -> anyio.Lock:
        """Return the lock of a credential among the tasks of this process, which share its leases."""
        return self._turns.setdefault((kind, name), anyio.Lock())

    def write_later(self, kind: str, name: str, content: bytes, write: Callable[[], bool]) -> None:
        """Know this content from now on, and write it as soon as the store is back.

        `write` raises `StoreError` until then. Does not block.
        """
        self._note(kind, name, Credential(content, self.known(kind, name).revision))
        self._unwritten[kind, name] = write

    def _write_unwritten(self) -> None:
        # One thread at a time, which may read meanwhile: nobody else sees what is about to be replaced.
        with self._writing:
            while self._unwritten:
                place, write = self._unwritten.popitem()
                try:
                    write()
                except StoreError:
                    self._unwritten.setdefault(place, write)
                    raise
                except ContextProxyError as error:
                    logger.warning("what waited to be stored is lost: %s", error)

    def end(self) -> None:
        """Try once more to write the entries that are not written yet."""
        try:
            self._write_unwritten()
        except StoreError:
            names = ", ".join(name for _, name in self._unwritten)
            logger.warning("new tokens could not be stored; log in again if they are refused: %s", names)


def shared_credentials(config: Config, store: Store) -> SharedCredentials | None:
    """Return the credentials that replicas share; None where there is no key, or nothing is kept.

    Raises `ConfigError` if the file with the key cannot be used.
    """
    keys = keys_of(config.cluster)
    if not keys or store.place is None:
        return None
    return SharedCredentials(CredentialStore(store.database), store.leases, Seal(keys))
