"""The faulty servers over HTTP: one process, a URL for each mode, an event stream for each request."""

import json
import os
import select
import socket
import struct
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from healthy import DeadError


class HttpChannel:
    """The response to one POST: an event stream unless a mode answers in another way."""

    def __init__(self, handler):
        self.handler, self.opened, self.lock = handler, False, threading.Lock()

    def line(self, data):
        self.partial(data + b"\n\n")

    def partial(self, data):
        with self.lock:
            self.open()
            self.handler.wfile.write(b"event: message\ndata: " + data)
            self.handler.wfile.flush()

    def open(self):
        if not self.opened:
            self.opened = True
            self.handler.begin(200, {"content-type": "text/event-stream"})

    def response(self, status, headers, body):
        self.opened = True
        self.handler.begin(status, {"content-length": str(len(body))} | headers)
        self.handler.wfile.write(body)

    def socket(self, data):
        """Bytes past all that knows HTTP."""
        self.opened = True
        self.handler.wfile.write(data)
        self.handler.wfile.flush()


class Handler(BaseHTTPRequestHandler):
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

    def do_POST(self):
        server = self.server.modes[self.path.split("/")[1]]
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        channel = HttpChannel(self)
        if "id" not in message or "method" not in message:
            server.receive(message, channel)
            self.begin(202, {"content-length": "0"})
            return
        watcher = threading.Thread(target=self.watch, args=(server, message["id"]), daemon=True)
        watcher.start()
        try:
            server.receive(message, channel)
        except DeadError:
            self.reset()
        except OSError:
            pass
        self.done = self.close_connection = True

    def watch(self, server, request_id):
        """A client that closes its connection has cancelled the request."""
        gone = False
        try:
            # No longer than a moment in a call: a socket that somebody waits on cannot be reset.
            while not gone and not self.done:
                if select.select([self.connection], [], [], 0.05)[0]:
                    gone = self.connection.recv(1, socket.MSG_PEEK) == b""
        except (OSError, ValueError):
            gone = True
        request = server.pending.get(request_id)
        if gone and request is not None and not request.cancelled.is_set():
            request.note("gone")
            request.cancelled.set()

    def reset(self):
        self.done = True
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()

    def do_GET(self):
        self.begin(405, {"content-length": "0"})

    do_DELETE = do_GET


class Twin(ThreadingHTTPServer):
    request_queue_size = 512
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that went away, or a connection that was reset on purpose."""


def serve_http(modes):
    twin = Twin(("127.0.0.1", 0), Handler)
    twin.modes = modes
    next(iter(modes.values())).note("start", environment=sorted(os.environ), argv=sys.argv)
    print(f"http://127.0.0.1:{twin.server_address[1]}", flush=True)
    twin.serve_forever()
