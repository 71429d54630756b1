"""Floods: a server sends one kind of message as fast as it can, during a call or after it."""

import itertools
import os
import time

from server import Healthy

from mcp_context_proxy.examples import encode

URI = "note://1"
FILLER = "z" * 400
LARGE = "z" * 60_000


def notification(method, **params):
    return {"jsonrpc": "2.0", "method": "notifications/" + method, "params": params}


def request(method, **params):
    return lambda n, token: {"jsonrpc": "2.0", "id": f"flood-{n}", "method": method, "params": params}


def changed(kind):
    return lambda n, token: notification(kind + "/list_changed")


QUESTION = {"messages": [{"role": "user", "content": {"type": "text", "text": LARGE}}], "maxTokens": 1}
FORM = {"message": LARGE, "requestedSchema": {"type": "object", "properties": {}}}

FLOODS = {
    "log": lambda n, token: notification("message", level="info", data=f"{n} {FILLER}"),
    "large-log": lambda n, token: notification("message", level="info", data=f"{n} {LARGE}"),
    "progress": lambda n, token: notification("progress", progressToken=token, progress=n, message=LARGE),
    "progress-of-nothing": lambda n, token: notification("progress", progressToken=f"x{n}", progress=n),
    "cancelled": lambda n, token: notification("cancelled", requestId=n),
    "tools-changed": changed("tools"),
    "prompts-changed": changed("prompts"),
    "resources-changed": changed("resources"),
    "skills-changed": changed("resources"),
    "updated": lambda n, token: notification("resources/updated", uri=URI, n=n),
    "updated-below": lambda n, token: notification("resources/updated", uri=f"{URI}/{n}/{FILLER * 9}"),
    "updated-unasked": lambda n, token: notification("resources/updated", uri=f"other://{n}/{LARGE}"),
    "completed": lambda n, token: notification("elicitation/complete", elicitationId=f"{n} {FILLER}"),
    "task-status": lambda n, token: notification("tasks/status", taskId=f"{n}", status="working"),
    "acknowledged": lambda n, token: notification("subscriptions/acknowledged", n=n, filler=FILLER),
    "unknown-notification": lambda n, token: notification("no/such", n=n, filler=FILLER),
    "ping": request("ping"),
    "sampling": request("sampling/createMessage", **QUESTION),
    "elicitation": request("elicitation/create", **FORM),
    "roots": request("roots/list"),
    "task-request": request("tasks/list"),
    "unknown-request": request("no/such", filler=FILLER),
    "large-id": lambda n, token: {"jsonrpc": "2.0", "id": f"{n}{LARGE}", "method": "ping"},
    "response": lambda n, token: {"jsonrpc": "2.0", "id": 1_000_000 + n, "result": {"filler": LARGE}},
}


LINES = {
    "blank-lines": b" \n\n\t\n" * 10_000,
    "smallest-notifications": b'{"method":""}\n' * 4_000,
    "smallest-pings": b'{"id":1,"method":"ping"}\n' * 2_000,
    "progress-of-megabytes": encode(
        notification("progress", progressToken=1, progress=1, data=[[]] * 900_000)
    ),
}
"""Floods of which one write has thousands of messages, or one of megabytes."""


SKILLS, FILES = 1_200, 8
"""More skills than one server may have, and their files."""

SHA = "sha256:" + "0" * 64


def skill(number, version):
    """An entry that is another one in each list, with files that are never what it says."""
    root = f"skill://many/k{number}"
    files = [{"uri": f"{root}/{name}", "digest": SHA, "size": 1} for name in ("SKILL.md", *range(1, FILES))]
    front = {"name": f"k{number}", "description": f"{version} {FILLER}"}
    return {"uri": f"{root}/SKILL.md", "frontmatter": front, "resources": files}


class Flood(Healthy):
    """Floods for `delay` seconds with the kind of message that a call names: before its result, or after."""

    mode, stage, http = "flood", "ready", False

    def __init__(self, options):
        super().__init__(options)
        self.skills, self.versions = 0, itertools.count()
        self.handlers["resources/list"] = lambda request: {"resources": [{"uri": URI, "name": "one"}]}
        self.handlers["skills/list"] = self.listed_skills
        self.handlers["resources/read"] = lambda request: {
            "contents": [{"uri": request.params["uri"], "text": LARGE}]
        }
        for method in ("logging/setLevel", "resources/subscribe", "resources/unsubscribe"):
            self.handlers[method] = lambda request: {}

    def capabilities(self):
        changes = {"listChanged": True}
        skills = {"extensions": {"io.modelcontextprotocol/skills": {}}}
        return {"tools": changes, "resources": changes | {"subscribe": True}, "logging": {}} | skills

    def listed_skills(self, request):
        version = next(self.versions)
        return {"skills": [skill(number, version) for number in range(self.skills)]}

    def call(self, request):
        arguments = request.params["arguments"]
        if arguments.get("after"):
            self.apart(self.flood, arguments["kind"], None)
            return self.result(request)
        token = request.params.get("_meta", {}).get("progressToken")
        return self.aside(lambda request: self.flooded(request, arguments["kind"], token), request)

    def flooded(self, request, kind, token):
        self.flood(kind, token)
        return self.result(request)

    def flood(self, kind, token):
        self.skills = SKILLS if kind == "skills-changed" else 0
        until = time.monotonic() + self.delay
        for number in itertools.count():
            if time.monotonic() > until:
                break
            if kind == "stray":
                self.channel.line(b"no message at all " + FILLER.encode())
            elif kind in LINES:
                self.channel.line(LINES[kind])
            elif kind == "stderr":
                os.write(2, FILLER.encode() + b"\n")
            else:
                self.channel.line(encode(FLOODS[kind](number, token)))
        self.note("flooded", kind=kind, count=number)
