"""A stub server whose answers come from its specification: steps where it names some, else plain ones."""

import json
import os
import time

from steps import STEPS
from support.stub import Stub

from mcp_context_proxy.examples import INVALID_PARAMS, RESOURCE_NOT_FOUND, Request, RpcError

LISTS = {
    "tools/list": ("tools", "tools"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("resourceTemplates", "templates"),
    "prompts/list": ("prompts", "prompts"),
    "skills/list": ("skills", "skills"),
}
"""Member of the result, and of the specification, by method."""


class Fake(Stub):
    caching = dict.fromkeys(Stub.caching, (1000, "public"))

    def __init__(self, spec):
        info = [spec.get("name", "fake"), spec.get("ledger"), spec.get("version", "1")]
        super().__init__(*info, spec.get("instructions", ""))
        self.spec = spec
        self.era = spec.get("era", "handshake")
        self.page_size = spec.get("page_size")
        self.lists = {name: list(spec.get(name, [])) for _, name in LISTS.values()}
        if "tools_file" in spec:
            with open(spec["tools_file"], encoding="utf-8") as file:
                self.lists["tools"] = json.load(file)["tools"]
        for method in LISTS:
            self.handlers[method] = self.list
        for method in ("logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
            self.handlers[method] = lambda request: {}
        self.handlers |= {
            "resources/read": self.read,
            "prompts/get": self.prompt,
            "completion/complete": self.complete,
            "skills/get": self.skill,
        }

    def serve(self, start=None):
        super().serve(start)
        self.note("end of input")
        while self.spec.get("ignore_eof"):
            time.sleep(60)
        os._exit(0)

    def start(self):
        self.run_steps(Request(self, {}, self.channel), self.spec.get("at_start", []))

    # Messages

    def receive(self, line, channel):
        self.note("received", line=line.decode())
        return super().receive(line, channel)

    def take_notification(self, request):
        super().take_notification(request)
        self.note("notified", method=request.method)

    def ready(self):
        for question in self.spec.get("asks_first", []):
            self.ask(self.channel, question["method"], question.get("params", {}))
        if steps := self.spec.get("after_initialized"):
            request = Request(self, {}, self.channel)
            self.apart(self.run_steps, request, steps)

    def respond(self, request):
        if request.modern or self.era != "modern":
            request.channel.open()
        steps = self.spec.get("on", {}).get(request.method, [])
        if request.method == "tools/call":
            self.note("call", tool=request.params.get("name"), params=request.params)
            calls = self.spec.get("calls", {})
            steps = calls.get(request.params.get("name"), calls.get("*", []))
        result = self.run_steps(request, steps)
        return super().respond(request) if result is None else result

    def run_steps(self, request, steps):
        for step in steps:
            for name, value in step.items():
                result = STEPS[name](request, value)
                if result is not None:
                    return result
        return None

    # HTTP

    def http_status(self, headers):
        self.note("headers", headers=headers)
        return 404 if headers.get("mcp-session-id") == "the-session" and self.forgets() else 200

    def http_headers(self, request):
        session = "the-next" if self.forgets() else "the-session"
        return {"mcp-session-id": session} if request.method == "initialize" else {}

    def forgets(self):
        return os.path.exists(self.spec.get("forgets", ""))

    # Plain answers

    def capabilities(self):
        if "capabilities" in self.spec:
            return self.spec["capabilities"]
        changes = {"listChanged": True}
        capabilities = {"tools": changes}
        if self.lists["resources"] or self.lists["templates"]:
            capabilities["resources"] = changes | {"subscribe": True}
        if self.lists["skills"] or "unlisted_skills" in self.spec:
            capabilities["resources"] = changes
            capabilities["extensions"] = {"io.modelcontextprotocol/skills": {}}
        if self.lists["prompts"]:
            capabilities |= {"prompts": changes, "completions": {}}
        return capabilities

    def list(self, request):
        member, name = LISTS[request.method]
        return self.page(request, member, self.lists[name])

    def call(self, request):
        return {"content": [{"type": "text", "text": json.dumps(request.params)}]}

    def read(self, request):
        uri = request.params["uri"]
        if uri in self.spec.get("files", {}):
            return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": self.spec["files"][uri]}]}
        known = {entry["uri"] for entry in self.lists["resources"]}
        if uri not in known and not self.lists["templates"]:
            code = INVALID_PARAMS if request.modern else RESOURCE_NOT_FOUND
            raise RpcError(code, "Resource not found", {"uri": uri})
        return {"contents": [{"uri": uri, "text": f"{self.info['name']} has {uri}"}]}

    def skill(self, request):
        entries = [*self.lists["skills"], *self.spec.get("unlisted_skills", [])]
        for entry in entries:
            if entry["uri"] == request.params["uri"]:
                return {"skill": entry}
        raise RpcError(INVALID_PARAMS, "no such skill")

    def prompt(self, request):
        text = json.dumps(request.params)
        return {"messages": [{"role": "user", "content": {"type": "text", "text": text}}]}

    def complete(self, request):
        return {"completion": {"values": [json.dumps(request.params["ref"])]}}
