"""Limits that keep one bad peer, file or result from harming everything else, each with its reason.

A marker on a field says whether a running proxy applies a change (`Reload`), as in all settings.
"""

from __future__ import annotations

from typing import Annotated, Final

from mcp_context_proxy.config.forms import Count, Reload, Seconds, SecondsOrNone, Table, within

KIB: Final = 1024
MIB: Final = 1024 * KIB

MOST_LEVELS = 500
"""Highest limit of nesting: parsers stop at 200 to 1,000 levels, ours among them."""

Levels = Annotated[int, within(1, MOST_LEVELS)]


class Limits(Table, frozen=True):
    """Bounds that keep one bad peer, file or result from harming everything else."""

    message_bytes: Count = 16 * MIB
    """Largest message in either direction; enough for screenshots and file dumps."""
    sse_event_bytes: Count = 16 * MIB
    """Largest event from an HTTP server. The SDK's default of 1 MiB would lose larger results."""
    http_body_bytes: Annotated[Count, Reload.RESTART] = 4 * MIB
    """Largest request body at the HTTP front; arguments are small."""
    nesting_definitions: Levels = 64
    """Deepest tool definition; no honest schema is deeper."""
    nesting_results: Levels = 190
    """Deepest result; common JSON parsers stop at 200."""

    probe_seconds: Seconds = 2.0
    """Wait for `server/discover` before the handshake, because old servers ignore the probe silently."""
    connect_seconds: Seconds = 30.0
    """Time from the start of a server to its first response; see also `first_start_seconds`."""
    first_start_seconds: Seconds = 300.0
    """The same for a server that a package runner such as `npx` downloads, until a start has succeeded."""
    start_wait_seconds: Seconds = 5.0
    """Time that a search waits for servers that were never connected and are starting."""
    first_list_seconds: SecondsOrNone = 4.0
    """Time that a client's lists wait for the same servers, because many hosts list once; 0 for no wait. The
    strictest hosts give a server 5 s for that (`HostProfile.first_list_seconds`)."""
    list_seconds: Seconds = 30.0
    """Timeout of a whole listing with all its pages; the last known tools stay meanwhile."""
    call_seconds: Seconds = 60.0
    """Timeout of a call without progress; the value that hosts use."""
    call_max_seconds: Seconds = 600.0
    """Timeout of a call that keeps reporting progress."""
    stop_seconds: Seconds = 2.0
    """Time for each step of stopping a server (end of input, then SIGTERM), before SIGKILL."""
    drain_seconds: Seconds = 10.0
    """Time for pending requests when the proxy stops, or when their server is removed."""

    starts_at_once: Annotated[Count, Reload.RESTART] = 8
    """Servers that start at the same time; more of them make all slower."""
    backoff_first_seconds: Seconds = 1.0
    """Wait before the first restart; doubles with each failure."""
    backoff_max_seconds: Seconds = 60.0
    """Longest wait between restarts."""
    backoff_reset_seconds: Seconds = 60.0
    """Time of health after which earlier failures are forgotten."""
    breaker_failures: Count = 5
    """Quick failures in a row after which a server is not restarted for a while. A kill, or a crash during a
    call, counts only if the server had not answered anything."""
    breaker_seconds: Seconds = 60.0
    """Wait before one more attempt after that."""

    ask_seconds: Annotated[Seconds, Reload.RESTART] = 600.0
    """Time for a person to answer a server's request; the timeout of the call is paused meanwhile."""
    questions_per_call: Count = 10
    """Requests that a server may make of its client during one call: each costs a person's patience or a
    model's tokens."""
    sampling_tokens: Count = 4096
    """Tokens that one of them may have the client's model write; more is cut down to this."""
    parked_calls: Annotated[Count, Reload.RESTART] = 256
    """Calls of modern clients that wait for such an answer; further requests of servers are refused."""
    lanes_per_server: Count = 32
    """Dedicated connections to one server, for clients that it asks for input; each may be a process."""
    lane_idle_seconds: Seconds = 300.0
    """Idle time after which a dedicated connection without a session is closed."""

    in_flight_per_server: Count = 1024
    """Pending calls of one server; further calls fail with "busy" at once. There is no queue with a smaller
    bound: a thousand calls of 1 s would take 4 s at 256 a time, and queued calls time out all the same."""
    in_flight: Annotated[Count, Reload.RESTART] = 2048
    """Pending requests of the stdio host; bounds memory, not speed."""

    indexing_wait_seconds: Seconds = 1.5
    """Time that a search waits for indexing; then it uses words and the vectors that are ready."""

    embedding_seconds: Annotated[Seconds, Reload.RESTART] = 60.0
    """Timeout for embedding a batch of texts at `embedding.endpoint`, all attempts together."""
    embedding_query_seconds: Annotated[Seconds, Reload.RESTART] = 3.0
    """Timeout for embedding a query; after it, the search uses words alone."""
    rerank_seconds: Annotated[Seconds, Reload.RESTART] = 5.0
    """Timeout of the reranker; after it, the order of the search stays."""

    tools_per_server: Count = 10_000
    """Tools of one server: ten times the largest known; more is a fault or an attack."""
    tools: Count = 100_000
    """Tools of all servers; up to here search stays exact and in memory."""
    pages: Count = 1000
    """Pages of one listing, against servers that page forever."""
    listing_bytes: Count = 32 * MIB
    """Size of all pages of one listing."""
    description_shown_bytes: Count = 16 * KIB
    """Longest description in a list; longer ones are cut, since the model pays for each word."""
    schema_bytes: Count = 256 * KIB
    """Largest input or output schema; a larger one is withheld with its tool."""
    schema_nodes: Count = 10_000
    """Values in one schema, because a small text can hold a huge tree."""

    stderr_kept_bytes: Count = 64 * KIB
    """Stderr kept of a server, for the message that says why it exited."""
    stderr_lines_per_second: Count = 100
    """Lines logged from one server; the rest is counted."""

    unread_bytes: Count = 16 * MIB
    """Unread responses to the stdio host; above it, the proxy stops reading from servers (backpressure)."""
    stalled_seconds: Seconds = 30.0
    """Time without a read, with responses waiting, after which a host counts as gone."""
    http_header_seconds: Annotated[Seconds, Reload.RESTART] = 10.0
    """Time to receive the headers of a request, so that a slow client cannot hold a connection."""
    http_body_seconds: Annotated[Seconds, Reload.RESTART] = 30.0
    """Time to receive the body of a request."""
    http_idle_seconds: Annotated[Seconds, Reload.RESTART] = 60.0
    """Idle time of a kept-alive connection."""
    http_connections: Annotated[Count, Reload.RESTART] = 512
    """Open connections at the HTTP front."""
    calls_per_second: Annotated[SecondsOrNone, Reload.RESTART] = 0.0
    """Tool calls that each principal may make over HTTP in a second, and as many at once; 0 sets no limit."""
    sessions: Annotated[Count, Reload.RESTART] = 1000
    """HTTP sessions of the handshake era; a new one replaces the longest idle one."""
    session_idle_seconds: Annotated[Seconds, Reload.RESTART] = 1800.0
    """Idle time after which a session ends: a long lunch."""

    document_bytes: Count = 1 * MIB
    """Largest rule or reference file."""
    documents: Count = 10_000
    """Rules and references in all."""

    requests_kept: Annotated[Count, Reload.RESTART] = 1000
    """Request contexts that are kept: days of one person's work, about 3 MB."""
    requests_age_seconds: Annotated[Seconds, Reload.RESTART] = 7 * 24 * 3600.0
    """Age after which a request context is deleted; people ask about this week."""

    statistics_hours_seconds: Annotated[Seconds, Reload.RESTART] = 7 * 24 * 3600.0
    """Age up to which usage is kept by the hour; older usage is kept by the day."""
    statistics_days_seconds: Annotated[Seconds, Reload.RESTART] = 365 * 24 * 3600.0
    """Age after which a day is deleted; a year shows seasons."""
    statistics_rows: Annotated[Count, Reload.RESTART] = 200_000
    """Rows of usage: 100 tools used every day of a year and every hour of a week, 20 MB."""
    store_waiting_rows: Annotated[Count, Reload.RESTART] = 50_000
    """Rows of usage that wait in memory while the store cannot be written, 20 MB; of more, the oldest are
    dropped."""
    searches_kept: Annotated[Count, Reload.RESTART] = 5000
    """Searches kept one by one, about 2 MB; their number is counted in any case."""
    searches_age_seconds: Annotated[Seconds, Reload.RESTART] = 30 * 24 * 3600.0
    """Age after which a search is deleted."""

    interaction_characters: Count = 4000
    """Characters kept of one interaction: a long message, and more than the packaged model embeds."""
