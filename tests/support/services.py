"""HTTP services in a thread of the test: any, and one that answers JSON that is posted to one path."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

Asked = TypeVar("Asked", bound="Posted")


class QuietHandler(BaseHTTPRequestHandler):
    """Handles requests, and logs none."""

    def log_message(self, *args: object) -> None:
        """Say nothing."""


@contextmanager
def serving(service: ThreadingHTTPServer | type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """The root of a service, given by itself or by its handler of requests, for as long as it runs."""
    if isinstance(service, type):
        service = ThreadingHTTPServer(("127.0.0.1", 0), service)
    with service:
        thread = threading.Thread(target=service.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{service.server_port}"
        finally:
            service.shutdown()
            thread.join()


class Posted:
    """One request, and the means to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self._handler = handler
        self.body, self.headers = body, dict(handler.headers)

    def answer(self, status: int, content: Any, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.send_header("Content-Length", str(len(data)))
        self._handler.end_headers()
        self._handler.wfile.write(data)


@contextmanager
def posted_to(
    path: str, kind: type[Asked], handle: Callable[[Asked], None], released: threading.Event
) -> Iterator[str]:
    """The root of a service that handles requests of a kind.

    `released` is set at the end, for whoever waits for it and never answers.
    """

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != path:
                Posted(self, body).answer(404, {"error": {"message": "unknown route"}})
                return
            try:
                handle(kind(self, body))
            except OSError:  # the client did not wait
                self.close_connection = True

    with serving(Handler) as root:
        try:
            yield root
        finally:
            released.set()
