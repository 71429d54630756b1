"""Exceptions of the package, each with the message that a person reads.

Each class builds its message from facts (server, tool, file and line, remedy), so that no call site words an
error by hand. There is one class for each reaction that a caller can have::

    ContextProxyError
    ├── ConfigError            the configuration cannot be used; lists every mistake
    ├── ModelError             the embedding model gives no vectors; search uses words alone
    ├── RerankError            the reranker gave no order; the order of the search stays
    ├── EmbeddingCancelledError  indexing was cancelled; finished vectors are stored
    ├── StoreError             the store cannot be used; work goes on in memory
    ├── DataFileError          a file of tools, queries or results cannot be used
    ├── UnknownItemError       the catalog has no item of that name
    ├── UnknownFilterError     a filter has an unknown value
    └── DownstreamError        a failure of one downstream server
        ├── AuthorizationError      it needs a token, and there is none
        │   └── LoginRequiredError  ... a person has to log in
        ├── ServerUnavailableError  it is not connected: the request was not sent
        │   └── DisconnectedError       ... any more: the next connection can send it
        │       └── SessionForgottenError  ... it has forgotten the session
        ├── CallInterruptedError    the connection was lost after the request was sent
        ├── CallTimeoutError        no response before the timeout
        ├── BadAnswerError          the response cannot be used
        ├── InputMissingError       the server asked for input and did not get it
        └── RemoteError             the response is a JSON-RPC error
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class ContextProxyError(Exception):
    """Base of every error that this package raises on purpose."""


@dataclass(frozen=True, slots=True)
class ConfigProblem:
    """One mistake in a configuration file."""

    file: Path | None
    """The file of the mistake; None if it came from the environment or a command-line option."""
    line: int | None
    """1-based line, if known."""
    key: str
    """Dotted key, such as ``servers.github.command``; empty for the file as a whole."""
    message: str
    """One sentence, without a full stop, about the mistake and the allowed values."""

    def __str__(self) -> str:
        place = str(self.file) if self.file is not None else "configuration"
        if self.line is not None:
            place += f":{self.line}"
        return f"{place}: {self.key}: {self.message}" if self.key else f"{place}: {self.message}"


class ConfigError(ContextProxyError):
    """The configuration cannot be used; ``problems`` holds every mistake found, in file order."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "1 problem in the configuration" if count == 1 else f"{count} problems in the configuration"
        super().__init__("\n".join([f"{head}:", *(f"  {problem}" for problem in self.problems)]))


class ModelError(ContextProxyError):
    """The embedding model cannot be loaded, or it gives no vectors."""

    def __init__(self, place: Path | str, reason: str, remedy: str, passing: bool = False) -> None:
        self.place, self.reason, self.remedy = place, reason, remedy
        self.passing = passing
        """True if the failure may be temporary, so that another attempt is worthwhile."""
        super().__init__(f"embedding model {place}: {reason}; {remedy}")


class RerankError(ContextProxyError):
    """The reranker gave no order, or none that can be used."""

    def __init__(self, judge: str, reason: str, remedy: str = "") -> None:
        self.judge, self.reason, self.remedy = judge, reason, remedy
        super().__init__(f"{judge} gave no order: {reason}" + (f"; {remedy}" if remedy else ""))


class EmbeddingCancelledError(ContextProxyError):
    """Embedding was cancelled between two batches."""

    def __init__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        super().__init__(f"embedding was stopped after {done} of {total} texts; they are kept")


class StoreError(ContextProxyError):
    """The store cannot be opened or written."""

    def __init__(self, path: Path, reason: str) -> None:
        self.path, self.reason = path, reason
        super().__init__(f"store {path}: {reason}")


class DataFileError(ContextProxyError):
    """A file given to a command cannot be used, or one of its lines."""

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        self.path, self.line, self.reason = path, line, reason
        place = str(path) if line is None else f"{path}:{line}"
        super().__init__(f"{place}: {reason}")


class UnknownItemError(ContextProxyError):
    """The catalog has no item of that name."""

    def __init__(self, kind: str, name: str, nearest: Sequence[str] = ()) -> None:
        self.kind, self.name, self.nearest = kind, name, tuple(nearest)
        hint = f"; did you mean {' or '.join(self.nearest)}?" if self.nearest else ""
        super().__init__(f"unknown {kind} {name!r}{hint}")


class UnknownFilterError(ContextProxyError):
    """A search filter has a value that nothing in the catalog has."""

    NAMED = 20
    """Known values that the message names; a person reads no more."""

    def __init__(self, kind: str, value: str, nearest: Sequence[str], known: Sequence[str]) -> None:
        self.kind, self.value, self.nearest, self.known = kind, value, tuple(nearest), tuple(known)
        hint = f" Did you mean {' or '.join(map(repr, self.nearest))}?" if self.nearest else ""
        more = f" and {len(known) - self.NAMED:,} more" if len(known) > self.NAMED else ""
        there = f"There are: {', '.join(known[: self.NAMED])}{more}" if known else "There is none"
        super().__init__(f"there is no {kind} {value!r}.{hint} {there}")


class DownstreamError(ContextProxyError):
    """A failure of one downstream server; ``server`` is its key in the configuration."""

    def __init__(self, server: str, message: str) -> None:
        self.server = server
        super().__init__(message)


class ServerUnavailableError(DownstreamError):
    """The server is not connected, so the request was not sent."""

    def __init__(self, server: str, state: str, cause: str = "", stderr: Sequence[str] = ()) -> None:
        self.state, self.cause, self.stderr = state, cause, tuple(stderr)
        message = f"server {server!r} is not available ({state}{': ' + cause if cause else ''})"
        if self.stderr:
            message += "; its last output: " + " | ".join(self.stderr)
        super().__init__(server, message)


class DisconnectedError(ServerUnavailableError):
    """The connection was lost before the request was sent; `verb` says how."""

    def __init__(self, server: str, verb: str) -> None:
        super().__init__(server, "disconnected", f"it {verb}")


class SessionForgottenError(DisconnectedError):
    """The server has forgotten the session and refused the request unread."""

    def __init__(self, server: str) -> None:
        super().__init__(server, "has forgotten the session")


class CallInterruptedError(DownstreamError):
    """The connection was lost while the request was pending; it may or may not have run."""

    def __init__(self, server: str, subject: str, cause: str) -> None:
        self.subject, self.cause = subject, cause
        super().__init__(
            server,
            f"server {server!r} {cause} during {subject}; it may or may not have run and was not sent again",
        )


class CallTimeoutError(DownstreamError):
    """The server did not respond before the timeout and was told to cancel."""

    def __init__(self, server: str, subject: str, seconds: float) -> None:
        self.subject, self.seconds = subject, seconds
        super().__init__(
            server, f"server {server!r} did not answer {subject} within {seconds:g} s; it was cancelled"
        )


class BadAnswerError(DownstreamError):
    """The response of the server cannot be used; `what` completes the sentence "server answered ..."."""

    def __init__(self, server: str, what: str, http_status: int | None = None) -> None:
        self.what, self.http_status = what, http_status
        super().__init__(server, f"server {server!r} answered {what}")


class InputMissingError(DownstreamError):
    """The server asked for input during a request and did not get it."""

    def __init__(self, server: str, cause: str) -> None:
        self.cause = cause
        super().__init__(server, f"server {server!r} asked for input and did not get it: {cause}")


class RemoteError(DownstreamError):
    """The server responded with a JSON-RPC error; code, message and data are as received."""

    def __init__(self, server: str, code: int, message: str, data: Any = None) -> None:
        self.code, self.remote_message, self.data = code, message, data
        super().__init__(server, f"server {server!r} answered with error {code}: {message}")


class AuthorizationError(DownstreamError):
    """The server needs a token, and there is none."""

    def __init__(self, server: str, cause: str) -> None:
        self.cause = cause
        super().__init__(server, f"server {server!r}: no login: {cause}")


class LoginRequiredError(AuthorizationError):
    """The server needs a token, and only a person can get one by logging in."""

    def __init__(self, server: str, cause: str) -> None:
        super().__init__(server, f"{cause}; run: mcp-context-proxy login {server}")
