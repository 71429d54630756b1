"""``context``, ``requests`` and ``explain``: show the selection for a query, past ones, and reasons.

They ask the proxy that runs. Without one, ``requests`` reads the store, and the other two start the servers.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import click
from rich.text import Text

from mcp_context_proxy.bridge import folder_of
from mcp_context_proxy.cli import (
    CommandGroup,
    WholeNumber,
    echo_json,
    expect_words,
    json_option,
    open_configured_store,
    query_argument,
    shown,
)
from mcp_context_proxy.cli.running import AnswerSource, asking, kind_option
from mcp_context_proxy.cli.search import parts_of, words_of
from mcp_context_proxy.cli.terminal import Terminal, headings, messages, moment, print_answer
from mcp_context_proxy.config.source import dotted
from mcp_context_proxy.items import Kind
from mcp_context_proxy.protocol.strangers import one_line

GIVEN: Final[Mapping[str, str]] = {
    "whole": "given whole to a model",
    "outline": "given to a model as an outline",
    "instructions": "given to a model at the start of its session",
    "earlier": "given to a model earlier in its session",
}
"""Forms in which a model was given a document (`context.Delivery`)."""

INCLUDED: Final[Mapping[str, str]] = {
    "agent": "agent: queries find it",
    "always": "always: it is in every context",
    "manual": "manual: no query finds it, a person adds it",
}
"""Meanings of the include modes."""

CHOSEN: Final[Mapping[str, str]] = {
    "always": "it is in every session",
    "manual": "it was added to the session by hand",
    "agent": "the query matches it",
    "expansion": "it is related to an item that matches the query",
    "learned": "the query matches it, and it worked for such queries before",
    "retained": "it was called recently in the session",
    "uncertain": "little is known about such queries, and there was room",
    "working_set": "it is used often",
}
"""Meanings of the modes of an item in a context."""

LISTED_MOST: Final = 500
"""Requests that a running proxy lists at once."""


@click.command("context")
@asking
@click.argument("query")
@click.option("--max-tokens", type=WholeNumber(1), help="Budget for all of it.  [default: as configured]")
@json_option
def context_command(source: AnswerSource, query: str, max_tokens: int | None, as_json: bool) -> None:
    """Print the rules, references and tools for QUERY.

    With - for QUERY it is read from the standard input: as text, or as the JSON object with a `prompt` that
    hosts give their prompt hooks. The documents of projects are then those of the folder that it names.
    """
    folder = None
    if query == "-":
        query, folder = _prompt(sys.stdin.read())
        if not query.strip() and not as_json:
            return  # A host takes a prompt away if its hook ends with 2, as mistakes in arguments do.
    query = expect_words(query)
    wanted = {"query": query, "max_tokens": max_tokens, "folder": folder}
    data = source.proxy().post("/context/text", wanted)
    if as_json:
        echo_json(data["request"])
    elif data["text"]:
        click.echo(shown(data["text"]))


def _prompt(given: str) -> tuple[str, str | None]:
    """Return the prompt out of a hook's JSON with the folder of its session, or the text itself."""
    try:
        hook = json.loads(given)
    except ValueError:
        return given, None
    prompt = hook.get("prompt") if isinstance(hook, dict) else None
    return (prompt, folder_of(hook)) if isinstance(prompt, str) else (given, None)


ID_OPTIONS: Final = {"--json": "as_json", "--fresh": "fresh"}
"""Options that may stand before the id, with the names of their parameters."""


class _ById(CommandGroup):
    """A group whose first argument may be an id, which `show` takes."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; any other word is an id. Options before it hold for the command, too."""
        given = [option for option, name in ID_OPTIONS.items() if ctx.params.get(name)]
        words = args if args[0] in self.commands else ["show", *args]
        return super().resolve_command(ctx, [words[0], *given, *words[1:]])


@click.group("requests", cls=_ById, invoke_without_command=True, subcommand_metavar="[ID | COMMAND]")
@asking
@click.option("--session", help="Only those of this session.")
@click.option(
    "--limit", type=WholeNumber(1), default=20, show_default=True, help="Number of latest requests."
)
@json_option
def requests_command(source: AnswerSource, session: str | None, limit: int, as_json: bool) -> None:
    """List the latest requests, or show what was chosen for the one with ID, how and why."""
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        ctx.find_root().obj = source.named
        return
    print_answer(as_json, {"requests": _latest(source, limit, session)}, _show_all)


@requests_command.command("show")
@asking
@click.argument("request_id", metavar="ID")
@click.option("--render", is_flag=True, help="Print what its model read, by the definitions of then.")
@json_option
def _show_command(source: AnswerSource, request_id: str, render: bool, as_json: bool) -> None:
    """Show what was chosen for the request with ID, how and why."""
    if render:
        print_answer(as_json, _of_request(source, request_id, "/text"), _show_rendered)
    else:
        print_answer(as_json, _one(source, request_id), _show_one)


def _show_rendered(_console: Terminal, rendered: Mapping[str, Any]) -> None:
    click.echo(shown(rendered["text"]))
    if rendered["missing"]:
        named = one_line(", ".join(rendered["missing"]))
        messages().note(f"Left out, because their definitions of then are not kept: {named}")


@requests_command.command("replay")
@asking
@click.argument("request_id", metavar="ID")
@json_option
def _replay_command(source: AnswerSource, request_id: str, as_json: bool) -> None:
    """Answer the request with ID again from today's catalog, and show the difference."""
    print_answer(as_json, _of_request(source, request_id, "/replay"), _show_replayed)


def _of_request(source: AnswerSource, request_id: str, part: str = "") -> dict[str, Any]:
    try:
        answer: dict[str, Any] = source.proxy().get(f"/requests/{quote(request_id, safe='')}{part}")
    except click.UsageError:
        raise _unknown(request_id) from None
    return answer


def _unknown(request_id: str) -> click.ClickException:
    return click.ClickException(f"there is no request {request_id!r}, or it was forgotten")


def _show_replayed(console: Terminal, replayed: Mapping[str, Any]) -> None:
    then, now = replayed["then"], replayed["now"]
    console.say(Text(f'"{one_line(then["query"])}"', style="bold"))
    # Without those of the session, which only one of the answers has.
    compared = {(one["type"], one["name"]) for one in replayed["items"]}
    before, today = (
        sum(one["tokens"] for one in answer["items"] if (one["type"], one["name"]) in compared)
        for answer in (then, now)
    )
    tokens = f"{before:,} tokens then, {today:,} now, for the items below"
    console.say(Text(f"asked {moment(then['time'])}; {tokens}", style="dim"))
    if not now["items"] and now["near_misses"]:
        console.say("Nothing fits it now.")
    rows = []
    for one in replayed["items"]:
        scores = ["-" if one[key] is None else f"{one[key]:.2f}" for key in ("score_then", "score_now")]
        told = [] if one["change"] == "same" else [one["change"]]
        told += DEFINITIONS[one["definition"]]
        rows.append(
            [
                *(Text("-" if one[key] is None else str(one[key])) for key in ("then", "now")),
                Text(scores[0] if scores[0] == scores[1] else " > ".join(scores)),
                Text(", ".join(told), style=CHANGES.get(one["change"], "yellow")),
                Text(one_line(one["name"]), style="cyan"),
            ]
        )
    if rows:
        console.section("Selected")
        console.columns([headings("Then", "Now", "Score", "", "Item"), *rows], indent=2, right=(0, 1))
    if all(one["change"] == "same" and one["definition"] == "same" for one in replayed["items"]):
        console.say()
        console.say("Nothing has changed.")


CHANGES: Final = {"new": "green", "gone": "red"}
"""Colours of changes between an answer of then and today's."""

DEFINITIONS: Final[Mapping[str, list[str]]] = {
    "same": [],
    "changed": ["other definition"],
    "removed": ["not in the catalog"],
    "unknown": ["definition of then unknown"],
}
"""Words for the fate of a definition."""

QUERY_ROOM: Final = 40
"""Room beside the other columns that a query needs, so that it can be told from others."""

WHOLE_TOKENS: Final = (
    "Tokens: of the whole definitions and texts of the items (estimate). "
    "What the model read is shorter: requests ID --render."
)
"""Explanation of the tokens of a request."""


def _latest(source: AnswerSource, limit: int, session: str | None) -> list[dict[str, Any]]:
    if source.running is not None:
        wanted = {"limit": min(limit, LISTED_MOST), "session": session}
        found: list[dict[str, Any]] = source.running.get("/requests", wanted)["requests"]
        return found
    import anyio

    from mcp_context_proxy.context import RequestRecords, as_data

    with open_configured_store(source.config) as store:
        records = RequestRecords(source.config.limits, store.requests)
        return [as_data(one) for one in anyio.run(records.latest, limit, session)]


def _one(source: AnswerSource, request_id: str) -> dict[str, Any]:
    if source.running is not None:
        return _of_request(source, request_id)
    import anyio

    from mcp_context_proxy.context import RequestRecords, as_data

    with open_configured_store(source.config) as store:
        context = anyio.run(RequestRecords(source.config.limits, store.requests).get, request_id)
    if context is None:
        raise _unknown(request_id)
    return as_data(context)


def _show_all(console: Terminal, data: Mapping[str, Any]) -> None:
    found = data["requests"]
    if not found:
        console.say("No request is remembered.")
        return
    # Where several hosts ask, a person looks for the requests of one.
    has_clients = any(one.get("client") for one in found)
    rows: list[list[str | Text]] = [
        [
            Text(one["id"], style="cyan"),
            moment(one["time"]),
            f"{len(one['items']):,}",
            f"{one['tokens']:,}",
            *([one_line(one.get("client") or "-")] if has_clients else []),
            Text(one_line(one["query"])),
        ]
        for one in found
    ]
    titles = headings("ID", "Time", "Items", "Tokens", *(["Client"] if has_clients else []), "Query")
    console.columns([[*titles], *rows], right=(2, 3), useful=QUERY_ROOM)
    console.say()
    console.prose(Text(WHOLE_TOKENS, style="dim"))


def _show_one(console: Terminal, context: Mapping[str, Any]) -> None:
    from mcp_context_proxy.context.search_filters import filter_text

    console.say(Text(f'"{one_line(context["query"])}"', style="bold"))
    facts = [moment(context["time"]), context["origin"], f"about {context['tokens']:,} tokens if read whole"]
    if context["session"] is not None:
        of = f" of {one_line(context['client'])}" if context.get("client") else ""
        facts.append(f"session {context['session']}{of}")
    if context.get("profile") is not None:
        facts.append(f"profile {context['profile']}")
    console.say(Text(", ".join(facts), style="dim"))
    if context["read_as"] is not None:
        console.aside("Read as", context["read_as"])
    if context["failure"] is not None:
        console.prose(Text(f"The selection failed: {context['failure']}", style="yellow"))
    if context["filters"]:
        asked = ", ".join(f"{name} {filter_text(value)}" for name, value in context["filters"].items())
        console.aside("Filters", asked)
    if context["rerank"] is not None:
        console.aside("Rerank", context["rerank"]["reason"])
    _show_items(console, "Items", context["items"])
    _show_items(console, "Over budget", context["dropped"])
    if context["interactions"]:
        console.section("Remembered")
        console.columns(
            [
                (
                    f"{one['score']:.2f}",
                    moment(one["time"]),
                    f"{one['interaction_type']} of {one_line(one['agent_name'])}",
                    f"{one['tokens']:,}",
                )
                for one in context["interactions"]
            ],
            indent=2,
            right=(0, 3),
        )
    fits = any(item["include_mode"] == "agent" for item in context["items"])
    closest = "Closest tools, because none fits" if fits else "Closest, because nothing fits"
    _show_items(console, closest, context["near_misses"])


def _show_items(console: Terminal, title: str, items: Sequence[Mapping[str, Any]]) -> None:
    if not items:
        return
    console.section(title)
    rows = [
        (
            "-" if item["score"] is None else f"{item['score']:.2f}",
            str(item["include_mode"]),
            str(item["type"]),
            Text(item["name"], style="cyan"),
            f"{item['tokens']:,}",
            Text(
                item["why"] if item["delivered"] is None else f"{item['why']}; {GIVEN[item['delivered']]}",
                style="dim",
            ),
        )
        for item in items
    ]
    console.columns(rows, indent=2, right=(0, 4), whole=True)


@click.command("explain")
@asking
@query_argument
@click.argument("name", metavar="ITEM")
@click.option("--server", help="Server of the tool, if several have one of that name.")
@kind_option
@json_option
def explain_command(
    source: AnswerSource, query: str, name: str, server: str | None, kind: str, as_json: bool
) -> None:
    """Explain why ITEM is chosen for QUERY or not: its rank, each part of its score, its mode, the budget.

    ITEM is a tool, a rule or a reference, or its URI, such as rule://NAME.
    """
    wanted = {"query": query, "kind": kind, "name": name, "server": server}
    print_answer(as_json, source.proxy().get("/explain", wanted), _show)


def _show(console: Terminal, explained: Mapping[str, Any]) -> None:
    chosen = "chosen" if explained["selected"] is not None else "not chosen"
    name = Text(explained["name"], style="bold cyan")
    console.prose(Text.assemble(name, f" is {chosen}: {explained['reason']}"), hanging=2)
    options = explained["options"]
    rows = [("include mode", INCLUDED[explained["include"]])]
    if explained["danger"] is not None:
        rows.append(("danger", explained["danger"]))
    if explained["read_as"] is not None:
        rows.append(("query, as it was read", one_line(explained["read_as"])))
    if explained["selected"] is not None:
        rows.append(("chosen because", CHOSEN[explained["selected"]]))
    if (score := explained["score"]) is not None:
        rows.append(("rank", f"{explained['rank']} of {explained['ranked']} that have anything in common"))
        rows.append(("score", f"{score['total']:.3f}"))
        for label, amount in parts_of(score):
            rows.append((f"  {label}", f"{amount:.3f}"))
            if label == "words":
                rows += [
                    (f"    {field}", f"{part:.3f} for {term!r}") for field, term, part in words_of(score)
                ]
    if explained["rerank"] is not None:
        rows.append(("rerank", explained["rerank"]))
    number, always = "those that fit," if options["by_fit"] else f"the best {options['top_n']}", ""
    if options["include_score"] is not None:
        always = f", and all with a similarity of {options['include_score']:g} or more"
    if explained["type"] != Kind.TOOL:
        number, always = f"those that the query means rather than a tool, at most {options['top_n']}", ""
    rows.append(("chosen are", f"{number} of the {options['top_k']} closest{always}"))
    budget = "no limit" if explained["max_tokens"] is None else f"of {explained['max_tokens']:,}"
    rows.append(("tokens", f"{explained['tokens']:,}, {budget}"))
    if explained["type"] != Kind.TOOL:
        form = explained["delivered"]
        rows.append(("text", "not given to a model" if form is None else GIVEN[form]))
    if explained["selected"] is None and explained["server"] is not None:
        table = dotted(("servers", explained["server"], "tools", explained["tool"]))
        rows.append(("to have it found", f"write what it is asked for into use_cases in [{table}]"))
    width = max(len(label) for label, _ in rows) + 2
    for label, value in rows:
        console.prose(f"{label:<{width}}{value}", indent=2, hanging=width)
