"""A service that speaks the OpenAI embeddings API on a loopback port, well or badly, as a test wants it."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

import numpy as np

from support.services import Posted, posted_to

DIMENSIONS = 16

MEANINGS = {"wetter": "weather", "tiempo": "weather", "天气": "weather", "vorhersage": "forecast"}
"""Words this model knows to mean the same."""

Misbehaviour = Callable[["Asked"], None]


class Asked(Posted):
    """One request, and the means to answer it."""

    def __init__(self, handler: BaseHTTPRequestHandler, body: dict[str, Any]) -> None:
        super().__init__(handler, body)
        self.texts: list[str] = body["input"]

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
        """Misbehaviour of the next requests, one each; later requests are answered well."""
        self.always: Misbehaviour | None = None
        self.asked = threading.Event()
        """Set once there was a request."""
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
    """Not of norm 1: a service need not scale its vectors."""
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
    with posted_to("/v1/embeddings", Asked, service.handle, service.released) as root:
        service.url = f"{root}/v1"
        yield service
