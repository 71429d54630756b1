"""Vectors from an HTTP service that speaks the OpenAI embeddings API: Ollama, vLLM, LM Studio, OpenAI itself.

Nobody waits for it longer than they have time for, however the service fails: each request runs in a thread
of its own, and who waits goes on without it. An answer is taken only if it can be what was asked for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import cached_property
from typing import cast

import httpx2
import msgspec
import numpy as np

from mcp_context_proxy.config import EmbeddingConfig, Limits
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.embedding.embedder import Matrix, unit_rows
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError

TEXTS_A_REQUEST = 64
"""Few enough that a small machine answers in seconds, many enough that the way costs little."""

CHARACTERS = 1_500
"""A longer text is cut: models read 512 tokens or so, and some services refuse a text with more."""

ATTEMPTS = 3
"""For a text of the catalog: the first, and two more where the service is busy. A query has one."""

PAUSE_SECONDS = 0.5
"""Before the second attempt, where the service does not say how long; doubles."""

LONGEST_PAUSE_SECONDS = 5.0
"""Of what the service may ask for in Retry-After; the deadline ends longer ones anyway."""

QUOTED_CHARACTERS = 200
"""Of what the service says of an error."""

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed a moment later."""

REMEDIES = {
    401: "it wants another key: set embedding.api_key",
    403: "it wants another key: set embedding.api_key",
    404: "check that embedding.endpoint ends as its documentation says (often in /v1), and that it has "
    "embedding.model (Ollama: ollama pull MODEL)",
    429: "it limits how much may be asked: wait, or use another plan or a local model",
}
UNREACHABLE = "start it, or correct embedding.endpoint"
TOO_LATE = "it may be loading the model; if that goes on, use a smaller one or raise the limit"
NOT_OURS = "check that embedding.model is an embedding model and that the service speaks the OpenAI API"


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _EmbeddingsAnswer(msgspec.Struct):
    data: list[_Item]


class _BusyError(ModelError):
    """The same request may succeed after a pause."""

    pause: float | None = None
    """Seconds that the service asks for."""


class EndpointModel:
    """A model behind a URL. Blocking and thread-safe; the first use asks how long its vectors are."""

    def __init__(self, settings: EmbeddingConfig, limits: Limits) -> None:
        """Prepare to ask; nothing is sent.

        Args:
            settings: With an endpoint and a model.
            limits: How long an answer may take, and how large it may be.
        """
        assert settings.endpoint is not None and settings.model is not None
        self._url = settings.endpoint.rstrip("/") + "/embeddings"
        self._model = settings.model
        self._name = f"{self._model} at {settings.endpoint}"
        self._query_prefix = settings.query_prefix or ""
        self._passage_prefix = settings.passage_prefix or ""
        self._limits = limits
        key = settings.api_key or ""
        self._redact = Redactor([("embedding.api_key", key)])
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client = httpx2.Client(headers=headers)
        self._closing: Future[None] = Future()

    @cached_property
    def dimensions(self) -> int:
        """Length of every vector, as the service answers.

        Raises:
            ModelError: it does not.
        """
        seconds = self._limits.embedding_query_seconds
        return int(self._ask(["dimensions"], time.monotonic() + seconds, seconds, None).shape[1])

    @property
    def model_id(self) -> str:
        """Where it is, what it is called there, how long its vectors are, and what is put before a text."""
        return f"{self._name}/{self.dimensions}/{self._passage_prefix!r}"

    def embed(self, texts: Sequence[str]) -> Matrix:
        """One unit vector per text; a service that is busy is asked again."""
        seconds = self._limits.embedding_seconds
        rows = [np.empty((0, self.dimensions), np.float32)]
        for start in range(0, len(texts), TEXTS_A_REQUEST):
            some = [self._passage_prefix + text for text in texts[start : start + TEXTS_A_REQUEST]]
            rows.append(self._persistently(some, seconds))
        return np.concatenate(rows)

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """The same for queries, at once or not at all."""
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        seconds = self._limits.embedding_query_seconds
        prefixed = [self._query_prefix + text for text in texts]
        return self._ask(prefixed, time.monotonic() + seconds, seconds, self.dimensions)

    def close(self) -> None:
        """Let everyone who waits go on; what is under way ends by itself."""
        if not self._closing.done():
            self._closing.set_result(None)
        self._client.close()

    def _persistently(self, texts: Sequence[str], seconds: float) -> Matrix:
        deadline, pause = time.monotonic() + seconds, PAUSE_SECONDS
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return self._ask(texts, deadline, seconds, self.dimensions)
            except _BusyError as busy:
                wanted = min(pause if busy.pause is None else busy.pause, LONGEST_PAUSE_SECONDS)
                if attempt == ATTEMPTS or time.monotonic() + wanted >= deadline:
                    raise
                wait([self._closing], wanted)
                pause *= 2
        raise AssertionError("unreachable")

    def _ask(self, texts: Sequence[str], deadline: float, seconds: float, dimensions: int | None) -> Matrix:
        if self._closing.done():
            raise EmbeddingCancelledError(0, len(texts))
        cut = [text[:CHARACTERS].encode("utf-8", "replace").decode("utf-8") for text in texts]
        answer: Future[Matrix] = Future()
        # A daemon: a service that never answers must not keep the process from ending.
        threading.Thread(target=self._fulfil, args=(answer, cut, deadline, dimensions), daemon=True).start()
        wait(
            [cast("Future[object]", answer), cast("Future[object]", self._closing)],
            max(deadline - time.monotonic(), 0),
            FIRST_COMPLETED,
        )
        # What fails because it is closed did not fail.
        if answer.done() and not (self._closing.done() and answer.exception()):
            return answer.result()
        if self._closing.done():
            raise EmbeddingCancelledError(0, len(texts))
        raise self._error(f"no answer within {seconds:g} s", TOO_LATE)

    def _fulfil(
        self, answer: Future[Matrix], texts: Sequence[str], deadline: float, dimensions: int | None
    ) -> None:
        try:
            answer.set_result(self._vectors(self._post(texts, deadline), len(texts), dimensions))
        except Exception as error:  # boundary: whoever waits is to have it
            answer.set_exception(error)

    def _post(self, texts: Sequence[str], deadline: float) -> bytes:
        body = {"model": self._model, "input": texts}
        timeout = max(deadline - time.monotonic(), 0.001)
        try:
            with self._client.stream("POST", self._url, json=body, timeout=timeout) as response:
                content = self._read(response, deadline)
        except httpx2.ConnectError as error:
            raise self._error(f"it cannot be reached ({error})", UNREACHABLE) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, RuntimeError) as error:
            # RuntimeError: the client was closed meanwhile.
            raise self._error(f"the request failed ({type(error).__name__}: {error})", UNREACHABLE) from error
        if response.status_code != 200:
            raise self._refusal(response, content)
        return content

    def _read(self, response: httpx2.Response, deadline: float) -> bytes:
        content = bytearray()
        for part in response.iter_bytes():
            content += part
            if len(content) > self._limits.message_bytes:
                raise self._error("its answer is larger than limits.message_bytes", NOT_OURS)
            if time.monotonic() > deadline:
                raise self._error("its answer did not end in time", TOO_LATE)
        return bytes(content)

    def _refusal(self, response: httpx2.Response, content: bytes) -> ModelError:
        status = response.status_code
        words = " ".join(content.decode("utf-8", "replace").split())[:QUOTED_CHARACTERS]
        reason = f"it answered with HTTP status {status}" + (f": {words}" if words else "")
        if status not in BUSY:
            return self._error(reason, REMEDIES.get(status, NOT_OURS))
        busy = _BusyError(
            self._name, self._redact(reason), REMEDIES.get(status, "look at its log"), passing=True
        )
        asked = response.headers.get("retry-after", "")
        busy.pause = float(asked) if asked.isdecimal() else None
        return busy

    def _vectors(self, content: bytes, count: int, dimensions: int | None) -> Matrix:
        try:
            items = msgspec.json.decode(content, type=_EmbeddingsAnswer).data
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(f"its answer is not what the API says ({error})", NOT_OURS) from error
        if len(items) != count:
            raise self._error(f"it gave {len(items)} vectors for {count} texts", NOT_OURS)
        if all(item.index is not None for item in items):
            items = sorted(items, key=lambda item: item.index or 0)
        lengths = {len(item.embedding) for item in items}
        expected = dimensions if dimensions is not None else len(items[0].embedding)
        if lengths != {expected} or not expected:
            found = " and ".join(map(str, sorted(lengths)))
            told = f"its vectors have {found} numbers, where {expected} were expected"
            raise self._error(told, "restart the proxy if the model was changed")
        try:
            return unit_rows(np.array([item.embedding for item in items], np.float32))
        except ValueError as error:
            raise self._error(f"it gave something that is no direction: {error}", NOT_OURS) from error

    def _error(self, reason: str, remedy: str) -> ModelError:
        """Every failure may pass: the service can be started or mended while the proxy runs."""
        return ModelError(self._name, self._redact(reason), remedy, passing=True)
