"""HTTP fronts of the stub servers: streamable HTTP, with an event stream for each request, and HTTP+SSE."""

import json
import select
import socket
import struct
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from mcp_context_proxy.examples import UNSUPPORTED_VERSION, NoResponse, ReplyChannel

LOOK_SECONDS = 0.05
"""Between two looks whether a client has closed its connection."""


class HttpChannel(ReplyChannel):
    """The response to one POST: an event stream, unless a stub answers in another way."""

    def __init__(self, handler):
        self.handler, self.opened, self.lock = handler, False, threading.Lock()
        self.headers = {}

    def line(self, data):
        self.write(data + b"\n\n")

    def write(self, data):
        """Write the beginning of an event."""
        with self.lock:
            self.open()
            self.handler.wfile.write(b"event: message\ndata: " + data)
            self.handler.wfile.flush()

    def refuse(self, request_id, error):
        if error.code == UNSUPPORTED_VERSION and not self.opened:
            body = {"jsonrpc": "2.0", "id": request_id, "error": error.to_json()}
            self.response(400, {"content-type": "application/json"}, json.dumps(body).encode())
        else:
            super().refuse(request_id, error)

    def open(self):
        if not self.opened:
            self.opened = True
            self.handler.begin(200, {"content-type": "text/event-stream"} | self.headers)

    def response(self, status, headers, body):
        """Send a whole HTTP response in place of the event stream."""
        self.opened = True
        self.handler.begin(status, {"content-length": str(len(body))} | headers)
        self.handler.wfile.write(body)

    def socket(self, data):
        """Write bytes that need not be HTTP."""
        self.opened = True
        self.handler.wfile.write(data)
        self.handler.wfile.flush()

    def hold(self, request):
        request.cancelled.wait()

    def die(self, code):
        """Reset the connection, in place of the process's end."""
        self.reset()
        raise NoResponse

    def reset(self):
        self.handler.reset()


class Handler(BaseHTTPRequestHandler):
    """One connection; the first part of the path names the stub."""

    protocol_version = "HTTP/1.1"
    done = False

    def log_message(self, *arguments):
        pass

    def begin(self, status, headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("connection", "close")
        self.end_headers()
        self.close_connection = True

    def body(self):
        return self.rfile.read(int(self.headers["content-length"]))

    def do_POST(self):
        stub, channel = self.server.stubs[self.path.split("/")[1]], HttpChannel(self)
        line = self.body()
        status = stub.http_status({name.lower(): value for name, value in self.headers.items()})
        if status != 200:
            channel.response(status, {}, b"")
            return
        request = stub.receive(line, channel)
        if request is None:
            if not channel.opened:
                channel.response(202, {}, b"")
            return
        channel.headers = stub.http_headers(request)
        threading.Thread(target=self.watch, args=(request,), daemon=True).start()
        with suppress(OSError):  # the client may be gone
            stub.answer(request)
        self.done = self.close_connection = True

    def watch(self, request):
        """Cancel the request when its client closes the connection."""
        gone = False
        try:
            # No longer than a moment in a call: a socket that somebody waits on cannot be reset.
            while not gone and not self.done:
                if select.select([self.connection], [], [], LOOK_SECONDS)[0]:
                    gone = self.connection.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            gone = True
        if gone and not self.done:
            request.server.cancel(request)

    def reset(self):
        self.done = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()

    def do_GET(self):
        self.begin(405, {"content-length": "0"})

    do_DELETE = do_GET


class SseHandler(Handler):
    """HTTP+SSE: a GET opens an event stream with a stub of its own behind it; messages are posted to it."""

    def do_GET(self):
        stub, channel = self.server.make(), HttpChannel(self)
        stub.channel = channel
        key = str(len(self.server.stubs))
        self.server.stubs[key] = stub
        channel.open()
        channel.socket(f"event: endpoint\ndata: /{key}/messages\n\n".encode())
        while self.rfile.read(1):
            pass

    def do_POST(self):
        stub, line = self.server.stubs[self.path.split("/")[1]], self.body()
        request = stub.receive(line, stub.channel)
        self.begin(202, {"content-length": "0"})
        if request is not None:
            threading.Thread(target=stub.answer, args=(request,), daemon=True).start()


class HttpServer(ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True

    def __init__(self, handler, path, stubs, make=None):
        """Serve on a loopback port, and print the URL first."""
        super().__init__(("127.0.0.1", 0), handler)
        self.stubs, self.make = stubs, make
        print(f"http://127.0.0.1:{self.server_address[1]}{path}", flush=True)
        self.serve_forever()

    def handle_error(self, request, client_address):
        """Say nothing of a client that went away, or of a connection that was reset on purpose."""
