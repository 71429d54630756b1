"""A service that speaks the OpenAI embeddings API on a loopback port, well or badly, as a test wants it."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

DIMENSIONS = 16

MEANINGS = {"wetter": "weather", "tiempo": "weather", "天气": "weather", "vorhersage": "forecast"}
"""Words this model knows to mean the same."""

Misbehaviour = Callable[["Asked"], None]


class Asked:
    """One request, and the means to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        self._handler = handler
        self.body, self.headers = body, dict(handler.headers)
        self.texts: list[str] = body["input"]

    def answer(self, status: int, content: Any, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self._handler.send_response(status)
        for name, value in headers.items():
            self._handler.send_header(name.replace("_", "-"), value)
        self._handler.send_header("Content-Length", str(len(data)))
        self._handler.end_headers()
        self._handler.wfile.write(data)

    def vectors(self, dimensions: int = DIMENSIONS) -> list[dict[str, Any]]:
        return [
            {"object": "embedding", "index": at, "embedding": vector_of(text, dimensions)}
            for at, text in enumerate(self.texts)
        ]

    def well(self) -> None:
        self.answer(200, {"object": "list", "data": self.vectors(), "model": self.body["model"]})


class Service:
    """A running service."""

    def __init__(self) -> None:
        self.requests: list[Asked] = []
        self.misbehaviour: list[Misbehaviour] = []
        """Of the next requests, one each; those after them are answered well."""
        self.always: Misbehaviour | None = None
        self.asked = threading.Event()
        """Whether there was a request."""
        self.released = threading.Event()
        """Whoever never answers waits for it."""
        self.url = ""

    @property
    def texts(self) -> list[str]:
        return [text for asked in self.requests for text in asked.texts]

    def never(self, asked: Asked) -> None:
        del asked
        self.released.wait(60)

    def handle(self, asked: Asked) -> None:
        self.requests.append(asked)
        self.asked.set()
        if self.always is not None:
            self.always(asked)
        elif self.misbehaviour:
            self.misbehaviour.pop(0)(asked)
        else:
            asked.well()


def vector_of(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """Not of norm 1: a service need not scale what it gives."""
    words = [word.strip(".,:?") for word in text.lower().split()] or [""]
    total = sum(_direction(MEANINGS.get(word, word), dimensions) for word in words)
    return [float(x) for x in 3 * np.asarray(total)]


def _direction(word: str, dimensions: int) -> Any:
    seed = int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).standard_normal(dimensions)


@contextmanager
def embedding_service() -> Iterator[Service]:
    """A service on a free loopback port."""
    service = Service()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/v1/embeddings":
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
