"""What is done with a call that has ended: it is counted, remembered, and attributed if it succeeded."""

from __future__ import annotations

from mcp_context_proxy.errors import AuthorizationError, DownstreamError, ServerUnavailableError
from mcp_context_proxy.items import Tool
from mcp_context_proxy.server.attribution import Attribution
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.interaction_log import InteractionLog
from mcp_context_proxy.server.outcome import Outcome, outcome_of
from mcp_context_proxy.statistics.recorder import UsageRecorder
from mcp_context_proxy.wire.envelope import Members

NOT_SENT = (ServerUnavailableError, AuthorizationError)
"""Failures before the server had the call: they say nothing of how long it takes."""


class EndedCalls:
    """Takes calls that have ended. Does not block."""

    def __init__(
        self, attribution: Attribution, usage: UsageRecorder | None, log: InteractionLog | None = None
    ) -> None:
        """Prepare to take calls.

        Args:
            attribution: Knows what a call was made for.
            usage: Counts; None where nothing is counted.
            log: Remembers; None where nothing is remembered.
        """
        self._attribution, self._usage, self._log = attribution, usage, log

    def answered(
        self, tool: Tool, params: Members, caller: Caller, goal: str | None, result: bytes, seconds: float
    ) -> None:
        """A server has answered; a question in return is not the end."""
        outcome = outcome_of(result)
        if outcome is Outcome.ASKS:
            return
        if self._usage is not None:
            failed = outcome is Outcome.FAILED
            self._usage.called(tool.server, tool.name, seconds * 1000, failed, len(result))
        if self._log is not None:
            self._log.called(tool, params, caller, goal)
        if outcome is Outcome.SUCCEEDED:
            self._attribution.succeeded(tool, params, caller, goal)

    def failed(self, tool: Tool, error: DownstreamError, seconds: float) -> None:
        """There is no answer, or one that speaks of an error."""
        if self._usage is not None:
            ms = None if isinstance(error, NOT_SENT) else seconds * 1000
            self._usage.called(tool.server, tool.name, ms, True, 0)
