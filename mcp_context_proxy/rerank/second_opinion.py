"""A small cross-encoder whose opinion is added to the scores of the search: it orders, but does not judge.

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
import msgspec
from msgspec import Meta, Struct

from mcp_context_proxy.embedding.embeddings import open_session, open_tokenizer
from mcp_context_proxy.embedding.folder import TOKENIZER, digest
from mcp_context_proxy.errors import RerankError
from mcp_context_proxy.items import Item
from mcp_context_proxy.rerank.reranker import CandidateItem
from mcp_context_proxy.retrieval.item_metadata import item_text
from mcp_context_proxy.retrieval.text import encodable
from mcp_context_proxy.system import threads
from mcp_context_proxy.system.later import np

MANIFEST: Final = "reranker.json"
"""The file by which a folder says that it has such a model."""

PARALLEL_READS: Final = 2
"""Pairs that are read at the same time, one thread each, as texts are embedded."""

CONCURRENT_QUESTIONS: Final = 2
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
