"""The client's own model, asked as a server may ask it: by ``sampling/createMessage``.

Only for clients that declared it; how they are asked, in either era, is the business of whoever gives `Ask`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from mcp_context_proxy.downstream.link import Ask
from mcp_context_proxy.errors import RerankError
from mcp_context_proxy.rerank.judge import Candidate
from mcp_context_proxy.rerank.prompt import ANSWER_TOKENS, SYSTEM, Question
from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import RequestError


class _Block(msgspec.Struct):
    text: str = ""


class _Sampled(msgspec.Struct):
    content: _Block | list[_Block]


class SamplingJudge:
    """Asks one client."""

    name = "the client's model"

    def __init__(self, ask: Ask, client: str) -> None:
        """Ask by ``ask``; ``client`` tells it from others."""
        self._ask, self.key = ask, f"client {client}"

    async def order(self, query: str, candidates: Sequence[Candidate]) -> Sequence[int]:
        """See `Judge.order`."""
        question = Question.of(query, candidates)
        params = {
            "messages": [{"role": "user", "content": {"type": "text", "text": question.text}}],
            "systemPrompt": SYSTEM,
            "maxTokens": ANSWER_TOKENS,
            "temperature": 0,
            "modelPreferences": {"speedPriority": 1, "costPriority": 1, "intelligencePriority": 0.3},
        }
        try:
            answer = await self._ask(
                "sampling/createMessage", {name: envelope.raw(value) for name, value in params.items()}
            )
            sampled = msgspec.json.decode(answer, type=_Sampled)
        except RequestError as error:
            raise RerankError(self.name, f"it refuses: {error.message}") from error
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise RerankError(self.name, f"its answer is no sampling result ({error})") from error
        blocks = sampled.content if isinstance(sampled.content, list) else [sampled.content]
        return question.order("\n".join(block.text for block in blocks), self.name)

    async def aclose(self) -> None:
        """Nothing to do: the client is not ours."""
