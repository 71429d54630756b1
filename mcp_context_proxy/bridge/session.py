"""The bridge: lets a host's session join a proxy that already runs, instead of starting one of its own.

It passes lines between the host's pipes and the proxy's socket. If no proxy runs there, it starts one and
hands it the listening socket, so that hosts can connect before the proxy is up.

If the proxy goes away, the bridge tells the host of each request that was under way that it may or may not
have run, starts the proxy again, and opens the session anew with the host's own ``initialize``.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from math import inf

from mcp_context_proxy.bridge import CONFIG_VARIABLE
from mcp_context_proxy.bridge.meeting import HOST_OPTIONS, JoinError, Meeting, connect, meeting, options_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Final

SESSION_VARIABLES: Final = (
    "CLAUDE_CODE_SESSION_ID",
    "CODEX_SESSION_ID",
    "GEMINI_SESSION_ID",
    "COPILOT_AGENT_SESSION_ID",
)
"""Variables in which hosts tell the programs that they start the id of their session, as their hooks do."""

CHUNK: Final = 1 << 16
WAIT_SECONDS: Final = 0.05
"""Time between two attempts to connect, where a proxy has just gone."""
TRIES: Final = 2
"""Proxies in a row that end before they say anything, until the bridge gives up at the next one."""
HELD_BYTES: Final = 32 << 20
"""Part of a line that is held until it is whole; a longer one, which the proxy refuses, passes in parts."""
LAST_LINES_SECONDS: Final = 30.0
"""Time for the last answers after the host has closed its end. A proxy that runs takes half a second."""
STDERR: Final = 2
TOLD_SECONDS: Final = 1.0
"""Time for which a session waits for its host to read the text for people."""
SILENT_SECONDS: Final = 20.0
"""Time after which the host's log is told of a proxy that has not answered the first request."""
LOG_SHOWN: Final = 2_000
"""Bytes of the end of the log that are shown if the proxy does not start."""
REASON_SHOWN: Final = 1_000
"""Characters of it in the answers to the requests that wait."""
TOLD_START: Final = b'{"bridge":'
"""Beginning of the first line of the proxy, with its problems, and of the last one of a proxy that stops,
with the number of bytes that it has taken; no message begins so."""

_RESPONSE_ID: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":("(?:[^"\\]|\\.)*"|-?\d+)')
_INTERRUPTED: Final = (
    "the shared proxy ended while this request was running: it may or may not have run; check before you "
    "repeat it"
)
_UNAVAILABLE: Final = -32_000


def greeting(environ: Mapping[str, str], arguments: Sequence[str] = ()) -> bytes:
    """Return the line with which a bridge introduces itself to the proxy, ahead of the host's own lines."""
    session = next((environ[name] for name in SESSION_VARIABLES if environ.get(name)), None)
    facts: dict[str, int | str | list[str] | None] = {
        "logs": True,
        "pid": os.getpid(),
        "folder": _folder(),
        "session": session,
    }
    profiles, presets = (options_of(arguments, name) for name in HOST_OPTIONS)
    facts |= {"profile": profiles[-1]} if profiles else {}
    facts |= {"presets": presets} if presets else {}
    return json.dumps({"bridge": facts}).encode() + b"\n"


def _folder() -> str | None:
    try:
        # As JSON can hold it: a name need not be UTF-8.
        return os.fsencode(os.getcwd()).decode(errors="replace")
    except OSError:
        return None


class Bridge:
    """One host's session with the shared proxy."""

    def __init__(self, place: Meeting, peer: _socket.socket, greeting: bytes) -> None:
        self._place, self._peer, self._greeting = place, peer, greeting
        self._log_start = 0
        """Bytes of the log that earlier proxies had written."""
        self._under_way: dict[int | str, tuple[int, bytes]] = {}
        """The host's requests that are not answered, by id, each with the bytes sent before its end."""
        self._sent = 0
        """Bytes that the present proxy was sent, or the one that has gone."""
        self._taken: int | None = None
        """How many of them it has taken, as it said when it stopped; None as long as it has not."""
        self._answered_early: set[int | str] = set()
        """Ids of those that were answered before they were noted."""
        self._noting = threading.Lock()
        """Held for moments, while ids are noted."""
        self._opening: list[bytes] = []
        """The host's ``initialize`` and ``initialized``, with which a session is opened anew."""
        self._opened: int | str | None = None
        """Id of its ``initialize``."""
        self._answered = False
        """True once the proxy has said anything: then it can work here."""
        self._turn = threading.Lock()
        """Held while lines go to the proxy, and while it is replaced."""
        self._ended = self._told_to_stop = False
        self._reading = threading.Thread(target=self._read_proxy, daemon=True)

    def run(self) -> None:
        """Pass lines on until the host closes its end."""
        with suppress(OSError):
            self._peer.sendall(self._greeting)
        self._sent = len(self._greeting)
        self._reading.start()
        signal.signal(signal.SIGTERM, self.stop)
        for lines in _blocks(0, HELD_BYTES):
            with self._turn:
                # After an error, the other thread sees the end, tells the host, and opens the session anew. A
                # line that is no request is lost with the proxy that it was for.
                self._send(lines)
        self._end()
        self._reading.join(LAST_LINES_SECONDS)

    def stop(self, *_: object) -> None:
        """Take SIGTERM: end as if the host had closed its end, at the second one at once."""
        if self._told_to_stop:
            os._exit(0)
        self._told_to_stop = True
        # Not here, in the middle of whatever this thread does; it may hold the locks.
        threading.Thread(target=self._stop, daemon=True).start()

    def _stop(self) -> None:
        self._end()
        if self._under_way:
            self._reading.join(LAST_LINES_SECONDS)
        with self._noting:
            left = list(self._under_way)
        for key in left:
            _write(_error(key, _INTERRUPTED))
        os._exit(0)

    def _end(self) -> None:
        """Tell the proxy that nothing more comes."""
        self._ended = True
        if self._turn.acquire(timeout=LAST_LINES_SECONDS):
            with suppress(OSError):
                self._peer.shutdown(socket.SHUT_WR)
            self._turn.release()

    def _send(self, lines: bytes) -> None:
        with suppress(OSError):
            self._peer.sendall(lines)
        if not lines.endswith(b"\n"):
            self._sent += len(lines)
            return
        # The proxy works on them meanwhile.
        for line in _each(lines):
            self._sent += len(line) + (not line.endswith(b"\n"))
            self._track(line)
        # Nothing that was sent is left to be noted.
        self._answered_early.clear()

    def _track(self, line: bytes) -> None:
        """Note the id of a request, also in a batch, and the messages that open a session."""
        try:
            message = json.loads(line)
            if isinstance(message, list):
                for each in message:
                    if isinstance(each, dict):  # a batch has no other
                        self._track(json.dumps(each).encode() + b"\n")
                return
            method = message["method"]
        except (ValueError, RecursionError, TypeError, LookupError):
            return
        key = message.get("id")
        if method == "initialize":
            self._opening, self._opened = [line.strip() + b"\n"], key
        elif method == "notifications/initialized" and len(self._opening) == 1:
            self._opening.append(line.strip() + b"\n")
        elif method == "notifications/cancelled":
            params = message.get("params")
            key = params.get("requestId") if isinstance(params, dict) else None
            if isinstance(key, int | str):
                self._under_way.pop(key, None)
            return
        if isinstance(key, int | str):
            with self._noting:
                if key in self._answered_early:
                    self._answered_early.discard(key)
                else:
                    self._under_way[key] = (self._sent, line)

    def _read_proxy(self) -> None:
        """Pass the proxy's lines to the host; replace it when it goes away."""
        skip: int | str | None = None
        failures = 0
        self._wait_for_first_answer()
        while True:
            for block in _blocks(self._peer):
                lines = self._without_told(block)
                failures = 0 if lines else failures
                if skip is not None:
                    lines, skip = _without_answer(lines, skip)
                if lines:
                    _write(lines)
                    self._answered = True
                    self._note_answers(lines)
            if self._ended and (self._answered or not self._under_way):
                return
            failures += 1
            if failures > TRIES:
                self._give_up()
            skip = self._replace()

    def _without_told(self, lines: bytes) -> bytes:
        """Take the lines for the bridge itself, first and last ones, from those for the host."""
        for _ in range(2):
            start = 0 if lines.startswith(TOLD_START) else lines.rfind(b"\n", 0, -1) + 1
            if not lines.startswith(TOLD_START, start):
                break
            line, _, rest = lines[start:].partition(b"\n")
            lines, told = lines[:start] + rest, json.loads(line)["bridge"]
            self._taken = told.get("taken", self._taken)
            _log(*(f"WARNING: {text}" for text in told.get("problems", ())))
        return lines

    def _wait_for_first_answer(self) -> None:
        told = False
        while not select.select([self._peer], [], [], SILENT_SECONDS)[0]:
            if self._under_way and not told:
                told = True
                _log(
                    f"the shared proxy has not answered for {SILENT_SECONDS:g} s: 'mcp-context-proxy "
                    "status' shows whether it does, and 'stop' ends one that hangs"
                )

    def _note_answers(self, lines: bytes) -> None:
        for line in _each(lines):
            if (key := _answered_id(line)) is not None:
                with self._noting:
                    if self._under_way.pop(key, None) is None:
                        self._answered_early.add(key)

    def _replace(self) -> int | str | None:
        """Connect anew; return the id of an ``initialize`` whose answer the host has had."""
        time.sleep(WAIT_SECONDS)
        with self._turn:
            waiting = self._opened in self._under_way
            for key in sorted(self._under_way.keys() - {self._opened}, key=str):
                if self._taken is None or self._ended or self._under_way[key][0] <= self._taken:
                    del self._under_way[key]
                    _write(_error(key, _INTERRUPTED))
            if self._ended and self._answered:
                return None  # the host has gone meanwhile, and needs no other proxy
            try:
                self._peer.close()
                self._log_start = _size(self._place.log)
                self._peer = connect(self._place)
                opening = b"".join((self._greeting, *self._opening))
                self._peer.sendall(opening)
            except (OSError, JoinError):
                return self._opened
            self._sent, self._taken = len(opening), None
            for key in [key for key in self._under_way if key != self._opened]:
                self._send(self._under_way[key][1].rstrip(b"\n") + b"\n")
            if self._ended:
                with suppress(OSError):
                    self._peer.shutdown(socket.SHUT_WR)
            if waiting:
                return None
            return self._opened if self._opening else None

    def _give_up(self) -> None:
        """Answer the pending requests, say why, and end: the proxy does not start."""
        text = f"the shared proxy does not start; its messages: {self._place.log}"
        with suppress(OSError):
            with open(self._place.log, "rb") as file:
                file.seek(self._log_start if self._log_start <= os.fstat(file.fileno()).st_size else 0)
                said = file.read()[-LOG_SHOWN:].decode("utf-8", "replace")
            _tell(said)
            text = f"the shared proxy does not start: {_reason(said)}; its messages: {self._place.log}"
        for key in sorted(self._under_way, key=str):
            _write(_error(key, text))
        _log(text)
        os._exit(1)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def _reason(said: str) -> str:
    """Return the reason among the messages of a proxy that has ended, on one line."""
    lines = [line.strip().removeprefix("mcp-context-proxy: ") for line in said.splitlines() if line.strip()]
    # Of a traceback, the last line says it.
    told = lines[-1:] if any(line.startswith("Traceback") for line in lines) else lines
    return " ".join(told)[:REASON_SHOWN] or "it ended without a message"


def _log(*lines: str) -> None:
    """Write lines into the log that the host keeps of the programs that it starts."""
    _tell("".join(f"mcp-context-proxy: {line}\n" for line in lines))


def _tell(text: str) -> None:
    with suppress(OSError):
        unread(STDERR, text.encode(errors="backslashreplace"), TOLD_SECONDS)


def unread(descriptor: int, data: bytes, patience: float) -> bytes:
    """Write what is read within `patience` seconds; return the rest.

    Many hosts never read what is written for people, and a full pipe stops whoever writes to it.
    """
    if sys.platform == "win32":  # where only sockets can be waited for
        return data[os.write(descriptor, data) :]
    while data and select.select([], [descriptor], [], patience)[1]:
        try:
            # A pipe with room takes as many without waiting.
            data = data[os.write(descriptor, data[: select.PIPE_BUF]) :]
        except BlockingIOError:
            break
    return data


def _blocks(source: int | _socket.socket, held: float = inf) -> Iterator[bytes]:
    """Yield whole lines of a descriptor or a socket, as many as there are at a time, until its end.

    With many requests in flight, one write passes on all that have come. A line of more than `held` bytes
    comes in parts.
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
        if end == len(data) and not parts:
            yield data
            continue
        if not end:
            parts.append(data)
            size += len(data)
            if size > held:
                yield from parts
                parts, size = [], 0
            continue
        yield b"".join([*parts, data[:end]])
        parts, size = [data[end:]] if end < len(data) else [], len(data) - end


def _each(lines: bytes) -> list[bytes]:
    """Return each line; nearly always there is one, which is not copied."""
    return lines[:-1].split(b"\n") if lines.find(b"\n") + 1 < len(lines) else [lines]


def _write(line: bytes) -> None:
    """Write to the host; end the process if it has gone."""
    try:
        written = os.write(1, line)
        while written < len(line):
            written += os.write(1, memoryview(line)[written:])
    except OSError:
        os._exit(0)


def _answered_id(line: bytes) -> int | str | None:
    found = _RESPONSE_ID.match(line)
    if found is None:
        return None
    key: int | str = json.loads(found[1]) if found[1].startswith(b'"') else int(found[1])
    return key


def _without_answer(lines: bytes, skip: int | str) -> tuple[bytes, int | str | None]:
    """Remove the answer to an ``initialize`` that the host has had answered before."""
    kept = [line for line in lines.splitlines(keepends=True) if _answered_id(line) != skip]
    passed = b"".join(kept)
    return passed, skip if len(passed) == len(lines) else None


def _error(key: int | str, text: str) -> bytes:
    answer = {"jsonrpc": "2.0", "id": key, "error": {"code": _UNAVAILABLE, "message": text}}
    return json.dumps(answer, separators=(",", ":")).encode() + b"\n"


def run(arguments: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Serve a host through a shared proxy until the host goes; return False if that is not possible here."""
    if sys.stdin is not None and sys.stdin.isatty():
        return False  # a person, who wants to see the messages of the proxy
    try:
        place = meeting(arguments, environ)
        peer = connect(place)
    except FileNotFoundError:
        from mcp_context_proxy.system import begin  # noqa: PLC0415 - seldom needed

        is_named = options_of(arguments, "--config") or environ.get(CONFIG_VARIABLE)
        if is_named or (message := begin(environ)) is None:
            return False  # nothing is configured, and the command says so
        _tell(f"{message}\n")
        return run(arguments, environ)
    except (JoinError, OSError) as error:
        _log(f"no shared proxy: {error}; this session has one of its own")
        return False
    if sys.platform != "win32":
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # Ctrl-C in the terminal of a host ends the bridge as it is; nothing of it is worth a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    Bridge(place, peer, greeting(environ, arguments)).run()
    return True
