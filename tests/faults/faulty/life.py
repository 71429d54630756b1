"""Faults of a server's life: at the start, in the handshake, unasked, and at the end."""

import os
import signal
import time

from server import Healthy

from mcp_context_proxy.examples import RpcError, encode


class ExitAtStart(Healthy):
    """Prints a reason on stderr and exits with code 3 before it reads anything."""

    mode, http = "exit-at-start", False

    def start(self):
        os.write(2, b"reading settings\ncannot start: no licence\n")
        os._exit(3)


class SlowStart(Healthy):
    """Waits `delay` seconds before it reads anything (a package being downloaded)."""

    mode, http = "slow-start", False

    def start(self):
        time.sleep(self.delay)


class Banner(Healthy):
    """Prints human text on stdout before the first message, as many real servers do."""

    mode, http = "banner", False

    def start(self):
        self.channel.write(b"Welcome to the server\n\n\x1b[32mlistening\x1b[0m on stdio\n")


class FloodStderr(Healthy):
    """Writes `size` bytes to stderr before anything else, then keeps writing."""

    mode, http = "flood-stderr", False

    def start(self):
        line = b"x" * 199 + b"\n"
        for _ in range(self.size // 200):
            os.write(2, line)
        self.apart(self.flood, line)

    def flood(self, line):
        while True:
            os.write(2, line * 10)
            time.sleep(0.02)


class StderrNoNewline(Healthy):
    """Writes `size` bytes to stderr without a newline, with control characters."""

    mode, http = "stderr-no-newline", False

    def start(self):
        for _ in range(self.size // 1000):
            os.write(2, b"\x1b[31m\x00\x07" + b"y" * 993)


class CrashLoop(Healthy):
    """Runs well, but exits with code 7 after `delay` seconds, every time; a call takes longer than that."""

    mode, http = "crash-loop", False

    def ready(self):
        self.later(self.delay, os._exit, 7)

    def call(self, request):
        # No answer that comes just in time: the caller hears of the end, or that the server is not there.
        self.hang(request)


class Orphan(Healthy):
    """Starts a grandchild that keeps stdout open and outlives the server."""

    mode, http = "orphan", False

    def start(self):
        self.spawn()


class IgnoreEof(Healthy):
    """Keeps running after the end of stdin; a signal is needed."""

    mode, stage, http = "ignore-eof", "exit", False

    def end(self):
        while True:
            time.sleep(60)


class IgnoreSigterm(IgnoreEof):
    """Ignores SIGTERM and SIGINT, and keeps running after the end of stdin."""

    mode, stage = "ignore-sigterm", "start"

    def start(self):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)


class SlowExit(Healthy):
    """Takes `delay` seconds to exit after the end of stdin."""

    mode, stage, http = "slow-exit", "exit", False

    def end(self):
        time.sleep(self.delay)


class MemoryHog(Healthy):
    """Holds `size` bytes of memory."""

    mode, http = "memory-hog", False

    def start(self):
        self.held = bytearray(self.size)


class HangInitialize(Healthy):
    """Reads the first request and never answers it."""

    mode, stage = "hang-initialize", "handshake"

    def respond(self, request):
        self.hang(request)


class HangDiscover(Healthy):
    """Never answers server/discover, answers initialize (an old, strict server)."""

    mode, stage = "hang-discover", "handshake"

    def respond(self, request):
        self.era = "handshake"
        if request.method == "server/discover":
            self.hang(request)
        return super().respond(request)


class DieOnDiscover(Healthy):
    """Exits when it is asked server/discover (an old, brittle server)."""

    mode, stage = "die-on-discover", "handshake"

    def respond(self, request):
        self.era = "handshake"
        if request.method == "server/discover":
            request.channel.die(1)
        return super().respond(request)


class SlowInitialize(Healthy):
    """Answers the handshake after `delay` seconds."""

    mode, stage = "slow-initialize", "handshake"

    def introduction(self, request):
        time.sleep(self.delay)
        return super().introduction(request)


class DieDuringInitialize(Healthy):
    """Exits with code 4 instead of answering the handshake."""

    mode, stage = "die-during-initialize", "handshake"

    def introduction(self, request):
        request.channel.die(4)


class ErrorInitialize(Healthy):
    """Answers the handshake with an error."""

    mode, stage = "error-initialize", "handshake"

    def introduction(self, request):
        raise RpcError(-32603, "the licence has expired")


class BadVersion(Healthy):
    """Names a protocol version that does not exist."""

    mode, stage = "bad-version", "handshake"

    def introduction(self, request):
        versions = {"protocolVersion": "1901-01-01", "supportedVersions": ["1901-01-01"]}
        return super().introduction(request) | versions


class BadInitialize(Healthy):
    """Answers the handshake with a result of the wrong shape."""

    mode, stage = "bad-initialize", "handshake"

    def introduction(self, request):
        versions = {"protocolVersion": 42, "supportedVersions": "all"}
        return versions | {"capabilities": "all", "serverInfo": [], "_meta": 1}


class FlapList(Healthy):
    """Sends tools/list_changed `rate` times a second; every other listing lacks half the tools."""

    mode, stage, http = "flap-list", "ready", False

    def ready(self):
        self.apart(self.flap)

    def flap(self):
        until = time.monotonic() + self.delay
        while time.monotonic() < until:
            self.announce_tools()
            time.sleep(1 / self.options.get("rate", 200))
        self.note("settled")

    def tools(self):
        tools = super().tools()
        return [tools[0], tools[-1]] if self.listings % 2 == 0 else tools


class FloodStdout(Healthy):
    """Writes valid log notifications as fast as it can, until `size` bytes."""

    mode, stage, http = "flood-stdout", "ready", False

    def ready(self):
        self.apart(self.flood)

    def flood(self):
        params = {"level": "info", "logger": "flood", "data": "z" * 400}
        line = encode({"jsonrpc": "2.0", "method": "notifications/message", "params": params})
        for _ in range(self.size // len(line)):
            self.channel.line(line)


class EndlessLine(Healthy):
    """Writes `size` bytes to stdout without ever ending the line."""

    mode, stage, http = "endless-line", "ready", False

    def ready(self):
        self.apart(self.endless)

    def endless(self):
        for _ in range(self.size // 65536):
            self.channel.write(b"a" * 65536)


class CloseStdout(Healthy):
    """Closes its stdout at the first call, but stays alive and keeps reading."""

    mode, stage, http = "close-stdout", "ready", False

    def call(self, request):
        os.dup2(2, 1)
        self.hang(request)


class PingClient(Healthy):
    """Sends a ping request to the client every 0.2 s and records the answers (handshake era)."""

    mode, stage, http = "ping-client", "ready", False

    def ready(self):
        if self.era != "modern":
            self.apart(self.ping)

    def ping(self):
        while True:
            answers = self.ask(self.channel, "ping", {})
            time.sleep(0.2)
            self.note("pong" if answers else "no pong")
