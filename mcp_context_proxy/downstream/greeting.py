"""In which era a server is addressed first: asked which it speaks, unless that is known to be a waste.

Most old servers answer the question with an error at once. Some die of it, and some say nothing, which costs
`limits.probe_seconds` at each start: those are remembered, and greeted with the handshake, for a day. Who
answers it late, such as a program that is being downloaded, was only slow and is asked again. So is, at its
next start, what says that it is another version than it was, or is found to be modern.
"""

from __future__ import annotations

from functools import partial

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.downstream.memory import Memory
from mcp_context_proxy.downstream.negotiation import Introduction
from mcp_context_proxy.errors import BadAnswerError, CallInterruptedError, RemoteError
from mcp_context_proxy.threads import in_thread
from mcp_context_proxy.wire.era import Era


class Greeting:
    """What one server taught about how to address it."""

    def __init__(self, memory: Memory | None) -> None:
        self._memory = memory
        self._learned: Era | None = None
        self._version: str | None = None
        """As which it has introduced itself in the handshake, in this run or the one that remembered it."""
        self._remembered, self._died = False, False

    async def recall(self, config: ServerConfig) -> None:
        """Begin with what an earlier run found out."""
        if self._memory is None or config.era != "auto" or self._learned is not None:
            return
        version = await in_thread(self._memory.unprobed, config)
        if version is not None:
            self._learned, self._version, self._remembered = Era.HANDSHAKE, version, True

    def applied_to(self, config: ServerConfig) -> ServerConfig:
        """The configuration, with the era named in which the server is to be addressed."""
        if self._learned is Era.HANDSHAKE and config.era == "auto":
            return config.model_copy(update={"era": "handshake"})
        return config

    def failed(self, error: BaseException) -> None:
        """Learn from a connection that did not come about, or was lost."""
        if isinstance(error, CallInterruptedError) and error.subject == "server/discover":
            # Some old servers die on a request they do not know: the next start skips it.
            self._learned, self._died = Era.HANDSHAKE, True
        elif isinstance(error, RemoteError | BadAnswerError):
            # It was updated, or had died of something else: it is asked anew what it speaks.
            self._learned, self._died = None, False

    async def succeeded(self, config: ServerConfig, introduction: Introduction) -> None:
        """Learn from how the server introduced itself, and remember it where that saves something."""
        said, version = introduction.server_info, self._version
        self._learned = None if introduction.slow else introduction.era
        self._version = f"{said.get('name')} {said.get('version')}"
        if introduction.era is Era.MODERN or introduction.slow or version not in (None, self._version):
            if introduction.era is not Era.MODERN:
                self._learned = None
            await self._forget(config)
        elif self._died or introduction.ignores_probe:
            await self._remember(config, self._version)
        self._died = False

    async def _remember(self, config: ServerConfig, version: str) -> None:
        if self._memory is not None:
            self._remembered = True
            await in_thread(partial(self._memory.keep_unprobed, config, version))

    async def _forget(self, config: ServerConfig) -> None:
        if self._memory is not None and self._remembered:
            self._remembered = False
            await in_thread(self._memory.forget_unprobed, config)
