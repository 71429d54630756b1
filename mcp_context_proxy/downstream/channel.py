"""What carries frames to a server, whatever the transport; what comes back is handed to a `Peer`."""

from __future__ import annotations

from typing import Protocol

import anyio


class Channel(Protocol):
    """Carries frames to the other side."""

    async def send(self, frame: bytes) -> None:
        """Send one frame; waits while the other side does not read.

        Raises:
            ConnectionError: the channel is closed, and nothing of the frame was sent.
        """
        ...

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame without waiting; it may be dropped when the other side does not read."""
        ...

    def give_up(self, cause: str) -> None:
        """Treat the channel as lost."""
        ...


class OpenChannel(Channel, Protocol):
    """One that is open until it ends."""

    @property
    def killed(self) -> bool:
        """Whether the other side was ended from outside."""
        ...

    async def until_ended(self) -> None:
        """Wait until it has ended."""
        ...

    async def wait_closed(self) -> str:
        """Wait until it has ended; say how, as the verb of a sentence."""
        ...


class Ending:
    """How a channel ends to where nothing is known of a process: the part that all such have in common."""

    killed = False

    def __init__(self) -> None:
        """It is open."""
        self._cause = "closed the connection"
        self._ended = anyio.Event()

    def give_up(self, cause: str) -> None:
        """Treat the channel as lost: what comes over it is of no use."""
        self._cause = cause
        self._end()

    async def until_ended(self) -> None:
        """See `OpenChannel`."""
        await self._ended.wait()

    async def wait_closed(self) -> str:
        """See `OpenChannel`."""
        await self.until_ended()
        return self._cause

    def _end(self) -> None:
        self._ended.set()


class NoChannel:
    """Stands in until a peer is attached."""

    async def send(self, frame: bytes) -> None:
        """Refuse."""
        raise ConnectionError("is not connected yet")

    def send_nowait(self, frame: bytes) -> None:
        """Drop one frame."""
        del frame

    def give_up(self, cause: str) -> None:
        """Do nothing: there is nothing to lose."""
        del cause
