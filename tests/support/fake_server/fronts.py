"""How the server is reached: standard streams, streamable HTTP, HTTP+SSE."""

import json
import os
import sys
import threading
import time

from exchange import VERSION_KEY, Exchange
from server import MODERN, Server


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
            if self.forgotten(headers):
                self.send_error(404)
                return
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
                self.send_header("mcp-session-id", "the-next" if self.forgets() else "the-session")
            self.end_headers()
            server.receive(body, self.event).join()
            self.close_connection = True

        def forgets(self):
            return os.path.exists(server.spec.get("forgets", ""))  # noqa: PTH110 - starts faster

        def forgotten(self, headers):
            return headers.get("mcp-session-id") == "the-session" and self.forgets()

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
