"""``search``: shows the tools, rules and references that a model would find, and why."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import inspect
from rich.text import Text

from mcp_context_proxy.cli.options import (
    Number,
    WholeNumber,
    configured,
    echo_json,
    json_option,
    query_argument,
    run,
    shown,
    terms_data,
)
from mcp_context_proxy.cli.terminal import Terminal, counted, failures, messages, open_started_proxy, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.context.search_filters import SearchFilters
from mcp_context_proxy.errors import UnknownFilterError
from mcp_context_proxy.items import Kind
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.retrieval.item_metadata import described
from mcp_context_proxy.retrieval.results import Result
from mcp_context_proxy.server import rendering, search_answers

if TYPE_CHECKING:
    from mcp_context_proxy.context.selection import SearchAnswer


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
@configured
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
    config: Config,
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
    filters = filters_of(config, narrowing)
    try:
        answer, text, failed = run(_search, config, query, frozenset(map(Kind, kinds)), filters, top, rerank)
    except UnknownFilterError as error:
        hint = "--any-tag" if error.value in filters.any_tags else f"--{error.kind}"
        raise click.BadParameter(str(error), param_hint=hint) from None
    if as_json:
        echo_json(_data(answer, failed, explain))
    elif explain:
        _show(results(), answer)
    else:
        if answer.found.read_as is not None:
            messages().prose(Text(_read_as(answer.found.read_as), style="dim"), hanging=9)
        reranking = answer.context.rerank
        if reranking is not None and not reranking.used:
            messages().prose(Text(f"Rerank: {one_line(reranking.reason)}", style="dim"), hanging=8)
        click.echo(shown(text))


async def _search(
    config: Config,
    query: str,
    kinds: frozenset[Kind],
    filters: SearchFilters,
    top: int | None,
    rerank: bool | None,
) -> tuple[SearchAnswer, str, dict[str, str]]:
    """Search, and return the answer, also as a model reads it, and the failed servers with their causes."""
    from mcp_context_proxy.context.options import DomainOverrides, Overrides
    from mcp_context_proxy.context.search import Scope

    async with open_started_proxy(config) as proxy:
        if filters.needs_figures and proxy.statistics.usage is not None:
            await proxy.statistics.usage.refresh()
        number = DomainOverrides(top_n=top)
        answer = await proxy.contexts.select(
            query,
            overrides=Overrides(number, number),
            origin="search",
            scope=Scope(kinds or None, filters),
            remember=False,
            deliver="answer",
            rerank=proxy.search.reranker.mode if rerank is None else "always" if rerank else "never",
        )
        notes = search_answers.search_notes(answer, proxy.fleet)
        text = search_answers.search_text(
            answer, notes, proxy.contexts.count_tokens, tokens=search_answers.answer_tokens(top)
        )
        return answer, text, failures(proxy)


def _data(answer: SearchAnswer, failed: dict[str, str], explain: bool) -> dict[str, Any]:
    """Return the facts of the data form of ``search_available_tools``, and the failed servers."""
    context, found = answer.context, answer.found
    rerank = context.rerank
    return {
        "query": context.query,
        "read_as": found.read_as,
        "fits": bool(found.results),
        "results": [_item_data(result, explain) for result in found.results],
        "near_misses": [_item_data(result, explain) for result in found.near_misses],
        "method": found.tools.method,
        "note": " ".join(note for note in (found.tools.note, found.filter_note) if note) or None,
        "filters": context.filters,
        "rerank": None
        if rerank is None
        else {"used": rerank.used, "reason": rerank.reason, "seconds": round(rerank.seconds, 3)},
        "known": found.known,
        "failed": [{"server": name, "cause": cause} for name, cause in failed.items()],
    }


def _read_as(query: str) -> str:
    return f"Read as: {one_line(query)}"


def _item_data(result: Result, explain: bool) -> dict[str, Any]:
    data = dict(rendering.item_data(result, with_schema=True)) | described(result.item)
    if explain:
        data |= {
            "learned": result.learned,
            "used_before_for": None if result.support is None else result.support.query,
            "novelty": result.novelty,
            "cosine": result.cosine,
            "lexical": result.lexical,
            "action": result.action,
            "need": result.need,
            "serves": result.serves,
            "terms": terms_data(result.terms),
            "chunk": result.chunk,
            "matched": result.matched,
        }
    return data


def _show(console: Terminal, answer: SearchAnswer) -> None:
    context, found = answer.context, answer.found
    asked, rerank = f'"{one_line(context.query)}"', context.rerank
    if found.read_as is not None:
        console.prose(Text(_read_as(found.read_as), style="dim"), hanging=9)
    if found.tools.note:
        console.prose(Text(f"Note: {found.tools.note}", style="yellow"))
    if rerank is not None:
        took = f", in {rerank.seconds:.1f} s" if rerank.seconds else ""
        console.prose(Text(f"Rerank: {one_line(rerank.reason)}{took}", style="dim"), hanging=8)
    if found.filter_note:
        console.prose(Text(found.filter_note, style="yellow"))
    if context.dropped:
        console.prose(Text(search_answers.over_budget(context, found.snapshot), style="yellow"))
    if found.results:
        how = "words and meaning" if found.tools.method == "hybrid" else "words only"
        how = f"{how}, {rerank.reason}" if rerank is not None and rerank.used else how
        console.say(Text(asked, style="bold"), f"  {len(found.results)} of {found.known}, by {how}")
        documents = found.documents.results if found.documents else ()
        _show_all(console, "Tools", found.tools.results)
        _show_all(console, "Rules and references", documents)
        _show_all(console, "Come with these", found.brought)
        _show_all(console, "No tool fits well; closest", found.near_misses)
    elif found.near_misses:
        console.say(f"Nothing fits {asked} well. Closest of {found.known} (probably not what you need):")
        _show_all(console, "", found.near_misses)
    elif not found.filter_note:
        console.say(f"Nothing was found for {asked} among {counted(found.known, 'item')}.")


def _show_all(console: Terminal, title: str, ranked: Sequence[Result]) -> None:
    if ranked and title:
        console.section(title)
    for rank, result in enumerate(ranked, 1):
        show_one(console, rank, rendering.item_data(result, with_schema=False))
        _explain(console, result)


def show_one(console: Terminal, rank: int | str, data: Mapping[str, Any]) -> None:
    """Show a result, as data: its name, its description on one line, and why it was found."""
    name = str(data.get("uri") or data["name"])
    console.say(f"{rank:>4}  {data['score']:4.2f}  ", Text(name, style="bold cyan"))
    if description := one_line(str(data["description"])):
        console.short(description, INDENT)
    console.prose(Text(f"why: {one_line(str(data['why']))}", style="dim"), INDENT, hanging=5)


def _explain(console: Terminal, result: Result) -> None:
    similarity = "-" if result.cosine is None else f"{result.cosine:.3f}"
    need = f", bonus for a part of the query {result.need:.3f}" if result.need > 0 else ""
    learned = f", learned {result.learned:.3f}" if result.learned > 0 else ""
    action = f", action {result.action:+.3f}" if result.action else ""
    new = f", new {result.novelty:.3f}" if result.novelty > 0 else ""
    console.say(
        f"similarity {similarity}, words {result.lexical:.2f}{action}{need}{learned}{new}", indent=INDENT
    )
    rows = [(f"{added:.2f}", field, term) for field, term, added in result.terms]
    console.columns(rows, indent=INDENT + 2, right=(0,))
    past = None if result.support is None else result.support.query
    told = (
        ("serves", result.serves),
        ("query", result.matched),
        ("used before for", past),
        ("text", result.chunk),
    )
    for label, text in told:
        if text:
            console.prose(Text(f"{label}: {one_line(text)}", style="dim"), INDENT, hanging=len(label) + 2)
