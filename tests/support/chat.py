"""A service that speaks the OpenAI chat API on a loopback port, well or badly, as a test wants it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from support.services import Posted, posted_to


class Asked(Posted):
    """One request, and the means to answer it."""

    @property
    def prompt(self) -> str:
        """The prompt."""
        return str(self.body["messages"][-1]["content"])

    @property
    def data(self) -> list[dict[str, Any]]:
        """The lines between the marks: the request, then the tools."""
        lines = self.prompt.splitlines()
        first = next(line for line in lines if line.startswith("DATA-"))
        begin, end = (at for at, line in enumerate(lines) if line == first)
        return [json.loads(line) for line in lines[begin + 1 : end]]

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
    with posted_to("/v1/chat/completions", Asked, service.handle, service.released) as root:
        service.url = f"{root}/v1"
        yield service


@pytest.fixture
def service() -> Iterator[ChatService]:
    with chat_service() as running:
        yield running
