"""A chat model behind the OpenAI API: Ollama, vLLM, LM Studio, or any other.

One request, one answer, no second attempt: the order that there is costs nothing. The reply is taken only as
far as it is a list of numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import httpx2
import msgspec

from mcp_context_proxy.config import Limits, RerankConfig
from mcp_context_proxy.config.redaction import Redactor
from mcp_context_proxy.errors import RerankError
from mcp_context_proxy.rerank.judge import Candidate
from mcp_context_proxy.rerank.prompt import ANSWER_TOKENS, SYSTEM, Question
from mcp_context_proxy.wire import certificates

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


class _Answer(msgspec.Struct):
    choices: list[_Choice]


class EndpointJudge:
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
        verify = await certificates.trusted()
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
            choices = msgspec.json.decode(content, type=_Answer).choices
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(f"its answer is not what the API says ({error})", NOT_OURS) from error
        return next((choice.message.content for choice in choices if choice.message.content), "")

    def _error(self, reason: str, remedy: str) -> RerankError:
        return RerankError(self.name, self._redact(reason), remedy)
