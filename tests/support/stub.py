"""The core of the tests' stub MCP servers: the core of the example servers, and a ledger.

Standard library only, like the core: a stub is a process that must be up at once.
"""

import json
import os
import signal
import sys
import threading
import time

from mcp_context_proxy.examples import META, Core, NoResponse, Pipe, ReplyChannel, serve_stdio


class StdioChannel(Pipe):
    """Standard output of a stub."""

    def open(self):
        """Nothing to do: only HTTP begins a response before its first message."""

    def hold(self, request):
        """Nothing to do: only HTTP has a response that can be kept open."""

    def die(self, code):
        os._exit(code)


class NoChannel(ReplyChannel):
    """The way for messages that belong to no request where there is none."""

    def line(self, data):
        pass


class Stub(Core):
    """An MCP server for tests: keeps a ledger of events, asks its client, announces changes."""

    heeds_cancellation = False

    def __init__(self, name, ledger=None, version="1", instructions=""):
        super().__init__({"name": name, "version": version}, instructions)
        self.ledger = ledger
        self.channel = NoChannel()
        self.lock = threading.Lock()
        self.discovered = False
        self.questions = {}
        self.listeners = []
        self.handlers["subscriptions/listen"] = self.listen

    def note(self, event, **facts):
        """Add an entry to the ledger, a file with one JSON line for each event."""
        if self.ledger is not None:
            entry = {"event": event, "pid": os.getpid(), "at": time.time()} | facts
            descriptor = os.open(self.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, json.dumps(entry).encode() + b"\n")
            os.close(descriptor)

    def serve(self, start=None):
        """Serve standard input and output until the input ends."""
        self.channel = StdioChannel()
        self.note("start", environment=sorted(os.environ), argv=sys.argv)
        self.start()
        serve_stdio(self, self.channel, start)

    def apart(self, function, *arguments):
        """Run a function in a thread of its own."""
        threading.Thread(target=function, args=arguments, daemon=True).start()

    def spawn(self):
        """Start a child that outlives its parent unless its group is killed."""
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            while True:
                time.sleep(60)
        self.note("spawned", child=child)

    def start(self):
        """Do something before the first message is read."""

    def ready(self):
        """Do something when the client has finished the handshake, or discovery."""

    def take_notification(self, request):
        super().take_notification(request)
        if request.method == "notifications/initialized":
            self.ready()

    def discover(self, request):
        self.discovered = True
        return super().discover(request)

    def answer(self, request):
        super().answer(request)
        if request.method == "server/discover" and self.discovered:
            self.ready()

    def hang(self, request):
        """Leave a request without a response; over HTTP, keep the response open until the client leaves."""
        request.channel.hold(request)
        raise NoResponse

    # HTTP

    def http_status(self, headers):
        """The status that answers a POST with these headers; 200 for an event stream."""
        return 200

    def http_headers(self, request):
        """Further headers of the response to a request."""
        return {}

    # Requests to the client

    def ask(self, channel, method, params):
        """Send the client a request; return the list that will hold the response."""
        with self.lock:
            question = f"stub-{len(self.questions) + 1}"
            answers = self.questions[question] = []
        channel.send({"jsonrpc": "2.0", "id": question, "method": method, "params": params})
        return answers

    def take_response(self, message):
        if message.get("id") in self.questions:
            self.questions[message["id"]].append(message)

    # Subscriptions

    def listen(self, request):
        tag = {META + "subscriptionId": str(request.id)}
        accepted = {"notifications": request.params.get("notifications", {}), "_meta": tag}
        request.notify("notifications/subscriptions/acknowledged", accepted)
        self.listeners.append((request, tag))
        self.note("listening")
        self.hang(request)

    def announce(self, method, params, channel=None):
        """Send a notification that belongs to no request, to subscribers or to a client of the handshake."""
        if not self.listeners and self.greeted:
            (channel or self.channel).send({"jsonrpc": "2.0", "method": method, "params": params})
        for entry in list(self.listeners):
            listener, tag = entry
            try:
                listener.notify(method, params | {"_meta": tag})
            except OSError:  # its connection is closed
                self.listeners.remove(entry)
