"""Reranker models: a chat model, a cross-encoder in a folder, and a small one that adds to the scores.

The chat model gets one request and no retry: a search has an order already. The cross-encoder reads the query
and one tool together and gives one score, on the CPU, offline. Its folder is as sentence-transformers exports
it: ``tokenizer.json``, and a graph whose output is one number for a pair, or two, the second of which says
that they belong together.

encoder/rerank.py trains one on the best wrong answers of the search and writes it into the folder of an
encoder, with which it shares the tokenizer and the vectors of words::

    reranker.json    its facts: see `Facts`
    reranker.onnx    input_ids, types_ids int64 [1, tokens] -> logit float [1, 1]

A tool gets ``score + weight * logit``, where the second part is at most ``most`` in either direction. So a
tool that leads by more than twice that stays ahead unread, and no description can talk its tool past one.
Everything is computed on the CPU, offline; nothing is opened before the first question.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import httpx2
import msgspec
from msgspec import Meta, Struct

from mcp_context_proxy.config import Limits, RerankConfig
from mcp_context_proxy.embedding import TOKENIZER, digest, graph_of, max_tokens_of
from mcp_context_proxy.embedding.embeddings import (
    feed,
    inputs_of,
    open_session,
    open_tokenizer,
    unknown_inputs,
)
from mcp_context_proxy.embedding.endpoint import OpenAIService, ServiceError
from mcp_context_proxy.errors import ModelError, RerankError
from mcp_context_proxy.items import Item
from mcp_context_proxy.retrieval.item_metadata import item_text
from mcp_context_proxy.retrieval.reranker import (
    ANSWER_TOKENS,
    FEW_CANDIDATES,
    SYSTEM,
    CandidateItem,
    Question,
)
from mcp_context_proxy.retrieval.text import encodable
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

    candidates: int = FEW_CANDIDATES
    reach: float | None = None

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
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def _post(self, question: Question) -> tuple[httpx2.Response, bytes]:
        verify = await threads.trusted_certificates()
        # Checked after the wait: another search may have opened the client meanwhile.
        if self._client is None:
            headers = {**self._service.headers, "accept-encoding": "identity"}
            self._client = httpx2.AsyncClient(headers=headers, timeout=self._seconds, verify=verify)
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
            async with self._client.stream("POST", self._service.url, json=body) as response:
                # Unpacking what was compressed several times could hold up the event loop.
                async for part in response.aiter_raw():
                    content += part
                    if len(content) > ANSWER_BYTES:
                        raise self._service.misfit("its answer is far longer than some numbers")
        return response, bytes(content)


class CrossEncoderModel:
    """A model on disk, opened at the first question."""

    candidates: int = FEW_CANDIDATES
    reach: float | None = None

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.name = self.key = f"the cross-encoder {directory}"
        self._lock, self._limiter = threading.Lock(), anyio.CapacityLimiter(CONCURRENT_QUESTIONS)
        self._opened: tuple[Any, Any] | None = None

    async def order(self, query: str, candidates: Sequence[CandidateItem]) -> Sequence[int]:
        """Order by score; see `RerankerModel.order`."""
        texts = [f"{candidate.name}: {candidate.description}" for candidate in candidates]
        scores = await threads.in_thread(
            self._scores, query, texts, abandon_on_cancel=True, limiter=self._limiter
        )
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


MANIFEST: Final = "reranker.json"
"""The file by which a folder says that it has such a model."""

PARALLEL_READS: Final = 2
"""Pairs that are read at the same time, one thread each, as texts are embedded."""

"""Questions that are answered at the same time; further ones wait."""

CHARACTERS: Final = 2_000
"""Limit of a query or a tool: the model reads far fewer word pieces; the tokenizer would read on."""

OUTPUT: Final = "logit"

REBUILD: Final = "build it again with encoder/rerank.py, or remove rerank.model"


class Facts(msgspec.Struct, frozen=True):
    """Content of `MANIFEST`."""

    model: str
    graph: str
    weight: Annotated[float, Meta(ge=0, le=1)]
    """Worth of one point of the logit in points of the search's score."""
    most: Annotated[float, Meta(ge=0, le=1)]
    """Most that is added or taken away."""
    candidates: Annotated[int, Meta(ge=2, le=50)]
    """Tools that are ordered."""
    request_tokens: Annotated[int, Meta(ge=8, le=512)]
    tool_tokens: Annotated[int, Meta(ge=8, le=512)]
    """Word pieces that are read of a request and of a tool."""
    sha256: dict[str, str]
    """Digests of the graph and of the files that it shares."""


class _Opened(Struct, frozen=True):
    session: Any
    tokenizer: Any


class SecondOpinionModel:
    """The model in a folder with a `MANIFEST`. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        """Read the small manifest, and open nothing; a damaged one is reported by the first question."""
        self._directory = directory
        self._facts: Facts | None = None
        self._fault = ""
        try:
            self._facts = msgspec.json.decode((directory / MANIFEST).read_bytes(), type=Facts)
        except (OSError, msgspec.MsgspecError) as error:
            self._fault = f"{MANIFEST} cannot be used: {error}"
        self.name = self.key = self._facts.model if self._facts else f"the reranker {directory}"
        self.candidates = self._facts.candidates if self._facts else 2
        self.reach: float | None = 2 * self._facts.most if self._facts else None
        self._lock, self._limiter = threading.Lock(), anyio.CapacityLimiter(CONCURRENT_QUESTIONS)
        self._opened: _Opened | None = None
        self._readers = ThreadPoolExecutor(PARALLEL_READS - 1, "reranking")

    async def order(self, query: str, candidates: Sequence[CandidateItem]) -> Sequence[int]:
        """Order by the search's score and this model's opinion; see `RerankerModel.order`."""
        added = await threads.in_thread(
            partial(self.opinions, query, candidates), abandon_on_cancel=True, limiter=self._limiter
        )
        totals = [one.score + more for one, more in zip(candidates, added, strict=True)]
        return sorted(range(len(totals)), key=lambda at: -totals[at])

    async def aclose(self) -> None:
        """Let the threads end; a run takes milliseconds, and the memory goes with the object."""
        self._readers.shutdown(wait=False, cancel_futures=True)

    def opinions(self, query: str, candidates: Sequence[CandidateItem]) -> list[float]:
        """Return the amount that is added to the score of each candidate. Blocking.

        A candidate too far behind the best to pass it is not read and gets nothing.

        Raises:
            RerankError: the folder is damaged, or the runtime refuses the model.
        """
        if (facts := self._facts) is None:
            raise RerankError(f"the reranker {self._directory}", self._fault, REBUILD)
        best = max((one.score for one in candidates), default=0.0)
        near = [at for at, one in enumerate(candidates) if best - one.score <= 2 * facts.most]
        added = [0.0] * len(candidates)
        logits = self.logits(query, [text_of(candidates[at]) for at in near])
        for at, logit in zip(near, logits, strict=True):
            added[at] = min(max(facts.weight * logit, -facts.most), facts.most)
        return added

    def logits(self, query: str, texts: Sequence[str]) -> list[float]:
        """Return one number a tool, higher for a better one; several are read at the same time."""
        assert self._facts is not None
        try:
            opened = self._open(self._facts)
            read = partial(_logit, opened, self._facts, _ids(opened, query))
            # Long ones first, so that neither thread ends with one while the other waits.
            order = sorted(range(len(texts)), key=lambda at: -len(texts[at]))
            waiting = iter(order)
            found: dict[int, float] = {}

            def work() -> None:
                while (at := next(waiting, None)) is not None:
                    found[at] = read(texts[at])

            try:
                helper = self._readers.submit(work) if len(texts) > 1 else None
            except RuntimeError:  # the system gives no more threads
                helper = None
            work()
            # Cancelled where the other thread was busy with another question all the time.
            if helper is not None and not helper.cancel():
                helper.result()
        except RerankError:
            raise
        except Exception as error:  # boundary: both libraries raise a class of their own for every fault
            raise RerankError(self.name, f"the runtime refuses it: {error}", REBUILD) from error
        return [found[at] for at in range(len(texts))]

    def _open(self, facts: Facts) -> _Opened:
        with self._lock:
            if self._opened is None:
                for file, expected in facts.sha256.items():
                    if digest(self._directory / file) != expected:
                        raise RerankError(self.name, f"{self._directory / file} is damaged", REBUILD)
                longest = max(facts.request_tokens, facts.tool_tokens + 1)
                self._opened = _Opened(
                    open_session(self._directory / facts.graph, optimised=True),
                    open_tokenizer(self._directory / TOKENIZER, longest),
                )
            return self._opened


def text_of(candidate: CandidateItem) -> str:
    """A tool as the model reads it: server, name, description, and parameters as far as there is room."""
    if candidate.item is None:
        return f"{candidate.name}: {candidate.description}"
    return document(candidate.item)


def document(item: Item) -> str:
    """An item as it is embedded in a catalog of several servers; the beginning of it, if it is long."""
    return item_text(item, True)[1][0]


def joined(
    request: Sequence[int], tool: Sequence[int], request_tokens: int, tool_tokens: int
) -> tuple[list[int], list[int]]:
    """Join the word pieces of a request and a tool to one sequence, and give the type of each piece.

    Both sequences come between [CLS] and [SEP].
    """
    end = request[-1]
    first = [*request[:-1][: request_tokens - 1], end]
    second = [*tool[1:-1][: tool_tokens - 1], end]
    return first + second, [0] * len(first) + [1] * len(second)


def _ids(opened: _Opened, text: str) -> list[int]:
    ids: list[int] = opened.tokenizer.encode(encodable(text[:CHARACTERS])).ids
    return ids


def _logit(opened: _Opened, facts: Facts, request: Sequence[int], tool: str) -> float:
    ids, types = joined(request, _ids(opened, tool), facts.request_tokens, facts.tool_tokens)
    inputs = {"input_ids": np.array([ids], np.int64), "types_ids": np.array([types], np.int64)}
    (logit,) = opened.session.run([OUTPUT], inputs)
    return float(logit.item())
