"""``stats``: shows how often tools, documents and searches are used; starts no server.

A proxy that runs is asked. Without one, the store is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click
from rich.text import Text

from mcp_context_proxy.cli import WholeNumber, echo_json, json_option, open_configured_store, shown
from mcp_context_proxy.cli.running import AnswerSource, RunningProxy, asking
from mcp_context_proxy.cli.terminal import GAP, USEFUL, Terminal, counted, duration, headings, results, span
from mcp_context_proxy.protocol.strangers import one_line

if TYPE_CHECKING:
    from mcp_context_proxy.config import Config

Figures = Mapping[str, Any]
"""Figures as the API answers them."""

WIDE: Final = 100
"""Width from which there is room for the less important columns."""

UNUSED_SHOWN: Final = 10
"""Tools shown that were not called of late: the most expensive ones."""

STRETCHES_SHOWN: Final = 8
"""Days or weeks of a comparison that are shown: the latest."""

FAILING: Final = 0.1
"""Share of failed calls from which a tool is highlighted."""


@click.command("stats")
@asking
@click.option("--period", default="30d", show_default=True, help="Hours or days, such as 24h or 7d.")
@click.option("--limit", type=WholeNumber(1), default=20, show_default=True, help="Tools to list.")
@json_option
def stats_command(source: AnswerSource, period: str, limit: int, as_json: bool) -> None:
    """Show how often tools and searches are used, the saved tokens, and what was not used in 30 days.

    Where [learning] ab_share is set, requests with and without learned pairs are compared.
    """
    proxy = source.running
    figures = _fetch(proxy, period) if proxy is not None else _read(source.config, period)
    if as_json:
        echo_json(_data(figures))
    else:
        _show(results(), figures, period, limit)


def _show(console: Terminal, figures: Mapping[str, Figures], period: str, limit: int) -> None:
    searches, tools, documents = figures["searches"], figures["tools"], figures["documents"]
    now = time.time()
    if not searches["enabled"]:
        console.say("Counting is switched off: these numbers are from before.")
    if not tools["tools"] and not searches["searches"] and not documents["documents"]:
        console.say(f"Nothing was called or searched in {_in_words(period)}.")
    else:
        _show_searches(console, searches, period)
        _show_trial(console, figures["learning"])
        _show_tools(console, tools["tools"], limit, now)
        _show_documents(console, documents["documents"], limit, now)
    _show_unused(console, tools["unused"], now)
    _show_unused_documents(console, documents["unused"])


def _fetch(proxy: RunningProxy, period: str) -> dict[str, Figures]:
    wanted = {"period": period}
    return {
        "searches": proxy.get("/metrics/search", wanted),
        "tools": proxy.get("/statistics/tools", wanted),
        "documents": proxy.get("/statistics/documents", wanted),
        "learning": proxy.get("/statistics/learning", wanted),
    }


def _read(config: Config, period: str) -> dict[str, Figures]:
    """Return the figures of a period from the store, in the form of the API."""
    import msgspec

    from mcp_context_proxy.statistics import seconds_of
    from mcp_context_proxy.statistics.report import Reports

    try:
        seconds = seconds_of(period)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--period") from None
    now = time.time()
    with open_configured_store(config) as store:
        reports, since = Reports(store.statistics), now - seconds
        unused = reports.unused(partial(_offered, config), now)
        found = {
            "searches": reports.searches(since),
            "tools": {"tools": reports.tools(since), "unused": unused},
            "documents": {"documents": reports.documents(since), "unused": reports.unused_documents(now)},
            "learning": reports.trial(since, now),
        }
    figures: dict[str, Any] = msgspec.to_builtins(found)
    figures["searches"] |= {"enabled": config.statistics.enabled, "period": period}
    return figures


def _offered(config: Config, server: str, tool: str) -> str | None:
    from mcp_context_proxy.catalog.names import include_of, turned_off_by
    from mcp_context_proxy.items import IncludeMode

    known = config.servers.get(server)
    if known is None or not known.enabled or turned_off_by(known, tool, None) is not None:
        return None
    return tool if include_of(known, tool) is not IncludeMode.MANUAL else None


def _show_searches(console: Terminal, report: Figures, period: str) -> None:
    console.say(Text(f"In {_in_words(period)}", style="bold"))
    if not report["searches"]:
        console.say("No searches.")
        return
    median, slow = duration(report["latency"]["p50_ms"]), duration(report["latency"]["p95_ms"])
    used, accepted = _percent(report["use_rate"]), _percent(report["acceptance_rate"])
    rows = [
        ("Searches", f"{report['searches']:,}; {median} at the median, {slow} at the 95th percentile"),
        ("Used", f"A found tool was called after {used} of the searches"),
        ("Accepted", f"The first tool was called after {accepted} of the searches"),
    ]
    if (tokens := report["tokens"])["behind"]:
        saved = _percent(1 - tokens["shown"] / tokens["behind"])
        rows.append(
            ("Tokens", f"{tokens['shown']:,} of {tokens['behind']:,} shown, {saved} saved (estimate)")
        )
    console.columns(rows, whole=True)


MEASURES: Final = {
    "precision": "Shown and called",
    "acceptance": "First tool called",
    "rank": "Rank of the called",
}
"""Figures of a comparison."""

BRACKETS: Final = (
    "In brackets: the interval of 95 %, over sessions; none with fewer than 20 sessions on a side."
)


def _show_trial(console: Terminal, trial: Figures) -> None:
    learned, plain = trial["learned"], trial["plain"]
    if not learned["requests"] and not plain["requests"]:
        return
    console.section("With and without learned pairs")
    rows = [headings("", "With", "Without", "Difference")]
    for key, name in (("requests", "Requests"), ("units", "Sessions")):
        rows.append([Text(name), *(Text(f"{arm[key]:,}") for arm in (learned, plain)), Text()])
    for key, name in MEASURES.items():
        told = [_estimate(one[key], key) for one in (learned, plain)]
        change = _estimate(trial["difference"][key], key, signed=True)
        rows.append(
            [Text(name), *map(Text, told), Text(change, style=_verdict(trial["difference"][key], key))]
        )
    console.columns(rows)
    console.prose(Text(BRACKETS, style="dim"))
    if len(trial["stretches"]) > 1:
        unit = "Day" if trial["seconds"] <= 86_400 else "Week"
        console.say()
        rows = [headings(unit, "With", "Without", "First: with", "without")]
        for one in trial["stretches"][-STRETCHES_SHOWN:]:
            arms = one["learned"], one["plain"]
            rows.append(
                [
                    Text(time.strftime("%Y-%m-%d", time.gmtime(one["start"]))),
                    *(Text(f"{arm['requests']:,}") for arm in arms),
                    *(Text(_estimate(arm["acceptance"], "acceptance")) for arm in arms),
                ]
            )
        console.columns(rows)


def _estimate(estimate: Figures | None, measure: str, signed: bool = False) -> str:
    """Return a figure with its interval, such as ``23 % (19 to 27)``."""
    if estimate is None:
        return "-"
    factor, unit = (1.0, "") if measure == "rank" else (100.0, " points" if signed else " %")
    form = f"{'+' if signed else ''}.{1 if measure == 'rank' else 0}f"
    value, *ends = (
        None if one is None else format(one * factor, form)
        for one in (estimate["value"], estimate["low"], estimate["high"])
    )
    return f"{value}{unit}" if None in ends else f"{value}{unit} ({ends[0]} to {ends[1]})"


def _verdict(difference: Figures | None, measure: str) -> str:
    """Return the style of a difference: green or red where it is not by chance."""
    if difference is None or difference["low"] is None:
        return ""
    low, high = difference["low"], difference["high"]
    if measure == "rank":
        low, high = -high, -low
    return "green" if low > 0 else "red" if high < 0 else ""


def _show_tools(console: Terminal, tools: Sequence[Figures], limit: int, now: float) -> None:
    if not tools:
        return
    console.section("Tools")
    wide = console.width >= WIDE
    more = ("Result", "Tokens") if wide else ()
    titles = headings("Calls", "Failed", "p50", "p95", *more, "Last used")
    facts = [titles, *(_facts(one, now, wide) for one in tools[:limit])]
    widths = [max(cell.cell_len for cell in column) for column in zip(*facts, strict=True)]
    room = max(console.width - sum(widths) - GAP * len(widths), USEFUL)
    names = [Text("Tool", style="bold"), *(_name(one["server"], one["name"], room) for one in tools[:limit])]
    console.columns([[*row, name] for row, name in zip(facts, names, strict=True)], right=range(len(titles)))
    console.more(len(tools) - limit, "tool")


def _facts(report: Figures, now: float, wide: bool) -> list[Text]:
    failing, tokens = 1 - report["success_rate"], report["tokens"]
    size = (_bytes(report["result_bytes"]), "-" if tokens is None else f"{tokens:,}")
    texts = (
        duration(report["latency"]["p50_ms"]),
        duration(report["latency"]["p95_ms"]),
        *(size if wide else ()),
        _ago(now - report["last_used"]),
    )
    failed = Text(_percent(failing) if report["errors"] else "-", style="red" if failing >= FAILING else "")
    return [Text(f"{report['calls']:,}"), failed, *map(Text, texts)]


def _show_documents(console: Terminal, documents: Sequence[Figures], limit: int, now: float) -> None:
    if not documents:
        return
    console.section("Rules and references")
    rows = [headings("Found", "Given", "Read", "Last used", "Document")]
    for one in documents[:limit]:
        numbers = (Text(f"{one[key]:,}") for key in ("found", "delivered", "reads"))
        rows.append([*numbers, Text(_ago(now - one["last_used"])), _document(one)])
    console.columns(rows, right=(0, 1, 2))
    console.more(len(documents) - limit, "document")


def _document(one: Figures) -> Text:
    return Text(one_line(f"{one['kind']} {one['name']}"), style="cyan")


def _ago(seconds: float) -> str:
    return "just now" if seconds < 60 else f"{span(seconds, short=True)} ago"


def _name(server: str, tool: str, room: int) -> Text:
    """Return a tool's name, cut in the middle if it is too long: names differ at their ends."""
    name = shown(one_line(f"{server}__{tool}"))
    if len(name) > room:
        name = f"{name[: room // 2]}\N{HORIZONTAL ELLIPSIS}{name[room // 2 + 1 - room :]}"
    return Text(name, style="cyan")


def _show_unused(console: Terminal, never: Figures, now: float) -> None:
    if never["newer"]:
        console.section("Not called yet")
        known = "is" if never["newer"] == 1 else "are"
        tools = counted(never["newer"], "tool")
        console.prose(f"{tools} that {known} known for less than {never['days']} days.")
    unused = never["tools"]
    if not unused:
        return
    console.section(f"Not called in {never['days']} days")
    longest = max(now - one["first_seen"] for one in unused)
    tools = counted(never["count"], "tool")
    console.prose(
        f"{tools}, the oldest known for {span(longest)}. Without them, the catalog "
        f"has about {never['tokens']:,} tokens less: enabled = false turns off a tool under "
        "[servers.NAME.tools.TOOL], and a whole server under [servers.NAME]."
    )
    _show_costs(
        console, unused, never["count"], "Tool", lambda one: _name(one["server"], one["name"], console.width)
    )


def _show_unused_documents(console: Terminal, unused: Sequence[Figures]) -> None:
    if not unused:
        return
    console.section("Rules and references not used in 30 days")
    tokens = sum(one["tokens"] for one in unused)
    console.prose(
        f"{counted(len(unused), 'document')}, about {tokens:,} tokens: found by no request, and not read. "
        "Remove a file that nobody needs, or describe in its front matter what it is for."
    )
    _show_costs(console, unused, len(unused), "Document", _document)


def _show_costs(
    console: Terminal, unused: Sequence[Figures], count: int, title: str, name: Callable[[Figures], Text]
) -> None:
    """Show the first of so many items; an answer of a proxy that runs has not all of them."""
    console.say()
    rows = [[Text(f"{one['tokens']:,}"), name(one)] for one in unused[:UNUSED_SHOWN]]
    console.columns([headings("Tokens", title), *rows], right=(0,))
    console.more(count - len(rows), title.lower())


def _data(figures: Mapping[str, Figures]) -> dict[str, Any]:
    searches, tools, documents = figures["searches"], figures["tools"], figures["documents"]
    counts = ("searches", "found", "used", "accepted", "use_rate", "acceptance_rate", "reranked")
    trial = ("learned", "plain", "difference", "seconds", "stretches")
    return {
        "enabled": searches["enabled"],
        "period": searches["period"],
        "searches": {
            **{key: searches[key] for key in counts},
            **searches["latency"],
            "tokens_shown": searches["tokens"]["shown"],
            "tokens_behind": searches["tokens"]["behind"],
        },
        "learning": {key: figures["learning"][key] for key in trial},
        "tools": [
            {
                "server": one["server"],
                "tool": one["name"],
                **{key: one[key] for key in ("calls", "errors", "success_rate")},
                **{key: ms or 0.0 for key, ms in one["latency"].items()},
                **{key: one[key] for key in ("last_used", "result_bytes", "tokens")},
            }
            for one in tools["tools"]
        ],
        "unused": [
            {"tool" if key == "name" else key: one[key] for key in ("server", "name", "tokens", "first_seen")}
            for one in tools["unused"]["tools"]
        ],
        "unused_newer": tools["unused"]["newer"],
        "documents": documents["documents"],
        "unused_documents": documents["unused"],
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
