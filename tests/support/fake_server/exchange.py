"""One request and the way its answer goes, and the ways in which it has none."""

import json
import threading

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"


class RefusedError(Exception):
    """The request is answered with an error."""

    def __init__(self, code, message, data=None):
        self.error = {"code": code, "message": message} | ({} if data is None else {"data": data})


class SilentError(Exception):
    """The request is never answered."""


class AnsweredError(Exception):
    """The answer has been written already."""


class Exchange:
    """One request and the way its answer goes."""

    def __init__(self, server, message, write):
        self.server, self.message, self.write = server, message, write
        self.id = message.get("id")
        self.method = message.get("method")
        self.params = message.get("params") or {}
        self.meta = self.params.get("_meta") or {}
        self.modern = VERSION_KEY in self.meta
        self.cancelled = threading.Event()

    def notify(self, method, params):
        self.write(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}))

    def subject(self):
        return self.params.get("name") if self.method == "tools/call" else self.method
