"""Computes vectors with an HTTP service that speaks the OpenAI API: Ollama, vLLM, LM Studio, OpenAI itself.

No caller waits longer than its deadline, however the service fails: each request runs in a thread of its own,
which the caller abandons at the deadline. A response is used only if it fits the request.

`OpenAIService` holds everything that does not depend on the kind of request: a reranker asks with it, too.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar, cast

import httpx2
import msgspec

from mcp_context_proxy.config import EmbeddingConfig, Limits, RerankConfig
from mcp_context_proxy.config.secrets import Redactor
from mcp_context_proxy.embedding import Matrix, unit_rows
from mcp_context_proxy.errors import EmbeddingCancelledError, ModelError
from mcp_context_proxy.protocol.strangers import in_words, one_line
from mcp_context_proxy.system.later import np

T = TypeVar("T")

TEXTS_A_REQUEST = 64
"""Few enough that a small machine answers in seconds, many enough that the round trip costs little."""

CHARACTERS = 1_500
"""A longer text is cut: models read 512 tokens or so, and some services refuse a text with more."""

ATTEMPTS = 3
"""For texts of the catalog: the first, and two retries while the service is busy. A query has one attempt."""

PAUSE_SECONDS = 0.5
"""Before the first retry, if the service does not say how long; doubles."""

LONGEST_PAUSE_SECONDS = 5.0
"""Limit of the pause that the service asks for in Retry-After; the deadline ends longer ones anyway."""

QUOTED_CHARACTERS = 200
"""Length of the quotation from an error response."""

BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses after which the same request may succeed a moment later."""

TOO_LATE = "it may be loading the model; if that goes on, use a smaller one or raise the limit"


class _Item(msgspec.Struct):
    embedding: list[float]
    index: int | None = None


class _EmbeddingsAnswer(msgspec.Struct):
    data: list[_Item]


class EndpointModel:
    """A model behind a URL. Blocking and thread-safe; its first use asks for the length of its vectors."""

    def __init__(self, settings: EmbeddingConfig, limits: Limits) -> None:
        """Send nothing yet; ``settings`` has an endpoint and a model, ``limits`` bound time and size."""
        self._service = OpenAIService(settings, "embedding", "/embeddings", "an embedding model")
        self._query_prefix = settings.query_prefix or ""
        self._passage_prefix = settings.passage_prefix or ""
        self._limits = limits
        self._client = httpx2.Client(headers=self._service.headers)
        self._closing: Future[None] = Future()

    @cached_property
    def dimensions(self) -> int:
        """Length of every vector; asks the service."""
        seconds = self._limits.embedding_query_seconds
        return int(self._ask(["dimensions"], time.monotonic() + seconds, seconds, None).shape[1])

    @property
    def model_id(self) -> str:
        """Address, name, length of the vectors, and prefix of the catalog's texts."""
        return f"{self._service.name}/{self.dimensions}/{self._passage_prefix!r}"

    def embed(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per text; retries while the service is busy."""
        rows = [np.empty((0, self.dimensions), np.float32)]
        for start in range(0, len(texts), TEXTS_A_REQUEST):
            some = [self._passage_prefix + text for text in texts[start : start + TEXTS_A_REQUEST]]
            rows.append(self._ask_with_retries(some))
        return np.concatenate(rows)

    def embed_queries(self, texts: Sequence[str]) -> Matrix:
        """Return one unit vector per query, in a single attempt."""
        if not texts:
            return np.empty((0, self.dimensions), np.float32)
        seconds = self._limits.embedding_query_seconds
        prefixed = [self._query_prefix + text for text in texts]
        return self._ask(prefixed, time.monotonic() + seconds, seconds, self.dimensions)

    def close(self) -> None:
        """Free all waiting callers; requests in progress end by themselves."""
        if not self._closing.done():
            self._closing.set_result(None)
        self._client.close()

    def _ask_with_retries(self, texts: Sequence[str]) -> Matrix:
        seconds, pause = self._limits.embedding_seconds, PAUSE_SECONDS
        deadline = time.monotonic() + seconds
        for _ in range(ATTEMPTS - 1):
            try:
                return self._ask(texts, deadline, seconds, self.dimensions)
            except ModelError as error:
                busy = error.__cause__
                if not (isinstance(busy, ServiceError) and busy.busy):
                    raise
                wanted = min(pause if busy.retry_after is None else busy.retry_after, LONGEST_PAUSE_SECONDS)
                if time.monotonic() + wanted >= deadline:
                    raise
                wait([self._closing], wanted)
                pause *= 2
        return self._ask(texts, deadline, seconds, self.dimensions)

    def _ask(self, texts: Sequence[str], deadline: float, seconds: float, dimensions: int | None) -> Matrix:
        if self._closing.done():
            raise EmbeddingCancelledError(0, len(texts))
        cut = [text[:CHARACTERS].encode("utf-8", "replace").decode("utf-8") for text in texts]
        answer: Future[Matrix] = Future()

        def request() -> None:
            try:
                answer.set_result(self._vectors(self._post(cut, deadline, seconds), len(cut), dimensions))
            except Exception as error:  # boundary: the waiting caller gets it
                answer.set_exception(error)

        # A daemon: a service that never answers must not keep the process from ending.
        threading.Thread(target=request, daemon=True).start()
        wait(
            [cast("Future[object]", answer), cast("Future[object]", self._closing)],
            max(deadline - time.monotonic(), 0),
            FIRST_COMPLETED,
        )
        # A failure caused by closing is no failure of the service.
        closed = self._closing.done()
        if closed and not (answer.done() and answer.exception() is None):
            raise EmbeddingCancelledError(0, len(texts))
        try:
            if not answer.done():
                raise self._service.too_late(seconds)
            return answer.result()
        except ServiceError as error:
            # Every failure may pass: the service can be started or mended while the proxy runs.
            raise ModelError(self._service.name, error.reason, error.remedy, passing=True) from error

    def _post(self, texts: Sequence[str], deadline: float, seconds: float) -> bytes:
        service, content = self._service, bytearray()
        body = {"model": service.model, "input": texts}
        timeout = max(deadline - time.monotonic(), 0.001)
        with (
            service.failures(seconds),
            self._client.stream("POST", service.url, json=body, timeout=timeout) as response,
        ):
            for part in response.iter_bytes():
                content += part
                if len(content) > self._limits.message_bytes:
                    raise service.misfit("its answer is larger than limits.message_bytes")
                if time.monotonic() > deadline:
                    raise service.too_late(seconds)
        if response.status_code != 200:
            raise service.refusal(response, bytes(content))
        return bytes(content)

    def _vectors(self, content: bytes, count: int, dimensions: int | None) -> Matrix:
        service = self._service
        items = service.decode(content, _EmbeddingsAnswer).data
        if len(items) != count:
            raise service.misfit(f"it gave {len(items)} vectors for {count} texts")
        if all(item.index is not None for item in items):
            items = sorted(items, key=lambda item: item.index or 0)
        lengths = {len(item.embedding) for item in items}
        expected = dimensions if dimensions is not None else len(items[0].embedding)
        if lengths != {expected} or not expected:
            found = " and ".join(map(str, sorted(lengths)))
            reason = f"its vectors have {found} numbers, where {expected} were expected"
            raise ServiceError(reason, "restart the proxy if the model was changed")
        try:
            return unit_rows(np.array([item.embedding for item in items], np.float32))
        except ValueError as error:
            raise service.misfit(f"it gave an unusable vector: {error}") from error


class ServiceError(Exception):
    """A request to a service failed; without secrets."""

    def __init__(
        self, reason: str, remedy: str, busy: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(reason)
        self.reason, self.remedy = one_line(reason), remedy
        self.busy, self.retry_after = busy, retry_after
        """``busy``: a retry may succeed, ``retry_after`` seconds later if the service says it."""


class OpenAIService:
    """Address and credentials of a service, and the errors that its responses mean."""

    def __init__(self, settings: EmbeddingConfig | RerankConfig, section: str, path: str, kind: str) -> None:
        """Describe the service that a section has; its name and the kind of model are for remedies."""
        assert settings.endpoint is not None and settings.model is not None
        self.url = settings.endpoint.rstrip("/") + path
        self.model = settings.model
        self.name = f"{settings.model} at {settings.endpoint}"
        key = settings.api_key or ""
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._redact = Redactor([(f"{section}.api_key", key)])
        self._unreachable = f"start it, or correct {section}.endpoint"
        self._misfit = f"check that {section}.model is {kind} and that the service speaks the OpenAI API"
        self._remedies = {
            401: f"it needs another key: set {section}.api_key",
            403: f"it needs another key: set {section}.api_key",
            404: f"check that {section}.endpoint ends as its documentation says (often in /v1), and that it "
            f"has {section}.model (Ollama: ollama pull MODEL)",
            429: "it limits the number of requests: wait, or use another plan or a local model",
        }

    @contextmanager
    def failures(self, seconds: float) -> Iterator[None]:
        """Turn the HTTP client's errors into a `ServiceError`; ``seconds`` is the time limit."""
        try:
            yield
        except httpx2.TimeoutException as error:
            raise self.too_late(seconds) from error
        except httpx2.ConnectError as error:
            reason = self._redact(f"it cannot be reached ({error})")
            raise ServiceError(reason, self._unreachable) from error
        except (httpx2.HTTPError, httpx2.InvalidURL, RuntimeError) as error:
            # RuntimeError: the client was closed meanwhile.
            reason = self._redact(f"the request failed ({type(error).__name__}: {error})")
            raise ServiceError(reason, self._unreachable) from error

    def too_late(self, seconds: float) -> ServiceError:
        """Return the error of a request that ran out of time."""
        return ServiceError(f"no answer within {seconds:g} s", TOO_LATE)

    def misfit(self, reason: str) -> ServiceError:
        """Return the error of a response that does not fit the request."""
        return ServiceError(self._redact(reason), self._misfit)

    def refusal(self, response: httpx2.Response, content: bytes) -> ServiceError:
        status = response.status_code
        quoted = one_line(content.decode("utf-8", "replace"), QUOTED_CHARACTERS)
        reason = self._redact(f"it answered with HTTP status {status}" + (f": {quoted}" if quoted else ""))
        busy, retry_after = status in BUSY, response.headers.get("retry-after", "")
        return ServiceError(
            reason,
            self._remedies.get(status, "look at its log" if busy else self._misfit),
            busy,
            float(retry_after) if retry_after.isdecimal() else None,
        )

    def decode(self, content: bytes, kind: type[T]) -> T:
        """Decode a response; one of another kind is a `ServiceError`."""
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self.misfit(f"its answer does not follow the API ({in_words(error, kind)})") from error
