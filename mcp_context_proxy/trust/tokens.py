"""Named tokens: who may connect over HTTP, with which rights; and the throttle of wrong ones.

The proxy's own token is the administrator's. Others are added by name, may be limited to some servers and
classes of tools, and may expire. They are in a file, or sealed in the store that replicas share: there is no
token, only the SHA-256 of each. A slow hash protects passwords, which people choose and others can guess;
nobody guesses 256 random bits at any speed.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, TypeAlias

import anyio
import msgspec

from mcp_context_proxy.config import Config
from mcp_context_proxy.errors import ContextProxyError, StoreError
from mcp_context_proxy.items import ToolClass
from mcp_context_proxy.protocol.framing import Bucket
from mcp_context_proxy.store.credentials import NEVER, TOKEN, Credential, SharedCredentials
from mcp_context_proxy.system import keep_latest, locked, process, read_own
from mcp_context_proxy.system.later import pattern, platformdirs
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import Principal, Reach, Role
from mcp_context_proxy.trust.audit import state_folder

logger = logging.getLogger(__name__)


FILE_NAME: Final = "tokens.json"

OWNER: Final = "owner"
"""Principal of the proxy's own token."""

NAME: Final = pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names that a token may have: they stand in the audit, in commands and in logs."""

NAME_SHOWN: Final = 70
"""Characters of another name that a message quotes."""

MOST_TOKENS: Final = 100
"""Tokens in the file, those that have expired among them."""

TOKEN_BYTES: Final = 32

LOOK_SECONDS: Final = 1.0
"""Time between two looks at the file: that long may a revoked token still be used."""


class TokenError(ContextProxyError):
    """A token cannot be added or revoked, or the file of tokens cannot be used."""


class NamedToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token as the file has it."""

    name: str
    sha256: str
    """Of the token, in hexadecimal digits."""
    created: float
    """Seconds since 1970."""
    expires: float | None = None
    """In seconds since 1970; None for never."""
    admin: bool = False
    servers: tuple[str, ...] | None = None
    classes: tuple[ToolClass, ...] | None = None

    @property
    def principal(self) -> Principal:
        servers = None if self.servers is None else frozenset(self.servers)
        classes = None if self.classes is None else frozenset(self.classes)
        return Principal(self.name, Role.ADMIN if self.admin else Role.USE, (Reach(servers, classes),))

    def is_valid(self, now: float) -> bool:
        return self.expires is None or now < self.expires


class _Tokens(msgspec.Struct, frozen=True):
    tokens: tuple[msgspec.Raw, ...] = ()


def tokens_path(config: Config) -> Path:
    """Return the path of the file of tokens: in the folder of the store, or that of your data."""
    folder = state_folder(config) or platformdirs.user_data_path("mcp-context-proxy", appauthor=False)
    return folder / FILE_NAME


class NamedTokens(ABC):
    """The named tokens, where they are kept. Methods block."""

    @abstractmethod
    def read(self) -> tuple[NamedToken, ...]:
        """Return the tokens, those that have expired among them.

        Raises:
            TokenError: they cannot be read.
        """

    @abstractmethod
    def _changing(self) -> AbstractContextManager[list[NamedToken]]:
        """Give the tokens to be changed inside, and keep the rest.

        Raises:
            TokenError: they cannot be read or written, or somebody else changes them.
        """

    def add(
        self,
        name: str,
        *,
        admin: bool = False,
        servers: Sequence[str] | None = None,
        classes: Sequence[ToolClass] | None = None,
        expires: float | None = None,
        now: float | None = None,
    ) -> str:
        """Add a token and return it: nobody can tell it again.

        Raises:
            TokenError: the name cannot be used or is taken, there are too many, or nothing can be written.
        """
        _check(name, admin, servers, classes)
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._changing() as tokens:
            if any(one.name == name for one in tokens):
                raise TokenError(f"there is a token {name!r} already; revoke it, or choose another name")
            if len(tokens) >= MOST_TOKENS:
                raise TokenError(f"there are {MOST_TOKENS} tokens already; revoke one that is not needed")
            tokens.append(
                NamedToken(
                    name=name,
                    sha256=digest(token),
                    created=time.time() if now is None else now,
                    expires=expires,
                    admin=admin,
                    servers=None if servers is None else tuple(servers),
                    classes=None if classes is None else tuple(classes),
                )
            )
        return token

    def revoke(self, name: str) -> None:
        """Remove a token.

        Raises:
            TokenError: there is none of that name, or nothing can be written.
        """
        with self._changing() as tokens:
            kept = [one for one in tokens if one.name != name]
            if len(kept) == len(tokens):
                known = ", ".join(one.name for one in tokens)
                there = f"there are: {known}" if known else "there are none"
                raise TokenError(f"there is no token {name!r}; {there}")
            tokens[:] = kept


class TokenFile(NamedTokens):
    """The file of named tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told = frozenset[str]()
        """Messages about the entries that were left out last."""

    def read(self) -> tuple[NamedToken, ...]:
        """Return the tokens, those that have expired among them; none if there is no file.

        Entries that `add` would not have written are left out, each with a message in the log.

        Raises:
            TokenError: the file cannot be read.
        """
        return self._read()[0]

    def _read(self) -> tuple[tuple[NamedToken, ...], tuple[msgspec.Raw, ...]]:
        """Return the tokens, and the entries that are left out."""
        process.make_private(self.path)
        try:
            entries = msgspec.json.decode(read_own(self.path), type=_Tokens).tokens
        except FileNotFoundError:
            entries = ()
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TokenError(f"{self.path} cannot be used: {reason}; no named token is accepted") from error
        tokens, left, told = dict[str, NamedToken](), list[msgspec.Raw](), list[str]()
        for number, entry in enumerate(entries, 1):
            try:
                token = msgspec.json.decode(entry, type=NamedToken)
                _check(token.name, token.admin, token.servers, token.classes)
                if token.name in tokens:
                    raise TokenError(f"another one is named {token.name!r}")
                if len(tokens) >= MOST_TOKENS:
                    raise TokenError(f"it comes after {MOST_TOKENS} others")
            except (TokenError, msgspec.DecodeError) as error:
                left.append(entry)
                told.append(f"{self.path}: token {number} is not accepted: {error}")
            else:
                tokens[token.name] = token
        for message in told[:MOST_TOKENS]:
            if message not in self._told:
                logger.warning("%s", message)
        self._told = frozenset(told)
        return tuple(tokens.values()), tuple(left)

    @contextmanager
    def _changing(self) -> Iterator[list[NamedToken]]:
        """Give the tokens to be changed inside, and replace the file by the rest."""
        try:
            process.make_private_folder(self.path.parent)
            with locked(self.path.with_suffix(".lock")):
                known, left = self._read()
                tokens = list(known)
                yield tokens
                entries = (*map(msgspec.Raw, map(msgspec.json.encode, tokens)), *left)
                content = msgspec.json.format(msgspec.json.encode(_Tokens(entries)))
                process.write_private(self.path, content + b"\n")
        except OSError as error:
            raise TokenError(f"{self.path} cannot be written: {error.strerror or error}") from error


class SharedTokens(NamedTokens):
    """The named tokens that all replicas share. Those in the file of this one are taken over once."""

    def __init__(self, shared: SharedCredentials, file: TokenFile) -> None:
        self._shared, self._file = shared, file
        self._looked_for_file = False

    def read(self) -> tuple[NamedToken, ...]:
        """Return the tokens as they were a second ago, or when the store could be read last."""
        try:
            self._shared.look(now=not self._shared.has_looked)
            if not self._looked_for_file:
                self._take_over()
                self._looked_for_file = True
        except StoreError as error:
            raise TokenError(f"{error}; no named token is accepted until it is back") from error
        return tuple(self._tokens())

    def _tokens(self) -> Iterator[NamedToken]:
        """Yield the tokens of the store but for those that `add` would not have written."""
        for name, found in self._shared.all_known(TOKEN).items():
            if found.content is not None:
                try:
                    token = msgspec.json.decode(found.content, type=NamedToken)
                    _check(token.name, token.admin, token.servers, token.classes)
                except (TokenError, msgspec.DecodeError) as error:
                    logger.debug("token %s is not accepted: %s", name, error)
                    continue
                if token.name == name:
                    yield token

    def _take_over(self) -> None:
        """Put the tokens of the file into the store, but for names that are or were there, and rename it."""
        if self._shared.problem is None and self._file.path.exists():
            try:
                tokens = self._file.read()
            except TokenError as error:
                logger.warning("%s", error)
                return
            for token in tokens:
                if not self._shared.read(TOKEN, token.name).revision:
                    self._shared.write(TOKEN, token.name, msgspec.json.encode(token), 0)
            aside = self._file.path.with_name(f"{FILE_NAME}.taken-over")
            try:
                self._file.path.replace(aside)
            except OSError as error:
                logger.warning("%s is not used any more: %s", self._file.path, error.strerror or error)
            else:
                logger.info("the named tokens are in the store now, for all replicas; the file is %s", aside)

    @contextmanager
    def _changing(self) -> Iterator[list[NamedToken]]:
        self.read()
        try:
            self._shared.look(now=True)
            there = self._shared.all_known(TOKEN)
            before = list(self._tokens())
            tokens = list(before)
            # One that cannot be read has its name nevertheless, and can be revoked.
            unreadable = [
                NamedToken(name=name, sha256="", created=0.0, servers=())
                for name, found in there.items()
                if not found.readable
            ]
            tokens += unreadable
            yield tokens
            after = {token.name: token for token in tokens}
            for token in (*before, *unreadable):
                if token.name not in after:
                    self._write(token.name, None, there)
            for name, token in after.items():
                if token not in before and token not in unreadable:
                    self._write(name, token, there)
        except StoreError as error:
            raise TokenError(f"{error}; nothing was changed") from error

    def _write(self, name: str, token: NamedToken | None, there: Mapping[str, Credential]) -> None:
        content = None if token is None else msgspec.json.encode(token)
        if token is not None and self._shared.problem is not None:
            raise TokenError(self._shared.problem)
        if not self._shared.write(TOKEN, name, content, there.get(name, NEVER).revision):
            raise TokenError(f"another command is changing the token {name!r}; try again")


def tokens_of(config: Config, shared: SharedCredentials | None) -> NamedTokens:
    """Return the named tokens of a proxy: those that it shares with other replicas, or those of its file."""
    file = TokenFile(tokens_path(config))
    return file if shared is None else SharedTokens(shared, file)


def _check(
    name: str, admin: bool, servers: Sequence[str] | None, classes: Sequence[ToolClass] | None
) -> None:
    """Check the name and the limits of a token.

    Raises:
        TokenError: there is no such token.
    """
    if not NAME.fullmatch(name) or name == OWNER:
        raise TokenError(
            f"a token cannot be named {name[:NAME_SHOWN]!r}: write 1 to 64 letters, digits, '_', '.' or '-', "
            f"beginning with a letter or digit; {OWNER!r} is the proxy's own token"
        )
    if admin and (servers is not None or classes is not None):
        raise TokenError("an administrator's token reaches everything: leave out the servers and classes")


def digest(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


class TokenBook:
    """The named tokens that a running proxy accepts: follows where they are kept, and the time."""

    def __init__(self, kept: NamedTokens | None, clock: Callable[[], float] = time.time) -> None:
        """Accept none until `load` or `run`; where none are kept, never any."""
        self._kept, self._clock = kept, clock
        self._tokens: tuple[NamedToken, ...] = ()
        self._fault = ""
        self.changed: list[Callable[[], None]] = []
        """Called on the event loop when a token may no longer be accepted."""

    def find(self, token: str) -> NamedToken | None:
        """Return the named token that this is; None if it is none, or has expired."""
        wanted, found = digest(token).encode(), None
        for known in self._tokens:
            # Each is compared, and each to its end, so that the time tells nothing.
            if hmac.compare_digest(known.sha256.encode(), wanted):
                found = known
        return found if found is not None and self.accepts(found) else None

    def accepts(self, token: NamedToken) -> bool:
        """Return whether a token is as it was, and has not expired."""
        return token.is_valid(self._clock()) and token in self._tokens

    def load(self) -> None:
        """Read the tokens. Blocks; if that cannot be, it is logged, and none is accepted."""
        if self._kept is None:
            return
        try:
            self._tokens, fault = self._kept.read(), ""
        except TokenError as error:
            self._tokens, fault = (), str(error)
        if fault and fault != self._fault:
            logger.warning("%s", fault)
        self._fault = fault

    async def run(self) -> None:
        """Follow the tokens until cancelled."""
        if self._kept is None:
            return
        while True:
            before = [one for one in self._tokens if one.is_valid(self._clock())]
            await anyio.sleep(LOOK_SECONDS)
            await in_thread(self.load)
            if any(not self.accepts(one) for one in before):
                for changed in self.changed:
                    changed()


Client: TypeAlias = tuple[str, int]
"""Address and port of a client's end of a connection."""

WRONG_PER_SECOND, WRONG_AT_ONCE = 1.0, 20
"""Rate and burst of wrong tokens from one address: a client with an old token keeps trying, but slowly."""

ALL_WRONG_PER_SECOND, ALL_WRONG_AT_ONCE = 20.0, 200
"""Rate and burst of wrong tokens from all addresses together."""

HELD_SECONDS: Final = 1.0
"""Time that a token waits after too many wrong ones: the longest delay of a right one."""

MOST_HELD_OF_ADDRESS, MOST_HELD = 32, 128
"""Requests that wait at a time; further ones are refused unseen. Connections are left for everybody else."""

ADDRESSES_KEPT, CONNECTIONS_KEPT = 1024, 1024
"""Addresses with a count of their own, and connections known to have sent the right token."""

NETWORK_BITS: Final = 64
"""Length of the IPv6 prefix that counts as one address: a single machine has all the addresses in it."""


class Guesses:
    """Throttle of wrong bearer tokens: nobody tries many, and nobody keeps those out who have the right one.

    Wrong tokens are counted for each client address, and for all addresses together. Once an address has sent
    too many, each token from it is looked at only after a moment, a right one too: a guess that is refused at
    once and a hit that is served at once would be no throttle. Only a few can wait, so that the number of
    tokens that are looked at in a second is bounded. A connection that has sent the right token never waits.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = Bucket(ALL_WRONG_PER_SECOND, ALL_WRONG_AT_ONCE, clock)
        self._by_address: OrderedDict[str, Bucket] = OrderedDict()
        self._held: Counter[str] = Counter()
        """Number of requests that wait, by address."""
        self._proven: OrderedDict[Client, None] = OrderedDict()

    def delays(self, client: Client | None) -> bool:
        """Return whether a token that came over this connection waits."""
        if client in self._proven:
            return False
        bucket = self._by_address.get(address_of(client))
        return self._all.is_empty or (bucket is not None and bucket.is_empty)

    async def wait(self, client: Client | None) -> bool:
        """Wait until the token may be looked at; return False if too many wait already."""
        address = address_of(client)
        if self._held[address] >= MOST_HELD_OF_ADDRESS or self._held.total() >= MOST_HELD:
            return False
        self._held[address] += 1
        try:
            await anyio.sleep(HELD_SECONDS)
        finally:
            self._held[address] -= 1
            if not self._held[address]:
                del self._held[address]
        return True

    def right(self, client: Client | None) -> None:
        """Note that a connection has sent the right token."""
        if client is not None and client not in self._proven:
            keep_latest(self._proven, client, None, CONNECTIONS_KEPT)

    def wrong(self, client: Client | None) -> None:
        if client is not None:
            # The port may be that of an earlier connection by now.
            self._proven.pop(client, None)
        address = address_of(client)
        bucket = self._by_address.get(address) or Bucket(WRONG_PER_SECOND, WRONG_AT_ONCE, self._clock)
        keep_latest(self._by_address, address, bucket, ADDRESSES_KEPT).take()
        self._all.take()


def address_of(client: Client | None) -> str:
    """Return the address that a client's guesses are counted for."""
    if client is None or ":" not in client[0]:
        return "" if client is None else client[0]
    try:
        return str(ipaddress.IPv6Network((client[0].partition("%")[0], NETWORK_BITS), strict=False))
    except ValueError:
        return client[0]
