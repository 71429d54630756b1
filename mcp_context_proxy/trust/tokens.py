"""Tokens: who may connect over HTTP, with which rights, and where that is kept.

The proxy's own token is the administrator's. It comes from the environment, or from a file that only its
owner can read. Others are added by name, may be limited to some servers and classes of tools, and may expire.
They are in a file, or sealed in the store that replicas share: there is no token, only the SHA-256 of each. A
slow hash protects passwords, which people choose and others can guess; nobody guesses 256 random bits at any
speed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import secrets
import stat
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import anyio
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from mcp_context_proxy.config import Config, HttpConfig
from mcp_context_proxy.config.tables import RoleName
from mcp_context_proxy.errors import NOTICE, ConfigError, ConfigProblem, ContextProxyError, StoreError
from mcp_context_proxy.items import ToolClass
from mcp_context_proxy.protocol.strangers import is_loopback
from mcp_context_proxy.store.credentials import NEVER, TOKEN, Credential, SharedCredentials
from mcp_context_proxy.system import locked, make_private, make_private_folder, write_private
from mcp_context_proxy.system.later import pattern, platformdirs
from mcp_context_proxy.system.process import read_own
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust import Principal, Reach, Role
from mcp_context_proxy.trust.audit import state_folder

logger = logging.getLogger(__name__)

FILE_NAME: Final = "tokens.json"

OWNER: Final = "owner"
"""Principal of the proxy's own token."""

NAME: Final = pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names that a token may have: they stand in the audit, in commands and in logs."""

PERSON: Final = pattern(r"jwt:[0-9a-f]{64}")
"""Names of people whose tokens an issuer makes."""

NAME_SHOWN: Final = 70
"""Characters of another name that a message quotes."""

MOST_TOKENS: Final = 500
"""Tokens that are kept, those that have expired among them."""

TOKEN_BYTES: Final = 32

LOOK_SECONDS: Final = 1.0
"""Time between two looks at the file: that long may a revoked token still be used."""


class TokenError(ContextProxyError):
    """A token cannot be added or revoked, or the file of tokens cannot be used."""


class NamedToken(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A token as the file has it; or, with the name of a `PERSON`, that those made before are refused."""

    name: str
    sha256: str
    """Of the token, in hexadecimal digits; empty for a person."""
    created: float
    """Seconds since 1970."""
    expires: float | None = None
    """In seconds since 1970; None for never."""
    role: RoleName = "use"
    servers: tuple[str, ...] | None = None
    classes: tuple[ToolClass, ...] | None = None
    former: str = ""
    """SHA-256 of the token that this one has replaced; empty if there was none."""
    former_expires: float = 0.0

    @property
    def principal(self) -> Principal:
        servers = None if self.servers is None else frozenset(self.servers)
        classes = None if self.classes is None else frozenset(self.classes)
        return Principal(self.name, Role[self.role.upper()], (Reach(servers, classes),))

    @property
    def is_of_person(self) -> bool:
        return PERSON.fullmatch(self.name) is not None and not self.sha256

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
        """Return the tokens, those that have expired among them, and the people whose tokens were revoked.

        Raises `TokenError` if they cannot be read.
        """

    @abstractmethod
    def _changing(self) -> AbstractContextManager[list[NamedToken]]:
        """Give the tokens to be changed inside, and keep the rest.

        Raises `TokenError` if they cannot be read or written, or somebody else changes them.
        """

    def add(
        self,
        name: str,
        *,
        role: RoleName = "use",
        servers: Sequence[str] | None = None,
        classes: Sequence[ToolClass] | None = None,
        expires: float | None = None,
        now: float | None = None,
    ) -> str:
        """Add a token and return it: nobody can tell it again.

        Raises `TokenError` if the name cannot be used or is taken, there are too many, or nothing can be
        written.
        """
        token = secrets.token_urlsafe(TOKEN_BYTES)
        added = NamedToken(
            name=name,
            sha256=digest(token),
            created=time.time() if now is None else now,
            expires=expires,
            role=role,
            servers=None if servers is None else tuple(servers),
            classes=None if classes is None else tuple(classes),
        )
        _check(added)
        with self._changing() as tokens:
            if any(one.name == name for one in tokens):
                raise TokenError(f"there is a token {name!r} already; revoke it, or choose another name")
            if sum(not one.is_of_person for one in tokens) >= MOST_TOKENS:
                raise TokenError(f"there are {MOST_TOKENS} tokens already; revoke one that is not needed")
            tokens.append(added)
        return token

    def renew(self, name: str, overlap_seconds: float, now: float | None = None) -> str:
        """Replace a token by another one with its rights and lifetime, and return that.

        The former one is accepted for the overlap as well: meanwhile clients can be given the new one.
        Raises `TokenError` if there is none of that name, or nothing can be written.
        """
        token, now = secrets.token_urlsafe(TOKEN_BYTES), time.time() if now is None else now
        with self._changing() as tokens:
            place = _place(name, tokens)
            old = tokens[place]
            ends = now + overlap_seconds
            tokens[place] = replace(
                old,
                sha256=digest(token),
                created=now,
                expires=None if old.expires is None else now + old.expires - old.created,
                former=old.sha256,
                former_expires=ends if old.expires is None else min(ends, old.expires),
            )
        return token

    def revoke(self, name: str, now: float | None = None) -> None:
        """Remove a token, or refuse those that an issuer has made for a person so far.

        Raises `TokenError` if there is none of that name, or nothing can be written.
        """
        with self._changing() as tokens:
            if PERSON.fullmatch(name):
                created = time.time() if now is None else now
                others = [one for one in tokens if one.name != name]
                tokens[:] = [*others, NamedToken(name=name, sha256="", created=created)]
            else:
                del tokens[_place(name, tokens)]


def _place(name: str, tokens: Sequence[NamedToken]) -> int:
    for place, one in enumerate(tokens):
        if one.name == name and not one.is_of_person:
            return place
    known = ", ".join(one.name for one in tokens if not one.is_of_person)
    there = f"there are: {known}" if known else "there are none"
    raise TokenError(f"there is no token {name!r}; {there}")


class TokenFile(NamedTokens):
    """The file of named tokens."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told = frozenset[str]()
        """Messages about the entries that were left out last."""

    def read(self) -> tuple[NamedToken, ...]:
        """Return the tokens, those that have expired among them; none if there is no file.

        Entries that `add` would not have written are left out, each with a message in the log. Raises
        `TokenError` if the file cannot be read.
        """
        return self._read()[0]

    def _read(self) -> tuple[tuple[NamedToken, ...], tuple[msgspec.Raw, ...]]:
        """Return the tokens, and the entries that are left out."""
        make_private(self.path)
        try:
            entries = msgspec.json.decode(read_own(self.path), type=_Tokens).tokens
        except FileNotFoundError:
            entries = ()
        except (OSError, msgspec.DecodeError, RecursionError) as error:
            reason = getattr(error, "strerror", None) or error
            raise TokenError(f"{self.path} cannot be used: {reason}; no named token is accepted") from error
        tokens, left, told, counted = dict[str, NamedToken](), list[msgspec.Raw](), list[str](), 0
        for number, entry in enumerate(entries, 1):
            try:
                token = msgspec.json.decode(entry, type=NamedToken)
                _check(token)
                if token.name in tokens:
                    raise TokenError(f"another one is named {token.name!r}")
                if not token.is_of_person and (counted := counted + 1) > MOST_TOKENS:
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
            make_private_folder(self.path.parent)
            with locked(self.path.with_suffix(".lock")):
                known, left = self._read()
                tokens = list(known)
                yield tokens
                entries = (*map(msgspec.Raw, map(msgspec.json.encode, tokens)), *left)
                content = msgspec.json.format(msgspec.json.encode(_Tokens(entries)))
                write_private(self.path, content + b"\n")
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
                    _check(token)
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
            # One that cannot be read has its name nevertheless, and can be revoked.
            unreadable = (name for name, found in there.items() if not found.readable)
            nobody = (NamedToken(name=name, sha256="", created=0.0, servers=()) for name in unreadable)
            before = [*self._tokens(), *nobody]
            yield (tokens := list(before))
            after = {token.name: token for token in tokens}
            for name in {token.name for token in before} - after.keys():
                self._write(name, None, there)
            for name, token in after.items():
                if token not in before:
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


_WITHOUT_LIMITS: Final = {"admin": "everything", "metrics": "the metrics alone"}


def _check(token: NamedToken) -> None:
    """Check the name and the limits of a token; raises `TokenError` if there is no such token."""
    name, role = token.name, token.role
    if not token.is_of_person and (not NAME.fullmatch(name) or name == OWNER):
        raise TokenError(
            f"a token cannot be named {name[:NAME_SHOWN]!r}: write 1 to 64 letters, digits, '_', '.' or '-', "
            f"beginning with a letter or digit; {OWNER!r} is the proxy's own token"
        )
    if role in _WITHOUT_LIMITS and (token.servers is not None or token.classes is not None):
        reached = _WITHOUT_LIMITS[role]
        raise TokenError(f"a token with the role {role} reaches {reached}: leave out the servers and classes")


def digest(token: str) -> str:
    """Return the SHA-256 of a token in hexadecimal digits."""
    return hashlib.sha256(token.encode()).hexdigest()


class TokenBook:
    """The named tokens that a running proxy accepts, and the people whose tokens it refuses.

    Follows where they are kept, and the time.
    """

    def __init__(self, kept: NamedTokens | None, clock: Callable[[], float] = time.time) -> None:
        """Accept none until `load` or `run`; where none are kept, never any."""
        self._kept, self._clock = kept, clock
        self._tokens: dict[str, NamedToken] = {}
        """Tokens, and former ones that their names still have, by SHA-256."""
        self._people: Mapping[str, float] | None = {} if kept is None else None
        """The time up to which tokens of a person are refused, by name; None until that is known."""
        self._fault = ""
        self.changed: list[Callable[[], None]] = []
        """Called on the event loop when a token may no longer be accepted."""

    def find(self, token: str) -> NamedToken | None:
        """Return the named token that this is; None if it is none, or has expired."""
        # Nobody chooses the SHA-256 of a guess, so the time of looking it up tells nothing of a token.
        found = self._tokens.get(digest(token))
        return found if found is not None and found.is_valid(self._clock()) else None

    def accepts(self, token: NamedToken) -> bool:
        """Return whether a token is known with the same rights, and has not expired."""
        known = self._tokens.get(token.sha256)
        return known is not None and known.is_valid(self._clock()) and known.principal == token.principal

    def refuses(self, person: str | None, made: float) -> bool | None:
        """Return whether a token that an issuer made for a person was revoked; None if that is not known."""
        if self._people is None:
            return None
        until = self._people.get(person or "")
        return until is not None and made <= until

    def load(self) -> None:
        """Read the tokens. Blocks; if that cannot be, it is logged, and none is accepted."""
        if self._kept is None:
            return
        try:
            tokens, fault = self._kept.read(), ""
        except TokenError as error:
            tokens, fault = (), str(error)
        former = (replace(one, sha256=one.former, expires=one.former_expires) for one in tokens if one.former)
        self._tokens = {one.sha256: one for one in (*former, *tokens) if one.sha256}
        if not fault:
            self._people = {one.name: one.created for one in tokens if one.is_of_person}
        if fault and fault != self._fault:
            logger.warning("%s", fault)
        self._fault = fault

    async def run(self) -> None:
        """Follow the tokens until cancelled."""
        if self._kept is None:
            return
        while True:
            before = [one for one in self._tokens.values() if one.is_valid(self._clock())]
            people = self._people
            await anyio.sleep(LOOK_SECONDS)
            await in_thread(self.load)
            if people != self._people or any(not self.accepts(one) for one in before):
                for changed in self.changed:
                    changed()


TOKEN_VARIABLE: Final = "MCP_CONTEXT_PROXY_TOKEN"

SHORTEST_TOKEN: Final = 16
"""Characters of a token: nobody finds that many by trying, if they were not chosen by a person."""

NEW_TOKEN: Final = 'python3 -c "import secrets; print(secrets.token_urlsafe(32))"'
"""Command that makes a good one."""


class BearerToken(Struct, frozen=True):
    """The token that clients of the HTTP front must send, if any."""

    token: str | None
    """The token; None if none is required."""
    whereabouts: str
    """End of the sentence that says where the front serves: the place of the token, or the lack of one."""
    level: int = NOTICE
    """Log level of that sentence: a warning only if no token is required."""


def credentials_of(config: Config) -> BearerToken:
    """Return the token of a front that may accept tokens of an issuer: then one of its own is not needed.

    Raises:
        ConfigError: as `credentials_for`, or a token of an issuer and none at all are required.
    """
    settings = config.http
    if config.auth.mode == "token":
        return credentials_for(settings)
    if not settings.auth:
        message = "tokens of an issuer are required by auth.mode, and no token by http.auth"
        raise ConfigError([ConfigProblem(config.path, None, "http.auth", message)])
    where = f"; clients send tokens of {config.auth.issuer}"
    if not os.environ.get(TOKEN_VARIABLE, "").strip() and settings.token_file is None:
        return BearerToken(None, where)
    own = credentials_for(settings)
    return BearerToken(own.token, where + own.whereabouts.replace("; clients send", ", or"))


def open_front(settings: HttpConfig) -> ConfigProblem | None:
    """Return the problem of a front that would be open to other machines without a token, if it would."""
    if settings.auth or is_loopback(settings.host):
        return None
    message = f"serving without a token needs a loopback address, and {settings.host} is none"
    return ConfigProblem(None, None, "http.auth", message)


def credentials_for(settings: HttpConfig, environ: Mapping[str, str] = os.environ) -> BearerToken:
    """Return the token that a front requires.

    The token comes from the environment, else from the configured file, else from a file in the user's data
    folder. A file that does not exist is created with a new token. Raises `ConfigError` if the front would be
    open to other machines, the token can be guessed, or the file cannot be read or created.
    """
    if problem := open_front(settings):
        raise ConfigError([problem])
    if not settings.auth:
        text = " without a token: every user and program of this machine can use your servers"
        return BearerToken(None, text, logging.WARNING)
    if token := environ.get(TOKEN_VARIABLE, "").strip():
        if fault := _fault(token.encode()):
            message = f"{fault}; make one with: {NEW_TOKEN}"
            raise ConfigError([ConfigProblem(None, None, TOKEN_VARIABLE, message)])
        return BearerToken(token, f"; clients send the bearer token in {TOKEN_VARIABLE}")
    path = settings.token_file or platformdirs.user_data_path("mcp-context-proxy") / "token"
    try:
        token = _read_token(path) if path.exists() else create_token(path)
    except OSError as error:
        message = (
            f"{path} cannot be used: {error.strerror or error}; name another file, or set {TOKEN_VARIABLE}"
        )
        raise ConfigError([ConfigProblem(None, None, "http.token_file", message)]) from error
    return BearerToken(token, f"; clients send the bearer token in {path}")


def create_token(path: Path) -> str:
    """Write a new token to a file of mode 0600 and return it, or the one of a process that was faster."""
    write_private(path, f"{secrets.token_urlsafe(TOKEN_BYTES)}\n".encode(), new=True)
    return _read_token(path)


def _read_token(path: Path) -> str:
    if not path.is_file():
        raise _unusable(path, "this is not a file")
    _protect(path)
    token = read_own(path).strip()
    if not token:
        raise _unusable(path, "the file is empty; delete it for a new token")
    if fault := _fault(token):
        raise _unusable(path, f"{fault}; delete the file for a new one")
    return token.decode()


def _fault(token: bytes) -> str | None:
    """Return why a token cannot be used, without any of it."""
    if not re.fullmatch(rb"[!-~]+", token):
        return "a token is one line of visible ASCII"
    if len(token) < SHORTEST_TOKEN:
        return f"a token has at least {SHORTEST_TOKEN} characters, and this one {len(token)}"
    return None


def _protect(path: Path) -> None:
    """Let nobody but its owner read the file; refuse one that others could have written, and so know."""
    if sys.platform == "win32":
        return
    folder = path.resolve().parent.stat().st_mode
    if path.stat().st_mode & stat.S_IWOTH or (folder & stat.S_IWOTH and not folder & stat.S_ISVTX):
        remedy = f"delete it, and run: chmod go-w {path.resolve().parent}"
        raise _unusable(path, f"everyone can write to it, or to its folder; {remedy}")
    if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        try:
            path.chmod(stat.S_IRUSR | stat.S_IWUSR)
        except OSError:
            logger.warning("other users can read the token in %s", path)
        else:
            logger.warning(
                "other users could read the token in %s, and no longer can; delete it for a new one", path
            )


def _unusable(path: Path, message: str) -> ConfigError:
    return ConfigError([ConfigProblem(path, None, "http.token_file", message)])
