"""The healthy server that every faulty one is made of: both eras, one method for each thing it does."""

import json
import os
import sys
import threading
import time

PREFIX = "io.modelcontextprotocol/"
MODERN = "2026-07-28"
SAFE = "safe"
"""The tool that works in every mode."""


class DeadError(Exception):
    """Over HTTP: this connection ends here, in place of the process."""


class Request:
    """One request and the way its answer goes."""

    def __init__(self, server, message, channel):
        self.server, self.channel = server, channel
        self.id, self.method = message.get("id"), message.get("method")
        self.params = message.get("params") or {}
        meta = self.params.get("_meta") or {}
        self.modern = PREFIX + "protocolVersion" in meta
        self.progress_token = meta.get("progressToken")
        self.tool = self.params.get("name")
        self.nonce = (self.params.get("arguments") or {}).get("nonce")
        self.cancelled = threading.Event()

    def encoded(self, result, **changes):
        """The reply as a line; `changes` replace members of the envelope."""
        if self.modern and isinstance(result, dict):
            result = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} | result
        return json.dumps({"jsonrpc": "2.0", "id": self.id, "result": result} | changes).encode()

    def reply(self, result, **changes):
        self.channel.line(self.encoded(result, **changes))
        self.note("reply")

    def error(self, code, message, data=None):
        error = {"code": code, "message": message} | ({} if data is None else {"data": data})
        self.channel.line(json.dumps({"jsonrpc": "2.0", "id": self.id, "error": error}).encode())
        self.note("reply")

    def notify(self, method, params):
        self.channel.line(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def note(self, event):
        self.server.note(event, id=self.id, tool=self.tool, nonce=self.nonce)


class Healthy:
    """Behaves well."""

    mode, stage, http = "normal", "start", True

    def __init__(self, options):
        self.options = options
        self.name = options.get("name", "faulty")
        self.era = options.get("era", "both")
        self.delay, self.size = options.get("delay", 1.0), options.get("size", 1 << 20)
        self.listings, self.calls = 0, 0
        self.pending, self.listeners, self.asked = {}, [], {}
        self.lock = threading.Lock()

    # The ledger

    def note(self, event, **facts):
        path = self.options.get("ledger")
        if path:
            entry = {"event": event, "pid": os.getpid(), "mode": self.mode, "at": time.time()} | facts
            descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            os.write(descriptor, json.dumps(entry).encode() + b"\n")
            os.close(descriptor)

    # Its life

    def start(self, channel):
        """Before anything is read."""

    def ready(self, channel):
        """The first request after the opening is yet to come."""

    def end(self):
        """The input has ended."""

    def die(self, code):
        self.note("exit", code=code)
        if self.options.get("http"):
            raise DeadError
        os._exit(code)

    def later(self, seconds, function, *arguments):
        timer = threading.Timer(seconds, function, arguments)
        timer.daemon = True
        timer.start()

    def in_background(self, function, *arguments):
        threading.Thread(target=function, args=arguments, daemon=True).start()

    # Messages

    def receive(self, message, channel):
        request = Request(self, message, channel)
        if request.method is None:
            waiting = self.asked.pop(request.id, None)
            if waiting is not None:
                waiting.append(message)
        elif request.id is None:
            self.notified(request)
        else:
            self.pending[request.id] = request
            self.requested(request)

    def notified(self, request):
        if request.method == "notifications/cancelled":
            target = self.pending.get(request.params.get("requestId"))
            if target is not None:
                self.cancel(target)
        elif request.method == "notifications/initialized":
            self.ready(request.channel)

    def cancel(self, request):
        self.note("cancelled", id=request.id, tool=request.tool, nonce=request.nonce)
        request.cancelled.set()

    def requested(self, request):
        method = request.method
        if (method == "server/discover" or request.modern) and self.era == "handshake":
            request.error(-32601, "Method not found")
        elif not request.modern and self.era == "modern":
            request.error(-32022, "Unsupported protocol version", {"supported": [MODERN]})
        elif method == "server/discover":
            self.discover(request)
        elif method == "initialize":
            self.initialize(request)
        elif method == "tools/list":
            self.list(request)
        elif method == "tools/call":
            self.called(request)
        elif method == "subscriptions/listen":
            self.listen(request)
        elif method == "ping":
            request.reply({})
        else:
            request.error(-32601, "Method not found")

    def initialize(self, request):
        request.reply(self.introduction() | {"protocolVersion": request.params["protocolVersion"]})

    def discover(self, request):
        request.reply(self.introduction() | {"supportedVersions": [MODERN]})
        self.ready(request.channel)

    def introduction(self):
        info = {"name": self.name, "version": "1"}
        return {"capabilities": {"tools": {"listChanged": True}}, "serverInfo": info}

    def listen(self, request):
        tag = {PREFIX + "subscriptionId": str(request.id)}
        request.notify(
            "notifications/subscriptions/acknowledged",
            {"notifications": request.params.get("notifications", {}), "_meta": tag},
        )
        self.listeners.append((request, tag))
        if self.options.get("http"):
            request.cancelled.wait()

    def announce(self, channel):
        """Say that the list of tools has changed."""
        method = "notifications/tools/list_changed"
        for listener, tag in self.listeners:
            listener.notify(method, {"_meta": tag})
        if not self.listeners and self.era != "modern":
            channel.line(json.dumps({"jsonrpc": "2.0", "method": method}).encode())

    # Tools

    def list(self, request):
        self.listings += 1
        self.note("list", id=request.id)
        self.listed(request)

    def listed(self, request):
        """Answer a listing."""
        request.reply(self.page(request))

    def page(self, request):
        tools, size = self.tools(), self.options.get("page_size", 1000)
        start = int(request.params.get("cursor") or 0)
        result = {"tools": tools[start : start + size]}
        return result | ({"nextCursor": str(start + size)} if start + size < len(tools) else {})

    def tools(self):
        count = self.options.get("tools", 3)
        tools = [self.tool(f"tool_{number:03}") for number in range(count)]
        safe = [self.tool(SAFE)]
        return safe + tools if self.options.get("safe_first") else tools + safe

    def tool(self, name, description=None, schema=None):
        schema = schema or {"type": "object", "properties": {"nonce": {"type": "string"}}}
        return {"name": name, "description": description or f"Says {name}", "inputSchema": schema}

    def called(self, request):
        self.calls += 1
        request.note("call")
        if request.tool == SAFE or self.spared():
            request.reply(Healthy.result(self, request))
        else:
            self.call(request)

    def spared(self):
        """Whether this call goes well nevertheless."""
        once = self.options.get("once_file")
        if once:
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return True
        return self.calls <= self.options.get("after", 0)

    def call(self, request):
        """Answer a call, or do what the mode does instead."""
        request.reply(self.result(request))

    def result(self, request):
        return {"content": [{"type": "text", "text": str(request.nonce)}]}

    def ask(self, request, method, params):
        """Ask the client (handshake era); what it answered."""
        with self.lock:
            question = f"ask-{len(self.asked)}-{request.id}"
            answers = self.asked[question] = []
        message = {"jsonrpc": "2.0", "id": question, "method": method, "params": params}
        request.channel.line(json.dumps(message).encode())
        while not answers:
            time.sleep(0.002)
        return answers[0]


class StdioChannel:
    """Standard output."""

    def __init__(self):
        self.lock = threading.Lock()

    def line(self, data):
        self.partial(data + b"\n")

    def partial(self, data):
        with self.lock:
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]


def serve_stdio(server):
    channel = StdioChannel()
    server.note("start", environment=sorted(os.environ), argv=sys.argv)
    server.start(channel)
    for line in sys.stdin.buffer:
        if line.strip():
            server.receive(json.loads(line), channel)
    server.end()
    server.note("exit", code=0)
