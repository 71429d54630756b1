"""Reranker models: a chat model, and a cross-encoder in a folder.

The chat model gets one request and no retry: a search has an order already. The cross-encoder reads the query
and one tool together and gives one score, on the CPU, offline. Its folder is as sentence-transformers exports
it: ``tokenizer.json``, and a graph whose output is one number for a pair, or two, the second of which says
that they belong together.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec

from mcp_context_proxy.config import Limits, RerankConfig
from mcp_context_proxy.embedding import TOKENIZER, graph_of, max_tokens_of
from mcp_context_proxy.embedding.embeddings import (
    feed,
    inputs_of,
    open_session,
    open_tokenizer,
    unknown_inputs,
)
from mcp_context_proxy.embedding.endpoint import OpenAIService, ServiceError
from mcp_context_proxy.errors import ModelError, RerankError
from mcp_context_proxy.oauth.bearer import client_with
from mcp_context_proxy.retrieval.reranker import (
    ANSWER_TOKENS,
    SYSTEM,
    CandidateItem,
    Question,
)
from mcp_context_proxy.system import threads
from mcp_context_proxy.system.later import np

ANSWER_BYTES: Final = 256 * 1024
"""Limit of a response: some numbers, and the thoughts of a model that thinks aloud."""

REFUSED: Final = frozenset({400, 422})
"""Statuses by which a service refuses a parameter."""

TEXT_CHARACTERS: Final = 4_000
"""Limit of a query or tool: a model reads 512 tokens of both; the tokenizer would go through all of it."""

CONCURRENT_QUESTIONS: Final = 2
"""Questions a cross-encoder works on at the same time; further ones wait."""

EXPORT: Final = (
    "name the folder of a cross-encoder, exported as ONNX with its tokenizer.json, in rerank.model"
)


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _ChatAnswer(msgspec.Struct):
    choices: list[_Choice]


class ChatRerankerModel:
    """A chat model behind a URL. The HTTP client is opened at the first question."""

    def __init__(self, settings: RerankConfig, limits: Limits) -> None:
        """Send nothing yet; ``settings`` has an endpoint and a model, ``limits`` bound the time."""
        self._service = OpenAIService(settings, "rerank", "/chat/completions", "a chat model")
        self.name = self.key = self._service.name
        self._seconds = limits.rerank_seconds
        self._tuning: dict[str, Any] = {"temperature": 0, "max_tokens": ANSWER_TOKENS}
        self._client: httpx2.AsyncClient | None = None

    async def order(self, query: str, candidates: Sequence[CandidateItem]) -> Sequence[int]:
        """Ask for the order; see `RerankerModel.order`."""
        question = Question.of(query, candidates)
        try:
            response, content = await self._post(question)
            if response.status_code in REFUSED and self._tuning:
                # Models that think accept neither a temperature nor this limit, and say so only this way.
                self._tuning = {}
                response, content = await self._post(question)
            if response.status_code != 200:
                raise self._service.refusal(response, content)
            choices = self._service.decode(content, _ChatAnswer).choices
        except ServiceError as error:
            raise RerankError(self.name, error.reason, error.remedy) from error
        answer = next((choice.message.content for choice in choices if choice.message.content), "")
        return question.order(answer, self.name)

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _post(self, question: Question) -> tuple[httpx2.Response, bytes]:
        headers = {**self._service.headers, "accept-encoding": "identity"}
        made = self._client or await client_with(None, headers=headers, timeout=self._seconds)
        # Another search may have opened the client meanwhile.
        client = self._client = self._client or made
        body = {
            "model": self._service.model,
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": question.text},
            ],
            "stream": False,
            **self._tuning,
        }
        content = bytearray()
        with self._service.failures(self._seconds):
            async with client.stream("POST", self._service.url, json=body) as response:
                # Unpacking what was compressed several times could hold up the event loop.
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > ANSWER_BYTES:
                        raise self._service.misfit("its answer is far longer than some numbers")
        return response, bytes(content)


class CrossEncoderModel:
    """A model on disk, opened at the first question."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.name = self.key = f"the cross-encoder {directory}"
        self._lock, self._workers = threading.Lock(), threads.Workers(CONCURRENT_QUESTIONS)
        self._opened: tuple[Any, Any] | None = None

    async def order(self, query: str, candidates: Sequence[CandidateItem]) -> Sequence[int]:
        """Order by score; see `RerankerModel.order`."""
        texts = [f"{candidate.name}: {candidate.description}" for candidate in candidates]
        scores = await self._workers.run(partial(self._scores, query, texts))
        return sorted(range(len(texts)), key=lambda at: -scores[at])

    async def aclose(self) -> None:
        """Do nothing: a run takes milliseconds, and the memory goes with the object."""

    def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        try:
            with self._lock:
                if self._opened is None:
                    session = open_session(graph_of(self._directory))
                    if unknown := unknown_inputs(session):
                        raise RerankError(self.name, unknown)
                    tokenizer = open_tokenizer(self._directory / TOKENIZER, max_tokens_of(self._directory))
                    self._opened = session, tokenizer
                session, tokenizer = self._opened
            inputs = inputs_of(session)
            return [_score(session, inputs, tokenizer.encode(_cut(query), _cut(text))) for text in texts]
        except (RerankError, ModelError) as error:
            raise RerankError(self.name, error.reason, EXPORT) from error
        except Exception as error:  # boundary: both libraries raise a class of their own for every fault
            raise RerankError(self.name, f"the runtime refuses it: {error}", EXPORT) from error


def _score(session: Any, inputs: dict[str, Any], pair: Any) -> float:
    output = np.asarray(session.run(None, feed(inputs, pair.ids, pair.type_ids))[0], np.float64).ravel()
    if output.size not in (1, 2) or not np.isfinite(output).all():
        raise ValueError(f"it gives {output.size} numbers for a pair, where one or two were expected")
    return float(output[0] if output.size == 1 else output[1] - output[0])


def _cut(text: str) -> str:
    # JSON can carry half a surrogate pair; the tokenizer takes Unicode only.
    return text[:TEXT_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
