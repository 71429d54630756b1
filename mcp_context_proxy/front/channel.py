"""What a conversation with a host needs of the way to it, whatever that is."""

from __future__ import annotations

from typing import Protocol


class Channel(Protocol):
    """Takes frames for one host."""

    async def send(self, frame: bytes) -> None:
        """Write one frame; waits while the host does not read. Dropped when the host is gone."""
        ...

    def send_nowait(self, frame: bytes) -> bool:
        """Write one frame unless the host is not reading; whether it was written."""
        ...

    def pause_reading(self) -> None:
        """Read nothing more of the host for now."""
        ...

    def resume_reading(self) -> None:
        """Read on."""
        ...
