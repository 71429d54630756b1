"""The bridge: lets a host's session join a proxy that already runs, instead of starting one of its own.

Standard library only, and little of it: a bridge is a process for every host session, and answers within
milliseconds of its start. It passes lines between the host's pipes and the proxy's socket, a Unix socket in a
folder of the user. If no proxy runs there, it starts one and hands it the listening socket, so that hosts can
connect before the proxy is up.

A proxy is shared only by sessions that would give its servers the same: the same configuration, program and
version, and the same value of each environment variable that a server can get. All of that is in the name of
the socket, so sessions that differ never meet. The proxy gets these variables and no others, so that nothing
of the session that started it reaches the servers of another, whatever the configuration names later.

If the proxy goes away, the bridge tells the host of each request that was under way that it may or may not
have run, starts the proxy again, and opens the session anew with the host's own ``initialize``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from pathlib import Path
from typing import Final, NamedTuple

from mcp_context_proxy import __version__
from mcp_context_proxy.system.variables import INHERITED, matches

OPTION: Final = "--shared"
"""Option of ``serve`` with which a host's session joins."""
LISTEN_OPTION: Final = "--listen-on"
"""Hidden option of ``serve`` with the descriptor of the socket that a bridge has opened."""

CHUNK: Final = 1 << 16
WAIT_SECONDS: Final = 0.05
"""Time between two attempts to connect, where a proxy has just gone."""
CONNECT_SECONDS: Final = 5.0
"""Timeout of a connection to a proxy that does not accept any."""
TRIES: Final = 2
"""Proxies in a row that end before they say anything, until the bridge gives up at the next one."""
LOCK_SECONDS: Final = 10.0
"""Time that another session may take to start the proxy."""
LOCK_PAUSE_SECONDS: Final = 0.01
HELD_BYTES: Final = 32 << 20
"""Part of a line that is held until it is whole; a longer one, which the proxy refuses, passes in parts."""
LAST_LINES_SECONDS: Final = 30.0
"""Time for the last answers after the host has closed its end. A proxy that runs takes half a second."""
LOG_BYTES: Final = 5 * 1024 * 1024
"""Size from which the log of a shared proxy begins anew."""
LOG_SHOWN: Final = 2_000
"""Bytes of the end of the log that are shown if the proxy does not start."""
SOCKET_PATH_BYTES: Final = 100
"""Longest path of a socket that every system takes."""

_VARIABLE: Final = re.compile(r"\$\{?(?:env:)?([A-Za-z_][A-Za-z0-9_]*)")
_ALL_VARIABLES: Final = re.compile(r"""\$\{cmd:|\binherit\b["']?\s*[=:]\s*\[[^\]]*["']\*["']""")
"""Settings with which servers can get any variable."""
_COMMENT: Final = re.compile(r"^\s*#.*", re.MULTILINE)
_OF_THE_PROXY: Final = ("MCP_CONTEXT_PROXY_*", "PYTHON*", "LD_*", "DYLD_*", "DBUS_SESSION_BUS_ADDRESS")
"""Variables of the proxy itself, its Python, and the keyring of the system."""
_OF_A_TERMINAL: Final = frozenset({"TERM", "_", "SHLVL", "PWD", "OLDPWD"})
"""Variables that differ between sessions and say nothing to servers."""
_RESPONSE_ID: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":("(?:[^"\\]|\\.)*"|-?\d+)')
_INTERRUPTED: Final = (
    "the shared proxy ended while this request was running: it may or may not have run; check before you "
    "repeat it"
)
_UNAVAILABLE: Final = -32_000


class JoinError(Exception):
    """No proxy can be shared here; the caller serves by itself."""


class Meeting(NamedTuple):
    """The place where sessions and their shared proxy meet."""

    socket: Path
    command: Sequence[str]
    """Starts the proxy; the descriptor of its socket is appended."""
    folder: Path
    """Working folder of the proxy."""
    variables: Mapping[str, str]
    """Environment of the proxy."""

    @property
    def lock(self) -> Path:
        """The file that is locked while a proxy is started."""
        return self.socket.with_suffix(".lock")

    @property
    def log(self) -> Path:
        """The file with the messages of the proxy."""
        return self.socket.with_suffix(".log")


def meeting(arguments: Sequence[str], environ: Mapping[str, str]) -> Meeting:
    """Return where the sessions of a command line meet.

    Raises:
        JoinError: the command line has other options, or the configuration cannot be read.
    """
    config, rest = _configuration(arguments, environ)
    try:
        text = config.read_text("utf-8-sig")
    except (OSError, ValueError) as error:
        raise JoinError(str(error)) from None
    launch = Path.cwd() if re.search(r"""["']launch["']""", text) else None
    variables = dict(_variables(text, environ))
    said = {
        "version": __version__,
        "program": sys.executable,
        "configuration": str(config.resolve()),
        "options": rest,
        "launched in": None if launch is None else str(launch),
        "variables": variables,
    }
    digest = hashlib.sha256(json.dumps(said, sort_keys=True).encode("utf-8", "surrogateescape")).hexdigest()
    path = runtime_folder(environ) / f"{digest[:24]}.sock"
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise JoinError(f"the path of the socket is too long: {path}")
    # With -P no module comes from the working folder, which may be a repository that the host has opened.
    command = [sys.executable, "-P", "-m", "mcp_context_proxy", *rest, "--config", str(config), "serve"]
    terminal = {name: value for name, value in environ.items() if name == "TERM"}
    folder = launch or Path(os.path.expanduser("~"))  # noqa: PTH111
    return Meeting(path, [*command, LISTEN_OPTION], folder, {**variables, **terminal})


def _configuration(arguments: Sequence[str], environ: Mapping[str, str]) -> tuple[Path, list[str]]:
    """Return the configuration of a command line, and its options that a shared proxy gets as well."""
    config: str | None = None
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in {"--config", "--log-level"}:
            value = value if equals else next(words, "")
            if name == "--config":
                config = value
            else:
                rest += [name, value]
        elif word not in {"serve", OPTION}:
            raise JoinError(f"{word} is not for a shared proxy")
    if config is None:
        config = environ.get("MCP_CONTEXT_PROXY_CONFIG")
    if config is None:
        from mcp_context_proxy.system.places import default_path  # noqa: PLC0415 - seldom needed

        config = str(default_path(environ))
    return Path(config).expanduser().absolute(), rest


def _variables(text: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables of an environment that the proxy and the servers of a configuration can get."""
    # Every text of the configuration counts as a pattern for `inherit`: one too many only shares less.
    patterns = {one for one in re.findall(r"""["']([A-Za-z_*][A-Za-z0-9_*]*)["']""", text) if one != "*"}
    named = {*_VARIABLE.findall(text), *patterns}
    # A command reads whichever it likes.
    every = _ALL_VARIABLES.search(_COMMENT.sub("", text)) is not None
    for name, value in sorted(environ.items()):
        counts = every or name in named or matches(name, (*INHERITED, *_OF_THE_PROXY, *patterns))
        if counts and name not in _OF_A_TERMINAL:
            yield name, value


def runtime_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder of the user for sockets, which nobody else can write.

    Raises:
        JoinError: there is one, but it belongs to somebody else or others can write it.
    """
    runtime = environ.get("XDG_RUNTIME_DIR")
    folder = Path(runtime) / "mcp-context-proxy" if runtime else None
    if folder is None or not folder.parent.is_dir():
        folder = Path(environ.get("TMPDIR") or "/tmp") / f"mcp-context-proxy-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError as error:
        raise JoinError(f"{folder}: {error.strerror}") from None
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise JoinError(f"{folder} can be changed by others")
    return folder


def connect(place: Meeting) -> socket.socket:
    """Connect to the proxy of a meeting place; start it if none runs.

    Raises:
        JoinError: it cannot be started.
    """
    for _ in range(2):
        if (found := _connected(place.socket)) is not None:
            return found
        with locked(place.lock):
            # Whoever had the lock before has started it.
            if _connected(place.socket, keep=False) is None:
                _start(place)
    if (found := _connected(place.socket)) is None:
        raise JoinError(f"nothing listens at {place.socket}")
    return found


def _connected(path: Path, *, keep: bool = True) -> socket.socket | None:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.settimeout(CONNECT_SECONDS)
        peer.connect(str(path))
        peer.settimeout(None)
    except OSError:
        peer.close()
        return None
    if not keep:
        peer.close()
    return peer


@contextmanager
def locked(path: Path, seconds: float = LOCK_SECONDS) -> Iterator[None]:
    """Hold the lock under which a proxy is started, and its socket removed.

    Raises:
        TimeoutError: somebody else has held it for too long, such as a session that is stopped.
    """
    import fcntl  # noqa: PLC0415 - not on Windows

    until = time.monotonic() + seconds
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise TimeoutError(f"{path} is locked by another session") from None
                time.sleep(LOCK_PAUSE_SECONDS)
        yield
    finally:
        os.close(descriptor)


def _start(place: Meeting) -> None:
    """Open the socket, and start the proxy that will serve it; hosts can connect from now on."""
    import subprocess  # noqa: PLC0415 - takes time, and most bridges start nothing

    with suppress(FileNotFoundError):
        place.socket.unlink()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        before = os.umask(0o177)
        try:
            listening.bind(str(place.socket))
        finally:
            os.umask(before)
        listening.listen(128)
        descriptor = listening.fileno()
        with suppress(OSError):
            if place.log.stat().st_size > LOG_BYTES:
                place.log.unlink()
        log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            subprocess.Popen(
                [*place.command, str(descriptor)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=place.folder,
                env=dict(place.variables),
                pass_fds=(descriptor,),
                start_new_session=True,
            )
        finally:
            os.close(log)
    except OSError as error:
        raise JoinError(f"the shared proxy cannot be started: {error.strerror}") from None
    finally:
        listening.close()


class Bridge:
    """One host's session with the shared proxy."""

    def __init__(self, place: Meeting, peer: socket.socket) -> None:
        self._place, self._peer = place, peer
        self._under_way: set[str] = set()
        """Ids of the host's requests that are not answered, as JSON."""
        self._opening: list[bytes] = []
        """The host's ``initialize`` and ``initialized``, with which a session is opened anew."""
        self._opened = ""
        """Id of its ``initialize``, as JSON."""
        self._answered = False
        """True once the proxy has said anything: then it can work here."""
        self._turn = threading.Lock()
        """Held while lines go to the proxy, and while it is replaced."""
        self._ended = False

    def run(self) -> None:
        """Pass lines on until the host closes its end."""
        reading = threading.Thread(target=self._read_proxy, daemon=True)
        reading.start()
        for line in _lines(0, HELD_BYTES):
            self._to_proxy(line)
        self._ended = True
        with self._turn, suppress(OSError):
            self._peer.shutdown(socket.SHUT_WR)
        reading.join(LAST_LINES_SECONDS)

    def _to_proxy(self, line: bytes) -> None:
        with self._turn:
            if line.endswith(b"\n"):
                self._track(line)
            # After an error, the other thread sees the end, tells the host, and opens the session anew. A
            # line that is no request is lost with the proxy that it was for.
            with suppress(OSError):
                self._peer.sendall(line)

    def _track(self, line: bytes) -> None:
        """Note the id of a request, and the messages that open a session."""
        with suppress(ValueError, RecursionError):
            message = json.loads(line)
            if not isinstance(message, dict) or "method" not in message:
                return
            method, key = message["method"], json.dumps(message.get("id"))
            if method == "initialize":
                self._opening, self._opened = [line], key
            elif method == "notifications/initialized" and len(self._opening) == 1:
                self._opening.append(line)
            elif method == "notifications/cancelled":
                params = message.get("params")
                target = params.get("requestId") if isinstance(params, dict) else None
                self._under_way.discard(json.dumps(target))
            if "id" in message:
                self._under_way.add(key)

    def _read_proxy(self) -> None:
        """Pass the proxy's lines to the host; replace it when it goes away."""
        skip = ""
        failures = 0
        while True:
            for line in _lines(self._peer):
                failures = 0
                found = _RESPONSE_ID.match(line)
                key = json.dumps(json.loads(found[1])) if found else ""
                self._under_way.discard(key)
                if skip and key == skip:
                    skip = ""  # the answer to an `initialize` that the host has had answered before
                    continue
                self._answered = True
                _write(line)
            if self._ended and (self._answered or not self._under_way):
                return
            failures += 1
            if failures > TRIES:
                self._give_up()
            skip = self._replace()

    def _replace(self) -> str:
        """Connect anew; return the id of an ``initialize`` whose answer the host has had."""
        time.sleep(WAIT_SECONDS)
        with self._turn:
            waiting = self._opened in self._under_way
            lost, self._under_way = self._under_way - {self._opened}, set()
            for key in sorted(lost):
                error = {"code": _UNAVAILABLE, "message": _INTERRUPTED}
                _write(b'{"jsonrpc":"2.0","id":%s,"error":%s}\n' % (key.encode(), json.dumps(error).encode()))
            try:
                self._peer.close()
                self._peer = connect(self._place)
                for line in self._opening:
                    self._peer.sendall(line)
            except (OSError, JoinError):
                return self._opened
            if waiting:
                self._under_way.add(self._opened)
                return ""
            return self._opened if self._opening else ""

    def _give_up(self) -> None:
        """Answer the pending requests, say why, and end: the proxy does not start."""
        with suppress(OSError):
            said = self._place.log.read_bytes()[-LOG_SHOWN:].decode("utf-8", "replace").splitlines()[1:]
            sys.stderr.write("".join(f"{line}\n" for line in said))
        text = f"the shared proxy does not start; its messages: {self._place.log}"
        error = json.dumps({"code": _UNAVAILABLE, "message": text}).encode()
        for key in sorted(self._under_way):
            _write(b'{"jsonrpc":"2.0","id":%s,"error":%s}\n' % (key.encode(), error))
        sys.stderr.write(f"mcp-context-proxy: {text}\n")
        sys.stderr.flush()
        os._exit(1)


def _lines(source: int | socket.socket, held: float = inf) -> Iterator[bytes]:
    """Yield the lines of a descriptor or a socket until its end; the last one only if it is whole.

    A line of more than `held` bytes comes in parts.
    """
    parts: list[bytes] = []
    size = 0
    while True:
        try:
            data = os.read(source, CHUNK) if isinstance(source, int) else source.recv(CHUNK)
        except OSError:
            return
        if not data:
            return
        end = data.rfind(b"\n") + 1
        if not end:
            parts.append(data)
            size += len(data)
            if size > held:
                yield from parts
                parts, size = [], 0
            continue
        whole = b"".join([*parts, data[:end]])
        parts, size = [data[end:]], len(data) - end
        if whole.count(b"\n") == 1:
            yield whole
        else:
            yield from (line + b"\n" for line in whole[:-1].split(b"\n"))


def _write(line: bytes) -> None:
    """Write to the host; end the process if it has gone."""
    view = memoryview(line)
    try:
        while view:
            view = view[os.write(1, view) :]
    except OSError:
        os._exit(0)


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Serve a host through a shared proxy until the host goes; return False if that is not possible here."""
    try:
        place = meeting(arguments, environ)
        peer = connect(place)
    except (JoinError, OSError) as error:
        sys.stderr.write(f"mcp-context-proxy: no shared proxy: {error}; this session has one of its own\n")
        return False
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    Bridge(place, peer).run()
    return True
