"""``search``: shows the tools, rules and references that a model would find, and why."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import inspect
from rich.text import Text

from mcp_context_proxy.cli.main import (
    Number,
    WholeNumber,
    echo_json,
    json_option,
    query_argument,
    run,
    shown,
)
from mcp_context_proxy.cli.running import AnswerSource, asking
from mcp_context_proxy.cli.terminal import Terminal, counted, duration, messages, open_started_proxy, results
from mcp_context_proxy.errors import UnknownFilterError
from mcp_context_proxy.items import Kind, SearchFilters
from mcp_context_proxy.protocol.strangers import one_line

if TYPE_CHECKING:
    from mcp_context_proxy.config import Config

INDENT: Final = 12
"""Column of names, after rank and score."""

Command = TypeVar("Command", bound=Callable[..., Any])


def narrowing_options(command: Command) -> Command:
    """Give a command an option for each search filter; it takes them as keywords, for `filters_of`."""
    for field in reversed(inspect.type_info(SearchFilters).fields):  # type: ignore[attr-defined]
        command = _option(field.name, field.type, field.default)(command)
    return command


def _option(name: str, of: inspect.Metadata, default: object) -> Callable[[Command], Command]:
    assert of.extra is not None
    assert of.extra_json_schema is not None
    option, text = f"--{name.replace('_', '-')}", of.extra_json_schema["description"]
    match of.type.types[0] if isinstance(of.type, inspect.UnionType) else of.type:
        case inspect.VarTupleType():
            text = f"{text} May be given again."
            return click.option(option.removesuffix("s"), name, multiple=True, help=text)
        case inspect.BoolType() if (off := of.extra["off"]) is not None:
            return click.option(f"{option}/--{off}", default=None, help=text)
        case inspect.BoolType():
            return click.option(option, is_flag=True, help=text)
        case inspect.FloatType(gt=above, ge=least, le=most):
            return click.option(option, type=Number(least, most, above=above), help=text)
        case inspect.IntType(ge=least):
            shown = default is not None
            return click.option(
                option, type=WholeNumber(least), default=default, show_default=shown, help=text
            )
    return click.option(option, help=text)


def filters_of(config: Config, given: dict[str, Any]) -> SearchFilters:
    """Return the search filters for the options that were given; the server must be in the configuration."""
    server = given["server"]
    if server in config.servers and not config.servers[server].enabled:
        raise click.BadParameter(f"server {server!r} is switched off", param_hint="--server")
    if server is not None and server not in config.servers:
        nearest = difflib.get_close_matches(server, config.servers, n=1)
        hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
        raise click.BadParameter(
            f"there is no server {server!r}.{hint} There are: {', '.join(config.servers)}",
            param_hint="--server",
        )
    return SearchFilters(**given)


@click.command("search")
@asking
@query_argument
@click.option("--top", type=WholeNumber(1), help="Number of results.  [default: as configured]")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in Kind]),
    help="Only items of this kind. May be given again.",
)
@click.option(
    "--rerank/--no-rerank",
    default=None,
    help="Let another model put the best tools in order, or not.  [default: as configured]",
)
@narrowing_options
@json_option
@click.option("--explain", is_flag=True, help="Show scores, their parts and the reasons.")
def search_command(
    source: AnswerSource,
    /,
    query: str,
    top: int | None,
    kinds: tuple[str, ...],
    rerank: bool | None,
    as_json: bool,
    explain: bool,
    **narrowing: Any,
) -> None:
    """Search the tools, rules and references behind the proxy for QUERY.

    Shows the answer that a model gets; --explain shows how it came about.
    """
    wanted = {"query": query, "top": top, "kinds": ",".join(kinds), "rerank": rerank, "explain": explain}
    if source.running is not None:
        given = {name: value for name, value in narrowing.items() if value is not False}
        data = source.running.get("/search", {**wanted, **given})
    else:
        filters = filters_of(source.config, narrowing)
        try:
            data = run(_search, source.config, wanted | narrowing)
        except UnknownFilterError as error:
            hint = "--any-tag" if error.value in filters.any_tags else f"--{error.kind}"
            raise click.BadParameter(str(error), param_hint=hint) from None
    if as_json:
        echo_json(_data(data))
    elif explain:
        _show(results(), data)
    else:
        if data["read_as"] is not None:
            messages().prose(Text(_read_as(data["read_as"]), style="dim"), hanging=9)
        reranking = data["rerank"]
        if reranking is not None and not reranking["used"]:
            messages().prose(Text(f"Rerank: {one_line(reranking['reason'])}", style="dim"), hanging=8)
        click.echo(shown(data["text"]))


async def _search(config: Config, wanted: dict[str, Any]) -> dict[str, Any]:
    """Search in a proxy of this command, and return the answer as the REST API gives it."""
    import msgspec

    from mcp_context_proxy.web.search import LookWanted, look

    async with open_started_proxy(config) as proxy:
        found = await look(proxy.contexts, proxy.fleet, proxy.usage, msgspec.convert(wanted, LookWanted))
        decoded: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found))
        return decoded


def _data(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of an answer without its text, which is for models."""
    told = " ".join(note for note in (found["note"], found["filter_note"]) if note)
    left_out = {"text", "filter_note", "over_budget"}
    return {key: value for key, value in found.items() if key not in left_out} | {"note": told or None}


def _read_as(query: str) -> str:
    return f"Read as: {one_line(query)}"


def _show(console: Terminal, found: Mapping[str, Any]) -> None:
    asked, rerank = f'"{one_line(found["query"])}"', found["rerank"]
    if found["read_as"] is not None:
        console.prose(Text(_read_as(found["read_as"]), style="dim"), hanging=9)
    if found["note"]:
        console.prose(Text(f"Note: {found['note']}", style="yellow"))
    if rerank is not None:
        took = f", in {rerank['seconds']:.1f} s" if rerank["seconds"] else ""
        console.prose(Text(f"Rerank: {one_line(rerank['reason'])}{took}", style="dim"), hanging=8)
    if found["filter_note"]:
        console.prose(Text(found["filter_note"], style="yellow"))
    if found["over_budget"]:
        console.prose(Text(found["over_budget"], style="yellow"))
    items, nearest = found["results"], found["near_misses"]
    if items:
        how = "words and meaning" if found["method"] == "hybrid" else "words only"
        how = f"{how}, {rerank['reason']}" if rerank is not None and rerank["used"] else how
        console.say(Text(asked, style="bold"), f"  {len(items)} of {found['known']}, by {how}")
        searched = [one for one in items if not one["brought"]]
        _show_all(console, "Tools", [one for one in searched if one["type"] == "tool"])
        _show_all(console, "Rules and references", [one for one in searched if one["type"] != "tool"])
        _show_all(console, "Come with these", [one for one in items if one["brought"]])
        _show_all(console, "No tool fits well; closest", nearest)
    elif nearest:
        console.say(f"Nothing fits {asked} well. Closest of {found['known']} (probably not what you need):")
        _show_all(console, "", nearest)
    elif not found["filter_note"]:
        console.say(f"Nothing was found for {asked} among {counted(found['known'], 'item')}.")


def _show_all(console: Terminal, title: str, ranked: Sequence[Mapping[str, Any]]) -> None:
    if ranked and title:
        console.section(title)
    for rank, one in enumerate(ranked, 1):
        show_one(console, rank, one)
        _explain(console, one)


def show_one(console: Terminal, rank: int | str, data: Mapping[str, Any]) -> None:
    """Show a result, as data: its name, its description on one line, and why it was found."""
    name = str(data.get("uri") or data["name"])
    title = f"  {one_line(data['title'])}" if data.get("title") else ""
    console.say(f"{rank:>4}  {data['score']:4.2f}  ", Text(name, style="bold cyan"), Text(title, style="dim"))
    if description := one_line(str(data["description"])):
        console.short(description, INDENT)
    console.prose(Text(f"why: {one_line(str(data['why']))}", style="dim"), INDENT, hanging=5)


def _explain(console: Terminal, one: Mapping[str, Any]) -> None:
    similarity = "-" if one["cosine"] is None else f"{one['cosine']:.3f}"
    need = f", bonus for a part of the query {one['need']:.3f}" if one["need"] > 0 else ""
    learned = f", learned {one['learned']:.3f}" if one["learned"] > 0 else ""
    action = f", action {one['action']:+.3f}" if one["action"] else ""
    server = f", instructions {one['instructions']:.3f}" if one["instructions"] > 0 else ""
    new = f", new {one['novelty']:.3f}" if one["novelty"] > 0 else ""
    console.say(
        f"similarity {similarity}, words {one['lexical']:.2f}{action}{server}{need}{learned}{new}",
        indent=INDENT,
    )
    if one.get("calls"):
        mean, slow = duration(one["avg_latency_ms"]), duration(one["p95_latency_ms"])
        failed = f"{one['success_rate']:.0%} succeeded".replace("%", " %")
        console.say(
            f"{counted(one['calls'], 'call')}, {failed}, {mean} on average, p95 {slow}", indent=INDENT
        )
    rows = [(f"{term['added']:.2f}", term["field"], term["term"]) for term in one["terms"]]
    console.columns(rows, indent=INDENT + 2, right=(0,))
    told = (
        ("serves", one["serves"]),
        ("query", one["matched"]),
        ("used before for", one["used_before_for"]),
        ("text", one["chunk"]),
    )
    for label, text in told:
        if text:
            console.prose(Text(f"{label}: {one_line(text)}", style="dim"), INDENT, hanging=len(label) + 2)
