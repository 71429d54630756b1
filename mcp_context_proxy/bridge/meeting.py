"""The place where the sessions of a user's hosts meet in one proxy: its name, its start, and those that run.

Standard library only, and little of it: a bridge is a process for every host session, and answers within
milliseconds of its start. So paths are texts here.

A proxy is shared only by sessions that would give its servers the same: the same configuration, program and
version, and the same value of each environment variable that a server can get. All of that is in the name of
the socket, so sessions that differ never meet. The proxy gets these variables and no others, so that nothing
of the session that started it reaches the servers of another, whatever the configuration names later.
The first part of the name stands for the configuration alone: by it, commands find running proxies.

Where there are no such sockets, as on Windows, a private file has a port of this machine and a key. Both
sides prove that they know the key before anything else is said, and it is never sent: whoever gets the port
of a proxy that has gone learns nothing, and is not taken for it.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import time
from contextlib import suppress

from mcp_context_proxy import __version__
from mcp_context_proxy.bridge import (
    CONNECT_SECONDS,
    DIGITS,
    OWN,
    SOCKET_PATH_BYTES,
    configuration_file,
    configuration_part,
    connected,
    folders,
    is_private,
)
from mcp_context_proxy.system import CLOSE_ON_EXEC, INHERITED, locked, matches

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterator, Mapping, Sequence
    from subprocess import Popen
    from typing import Any, Final

JOIN_OPTION: Final = "--shared"
"""Option of ``serve`` with which a host's session joins; without it, it does the same."""
HOST_OPTIONS: Final = ("--profile", "--preset")
"""Options of ``serve`` about one host, which hosts that share a proxy may have different."""
LISTEN_OPTION: Final = "--listen-on"
"""Hidden option of ``serve`` with the descriptor of the socket that a bridge has opened."""

PORT_VARIABLE: Final = "MCP_CONTEXT_PROXY_LOOPBACK"
"""If it is set, sessions and their proxy meet at a port of this machine, and not at a Unix socket."""

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 64
"""Lengths of what the two sides send each other at a port, in hexadecimal digits."""

START_SECONDS: Final = 8.0
"""Time in which a proxy that is started listens at a port; a socket is opened for it beforehand."""
START_PAUSE_SECONDS: Final = 0.02

LOG_BYTES: Final = 5 * 1024 * 1024
"""Size from which the log of a shared proxy begins anew."""
OURS: Final = (
    "MCP_CONTEXT_PROXY_*",
    "OTEL_*",
    "PYTHON*",
    "LD_*",
    "DYLD_*",
    "COVERAGE_*",
    "DBUS_SESSION_BUS_ADDRESS",
)
"""Variables that the proxy itself and its Python read, such as those for traces, and for the keyring of the
system."""
OF_ONE_WINDOW: Final = (
    "TERM",
    "XDG_ACTIVATION_TOKEN",
    "XDG_SEAT",
    "XDG_SESSION_*",
    "XDG_VTNR",
    "SHLVL",
    "PWD",
    "OLDPWD",
    "_",
)
"""Variables that differ between any two windows, and tell no server anything. A shared proxy has none but
for those that the configuration names."""

_VARIABLE: Final = re.compile(r"(?:\$\{?|\{)(?:env:)?([A-Za-z_][A-Za-z0-9_]*)")
"""A variable in a text, in the forms of all hosts: ``${A}``, ``${env:A}``, ``$A``, ``{env:A}``."""
_TEXT: Final = re.compile(
    r"""(?:["'\[,]|^\s*+-)\s*+([A-Za-z_*][A-Za-z0-9_*]*+)(?=\s*+(?:["'\],#]|$))""", re.MULTILINE
)
"""A text of one word, in quotes or in a list of YAML."""
_ALL_VARIABLES: Final = re.compile(r"""\$\{cmd:|\binherit\b["']?\s*[=:]\s*\[[^\]]*["']\*["']""")
"""Settings with which servers can get any variable."""
_COMMENT: Final = re.compile(r"^\s*#.*", re.MULTILINE)


class JoinError(Exception):
    """No proxy can be shared here; the caller serves by itself."""


class Meeting:
    """The place where sessions and their shared proxy meet."""

    def __init__(
        self, socket: str, command: Sequence[str], folder: str, environment: Mapping[str, str]
    ) -> None:
        self.socket = socket
        """Path of the socket."""
        self.command = command
        """Starts the proxy; the descriptor of its socket is appended."""
        self.folder = folder
        """Working folder of the proxy."""
        self.environment = environment
        """Variables of the proxy."""
        self.lock = beside(socket, ".lock")
        """The file that is locked while a proxy is started."""
        self.log = beside(socket, ".log")
        """The file with the messages of the proxy."""


def meeting(arguments: Sequence[str], environ: Mapping[str, str]) -> Meeting:
    """Return where the sessions of a command line meet.

    Raises `FileNotFoundError` if there is no configuration, and `JoinError` if the command line has other
    options, or the configuration cannot be read.
    """
    given, rest = _configuration(arguments)
    config = configuration_file(given, environ)
    if os.path.exists(config) and not os.path.isfile(config):
        raise JoinError("the configuration is no file, and cannot be read again")
    try:
        with open(config, encoding="utf-8-sig") as file:
            text = file.read()
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise JoinError(str(error)) from None
    launch = os.getcwd() if re.search(r"""["']launch["']""", text) else None
    environment = dict(_variables(text, environ))
    said = {
        "version": __version__,
        "program": sys.executable,
        "options": rest,
        "configuration": os.path.realpath(config),
        "launched in": launch,
        "variables": environment,
    }
    path = f"{runtime_folder(environ)}/{configuration_part(config)}-{_digest(said)}.sock"
    _check_length(path, environ)
    # With -P no module comes from the working folder, which may be a repository that the host has opened.
    command = [sys.executable, "-P", "-m", "mcp_context_proxy", *rest, "--config", config, "serve"]
    home = os.path.expanduser("~")
    folder = launch or (home if os.path.isdir(home) else "/")
    return Meeting(path, [*command, LISTEN_OPTION], folder, environment)


def meets_at_port(environ: Mapping[str, str]) -> bool:
    """Return whether sessions and their proxy meet at a port of this machine."""
    return bool(environ.get(PORT_VARIABLE)) or not hasattr(socket, "AF_UNIX")


def options_of(arguments: Sequence[str], wanted: str) -> list[str]:
    """Return the values of an option in a command line, in its order."""
    found: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name == wanted:
            found.append(value if equals else next(words, ""))
    return found


def _configuration(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the configuration of a command line, and its options that a shared proxy gets as well."""
    config: str | None = None
    rest: list[str] = []
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if name in HOST_OPTIONS:
            # For this host alone: its bridge tells the proxy.
            value if equals else next(words, "")
        elif name in {"--config", "--log-level"}:
            value = value if equals else next(words, "")
            if name == "--config":
                config = value
            else:
                rest += [name, value]
        elif word not in {"serve", JOIN_OPTION}:
            raise JoinError(f"{word} is not for a shared proxy")
    return config, rest


def _digest(said: Any) -> str:
    text = json.dumps(said, sort_keys=True)
    return _sha256(text.encode("utf-8", "surrogateescape"))[:DIGITS]


def _sha256(data: bytes) -> str:
    try:
        # Without OpenSSL, which `hashlib` loads: that is a sixth of the memory of a bridge.
        if sys.version_info >= (3, 12):
            from _sha2 import sha256  # type: ignore[import-not-found] # noqa: PLC0415
        else:
            from _sha256 import sha256  # type: ignore[import-not-found] # noqa: PLC0415
    except ImportError:
        from hashlib import sha256  # noqa: PLC0415
    digest: str = sha256(data).hexdigest()
    return digest


def _variables(text: str, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the variables of an environment that the servers of a configuration, or the proxy, can get."""
    # Each counts as a pattern for `inherit` and as the name of a variable: one too many only shares less.
    patterns = {one for one in _TEXT.findall(text) if one != "*"}
    named = {*_VARIABLE.findall(text), *patterns}
    # A command reads whichever it likes.
    every = _ALL_VARIABLES.search(_COMMENT.sub("", text)) is not None
    for name, value in sorted(environ.items()):
        inherited = every or matches(name, (*INHERITED, *OURS))
        if name in named or matches(name, patterns) or (inherited and not matches(name, OF_ONE_WINDOW)):
            yield name, value


def runtime_folder(environ: Mapping[str, str]) -> str:
    """Return the folder of the user for sockets, which nobody else can write.

    Raises `JoinError` if there is one, but it belongs to somebody else or others can write it.
    """
    folder = next(folders(environ))
    try:
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        status = os.lstat(folder)
    except OSError as error:
        raise JoinError(f"{folder}: {error.strerror}") from None
    if not is_private(status):
        raise JoinError(f"{folder} can be changed by others")
    return folder


def beside(path: str, end: str) -> str:
    """Return the path of a file beside a socket, which differs in the end of its name."""
    return os.path.splitext(path)[0] + end


def own_socket(config: str | os.PathLike[str], environ: Mapping[str, str]) -> str:
    """Return the path of the socket on which this process answers commands, and serves no hosts.

    Sockets of processes that ended without removing theirs are removed. Raises `JoinError` if there is no
    place for it.
    """
    folder, beginning = runtime_folder(environ), f"{configuration_part(config)}-{OWN}-"
    for name in os.listdir(folder):
        left = f"{folder}/{name}"
        if name.startswith(beginning) and name.endswith(".sock") and connected(left, keep=False) is None:
            with suppress(FileNotFoundError):
                os.unlink(left)
    path = f"{folder}/{beginning}{os.getpid()}.sock"
    _check_length(path, environ)
    return path


def _check_length(path: str, environ: Mapping[str, str]) -> None:
    if not meets_at_port(environ) and len(os.fsencode(path)) > SOCKET_PATH_BYTES:
        raise JoinError(f"the path of the socket is too long: {path}")


def listen(path: str, environ: Mapping[str, str]) -> tuple[socket.socket, bytes | None]:
    """Return a socket that listens for this user alone, with the key that the other side has to know.

    A Unix socket is at the path, and has no key. Otherwise the path is a file with a port and the key. Raises
    `OSError` if it cannot be made there.
    """
    if not meets_at_port(environ):
        return _listen_at(path), None
    listening = socket.socket()
    try:
        listening.bind(("127.0.0.1", 0))
        listening.listen(128)
        key = os.urandom(32).hex().encode()
        new = beside(path, f".{os.getpid()}")
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(b"%d %s\n" % (listening.getsockname()[1], key))
        os.replace(new, path)
    except BaseException:
        listening.close()
        raise
    return listening, key


def proof(key: bytes, side: bytes, nonce: bytes) -> bytes:
    import hmac  # noqa: PLC0415 - a Unix socket needs none

    return hmac.new(key, side + nonce, "sha256").hexdigest().encode()


def proves(said: bytes, key: bytes, side: bytes, nonce: bytes) -> bool:
    import hmac  # noqa: PLC0415 - the same

    return hmac.compare_digest(said, proof(key, side, nonce))


def connect_to_port(path: str) -> socket.socket:
    """Connect to the proxy whose port and key are in a file.

    Raises `OSError` if there is no such file, or nobody listens there who knows the key.
    """
    try:
        with open(path, "rb") as file:
            port, key = file.read().split()
        peer = socket.create_connection(("127.0.0.1", int(port)), CONNECT_SECONDS)
    except (ValueError, OverflowError):
        raise OSError("the file has no port") from None
    try:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        nonce = os.urandom(NONCE_BYTES // 2).hex().encode()
        peer.sendall(nonce)
        said = b""
        while len(said) < PROOF_BYTES + NONCE_BYTES:
            if not (more := peer.recv(PROOF_BYTES + NONCE_BYTES - len(said))):
                raise OSError("another program has this port")
            said += more
        if not proves(said[:PROOF_BYTES], key, b"proxy", nonce):
            raise OSError("another program has this port")
        peer.sendall(proof(key, b"host", said[PROOF_BYTES:]))
    except BaseException:
        peer.close()
        raise
    return peer


def _listen_at(path: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The folder is the user's own, so nobody else comes between the two steps.
        listening.bind(path)
        os.chmod(path, 0o600)
        listening.listen(128)
    except BaseException:
        listening.close()
        raise
    return listening


def connect(place: Meeting) -> _socket.socket:
    """Connect to the proxy of a meeting place; start it if none runs.

    Raises `JoinError` if it cannot be started.
    """
    for _ in range(2):
        if (found := connected(place.socket)) is not None:
            return found
        with locked(place.lock) as lock:
            # Whoever had the lock before has started it.
            if connected(place.socket, keep=False) is None:
                process = _start(place)
                os.ftruncate(lock, 0)
                os.write(lock, b"%d\n" % process)
    if (found := connected(place.socket)) is None:
        raise JoinError(f"nothing listens at {place.socket}")
    return found


def process_of(path: str) -> int | None:
    """Return the id of the process that was started to listen at a path; None if that is not known."""
    name = os.path.basename(path)
    try:
        if f"-{OWN}-" in name:
            return int(os.path.splitext(name)[0].rpartition("-")[2])
        with open(beside(path, ".lock"), encoding="ascii") as file:
            return int(file.read(DIGITS))
    except (OSError, ValueError):
        return None


def _start(place: Meeting) -> int:
    """Start the proxy, and return its process id; hosts can connect from now on.

    A Unix socket is opened here, and handed over. A port is opened by the proxy, which is waited for.
    """
    with suppress(FileNotFoundError):
        os.unlink(place.socket)
    if meets_at_port(place.environment):
        started = _process(place, place.socket)
        until = time.monotonic() + START_SECONDS
        while connected(place.socket, keep=False) is None:
            if started.poll() is not None or time.monotonic() > until:
                raise JoinError(f"the shared proxy does not start; its messages: {place.log}")
            time.sleep(START_PAUSE_SECONDS)
        return started.pid
    try:
        with _listen_at(place.socket) as listening:
            descriptor = listening.fileno()
            return _process(place, str(descriptor), pass_fds=(descriptor,)).pid
    except OSError as error:
        raise JoinError(f"the shared proxy cannot be started: {error.strerror}") from None


def _process(place: Meeting, listens_at: str, **more: Any) -> Popen[bytes]:
    """Start the process of the proxy; its log begins anew where it is large."""
    import subprocess  # noqa: PLC0415 - takes time, and most bridges start nothing

    with suppress(OSError):
        if os.stat(place.log).st_size > LOG_BYTES:
            os.unlink(place.log)
    # On Windows it must not end with the window of the host.
    more |= {"creationflags": 0x0800_0200} if sys.platform == "win32" else {"start_new_session": True}
    log = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | CLOSE_ON_EXEC, 0o600)
    try:
        return subprocess.Popen(
            [*place.command, listens_at],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd=place.folder,
            env=dict(place.environment),
            **more,
        )
    finally:
        os.close(log)
