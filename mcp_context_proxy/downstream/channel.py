"""What carries frames to a server, whatever the transport; what comes back is handed to a `Peer`."""

from __future__ import annotations

from typing import Protocol


class Channel(Protocol):
    """Carries frames to the other side."""

    async def send(self, frame: bytes) -> None:
        """Send one frame; waits while the other side does not read.

        Raises:
            ConnectionError: the channel is closed.
        """
        ...

    def send_nowait(self, frame: bytes) -> None:
        """Send one frame without waiting; it may be dropped when the other side does not read."""
        ...

    def give_up(self, cause: str) -> None:
        """Treat the channel as lost."""
        ...


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
