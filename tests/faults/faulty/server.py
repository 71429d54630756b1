"""The healthy server that every faulty one is made of: both eras, one method for each thing it does."""

import os
import threading

from support.stub import Stub

from mcp_context_proxy.examples import NoResponse, encode

SAFE = "safe"
"""The tool that works in every mode."""

MODES = {}
"""The classes of servers, by mode, in the order of their definition."""


class Healthy(Stub):
    """Behaves well."""

    mode, stage, http = "normal", "start", True
    caching = dict.fromkeys(Stub.caching, (0, "private"))

    def __init_subclass__(cls):
        if "mode" in vars(cls):
            MODES[cls.mode] = cls

    def __init__(self, options):
        super().__init__(options.get("name", "faulty"), options.get("ledger"))
        self.options = options
        self.era = options.get("era", "both")
        self.page_size = options.get("page_size", 1000)
        self.delay, self.size = options.get("delay", 1.0), options.get("size", 1 << 20)
        self.listings, self.calls = 0, 0
        self.handlers |= {"tools/list": self.list, "tools/call": self.called}

    def note(self, event, **facts):
        super().note(event, mode=self.mode, **facts)

    # Its life

    def end(self):
        """Do something when the input has ended."""

    def later(self, seconds, function, *arguments):
        timer = threading.Timer(seconds, function, arguments)
        timer.daemon = True
        timer.start()

    def capabilities(self):
        return {"tools": {"listChanged": True}}

    def cancel(self, request):
        super().cancel(request)
        self.note("cancelled", **facts(request))

    # Responses

    def reply(self, request, result, **changes):
        """Send a response with other members in its envelope, and no other response."""
        request.channel.send(request.response(result) | changes)
        raise NoResponse

    def half(self, request, result):
        """Send half of a correct response."""
        line = encode(request.response(result))
        request.channel.write(line[: len(line) // 2])

    def aside(self, work, request):
        """Answer with the result of `work` without keeping the server from reading."""
        if self.options.get("http"):
            return work(request)
        self.apart(lambda: request.reply(work(request)))
        raise NoResponse

    # Tools

    def list(self, request):
        self.listings += 1
        self.note("list", id=request.id)
        return self.listed(request)

    def listed(self, request):
        return self.page(request, "tools", self.tools())

    def announce_tools(self, channel=None):
        self.announce("notifications/tools/list_changed", {}, channel)

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
        self.note("call", **facts(request))
        if request.params["name"] == SAFE or self.spared():
            return Healthy.result(self, request)
        return self.call(request)

    def spared(self):
        """Return whether this call goes well nevertheless."""
        once = self.options.get("once_file")
        if once:
            try:
                os.close(os.open(once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return True
        return self.calls <= self.options.get("after", 0)

    def call(self, request):
        """Answer a call; a mode does something else instead."""
        return self.result(request)

    def result(self, request):
        return {"content": [{"type": "text", "text": str(nonce(request))}]}


MODES[Healthy.mode] = Healthy


def nonce(request):
    """The text that only this call has."""
    return (request.params.get("arguments") or {}).get("nonce")


def facts(request):
    return {"id": request.id, "tool": request.params.get("name"), "nonce": nonce(request)}
