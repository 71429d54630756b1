"""A downstream MCP server whose behaviour is data: run as a child process, standard library only.

``python -I -S fake_server.py SPEC.json [--http|--sse]``. The specification is one JSON object:

* ``name``, ``version``, ``instructions``: what the server says of itself.
* ``era``: ``handshake`` (default), ``modern`` or ``both``.
* ``ledger``: a file that gets one JSON line for each start, received line, and call that was run.
* ``tools``, ``resources``, ``templates``, ``prompts``: the lists, verbatim. ``tools_file``: a JSON file with
  a ``tools`` member. ``page_size``: entries on a page.
* ``capabilities``: instead of those that the lists imply.
* ``at_start``: steps before anything is read, such as ``{"stderr": "..."}`` and ``{"exit": 3}``.
* ``on``: steps for a method, such as ``{"initialize": [{"wait": "FILE"}]}``.
* ``calls``: steps for a tool call, by tool name; ``*`` for all others. Without any, a call is answered with
  its own params as text.
* ``after_initialized``: steps once the handshake is over, or after `server/discover`.
* ``asks_first``: requests of the client that are made before anything that follows the handshake is read.

A list of steps runs in order, in a thread of its own; when it ends without an answer, the answer the server
would have given follows. The steps are the functions named ``step_*`` below.
"""

import json
import os
import select
import signal
import socket
import sys
import threading
import time

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
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
                result = globals()["step_" + name](exchange, value)
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


# Steps. Each takes the exchange and its value; a result that is not None answers the request.


def step_result(exchange, value):
    return json.loads(json.dumps(value))


def step_raw_result(exchange, value):
    """A result as JSON text, written as it is."""
    exchange.write(
        '{"jsonrpc":"2.0","id":' + json.dumps(exchange.id) + ',"result":' + value + "}",
    )
    raise AnsweredError


def step_raw(exchange, value):
    """Write a line as it is, with ID replaced by the id of the request; goes on."""
    exchange.write(value.replace("ID", json.dumps(exchange.id)))


def step_hex(exchange, value):
    """Write bytes as they are, without a line end; goes on."""
    exchange.write(bytes.fromhex(value).replace(b"ID", json.dumps(exchange.id).encode()), end=b"")


def step_error(exchange, value):
    raise RefusedError(value.get("code", -32603), value.get("message", "failed"), value.get("data"))


def step_silent(exchange, value):
    raise SilentError


def step_answered(exchange, value):
    raise AnsweredError


def step_large(exchange, value):
    """A result whose text has that many characters."""
    return {"content": [{"type": "text", "text": "x" * value}]}


def step_nested(exchange, value):
    """A result nested that deeply."""
    step_raw_result(exchange, '{"content":[],"structuredContent":{"deep":' + "[" * value + "]" * value + "}}")


def step_exit(exchange, value):
    os._exit(value)


def step_kill(exchange, value):
    os.kill(os.getpid(), value)


def step_stderr(exchange, value):
    os.write(2, value.encode() + b"\n")


def step_wait(exchange, value):
    """Wait until a file is there."""
    while not os.path.exists(value):  # noqa: PTH110
        time.sleep(0.005)


def step_wait_cancelled(exchange, value):
    while not exchange.cancelled.wait(0.02):
        if connection_closed(exchange):
            break
    exchange.server.note(event="cancelled", tool=exchange.subject())
    raise SilentError


def connection_closed(exchange):
    """Over HTTP, a modern client cancels by closing the connection."""
    handler = getattr(exchange.write, "__self__", None)
    if handler is None:
        return False
    readable = select.select([handler.connection], [], [], 0)[0]
    return bool(readable) and handler.connection.recv(1, socket.MSG_PEEK) == b""


def step_once(exchange, value):
    """Run these steps only if the named file is not there yet, and make it."""
    path, steps = value
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return None
    return exchange.server.run_steps(exchange, steps)


def step_if(exchange, value):
    """Run these steps only if the named file is there."""
    path, steps = value
    return exchange.server.run_steps(exchange, steps) if os.path.exists(path) else None  # noqa: PTH110


def step_progress(exchange, value):
    """Progress notifications with the token that came, if one did."""
    token = exchange.meta.get("progressToken")
    for number in range(1, value + 1):
        if token is not None:
            params = {"progressToken": token, "progress": number, "total": value, "message": f"step {number}"}
            exchange.notify("notifications/progress", params)


def step_notify(exchange, value):
    """A notification on the stream of this request."""
    exchange.notify(value["method"], value.get("params", {}))


def step_announce(exchange, value):
    exchange.server.announce(exchange, value["method"], value.get("params", {}))


def step_set(exchange, value):
    """Replace lists, and say so."""
    for name, entries in value.items():
        exchange.server.lists[name] = entries
        kind = "resources" if name == "templates" else name
        exchange.server.announce(exchange, f"notifications/{kind}/list_changed", {})


def step_ask(exchange, value):
    """Make a request of the client; the answer is the text of the result."""
    answer = await_answer(exchange, send_question(exchange, value))
    text = json.dumps(answer.get("result", answer.get("error")))
    return {"content": [{"type": "text", "text": text}], "isError": "error" in answer}


def step_ask_each(exchange, value):
    """Make several requests, one after the other; the answers are the text of the result."""
    answers = [await_answer(exchange, send_question(exchange, each)) for each in value]
    return {"content": [{"type": "text", "text": json.dumps([each.get("result") for each in answers])}]}


def step_ask_together(exchange, value):
    """Make several requests before any is answered."""
    slots = [send_question(exchange, each) for each in value]
    answers = [await_answer(exchange, slot) for slot in slots]
    return {"content": [{"type": "text", "text": json.dumps([each.get("result") for each in answers])}]}


def step_ask_then(exchange, value):
    """Make a request, wait for the answer, and go on."""
    await_answer(exchange, send_question(exchange, value))


def step_heard(exchange, value):
    """What has been answered so far, as the text of the result."""
    heard = [slot[0].get("result") for slot in exchange.server.asked.values() if slot]
    return {"content": [{"type": "text", "text": json.dumps(heard)}]}


def step_ask_in_vain(exchange, value):
    """Make a request and withdraw it."""
    send_question(exchange, value)
    exchange.notify("notifications/cancelled", {"requestId": f"fake-{exchange.server.asks}"})


def send_question(exchange, value):
    server = exchange.server
    with server.lock:
        server.asks += 1
        request_id = f"fake-{server.asks}"
        slot = server.asked[request_id] = []
    request = {"jsonrpc": "2.0", "id": request_id, "method": value["method"]}
    exchange.write(json.dumps(request | {"params": value.get("params", {})}))
    server.note(event="asking", method=value["method"])
    return slot


def await_answer(exchange, slot):
    while not slot:
        if exchange.cancelled.is_set():
            exchange.server.note(event="cancelled", tool=exchange.subject())
            raise SilentError
        time.sleep(0.002)
    exchange.server.note(event="asked", answer=slot[0])
    return slot[0]


def step_pid(exchange, value):
    """Which process this is, as the text of the result."""
    return {"content": [{"type": "text", "text": str(os.getpid())}]}


def step_need_input(exchange, value):
    """Modern: ask by `input_required` until the retry brings answers; they are the text of the result."""
    answers = exchange.params.get("inputResponses")
    if answers is None:
        return {"resultType": "input_required"} | value
    text = json.dumps({"answers": answers, "state": exchange.params.get("requestState")})
    return {"content": [{"type": "text", "text": text}]}


def step_spawn(exchange, value):
    """Start a child that outlives its parent unless its group is killed."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            time.sleep(60)
    exchange.server.note(event="spawned", child=pid)


def step_ignore_end(exchange, value):
    """Survive the end of input and SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    exchange.server.spec["ignore_eof"] = True


def serve_stdio(server):
    lock = threading.Lock()

    def write(line, end=b"\n"):
        data = (line if isinstance(line, bytes) else line.encode()) + end
        with lock:
            view = memoryview(data)
            while view:
                view = view[os.write(1, view) :]

    server.broadcast = write
    server.note(event="start", environment=sorted(os.environ), argv=sys.argv)
    server.run_steps(Exchange(server, {}, write), server.spec.get("at_start", []))
    for line in sys.stdin.buffer:
        if line.strip():
            server.receive(line.decode(), write)
    server.note(event="end of input")
    while server.spec.get("ignore_eof"):
        time.sleep(60)
    os._exit(0)


def serve_http(server):
    """One POST per message; what a request brings is an event stream."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            headers = {name.lower(): value for name, value in self.headers.items()}
            server.note(event="headers", headers=headers)
            message = json.loads(body)
            if "id" not in message or "method" not in message:
                server.receive(body, self.event)
                self.send_response(202)
                self.send_header("content-length", "0")
                self.end_headers()
                return
            if server.era == "modern" and VERSION_KEY not in (message.get("params") or {}).get("_meta", {}):
                self.refuse(message)
                return
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            if message["method"] == "initialize":
                self.send_header("mcp-session-id", "the-session")
            self.end_headers()
            server.receive(body, self.event).join()
            self.close_connection = True

        def refuse(self, message):
            error = {
                "code": -32022,
                "message": "Unsupported protocol version",
                "data": {"supported": [MODERN]},
            }
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode()
            self.send_response(400)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self):
            self.send_response(405)
            self.send_header("content-length", "0")
            self.end_headers()

        do_DELETE = do_GET  # noqa: N815 - the name is the library's

        def event(self, line, end=b""):
            data = line if isinstance(line, bytes) else line.encode()
            self.wfile.write(b"event: message\ndata: " + data + b"\n\n")
            self.wfile.flush()

    ThreadingHTTPServer.request_queue_size = 128
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    print(f"http://127.0.0.1:{httpd.server_address[1]}/mcp", flush=True)
    httpd.serve_forever()


def serve_sse(spec):
    """An event stream for each client, with a server of its own behind it; messages are posted to it."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    streams = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *arguments):
            pass

        def do_GET(self):
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            lock = threading.Lock()

            def event(line, end=b"", name=b"message"):
                data = line if isinstance(line, bytes) else line.encode()
                with lock:
                    self.wfile.write(b"event: " + name + b"\ndata: " + data + b"\n\n")
                    self.wfile.flush()

            key = str(len(streams))
            server = Server(spec)
            server.broadcast = event
            streams[key] = server, event
            event(f"/messages?session={key}", name=b"endpoint")
            while self.rfile.read(1):
                pass
            self.close_connection = True

        def do_POST(self):
            server, event = streams[self.path.partition("=")[2]]
            body = self.rfile.read(int(self.headers["content-length"])).decode()
            self.send_response(202)
            self.send_header("content-length", "0")
            self.end_headers()
            server.receive(body, event)

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    httpd.daemon_threads = True
    print(f"http://127.0.0.1:{httpd.server_address[1]}/sse", flush=True)
    httpd.serve_forever()


def main():
    with open(sys.argv[1], encoding="utf-8") as file:  # noqa: PTH123
        spec = json.load(file)
    if "--sse" in sys.argv:
        serve_sse(spec)
    (serve_http if "--http" in sys.argv else serve_stdio)(Server(spec))


if __name__ == "__main__":
    main()
