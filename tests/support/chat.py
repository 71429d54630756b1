"""A service that speaks the OpenAI chat API on a loopback port, well or badly, as a test wants it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Asked:
    """One request, and the means to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self._handler = handler
        self.body, self.headers = body, dict(handler.headers)

    @property
    def prompt(self) -> str:
        """What the model is asked."""
        return str(self.body["messages"][-1]["content"])

    @property
    def data(self) -> list[dict[str, Any]]:
        """The lines between the marks: the request, then the tools."""
        lines = self.prompt.splitlines()
        first = next(line for line in lines if line.startswith("DATA-"))
        begin, end = (at for at, line in enumerate(lines) if line == first)
        return [json.loads(line) for line in lines[begin + 1 : end]]

    def answer(self, status: int, content: Any) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._handler.send_response(status)
        self._handler.send_header("Content-Length", str(len(data)))
        self._handler.end_headers()
        self._handler.wfile.write(data)

    def say(self, text: str | None) -> None:
        self.answer(200, {"choices": [{"message": {"role": "assistant", "content": text}}]})


class ChatService:
    """A running service."""

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self.reply: Callable[[Asked], None] = lambda asked: asked.say("2, 1")
        self.released = threading.Event()
        """Whoever never answers waits for it."""
        self.url = ""

    def never(self, asked: Asked) -> None:
        del asked
        self.released.wait(60)

    def handle(self, asked: Asked) -> None:
        self.requests.append(asked)
        self.reply(asked)


@contextmanager
def chat_service() -> Iterator[ChatService]:
    """A service on a free loopback port."""
    service = ChatService()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/chat/completions":
                Asked(self, body).answer(404, {"error": {"message": "unknown route"}})
                return
            try:
                service.handle(Asked(self, body))
            except OSError:  # the client did not wait
                self.close_connection = True

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        service.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield service
        finally:
            service.released.set()
            server.shutdown()
            thread.join()
