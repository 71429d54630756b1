"""Lets requests finish when the proxy is told to stop: no new ones, a while for the others, then an end.

Every request is answered: also one that is refused, and one that is given up.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from mcp_context_proxy.wire.envelope import RequestError

SHUTTING_DOWN = -32000

LAST_WORDS_SECONDS = 1.0
"""For the refusals of what was given up to be written."""


class Drain:
    """Counts the requests that are under way."""

    def __init__(self) -> None:
        self.stopping = False
        """Whether new requests are refused."""
        self._scopes: set[anyio.CancelScope] = set()
        self._busy = 0
        self._idle = anyio.Event()

    @contextmanager
    def busy(self) -> Iterator[None]:
        """Something that has to be over before the proxy stops, such as writing an answer."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()

    @contextmanager
    def request(self) -> Iterator[None]:
        """Answer a request inside; it is cancelled when its time is over.

        Raises:
            RequestError: the proxy is stopping, and the request was refused or given up.
        """
        if self.stopping:
            raise RequestError(SHUTTING_DOWN, "shutting down: the proxy was told to stop; it did not run")
        with self.busy():
            scope = anyio.CancelScope()
            self._scopes.add(scope)
            try:
                with scope:
                    yield
            finally:
                self._scopes.discard(scope)
            if scope.cancelled_caught:
                raise RequestError(
                    SHUTTING_DOWN, "shutting down: the request was given up; it may or may not have run"
                )

    async def finish(self, seconds: float) -> None:
        """Refuse what comes, wait for what is under way, give up what is left after `seconds`."""
        self.stopping = True
        with anyio.move_on_after(seconds):
            await self._quiet()
        for scope in self._scopes:
            scope.cancel()
        with anyio.move_on_after(LAST_WORDS_SECONDS):
            await self._quiet()

    async def _quiet(self) -> None:
        while self._busy:
            self._idle = anyio.Event()
            await self._idle.wait()
