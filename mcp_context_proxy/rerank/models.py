"""A chat model behind the OpenAI API: Ollama, vLLM, LM Studio, or any other.

One request, one answer, no second attempt: the order that there is costs nothing. The reply is taken only as
far as it is a list of numbers.

A cross-encoder from a folder: it reads query and tool together and gives one score, on the CPU, offline.

A folder as sentence-transformers exports it: ``tokenizer.json`` and a graph whose output is one number for a
pair, or two, of which the second says that they belong together.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import httpx2
import msgspec
import numpy as np

from mcp_context_proxy.config import Limits, RerankConfig
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.embedding.folder import TOKENIZER, graph_of, max_tokens_of
from mcp_context_proxy.embedding.model import INPUTS, feed, inputs_of, open_session, open_tokenizer
from mcp_context_proxy.errors import ModelError, RerankError
from mcp_context_proxy.rerank.reranker_model import ANSWER_TOKENS, SYSTEM, Candidate, Question
from mcp_context_proxy.system import threads
from mcp_context_proxy.system.threads import in_thread

ANSWER_BYTES: Final = 256 * 1024
"""Of a reply: some numbers, and the thoughts of a model that has some."""

QUOTED_CHARACTERS: Final = 200
"""Of what the service says of an error."""

REMEDIES: Final = {
    401: "it wants another key: set rerank.api_key",
    403: "it wants another key: set rerank.api_key",
    404: "check that rerank.endpoint ends as its documentation says (often in /v1), and that it has "
    "rerank.model",
    429: "it limits how much may be asked",
}
UNREACHABLE: Final = "start it, or correct rerank.endpoint"
NOT_OURS: Final = "check that rerank.model is a chat model and that the service speaks the OpenAI API"

REFUSED: Final = frozenset({400, 422})
"""Statuses by which a service says that it does not take a parameter."""


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _ChatAnswer(msgspec.Struct):
    choices: list[_Choice]


class ChatRerankerModel:
    """Asks the service. Its client is opened at the first question."""

    def __init__(self, settings: RerankConfig, limits: Limits) -> None:
        """Prepare to ask; nothing is sent.

        Args:
            settings: With an endpoint and a model.
            limits: How long an answer may take.
        """
        assert settings.endpoint is not None and settings.model is not None
        self._url = settings.endpoint.rstrip("/") + "/chat/completions"
        self._model, self._seconds = settings.model, limits.rerank_seconds
        self.name = self.key = f"{self._model} at {settings.endpoint}"
        api_key = settings.api_key or ""
        self._redact = Redactor([("rerank.api_key", api_key)])
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._tuned: dict[str, Any] = {"temperature": 0, "max_tokens": ANSWER_TOKENS}
        self._client: httpx2.AsyncClient | None = None

    async def order(self, query: str, candidates: Sequence[Candidate]) -> Sequence[int]:
        """See `Judge.order`."""
        question = Question.of(query, candidates)
        status, content = await self._post(question)
        if status in REFUSED and self._tuned:
            # Models that think take neither a temperature nor this bound, and say so only this way.
            self._tuned = {}
            status, content = await self._post(question)
        if status != 200:
            words = " ".join(content.decode("utf-8", "replace").split())[:QUOTED_CHARACTERS]
            told = f"it answered with HTTP status {status}" + (f": {words}" if words else "")
            raise self._error(told, REMEDIES.get(status, NOT_OURS))
        return question.order(self._text(content), self.name)

    async def aclose(self) -> None:
        """Let go of the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _post(self, question: Question) -> tuple[int, bytes]:
        client = await self._opened()
        body = {
            "model": self._model,
            "messages": [
                {"role": "system", "content": SYSTEM},
                {"role": "user", "content": question.text},
            ],
            "stream": False,
            **self._tuned,
        }
        try:
            async with client.stream("POST", self._url, json=body) as response:
                return response.status_code, await self._read(response)
        except httpx2.TimeoutException as error:
            raise self._error(f"no answer within {self._seconds:g} s", "use a smaller model") from error
        except httpx2.ConnectError as error:
            raise self._error(f"it cannot be reached ({error})", UNREACHABLE) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, RuntimeError) as error:
            # RuntimeError: the client was closed meanwhile.
            raise self._error(f"the request failed ({type(error).__name__}: {error})", UNREACHABLE) from error

    async def _opened(self) -> httpx2.AsyncClient:
        verify = await threads.trusted_certificates()
        # Looked at after the wait: another search may have made it meanwhile.
        if self._client is None:
            self._client = httpx2.AsyncClient(headers=self._headers, timeout=self._seconds, verify=verify)
        return self._client

    async def _read(self, response: httpx2.Response) -> bytes:
        content = bytearray()
        async for part in response.aiter_bytes():
            content += part
            if len(content) > ANSWER_BYTES:
                raise self._error("its answer is far longer than some numbers", NOT_OURS)
        return bytes(content)

    def _text(self, content: bytes) -> str:
        try:
            choices = msgspec.json.decode(content, type=_ChatAnswer).choices
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(f"its answer is not what the API says ({error})", NOT_OURS) from error
        return next((choice.message.content for choice in choices if choice.message.content), "")

    def _error(self, reason: str, remedy: str) -> RerankError:
        return RerankError(self.name, self._redact(reason), remedy)


TEXT_CHARACTERS: Final = 4_000
"""Of a query or tool: a model reads 512 tokens of both; the tokenizer would go through all of it."""

REMEDY: Final = (
    "name the folder of a cross-encoder, exported as ONNX with its tokenizer.json, in rerank.model"
)

AT_ONCE: Final = 2
"""Questions; a third waits."""


class CrossEncoderModel:
    """A model on disk, opened at the first question."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.name = self.key = f"the cross-encoder {directory}"
        self._lock, self._limiter = threading.Lock(), anyio.CapacityLimiter(AT_ONCE)
        self._opened: tuple[Any, Any] | None = None

    async def order(self, query: str, candidates: Sequence[Candidate]) -> Sequence[int]:
        """See `Judge.order`."""
        texts = [f"{candidate.name}: {candidate.description}" for candidate in candidates]
        scores = await in_thread(self._scores, query, texts, abandon_on_cancel=True, limiter=self._limiter)
        return sorted(range(len(texts)), key=lambda at: -scores[at])

    async def aclose(self) -> None:
        """Nothing to do: a run takes milliseconds, and the memory goes with the object."""

    def _scores(self, query: str, texts: Sequence[str]) -> list[float]:
        try:
            session, tokenizer = self._open()
            inputs = inputs_of(session)
            return [_score(session, inputs, tokenizer.encode(_text(query), _text(text))) for text in texts]
        except (RerankError, ModelError) as error:
            reason = error.reason
            raise RerankError(self.name, reason, REMEDY) from error
        except Exception as error:  # boundary: both libraries raise a class of their own for every fault
            raise RerankError(self.name, f"the runtime refuses it: {error}", REMEDY) from error

    def _open(self) -> tuple[Any, Any]:
        with self._lock:
            if self._opened is None:
                session = open_session(graph_of(self._directory))
                if unknown := [one.name for one in session.get_inputs() if one.name not in INPUTS]:
                    told = f"its graph wants {', '.join(unknown)}, which is not known here"
                    raise RerankError(self.name, told)
                tokenizer = open_tokenizer(self._directory / TOKENIZER, max_tokens_of(self._directory))
                self._opened = session, tokenizer
            return self._opened


def _score(session: Any, inputs: dict[str, Any], pair: Any) -> float:
    output = np.asarray(session.run(None, feed(inputs, pair.ids, pair.type_ids))[0], np.float64).ravel()
    if output.size not in (1, 2) or not np.isfinite(output).all():
        raise ValueError(f"it gives {output.size} numbers for a pair, where one or two were expected")
    return float(output[0] if output.size == 1 else output[1] - output[0])


def _text(text: str) -> str:
    # JSON can carry half a surrogate pair; the tokenizer takes Unicode only.
    return text[:TEXT_CHARACTERS].encode("utf-8", "replace").decode("utf-8")
