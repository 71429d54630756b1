"""Every number that bounds something, with its reason; `[limits]` overrides any of them.

Code elsewhere takes a `Limits` and holds no number of its own.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field

KIB: Final = 1024
MIB: Final = 1024 * KIB

Count = Annotated[int, Field(strict=True, ge=1)]
Seconds = Annotated[float, Field(strict=True, gt=0, allow_inf_nan=False)]


class Limits(BaseModel):
    """Bounds that keep one bad peer, file or answer from harming everything else."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    message_bytes: Count = 16 * MIB
    """One message, either direction: larger ones are refused. Large enough for screenshots and file dumps."""
    sse_event_bytes: Count = 16 * MIB
    """One event from an HTTP server. The SDK's own default of 1 MiB would lose larger results."""
    http_body_bytes: Count = 4 * MIB
    """One request body at our HTTP front: arguments are small, results are not requests."""
    nesting_definitions: Count = 64
    """Levels in a tool definition; no honest schema is deeper."""
    nesting_results: Count = 190
    """Levels in a result: common JSON parsers stop at 200."""

    probe_seconds: Seconds = 2.0
    """Wait for `server/discover` before falling back to the handshake: old servers ignore it silently."""
    connect_seconds: Seconds = 30.0
    """From starting a server to its first answer: 5 s breaks `npx` servers that are being downloaded."""
    list_seconds: Seconds = 30.0
    """For a whole listing, all pages together; the last known tools stay meanwhile."""
    call_seconds: Seconds = 60.0
    """For a call without progress: what hosts themselves use."""
    call_max_seconds: Seconds = 600.0
    """For a call that keeps reporting progress."""
    stop_seconds: Seconds = 2.0
    """For each step of stopping a server (end of input, then SIGTERM), before SIGKILL."""
    drain_seconds: Seconds = 10.0
    """For requests under way when the proxy is told to stop, or their server is removed."""

    starts_at_once: Count = 8
    """Servers starting at the same time: more only makes all of them slower."""
    backoff_first_seconds: Seconds = 1.0
    """Before the first restart; doubles with each failure."""
    backoff_max_seconds: Seconds = 60.0
    """The longest wait between restarts."""
    backoff_reset_seconds: Seconds = 60.0
    """Healthy for this long forgets earlier failures."""
    breaker_failures: Count = 5
    """Quick failures in a row, after which a server is left alone for a while. One that was killed or died of
    a call counts only if it had answered nothing."""
    breaker_seconds: Seconds = 60.0
    """How long it is left alone before one more try."""

    ask_seconds: Seconds = 600.0
    """For a person to answer what a server asks during a call; the call itself does not age meanwhile."""
    parked_calls: Count = 256
    """Calls of modern clients that wait for such an answer; further questions are refused."""
    lanes_per_server: Count = 32
    """Connections of their own, for clients that one server asks something: each may be a process."""
    lane_idle_seconds: Seconds = 300.0
    """After which a connection that belongs to no session is closed."""

    in_flight_per_server: Count = 1024
    """Calls one server may be working on; further callers hear "busy" at once. Not fewer with a queue before
    them: a thousand calls of 1 s would take 4 s at 256 a time, and those that wait here age all the same."""
    in_flight: Count = 2048
    """Requests of the stdio host under way: bounds memory, not speed."""

    indexing_wait_seconds: Seconds = 1.5
    """How long a search waits for indexing, before it makes do with words and the vectors that are ready."""

    embedding_seconds: Seconds = 60.0
    """For the vectors of some texts of the catalog from `embedding.endpoint`, all attempts together."""
    embedding_query_seconds: Seconds = 3.0
    """For those of a query: after it, the search goes by words alone."""
    rerank_seconds: Seconds = 5.0
    """For the model of `rerank` to put tools in order: after it, the order stays as the search had it."""

    tools_per_server: Count = 10_000
    """Ten times the largest server known; more is a fault or an attack."""
    tools: Count = 100_000
    """Over all servers: search stays exact and in memory up to here."""
    pages: Count = 1000
    """Pages of one listing: ends a server that pages for ever."""
    listing_bytes: Count = 32 * MIB
    """All pages of one listing together."""
    description_shown_bytes: Count = 16 * KIB
    """Of one description in a list: longer ones are cut, since the model pays for each word."""
    schema_bytes: Count = 256 * KIB
    """One input or output schema; a larger one is withheld with its tool."""
    schema_nodes: Count = 10_000
    """Values in one schema: small text can still be an immense tree."""

    stderr_kept_bytes: Count = 64 * KIB
    """The last output of a server, for the message that says why it died."""
    stderr_lines_per_second: Count = 100
    """Logged from one server; the rest is counted."""

    unread_bytes: Count = 16 * MIB
    """Answers that wait for the stdio host to read: with more, servers are read no further until it does."""
    stalled_seconds: Seconds = 30.0
    """A host that has read nothing for so long, with answers waiting, is gone."""
    http_header_seconds: Seconds = 10.0
    """To receive the headers of a request: a slow sender must not hold a connection."""
    http_body_seconds: Seconds = 30.0
    """To receive the body of a request."""
    http_idle_seconds: Seconds = 60.0
    """A kept-alive connection without a request."""
    http_connections: Count = 512
    """Open at once at our HTTP front."""
    sessions: Count = 1000
    """HTTP sessions of the handshake era; the longest idle one makes room."""
    session_idle_seconds: Seconds = 1800.0
    """After which a session is forgotten: a long lunch at most."""

    document_bytes: Count = 1 * MIB
    """One rule or reference file."""
    documents: Count = 10_000
    """Rules and references together."""

    requests_kept: Count = 1000
    """Request contexts that are remembered: days of one person's work, some 3 MB."""
    requests_age_seconds: Seconds = 7 * 24 * 3600.0
    """After which one is forgotten: what a person asks about happened this week."""

    statistics_hours_seconds: Seconds = 7 * 24 * 3600.0
    """For which usage is kept by the hour, then by the day: this week is what is asked for in detail."""
    statistics_days_seconds: Seconds = 365 * 24 * 3600.0
    """After which a day is forgotten: a year shows seasons."""
    statistics_rows: Count = 200_000
    """Of tools by hour and by day: 100 tools used every day of a year and every hour of a week, 20 MB."""
    searches_kept: Count = 5000
    """Searches that are kept one by one, some 2 MB; how many there were is counted anyway."""
    searches_age_seconds: Seconds = 30 * 24 * 3600.0
    """After which one is forgotten."""

    interaction_characters: Count = 4000
    """Kept of one interaction: a long message, and more than the packaged model embeds of one."""
