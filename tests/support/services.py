"""A service that answers JSON that is posted to one path of a loopback port."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

Asked = TypeVar("Asked", bound="Posted")


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

    class Handler(BaseHTTPRequestHandler):
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

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            released.set()
            server.shutdown()
            thread.join()
