"""A cross-encoder from a folder: it reads query and tool together and gives one score, on the CPU, offline.

A folder as sentence-transformers exports it: ``tokenizer.json`` and a graph whose output is one number for a
pair, or two, of which the second says that they belong together.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import anyio
import numpy as np

from mcp_context_proxy.embedding.folder import graph_of, max_tokens_of
from mcp_context_proxy.embedding.manifest import TOKENIZER
from mcp_context_proxy.embedding.runtime import INPUTS, feed, inputs_of, open_session, open_tokenizer
from mcp_context_proxy.errors import ModelError, RerankError
from mcp_context_proxy.rerank.judge import Candidate
from mcp_context_proxy.threads import in_thread

TEXT_CHARACTERS: Final = 4_000
"""Of a query or tool: a model reads 512 tokens of both; the tokenizer would go through all of it."""

REMEDY: Final = (
    "name the folder of a cross-encoder, exported as ONNX with its tokenizer.json, in rerank.model"
)

AT_ONCE: Final = 2
"""Questions; a third waits."""


class CrossEncoderJudge:
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
