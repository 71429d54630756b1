"""What the server answers when nothing else is specified, and what it notes of all that it is sent."""

import json
import os
import threading

from exchange import AnsweredError, Exchange, RefusedError, SilentError
from steps import STEPS, send_question

SERVER_INFO_KEY = "io.modelcontextprotocol/serverInfo"
MODERN = "2026-07-28"
CACHEABLE = {
    "server/discover",
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/read",
}
LISTS = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "templates",
    "prompts/list": "prompts",
}
RESULT_MEMBER = {"templates": "resourceTemplates"}


class Server:
    def __init__(self, spec):
        self.spec = spec
        self.era = spec.get("era", "handshake")
        self.ledger = spec.get("ledger")
        self.lists = {name: list(spec.get(name, [])) for name in LISTS.values()}
        if "tools_file" in spec:
            with open(spec["tools_file"], encoding="utf-8") as file:  # noqa: PTH123 - starts faster than pathlib
                self.lists["tools"] = json.load(file)["tools"]
        self.lock = threading.Lock()
        self.under_way = {}
        self.asked = {}
        self.asks = 0
        self.greeted = False
        self.broadcast = lambda line: None
        self.listeners = []

    # The ledger

    def note(self, **entry):
        if self.ledger is None:
            return
        data = json.dumps(entry | {"pid": os.getpid()}).encode() + b"\n"
        descriptor = os.open(self.ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(descriptor, data)
        os.close(descriptor)

    # Messages

    def receive(self, line, write):
        self.note(event="received", line=line)
        message = json.loads(line)
        if "method" not in message:
            slot = self.asked.get(message.get("id"))
            if slot is not None:
                slot.append(message)
            return None
        exchange = Exchange(self, message, write)
        if "id" not in message:
            self.take_notification(exchange)
            return None
        self.under_way[exchange.id] = exchange
        thread = threading.Thread(target=self.answer, args=(exchange,), daemon=True)
        thread.start()
        return thread

    def take_notification(self, exchange):
        if exchange.method == "notifications/cancelled":
            target = self.under_way.get(exchange.params.get("requestId"))
            if target is not None:
                target.cancelled.set()
        elif exchange.method == "notifications/initialized":
            self.after_greeting()
        self.note(event="notified", method=exchange.method)

    def after_greeting(self):
        for question in self.spec.get("asks_first", []):
            send_question(Exchange(self, {}, self.broadcast), question)
        steps = self.spec.get("after_initialized")
        if steps:
            exchange = Exchange(self, {}, self.broadcast)
            threading.Thread(target=self.run_steps, args=(exchange, steps), daemon=True).start()

    def answer(self, exchange):
        try:
            result = self.run_steps(exchange, self.steps_for(exchange))
            if result is None:
                result = self.usual(exchange)
            self.reply(exchange, result)
        except RefusedError as refused:
            exchange.write(json.dumps({"jsonrpc": "2.0", "id": exchange.id, "error": refused.error}))
        except (SilentError, AnsweredError):
            pass
        finally:
            self.under_way.pop(exchange.id, None)

    def reply(self, exchange, result):
        exchange.write(
            json.dumps({"jsonrpc": "2.0", "id": exchange.id, "result": self.stamped(exchange, result)})
        )

    def stamped(self, exchange, result):
        if not exchange.modern:
            return result
        result.setdefault("resultType", "complete")
        if exchange.method in CACHEABLE:
            result.setdefault("ttlMs", 1000)
            result.setdefault("cacheScope", "public")
        result.setdefault("_meta", {}).setdefault(SERVER_INFO_KEY, self.info())
        return result

    def info(self):
        return {"name": self.spec.get("name", "fake"), "version": self.spec.get("version", "1")}

    def steps_for(self, exchange):
        if exchange.method == "tools/call":
            self.note(event="call", tool=exchange.params.get("name"), params=exchange.params)
            calls = self.spec.get("calls", {})
            return calls.get(exchange.params.get("name"), calls.get("*", []))
        return self.spec.get("on", {}).get(exchange.method, [])

    def run_steps(self, exchange, steps):
        for step in steps:
            for name, value in step.items():
                result = STEPS[name](exchange, value)
                if result is not None:
                    return result
        return None

    # What a server answers when nothing else is specified

    def usual(self, exchange):
        method = exchange.method
        self.check_era(exchange)
        if method == "initialize":
            self.greeted = True
            return self.introduction() | {
                "protocolVersion": exchange.params["protocolVersion"],
                "serverInfo": self.info(),
            }
        if method == "server/discover":
            self.after_greeting()
            return self.introduction() | {"supportedVersions": [MODERN]}
        if method in LISTS:
            return self.page(LISTS[method], exchange.params)
        if method == "tools/call":
            return {"content": [{"type": "text", "text": json.dumps(exchange.params)}]}
        if method == "resources/read":
            return self.read(exchange)
        if method == "prompts/get":
            text = json.dumps(exchange.params)
            return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}
        if method == "completion/complete":
            return {"completion": {"values": [json.dumps(exchange.params["ref"])]}}
        if method == "subscriptions/listen":
            return self.listen(exchange)
        if method in {"ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"}:
            return {}
        raise RefusedError(-32601, "Method not found")

    def check_era(self, exchange):
        if exchange.modern and self.era == "handshake":
            raise RefusedError(-32601, "Method not found")
        if not exchange.modern and self.era == "modern":
            raise RefusedError(-32022, "Unsupported protocol version", {"supported": [MODERN]})
        if not exchange.modern and not self.greeted and exchange.method not in {"initialize", "ping"}:
            raise RefusedError(-32600, "initialize first")

    def introduction(self):
        return {
            "capabilities": self.spec.get("capabilities", self.implied()),
            "instructions": self.spec.get("instructions", ""),
        }

    def implied(self):
        changes = {"listChanged": True}
        capabilities = {"tools": changes}
        if self.lists["resources"] or self.lists["templates"]:
            capabilities["resources"] = changes | {"subscribe": True}
        if self.lists["prompts"]:
            capabilities["prompts"] = changes
            capabilities["completions"] = {}
        return capabilities

    def page(self, name, params):
        entries, size = self.lists[name], self.spec.get("page_size")
        start = int(params.get("cursor", "0"))
        page = entries[start : start + size] if size else entries
        result = {RESULT_MEMBER.get(name, name): page}
        if size and start + size < len(entries):
            result["nextCursor"] = str(start + size)
        return result

    def read(self, exchange):
        uri = exchange.params["uri"]
        known = {entry["uri"] for entry in self.lists["resources"]}
        if uri not in known and not self.lists["templates"]:
            raise RefusedError(-32602 if exchange.modern else -32002, "Resource not found", {"uri": uri})
        return {"contents": [{"uri": uri, "text": f"{self.info()['name']} has {uri}"}]}

    def listen(self, exchange):
        tag = {"io.modelcontextprotocol/subscriptionId": str(exchange.id)}
        exchange.notify(
            "notifications/subscriptions/acknowledged",
            {"notifications": exchange.params["notifications"], "_meta": tag},
        )
        self.listeners.append((exchange, tag))
        self.note(event="listening")
        exchange.cancelled.wait()
        raise SilentError

    def announce(self, exchange, method, params):
        """Send a notification that belongs to no request."""
        if not exchange.modern and not self.listeners:
            self.broadcast(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}))
        for entry in list(self.listeners):
            listener, tag = entry
            try:
                listener.notify(method, params | {"_meta": tag})
            except OSError:  # its connection is closed
                self.listeners.remove(entry)
