"""Small processes beside the proxy, of the standard library alone: the bridge, and the prompt hook of a host.

Here the proxies that run for a configuration are found and asked, and the hook does so. A host waits for its
prompt hook, so no module is imported here that takes longer than all the rest of a hook: paths are texts,
there is no ``typing`` while the program runs, and of ``socket`` only the part in C.

A host runs the hook at each prompt. It never fails and never blocks a prompt: whatever goes wrong, it prints
nothing and exits with 0. It starts neither a proxy nor a server.
"""

from __future__ import annotations

import _socket
import json
import os
import signal
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any, Final


CONFIG_VARIABLE: Final = "MCP_CONTEXT_PROXY_CONFIG"
"""Environment variable with the path of the configuration."""

OWN: Final = "own"
"""Part of the name of a socket on which a proxy answers commands only."""

CONNECT_SECONDS: Final = 5.0
"""Timeout of a connection to a proxy that does not accept any."""

DIGITS: Final = 12
"""Hexadecimal digits of each of the two parts of a socket's name."""

SOCKET_PATH_BYTES: Final = 103
"""Longest path of a socket that every system takes: macOS has room for 104 with the zero at the end."""

FOLDER_BYTES: Final = SOCKET_PATH_BYTES - 2 * DIGITS - len("/-.sock")
"""The same of its folder. That for temporary files of macOS just fits."""

FNV_OFFSET: Final = 0xCBF29CE484222325
FNV_PRIME: Final = 0x100000001B3
BITS_64: Final = (1 << 64) - 1
"""Numbers of the hash FNV-1a."""

BASE: Final = "/api/v1"
"""Path of the API."""

CHUNK: Final = 1 << 16

NOTHING: Final = b""


class AskError(Exception):
    """The proxy cannot be asked, or refuses; the message is for a person."""

    def __init__(self, text: str, status: int | None = None) -> None:
        super().__init__(text)
        self.status = status
        """Status of a response that refuses; None if there was no response."""


def configuration_file(given: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> str:
    """Return the path of the configuration that a command line names, or of the user's own."""
    config = given or environ.get(CONFIG_VARIABLE)
    if not config:
        from mcp_context_proxy.system import default_file  # noqa: PLC0415 - seldom needed

        config = default_file(environ)
    path = os.path.expanduser(os.fspath(config))
    return path if os.path.isabs(path) else os.path.join(os.getcwd(), path)


def configuration_part(config: str | os.PathLike[str]) -> str:
    """Return the first part of the names of the sockets for a configuration, by which commands find them.

    The hash needs no import, and is no secret: where hosts join is said by the second part, which stands for
    the configuration as well.
    """
    value = FNV_OFFSET
    for byte in os.fsencode(os.path.realpath(config)):
        value = (value ^ byte) * FNV_PRIME & BITS_64
    return f"{value:016x}"[:DIGITS]


def folders(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield the folders that sockets may be in, the one for new ones first."""
    if not hasattr(os, "getuid"):
        data = environ.get("LOCALAPPDATA") or os.path.expanduser("~/AppData/Local")
        yield f"{data}/mcp-context-proxy-run"
        return
    runtime = environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        yield f"{runtime}/mcp-context-proxy"
    name = f"mcp-context-proxy-{os.getuid()}"
    folder = f"{(environ.get('TMPDIR') or '/tmp').rstrip('/')}/{name}"
    yield folder if len(os.fsencode(folder)) <= FOLDER_BYTES else f"/tmp/{name}"


def is_private(status: os.stat_result) -> bool:
    """Return whether a folder can be entered by its user alone."""
    if not hasattr(os, "getuid"):
        return stat.S_ISDIR(status.st_mode)  # in the folder of the user, which is closed to others
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def running(config: str | os.PathLike[str], environ: Mapping[str, str]) -> list[str]:
    """Return the sockets of the proxies that run for a configuration.

    The one that a host started here would join comes first, then the others that hosts share, then those that
    serve one host or HTTP, each time those started last first.
    """
    return [path for path in sockets(config, environ) if connected(path, keep=False) is not None]


def sockets(config: str | os.PathLike[str], environ: Mapping[str, str]) -> list[str]:
    """Return the same sockets, and those that processes have left which were killed."""
    found: list[tuple[float, str]] = []
    beginning = f"{configuration_part(config)}-"
    for folder in folders(environ):
        try:
            if is_private(os.lstat(folder)):
                for name in os.listdir(folder):
                    if name.startswith(beginning) and name.endswith(".sock"):
                        path = f"{folder}/{name}"
                        found.append((os.stat(path).st_mtime, path))
        except OSError:
            continue
    own: str | None = None
    if len(found) > 1:
        from mcp_context_proxy.bridge.meeting import JoinError, meeting  # noqa: PLC0415 - seldom needed

        try:
            own = meeting(["--config", os.fspath(config)], environ).socket
        except (JoinError, OSError):
            own = None
    ordered = sorted(found, key=lambda pair: (pair[1] != own, f"-{OWN}-" in pair[1], -pair[0]))
    return [path for _, path in ordered]


def connected(path: str | os.PathLike[str], *, keep: bool = True) -> _socket.socket | None:
    """Return a connection to the proxy at a path; None if nobody listens there."""
    peer: _socket.socket | None = None
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            peer = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
            peer.settimeout(CONNECT_SECONDS)
            peer.connect(os.fspath(path))
        else:
            from mcp_context_proxy.bridge.meeting import connect_to_port  # noqa: PLC0415 - no Unix sockets

            peer = connect_to_port(os.fspath(path))
        peer.settimeout(None)
    except OSError:
        if peer is not None:
            peer.close()
        return None
    if not keep:
        peer.close()
    return peer


def ask(path: str | os.PathLike[str], method: str, target: str, body: Any = None, *, seconds: float) -> Any:
    """Make one request of the proxy at a socket, and return the decoded answer.

    Args:
        path: The socket.
        method: Method of HTTP.
        target: Path below the base of the API, with its query.
        body: Value that is sent as JSON; None for no body.
        seconds: Time limit for each step.

    Raises:
        AskError: nobody answers in time, or the answer is a refusal.
    """
    data = NOTHING if body is None else json.dumps(body).encode()
    lines = [f"{method} {BASE}{target} HTTP/1.1", "Host: localhost", "Connection: close"]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    head = "\r\n".join([*lines, "", ""]).encode("ascii")
    peer = connected(path)
    if peer is None:
        raise AskError("the running proxy does not answer: nobody listens there")
    try:
        peer.settimeout(seconds)
        peer.sendall(head + data)
        received = bytearray()
        while chunk := peer.recv(CHUNK):
            received += chunk
    except OSError as error:
        raise AskError(f"the running proxy does not answer: {error}") from None
    finally:
        peer.close()
    return _answer(bytes(received))


def _answer(received: bytes) -> Any:
    head, _, body = received.partition(b"\r\n\r\n")
    try:
        status = int(head.split(b" ", 2)[1])
        answer = json.loads(body)
    except (ValueError, IndexError):
        raise AskError("the running proxy has sent no whole answer") from None
    if status >= 400:
        raise AskError(
            answer.get("detail", "it refuses") if isinstance(answer, dict) else "it refuses", status
        )
    return answer


SECONDS: Final = 2.0
"""Time limit for everything together."""

INPUT_BYTES: Final = 4 * 1024 * 1024
"""Most that is read of the input of a host."""

PROMPT_CHARACTERS: Final = 20_000
"""Length to which a prompt is cut; a search reads less."""

EVENTS: Final = {"claude-code": "UserPromptSubmit", "codex": "UserPromptSubmit", "gemini-cli": "BeforeAgent"}
"""Event of each host whose answer has the form that Claude Code has begun with."""

CURSOR: Final = "cursor"


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Answer the hook of a host, whose name is the first argument; always return 0."""
    try:
        if sys.platform == "win32":
            import threading  # noqa: PLC0415 - signals take less time

            late = threading.Timer(SECONDS, os._exit, [0])
            late.daemon = True
            late.start()
        else:
            signal.signal(signal.SIGALRM, lambda _number, _frame: os._exit(0))
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
        host, *rest = arguments
        given = json.loads(sys.stdin.buffer.read(INPUT_BYTES))
        text = _facts(host, given, _config(rest), environ)
        if text:
            sys.stdout.write(json.dumps(answer(host, text)))
            sys.stdout.flush()
    except BaseException:
        # boundary: a hook that fails costs a person the prompt, in some hosts
        return 0
    return 0


def answer(host: str, text: str) -> dict[str, Any]:
    if host == CURSOR:
        return {"continue": True, "additional_context": text}
    event = EVENTS.get(host, "UserPromptSubmit")
    return {"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}}


def _config(arguments: Sequence[str]) -> str | None:
    return arguments[1] if arguments[:1] == ["--config"] and len(arguments) > 1 else None


def _facts(host: str, given: Any, config: str | None, environ: Mapping[str, str]) -> str:
    prompt = given.get("prompt") if isinstance(given, dict) else None
    # What begins with a slash is a command of the host.
    if not isinstance(prompt, str) or not prompt.strip() or prompt.lstrip().startswith("/"):
        return ""
    places = sockets(configuration_file(config, environ), environ)
    if len(places) > 1:
        # Those of proxies that were killed do not count.
        places = [place for place in places if connected(place, keep=False) is not None]
    wanted = {
        "prompt": prompt[:PROMPT_CHARACTERS],
        "host": host,
        "session": _text(given.get("session_id") or given.get("conversation_id")),
        "folder": folder_of(given),
        "connected": len(places) > 1,
    }
    for place in places:
        try:
            found = ask(place, "POST", "/prompt", wanted, seconds=SECONDS / len(places))
        except AskError:
            continue  # such as one that is stopped: another may have the session
        if found["request"] is not None:
            return str(found["text"])
    return ""


def folder_of(hook: Mapping[str, Any]) -> str | None:
    """Return the folder of the session that a hook's JSON is of."""
    return _text(hook.get("cwd")) or _first(hook.get("workspace_roots"))


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _first(values: Any) -> str | None:
    return _text(values[0]) if isinstance(values, list) and values else None
