"""Faults of a server's life: starting, opening, and what it does unasked."""

import json
import os
import signal
import sys
import time

from healthy import Healthy


class ExitAtStart(Healthy):
    """Prints a reason on stderr and exits with code 3 before it reads anything."""

    mode, http = "exit-at-start", False

    def start(self, channel):
        os.write(2, b"reading settings\ncannot start: no licence\n")
        self.die(3)


class SlowStart(Healthy):
    """Waits `delay` seconds before it reads anything (a package being downloaded)."""

    mode, http = "slow-start", False

    def start(self, channel):
        time.sleep(self.delay)


class Banner(Healthy):
    """Prints human text on stdout before the first message, as many real servers do."""

    mode, http = "banner", False

    def start(self, channel):
        channel.partial(b"Welcome to the server\n\n\x1b[32mlistening\x1b[0m on stdio\n")


class FloodStderr(Healthy):
    """Writes `size` bytes to stderr before anything else, then keeps writing."""

    mode, http = "flood-stderr", False

    def start(self, channel):
        line = b"x" * 199 + b"\n"
        for _ in range(self.size // 200):
            os.write(2, line)
        self.in_background(self.flood, line)

    def flood(self, line):
        while True:
            os.write(2, line * 10)
            time.sleep(0.02)


class StderrNoNewline(Healthy):
    """Writes `size` bytes to stderr without a newline, with control characters."""

    mode, http = "stderr-no-newline", False

    def start(self, channel):
        for _ in range(self.size // 1000):
            os.write(2, b"\x1b[31m\x00\x07" + b"y" * 993)


class CrashLoop(Healthy):
    """Runs well, but exits with code 7 after `delay` seconds, every time; its work takes longer than that."""

    mode, http = "crash-loop", False

    def ready(self, channel):
        self.later(self.delay, self.die, 7)

    def call(self, request):
        """Whoever calls hears of the end, or that there is nobody: never an answer that came just in time."""


class Orphan(Healthy):
    """Starts a grandchild that keeps stdout open and outlives the server."""

    mode, http = "orphan", False

    def start(self, channel):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(60)
        self.note("spawned", child=pid)


class IgnoreSigterm(Healthy):
    """Ignores SIGTERM and SIGINT, and keeps running after the end of stdin."""

    mode, http = "ignore-sigterm", False

    def start(self, channel):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end(self):
        while True:
            time.sleep(60)


class IgnoreEof(Healthy):
    """Keeps running after the end of stdin; a signal is needed."""

    mode, stage, http = "ignore-eof", "exit", False

    def end(self):
        while True:
            time.sleep(60)


class SlowExit(Healthy):
    """Takes `delay` seconds to exit after the end of stdin."""

    mode, stage, http = "slow-exit", "exit", False

    def end(self):
        time.sleep(self.delay)


class MemoryHog(Healthy):
    """Holds `size` bytes of memory."""

    mode, http = "memory-hog", False

    def start(self, channel):
        self.held = bytearray(self.size)


class HangInitialize(Healthy):
    """Reads the first request and never answers it."""

    mode, stage = "hang-initialize", "handshake"

    def requested(self, request):
        if self.options.get("http"):
            request.cancelled.wait()


class HangDiscover(Healthy):
    """Never answers server/discover, answers initialize (an old, strict server)."""

    mode, stage = "hang-discover", "handshake"

    def requested(self, request):
        self.era = "handshake"
        if request.method != "server/discover":
            super().requested(request)
        elif self.options.get("http"):
            request.cancelled.wait()


class DieOnDiscover(Healthy):
    """Exits when it is asked server/discover (an old, brittle server)."""

    mode, stage = "die-on-discover", "handshake"

    def requested(self, request):
        self.era = "handshake"
        if request.method == "server/discover":
            self.die(1)
        super().requested(request)


class SlowInitialize(Healthy):
    """Answers the handshake after `delay` seconds."""

    mode, stage = "slow-initialize", "handshake"

    def introduction(self):
        time.sleep(self.delay)
        return super().introduction()


class DieDuringInitialize(Healthy):
    """Exits with code 4 instead of answering the handshake."""

    mode, stage = "die-during-initialize", "handshake"

    def introduction(self):
        return self.die(4)


class ErrorInitialize(Healthy):
    """Answers the handshake with an error."""

    mode, stage = "error-initialize", "handshake"

    def initialize(self, request):
        request.error(-32603, "the licence has expired")

    discover = initialize


class BadVersion(Healthy):
    """Names a protocol version that does not exist."""

    mode, stage = "bad-version", "handshake"

    def initialize(self, request):
        request.reply(self.introduction() | {"protocolVersion": "1901-01-01"})

    def discover(self, request):
        request.reply(self.introduction() | {"supportedVersions": ["1901-01-01"]})


class BadInitialize(Healthy):
    """Answers the handshake with a result of the wrong shape."""

    mode, stage = "bad-initialize", "handshake"

    def initialize(self, request):
        request.reply({"protocolVersion": 42, "capabilities": "all", "serverInfo": []})

    def discover(self, request):
        request.reply({"supportedVersions": "all", "capabilities": [], "_meta": 1})


class FlapList(Healthy):
    """Sends tools/list_changed `rate` times a second; every other listing lacks half the tools."""

    mode, stage, http = "flap-list", "ready", False

    def ready(self, channel):
        self.in_background(self.flap, channel)

    def flap(self, channel):
        until = time.monotonic() + self.delay
        while time.monotonic() < until:
            self.announce(channel)
            time.sleep(1 / self.options.get("rate", 200))
        self.note("settled")

    def tools(self):
        tools = super().tools()
        return [tools[0], tools[-1]] if self.listings % 2 == 0 else tools


class FloodStdout(Healthy):
    """Writes valid log notifications as fast as it can, until `size` bytes."""

    mode, stage, http = "flood-stdout", "ready", False

    def ready(self, channel):
        self.in_background(self.flood, channel)

    def flood(self, channel):
        params = {"level": "info", "logger": "flood", "data": "z" * 400}
        message = {"jsonrpc": "2.0", "method": "notifications/message", "params": params}
        line = json.dumps(message).encode()
        for _ in range(self.size // len(line)):
            channel.line(line)
        self.note("flooded")


class EndlessLine(Healthy):
    """Writes `size` bytes to stdout without ever ending the line."""

    mode, stage, http = "endless-line", "ready", False

    def ready(self, channel):
        self.in_background(self.endless, channel)

    def endless(self, channel):
        for _ in range(self.size // 65536):
            channel.partial(b"a" * 65536)
        self.note("flooded")


class CloseStdout(Healthy):
    """Closes its stdout at the first call, but stays alive and keeps reading."""

    mode, stage, http = "close-stdout", "ready", False

    def call(self, request):
        os.dup2(2, 1)


class PingClient(Healthy):
    """Sends a ping request to the client every 0.2 s and records the answers (handshake era)."""

    mode, stage, http = "ping-client", "ready", False

    def ready(self, channel):
        if self.era != "modern":
            self.in_background(self.ping, channel)

    def ping(self, channel):
        for number in range(10_000):
            question = f"ping-{number}"
            answers = self.asked[question] = []
            channel.line(json.dumps({"jsonrpc": "2.0", "id": question, "method": "ping"}).encode())
            time.sleep(0.2)
            self.note("pong" if answers else "no pong")


LIFE = [
    value
    for value in vars(sys.modules[__name__]).values()
    if isinstance(value, type) and issubclass(value, Healthy) and value is not Healthy
]
