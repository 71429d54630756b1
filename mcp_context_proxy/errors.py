"""Exceptions of the package, each with the message that a person reads.

Each class builds its message from facts (server, tool, file and line, remedy), so that no call site words an
error by hand. There is one class for each reaction that a caller can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from heapq import nlargest
from itertools import islice
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

NOTICE: Final = 35
"""A log level that is shown like a warning and not called one, such as for the address that is served."""


class ContextProxyError(Exception):
    """Base of every error that this package raises on purpose."""


class ServeError(ContextProxyError):
    """Hosts cannot be served, for example at an address that is in use."""


def check_type(name: str, value: object, *wanted: type) -> None:
    """Raise `TypeError` if a program gave a value of another type."""
    if not isinstance(value, wanted):
        types = " or ".join(one.__name__ for one in wanted)
        raise TypeError(f"{name} is of type {type(value).__name__}; it must be {types}")


def check_bounds(
    name: str, value: float | None, least: int, most: int | None = None, *, whole: bool = True
) -> None:
    """Raise `ValueError` if a number that a program gave is outside its bounds; None is always inside.

    Raises `TypeError` if it is no number, or has to be a whole one and is not.
    """
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, Integral if whole else Real):
        raise TypeError(f"{name} is {value!r}; it must be a {'whole ' if whole else ''}number")
    if not (least <= value and (most is None or value <= most)):
        bounds = f"at least {least:,}" if most is None else f"between {least:,} and {most:,}"
        raise ValueError(f"{name} is {value}; it must be {bounds}")


def innermost(error: BaseException) -> BaseException:
    """Return the first error inside nested exception groups, or an error that is no group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


class ConfigProblem(Struct, frozen=True):
    """One mistake in a configuration file."""

    file: Path | None
    """The file of the mistake; None if it came from the environment or a command-line option."""
    line: int | None
    """1-based line, if known."""
    key: str
    """Dotted key, such as ``servers.github.command``; empty for the file as a whole, or if there is none."""
    message: str
    """One sentence, without a full stop, about the mistake and the allowed values."""
    remedy: str = ""
    """The thing to do, where the message does not say it."""
    variable: str = ""
    """The environment variable that is not set, if that is the mistake."""

    def __str__(self) -> str:
        message = f"{self.message}; {self.remedy}" if self.remedy else self.message
        if self.file is None and not self.key:
            return message
        place = str(self.file) if self.file is not None else "configuration"
        if self.line is not None:
            place += f":{self.line}"
        return f"{place}: {self.key}: {message}" if self.key else f"{place}: {message}"

    @property
    def place(self) -> str:
        """The name of the file, without its folder, and the line."""
        name = self.file.name if self.file is not None else "configuration"
        return name if self.line is None else f"{name}:{self.line}"


class ServerOff(Struct, frozen=True):
    """The reason why a server is off although nobody switched it off: mistakes in its settings."""

    reason: str
    """The first mistake, in words that stand for themselves."""
    problems: tuple[ConfigProblem, ...]

    def __str__(self) -> str:
        more = len(self.problems) - 1
        place = self.problems[0].place + (f", and {more} more" if more else "")
        return f"{self.reason} ({place})"


MOST_TOLD: Final = 100
"""Mistakes of one file that are told one by one: more than a person mends before the next look."""


def first_told(mistakes: Iterable[str], count: int) -> Iterator[str]:
    """Yield the first of so many mistakes, and how many there are beyond."""
    yield from islice(mistakes, MOST_TOLD)
    if count > MOST_TOLD:
        yield f"and {count - MOST_TOLD:,} more"


class ConfigError(ContextProxyError):
    """The configuration cannot be used; ``problems`` holds every mistake found, in file order."""

    def __init__(self, problems: Sequence[ConfigProblem]) -> None:
        self.problems = tuple(problems)
        if [problem.file or problem.key for problem in self.problems] == [""]:
            super().__init__(str(self.problems[0]))
            return
        count = len(self.problems)
        head = "1 problem in the configuration" if count == 1 else f"{count} problems in the configuration"
        told = first_told(map(str, self.problems), count)
        super().__init__("\n".join([f"{head}:", *(f"  {problem}" for problem in told)]))


class ModelError(ContextProxyError):
    """The embedding model cannot be loaded, or it gives no vectors; search uses words alone."""

    def __init__(self, place: Path | str, reason: str, remedy: str, passing: bool = False) -> None:
        self.place, self.reason, self.remedy = place, reason, remedy
        self.passing = passing
        """True if the failure may be temporary, so that another attempt is worthwhile."""
        super().__init__(f"embedding model {place}: {reason}; {remedy}")


class RerankError(ContextProxyError):
    """The reranker gave no order, or none that can be used; the order of the search stays."""

    def __init__(self, judge: str, reason: str, remedy: str = "") -> None:
        self.reason, self.remedy = reason, remedy
        super().__init__(f"{judge} gave no order: {reason}" + (f"; {remedy}" if remedy else ""))


class EmbeddingCancelledError(ContextProxyError):
    """Embedding was cancelled between two batches; finished vectors are stored."""

    def __init__(self, done: int, total: int) -> None:
        self.done, self.total = done, total
        super().__init__(f"embedding was stopped after {done} of {total} texts; they are kept")


class StoreError(ContextProxyError):
    """The store cannot be opened or written; work goes on in memory."""

    def __init__(self, place: Path | str, reason: str) -> None:
        """Name the place, a file or an address without its secrets, and the reason."""
        self.place, self.reason = place, reason
        super().__init__(f"store {place}: {reason}")


class DataFileError(ContextProxyError):
    """A file given to a command cannot be used, or one of its lines."""

    def __init__(self, path: Path, line: int | None, reason: str) -> None:
        self.path, self.line, self.reason = path, line, reason
        place = str(path) if line is None else f"{path}:{line}"
        super().__init__(f"{place}: {reason}")


class UnknownItemError(ContextProxyError):
    """The catalog has no item of that name."""

    def __init__(self, kind: str, name: str, nearest: Sequence[str] = ()) -> None:
        self.nearest = tuple(nearest)
        hint = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
        super().__init__(f"unknown {kind} {name!r}{hint}")


class SharedNameError(UnknownItemError):
    """Several servers have an item of that own name; `names` are those to choose from."""

    def __init__(self, kind: str, name: str, names: Sequence[str]) -> None:
        super().__init__(kind, name)
        self.args = (f"several servers have a {kind} {name!r}: use {' or '.join(names)}",)


class TurnedOffError(UnknownItemError):
    """The configuration turns the tool off; `reason` says by which setting, in which line of which file."""

    def __init__(self, name: str, reason: str, *, server: str, tool: str) -> None:
        """Describe the failure; `server` and `tool`, the server's own name, say which tool it is."""
        super().__init__("tool", name)
        self.reason, self.server, self.tool = reason, server, tool
        self.args = (f"tool {name!r} is turned off {reason}; only the user can turn it on, in that file",)


UNREAD: Final = "the database that has the decisions about it cannot be reached; it is tried again"
"""Reason why a definition is withheld until its record can be read."""


class WithheldError(UnknownItemError):
    """The definition waits for a person's approval, or for the record of it."""

    def __init__(self, *, kind: str, name: str, server: str, reason: str, other: str = "") -> None:
        super().__init__(kind, name)
        instead = f"; {other} is another server's, and needs that name" if other else ""
        look = "" if reason == UNREAD else f"; a person has to look (mcp-context-proxy changes {server})"
        self.args = (f"{kind} {name!r} of {server} is withheld: {reason}{look}{instead}",)


class AwaitedServersError(UnknownItemError):
    """An own name leads nowhere as long as a server that may have it as well is not known."""

    NAMED = 3
    """Awaited servers that the message names."""

    def __init__(
        self,
        kind: str,
        name: str,
        servers: Sequence[str],
        *,
        known: Sequence[str] = (),
        nearest: Sequence[str] = (),
    ) -> None:
        """Name the servers that are not known, and those that can be used instead.

        `known` are names of items of other servers, and `nearest` similar names, for where there are none.
        """
        self.servers, self.known = tuple(servers), tuple(known)
        super().__init__(kind, name, nearest)
        away = f"Not connected: {some_of(self.servers, self.NAMED)}"
        if known:
            first = f"{kind} {name!r} needs the name of its server: use {' or '.join(known)}."
        else:
            hint = f"; did you mean {' or '.join(nearest)}?" if nearest else "."
            first = f"no connected server has a {kind} {name!r}{hint}"
        self.args = (f"{first} {away}",)


class NotForModelsError(ContextProxyError):
    """A model wants to add or remove an item that only a person may."""

    def __init__(self, kind: str, name: str, why: str) -> None:
        super().__init__(
            f"{kind} {name!r} is for a person to add or remove: {why}. Tell the user, who can do so with "
            "`mcp-context-proxy session`, or on the page"
        )


class ChangedMeaningError(UnknownItemError):
    """An own name would lead to another server than before in the same session."""

    def __init__(self, kind: str, name: str, before: str, now: str) -> None:
        super().__init__(kind, name)
        self.args = (
            f"{kind} {name!r} belonged to server {before!r} earlier in this session and would now go to "
            f"server {now!r}: use {before}__{name}, or {now}__{name} if you mean that one",
        )


class ChangedToolError(UnknownItemError):
    """A tool is another one than was called, or than a person was asked about."""

    def __init__(self, name: str) -> None:
        super().__init__("tool", name)
        self.args = (f"{name} was not run: its definition changed meanwhile; look at it, and call it again",)


NAMED: Final = 5
"""Names that a sentence has, unless it says otherwise."""


def some_of(names: Sequence[str], most: int = NAMED) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")


LIKENESS: Final = 0.6
"""Ratio of `difflib` from which on names are alike, as it recommends."""

COMPARED: Final = 5_000
"""Names that an unknown one is compared with at most, in a thread."""

COMPARED_CHARACTERS: Final = 64
"""Characters of a name that are compared, in time that is the square of their number; hosts allow as many."""

COMPARED_IN_FULL: Final = 20
"""Names with the most letters in common, whose order is then compared, too."""


def nearest_names(name: str, known: Iterable[str], most: int = 3) -> list[str]:
    """Return the known names that are most like an unknown one, best first."""
    from difflib import SequenceMatcher  # noqa: PLC0415 - seldom needed

    matcher = SequenceMatcher(b=name[:COMPARED_CHARACTERS], autojunk=False)
    like: list[tuple[float, str]] = []
    for other in islice(known, COMPARED):
        matcher.set_seq1(other[:COMPARED_CHARACTERS])
        if matcher.real_quick_ratio() >= LIKENESS and (ratio := matcher.quick_ratio()) >= LIKENESS:
            like.append((ratio, other))
    found: list[tuple[float, str]] = []
    for _, other in nlargest(COMPARED_IN_FULL, like):
        matcher.set_seq1(other[:COMPARED_CHARACTERS])
        if (ratio := matcher.ratio()) >= LIKENESS:
            found.append((ratio, other))
    return [other for _, other in nlargest(most, found)]


class UnknownFilterError(ContextProxyError):
    """A search filter has a value that nothing in the catalog has."""

    NAMED = 20
    """Known values that the message names; a person reads no more."""

    def __init__(self, kind: str, value: str, nearest: Sequence[str], known: Sequence[str]) -> None:
        self.kind, self.value = kind, value
        hint = f" Did you mean {' or '.join(map(repr, nearest))}?" if nearest else ""
        there = f"There are: {some_of(known, self.NAMED)}" if known else "There is none"
        super().__init__(f"there is no {kind} {value!r}.{hint} {there}")


class Fault(StrEnum):
    """Kind of a failed connection to a server, for those who say what to do about it."""

    NO_PROGRAM = "no program"
    """There is no program of that name."""
    NOT_RUNNABLE = "not runnable"
    """There is such a file, and it cannot be run."""
    NO_ACCESS = "no access"
    """The program lies in a folder that may not be entered."""
    NO_START = "no start"
    """The program cannot be started for another reason, which the cause states with its remedy."""
    EXITED = "exited"
    """The program has ended or closed its output, or the connection to a URL was lost."""
    BROKEN_CACHE = "broken cache"
    """A package runner has half a package in its cache; the cause names the folder to delete."""
    SILENT = "silent"
    """There was no response in time."""
    SERVES_HTTP = "serves HTTP"
    """The program says that it listens at an address, and nothing over stdio."""
    NO_MCP = "no MCP"
    """There was a response that is none of the protocol."""
    REFUSED = "refused"
    """There was a response with an error."""
    LOGIN = "login"
    """The server needs a token, and there is none."""
    UNREACHABLE = "unreachable"
    """There was no connection."""


class StartError(ContextProxyError, ConnectionError):
    """The program of a server cannot be started; the message says why, and names a remedy."""

    def __init__(self, fault: Fault, message: str) -> None:
        self.fault = fault
        super().__init__(message)


class DownstreamError(ContextProxyError):
    """A failure of one downstream server; ``server`` is its key in the configuration."""

    def __init__(self, server: str, message: str) -> None:
        self.server = server
        super().__init__(message)


class ServerUnavailableError(DownstreamError):
    """The server is not connected, so the request was not sent."""

    def __init__(self, server: str, state: str, cause: str = "", stderr: Sequence[str] = ()) -> None:
        self.state, self.cause, self.stderr = state, cause, tuple(stderr)
        super().__init__(
            server,
            f"server {server!r} is not available ({state}{': ' + cause if cause else ''}){_quoted(stderr)}",
        )


def _quoted(stderr: Sequence[str]) -> str:
    return "; its last output: " + " | ".join(stderr) if stderr else ""


class DisconnectedError(ServerUnavailableError):
    """The connection was lost before the request was sent; the next one can send it. `verb` says how."""

    def __init__(self, server: str, verb: str) -> None:
        super().__init__(server, "disconnected", f"it {verb}")


class SessionForgottenError(DisconnectedError):
    """The server has forgotten the session and refused the request unread."""

    def __init__(self, server: str) -> None:
        super().__init__(server, "has forgotten the session")


class CallInterruptedError(DownstreamError):
    """The connection was lost while the request was pending; it may or may not have run."""

    def __init__(self, server: str, subject: str, cause: str, stderr: Sequence[str] = ()) -> None:
        self.subject, self.cause, self.stderr = subject, cause, tuple(stderr)
        super().__init__(
            server,
            f"server {server!r} {cause} during {subject}; it may or may not have run and was not sent again"
            + _quoted(stderr),
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

    def __init__(
        self, server: str, what: str, http_status: int | None = None, wait_seconds: float = 0.0
    ) -> None:
        self.what, self.http_status, self.wait_seconds = what, http_status, wait_seconds
        super().__init__(server, f"server {server!r} answered {what}")


class InputMissingError(DownstreamError):
    """The server asked for input during a request and did not get it."""

    def __init__(self, server: str, cause: str) -> None:
        self.cause = cause
        super().__init__(server, f"server {server!r} asked for input and did not get it: {cause}")


class SecretRefusedError(DownstreamError):
    """The request has a secret that the server was not given, so it was not sent."""

    def __init__(self, server: str, subject: str, secret: str) -> None:
        self.subject, self.secret = subject, secret
        super().__init__(
            server,
            f"{subject} was not sent to server {server!r}: it has the value of {secret}. Do not pass it on "
            "in another form; tell the user. A value that is no secret is named in `public` under [guards]",
        )


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
