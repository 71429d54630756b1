"""``stats``: shows the usage of tools and searches that the store has counted; starts no server.

A proxy that runs is asked first, so that it writes the counts of the last moments into the store.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from mcp_context_proxy.cli.options import (
    WholeNumber,
    echo_json,
    json_option,
    open_configured_store,
    shown,
)
from mcp_context_proxy.cli.running import AnswerSource, asking
from mcp_context_proxy.cli.terminal import GAP, USEFUL, Terminal, counted, duration, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.items import IncludeMode
from mcp_context_proxy.protocol.strangers import one_line

if TYPE_CHECKING:
    from mcp_context_proxy.statistics.report import NeverCalled, SearchFigures, ToolStatistics


WIDE: Final = 100
"""Width from which there is room for the less important columns."""

UNUSED_SHOWN: Final = 10
"""Tools shown that were never called: the most expensive ones."""

FAILING: Final = 0.1
"""Share of failed calls from which a tool is highlighted."""


@click.command("stats")
@asking
@click.option("--period", default="30d", show_default=True, help="Hours or days, such as 24h or 7d.")
@click.option("--limit", type=WholeNumber(1), default=20, show_default=True, help="Tools to list.")
@json_option
def stats_command(source: AnswerSource, period: str, limit: int, as_json: bool) -> None:
    """Show how often tools and searches are used, the saved tokens, and the tools that were never called."""
    from mcp_context_proxy.statistics.figures import seconds_of
    from mcp_context_proxy.statistics.report import Reports

    try:
        seconds = seconds_of(period)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--period") from None
    if source.running is not None:
        source.running.get("/metrics/search", {"period": period})
    config, now = source.config, time.time()
    with open_configured_store(config) as store:
        reports = Reports(store.statistics)
        tools, searches = reports.tools(now - seconds), reports.searches(now - seconds)
        never = reports.unused(reports.known(lambda server, tool: _is_offered(config, server, tool)), now)
    if as_json:
        echo_json(_data(config, period, tools, searches, never))
        return
    console = results()
    if not config.statistics.enabled:
        console.say("Counting is switched off: these numbers are from before.")
    if not tools and not searches.searches:
        console.say(f"Nothing was called or searched in {_in_words(period)}.")
    else:
        _show_searches(console, searches, period)
        _show_tools(console, tools, limit, now)
    _show_unused(console, never, now)


def _is_offered(config: Config, server: str, tool: str) -> bool:
    """Return whether a model can find a tool."""
    from mcp_context_proxy.catalog.names import turned_off_by

    known = config.servers.get(server)
    if known is None or not known.enabled or turned_off_by(known, tool, None) is not None:
        return False
    return known.include_of(tool) is not IncludeMode.MANUAL


def _show_searches(console: Terminal, report: SearchFigures, period: str) -> None:
    console.say(Text(f"In {_in_words(period)}", style="bold"))
    if not report.searches:
        console.say("No searches.")
        return
    median, slow = duration(report.latency.p50_ms), duration(report.latency.p95_ms)
    rows = [
        ("Searches", f"{report.searches:,}; {median} at the median, {slow} at the 95th percentile"),
        ("Used", f"A found tool was called after {_percent(report.use_rate)} of the searches"),
        ("Accepted", f"The first tool was called after {_percent(report.acceptance_rate)} of the searches"),
    ]
    if (tokens := report.tokens).behind:
        saved = _percent(1 - tokens.shown / tokens.behind)
        rows.append(("Tokens", f"{tokens.shown:,} of {tokens.behind:,} shown, {saved} saved (estimate)"))
    console.columns(rows)


def _show_tools(console: Terminal, tools: Sequence[ToolStatistics], limit: int, now: float) -> None:
    if not tools:
        return
    console.section("Tools")
    wide = console.width >= WIDE
    more = ("Result", "Tokens") if wide else ()
    headings = [Text(title, style="bold") for title in ("Calls", "Failed", "p50", "p95", *more, "Last used")]
    facts = [headings, *(_facts(one, now, wide) for one in tools[:limit])]
    widths = [max(cell.cell_len for cell in column) for column in zip(*facts, strict=True)]
    room = max(console.width - sum(widths) - GAP * len(widths), USEFUL)
    names = [Text("Tool", style="bold"), *(_name(one.server, one.name, room) for one in tools[:limit])]
    console.columns(
        [[*row, name] for row, name in zip(facts, names, strict=True)], right=range(len(headings))
    )
    if len(tools) > limit:
        console.say(Text(f"... and {counted(len(tools) - limit, 'tool')} more", style="dim"))


def _facts(report: ToolStatistics, now: float, wide: bool) -> list[Text]:
    failing, ago = 1 - report.success_rate, now - report.last_used
    size = (_bytes(report.result_bytes), "-" if report.tokens is None else f"{report.tokens:,}")
    texts = (
        duration(report.latency.p50_ms),
        duration(report.latency.p95_ms),
        *(size if wide else ()),
        "just now" if ago < 60 else f"{_span(ago, short=True)} ago",
    )
    failed = Text(_percent(failing) if report.errors else "-", style="red" if failing >= FAILING else "")
    return [Text(f"{report.calls:,}"), failed, *map(Text, texts)]


def _name(server: str, tool: str, room: int) -> Text:
    """Return a tool's name, cut in the middle if it is too long: names differ at their ends."""
    name = shown(one_line(f"{server}__{tool}"))
    if len(name) > room:
        name = f"{name[: room // 2]}\N{HORIZONTAL ELLIPSIS}{name[room // 2 + 1 - room :]}"
    return Text(name, style="cyan")


def _show_unused(console: Terminal, never: NeverCalled, now: float) -> None:
    from mcp_context_proxy.statistics.report import UNUSED_AFTER_DAYS

    unused = never.tools
    if never.newer:
        console.section("Not called yet")
        known = "is" if never.newer == 1 else "are"
        console.prose(
            f"{counted(never.newer, 'tool')} that {known} known for less than {UNUSED_AFTER_DAYS} days."
        )
    if not unused:
        return
    tokens = sum(one.tokens for one in unused)
    console.section("Never called")
    longest = max(now - one.first for one in unused)
    console.prose(
        f"{counted(len(unused), 'tool')}, the oldest known for {_span(longest)}. Without them, the catalog "
        f"has about {tokens:,} tokens less: enabled = false turns off a tool under "
        "[servers.NAME.tools.TOOL], and a whole server under [servers.NAME]."
    )
    console.say()
    heading = [(Text("Tokens", style="bold"), Text("Tool", style="bold"))]
    shown = [
        (Text(f"{one.tokens:,}"), _name(one.server, one.tool, console.width)) for one in unused[:UNUSED_SHOWN]
    ]
    console.columns([*heading, *shown], right=(0,))
    if len(unused) > UNUSED_SHOWN:
        console.say(Text(f"... and {counted(len(unused) - UNUSED_SHOWN, 'tool')} more", style="dim"))


def _data(
    config: Config,
    period: str,
    tools: Sequence[ToolStatistics],
    searches: SearchFigures,
    never: NeverCalled,
) -> dict[str, Any]:
    return {
        "enabled": config.statistics.enabled,
        "period": period,
        "searches": {
            "searches": searches.searches,
            "found": searches.found,
            "used": searches.used,
            "accepted": searches.accepted,
            "use_rate": searches.use_rate,
            "acceptance_rate": searches.acceptance_rate,
            "reranked": searches.reranked,
            "mean_ms": searches.latency.mean_ms,
            "p50_ms": searches.latency.p50_ms,
            "p95_ms": searches.latency.p95_ms,
            "tokens_shown": searches.tokens.shown,
            "tokens_behind": searches.tokens.behind,
        },
        "tools": [
            {
                "server": one.server,
                "tool": one.name,
                "calls": one.calls,
                "errors": one.errors,
                "success_rate": one.success_rate,
                "mean_ms": one.latency.mean_ms or 0.0,
                "p50_ms": one.latency.p50_ms or 0.0,
                "p95_ms": one.latency.p95_ms or 0.0,
                "last_used": one.last_used,
                "result_bytes": one.result_bytes,
                "tokens": one.tokens,
            }
            for one in tools
        ],
        "unused": [
            {"server": one.server, "tool": one.tool, "tokens": one.tokens, "first_seen": one.first}
            for one in never.tools
        ],
        "unused_newer": never.newer,
    }


def _in_words(period: str) -> str:
    number, unit = int(period[:-1]), {"h": "hour", "d": "day"}[period[-1]]
    return f"the last {unit}" if number == 1 else f"the last {number} {unit}s"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}".replace("%", " %")


def _bytes(size: float) -> str:
    if size < 1000:
        return f"{size:.0f} B"
    return f"{size / 1000:.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:.1f} MB"


def _span(seconds: float, short: bool = False) -> str:
    """Return a duration in its largest unit."""
    for unit, length in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= length:
            number = int(seconds // length)
            return f"{number} {unit[: 3 if unit == 'minute' else 1]}" if short else counted(number, unit)
    return "less than a minute"
