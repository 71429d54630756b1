"""The host of a conversation, as a request sees it: what it said of itself, and how it is told and asked."""

from __future__ import annotations

import anyio
from msgspec import Raw

from mcp_context_proxy.context.session import Session
from mcp_context_proxy.front.channel import Channel
from mcp_context_proxy.front.questions import Questions
from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import Members
from mcp_context_proxy.wire.era import Era


class Host:
    """The host, for the length of one request. Implements `Caller`."""

    __slots__ = (
        "_channel",
        "_questions",
        "capabilities",
        "client_info",
        "era",
        "principal",
        "released",
        "session",
    )

    def __init__(
        self,
        channel: Channel,
        questions: Questions,
        spoken: Era,
        session: Session | None,
        said: tuple[Raw | None, Raw | None],
        principal: str | None,
    ) -> None:
        self._channel, self._questions, self.era, self.session = channel, questions, spoken, session
        self.capabilities, self.client_info = said
        self.principal = principal
        self.released = anyio.Event()
        """Set when nobody here needs what the request came with any more."""

    def notify(self, method: str, params: Members) -> None:
        """Write a notification, or drop it when the host is not reading."""
        self._channel.send_nowait(envelope.notification(method, params))

    def passed_on(self) -> None:
        """See `Caller.passed_on`."""
        self.released.set()

    async def ask(self, method: str, params: Members) -> bytes:
        """Make a request of the host; see `Caller.ask`."""
        return await self._questions.ask(method, params)
