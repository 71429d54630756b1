"""``search``: what a model would find, and why.

How what a search found reads in a terminal: rank, score, name, then what it is and why it was found.

The options that narrow a search down, for every command that searches.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import click
from rich.text import Text

from mcp_context_proxy.cli import terminal
from mcp_context_proxy.cli.options import config_option, echo_json, load_config, run
from mcp_context_proxy.cli.terminal import Terminal, counted, failure, messages, one_line, results
from mcp_context_proxy.config import Config
from mcp_context_proxy.context.constraints import MIN_CALLS, Constraints
from mcp_context_proxy.errors import UnknownFilterError
from mcp_context_proxy.items import Document, Kind
from mcp_context_proxy.retrieval.item_metadata import described
from mcp_context_proxy.retrieval.results import Ranking, Result
from mcp_context_proxy.server import rendering

if TYPE_CHECKING:
    from mcp_context_proxy.config.settings import RerankMode
    from mcp_context_proxy.context.search import Found
    from mcp_context_proxy.rerank.reranker import Reranking


INDENT: Final = 12
"""Where names begin, after rank and score."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One found item, for a person."""

    name: str
    """Under which it is called or read."""
    description: str
    score: float
    why: str

    @classmethod
    def of(cls, result: Result) -> Self:
        """From a search in this process."""
        item = result.item
        if isinstance(item, Document):
            return cls(item.uri, one_line(item.description), result.score, result.why)
        return cls(item.exposed_name, one_line(item.description), result.score, result.why)

    @classmethod
    def of_data(cls, data: Mapping[str, Any]) -> Self:
        """From the structured answer of ``search_available_tools``."""
        name = str(data.get("uri") or data["name"])
        return cls(name, one_line(str(data["description"])), float(data["score"]), str(data["why"]))


def show_one(console: Terminal, rank: int | str, hit: Hit) -> None:
    """Show one hit: its name, what it is on one line, and why it was found."""
    console.say(f"{rank:>4}  {hit.score:4.2f}  ", Text(hit.name, style="bold cyan"))
    if hit.description:
        console.short(hit.description, INDENT)
    console.prose(Text(f"why: {one_line(hit.why)}", style="dim"), INDENT, hanging=5)


Command = TypeVar("Command", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--server", help="Only tools of this server."),
    click.option("--category", help="Only items of this category."),
    click.option("--tag", "tags", multiple=True, help="Only items with this tag; given again, with both."),
    click.option(
        "--any-tag", "any_tags", multiple=True, help="Only items with this tag; given again, with either."
    ),
    click.option("--language", help="Only items with this tag, too."),
    click.option("--read-only", is_flag=True, help="Only tools that say they change nothing."),
    click.option(
        "--exclude-destructive", is_flag=True, help="Only tools that say they undo and overwrite nothing."
    ),
    click.option(
        "--open-world/--closed-world",
        default=None,
        help="Only tools that reach beyond their server, or only those that say they do not.",
    ),
    click.option(
        "--max-latency-ms",
        type=click.FloatRange(min=0, min_open=True),
        help="No tools of whose calls more than 5 % took longer.",
    ),
    click.option(
        "--min-success-rate",
        type=click.FloatRange(0, 1),
        help="No tools of whose calls a smaller share succeeded.",
    ),
    click.option(
        "--min-calls",
        type=click.IntRange(1),
        default=MIN_CALLS,
        show_default=True,
        help="Calls from which on that share is known.",
    ),
    click.option("--strict", is_flag=True, help="No tools of whose calls too little is known, either."),
)


def narrowing_options(command: Command) -> Command:
    """Give a command the options; it takes them as keywords, for `constraints_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def constraints_of(config: Config, given: dict[str, Any]) -> Constraints:
    """The constraints of the options that were given.

    Raises:
        click.BadParameter: there is no such server in the configuration, or it is switched off.
    """
    _check_server(config, given["server"])
    return Constraints(**given)


def _check_server(config: Config, server: str | None) -> None:
    if server is None:
        return
    if server in config.servers:
        if not config.servers[server].enabled:
            raise click.BadParameter(f"server {server!r} is switched off", param_hint="--server")
        return
    nearest = difflib.get_close_matches(server, config.servers, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    raise click.BadParameter(
        f"there is no server {server!r}.{hint} There are: {', '.join(config.servers)}", param_hint="--server"
    )


@click.command("search")
@config_option
@click.argument("query")
@click.option("--top", type=click.IntRange(1), help="How many to show.  [default: as configured]")
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice([kind.value for kind in Kind]),
    help="Only these; may be given again.",
)
@click.option(
    "--rerank/--no-rerank",
    default=None,
    help="Let another model put the best tools in order, or not.  [default: as configured]",
)
@narrowing_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("--explain", is_flag=True, help="Show how each score came about.")
@click.pass_context
def search_command(
    ctx: click.Context,
    /,
    config_path: Path | None,
    query: str,
    top: int | None,
    kinds: tuple[str, ...],
    rerank: bool | None,
    as_json: bool,
    explain: bool,
    **narrowing: Any,
) -> None:
    """Search the tools, rules and references behind the proxy for QUERY."""
    if not query.strip():
        raise click.UsageError("QUERY is empty: say in plain words what you want to do")
    config = load_config(ctx, config_path)
    wanted = frozenset(map(Kind, kinds)) or None
    constraints = constraints_of(config, narrowing)
    try:
        found, reranking, failed = run(_search, config, query, wanted, constraints, top, rerank)
    except UnknownFilterError as error:
        hint = "--any-tag" if error.value in constraints.any_tags else f"--{error.kind}"
        raise click.BadParameter(str(error), param_hint=hint) from None
    if as_json:
        echo_json(_data(query, found, reranking, failed, explain))
        return
    _show(results(), query, found, reranking, explain)


async def _search(
    config: Config,
    query: str,
    kinds: frozenset[Kind] | None,
    constraints: Constraints,
    top: int | None,
    rerank: bool | None,
) -> tuple[Found, Reranking | None, dict[str, str]]:
    from mcp_context_proxy import app
    from mcp_context_proxy.context.options import DomainOverrides, Overrides, configured, overridden
    from mcp_context_proxy.context.search import Scope
    from mcp_context_proxy.rerank.reranker import CANDIDATES

    console = messages()
    async with app.open_proxy(config) as proxy:
        await terminal.settle(proxy, console)
        failed = {name: cause for name, client in proxy.fleet.clients.items() if (cause := failure(client))}
        for name, cause in failed.items():
            console.say(Text(f"server {name} has failed and was not searched: {cause}", style="yellow"))
        await terminal.index(proxy, console)
        if constraints.of_calls and proxy.measuring.usage is not None:
            await proxy.measuring.usage.refresh()
        number = DomainOverrides(top_n=top)
        options = overridden(configured(config), Overrides(number, number))
        scope = Scope(kinds, constraints)
        found = await proxy.searcher.search(query, proxy.catalog, options, scope, CANDIDATES)
        mode: RerankMode | None = None if rerank is None else "always" if rerank else "never"
        tools, reranking = await proxy.searching.reranker.rerank(found.tools, mode=mode)
    return replace(found, tools=tools), reranking, failed


def _data(
    query: str, found: Found, reranking: Reranking | None, failed: dict[str, str], explain: bool
) -> dict[str, Any]:
    """The same facts as the structured answer of ``search_available_tools``, and what failed."""
    ranked = [*found.tools.results, *(found.documents.results if found.documents else ())]
    return {
        "query": query,
        "fits": bool(ranked),
        "results": [_item_data(result, explain) for result in ranked],
        "near_misses": [_item_data(result, explain) for result in found.near_misses],
        "method": found.tools.method,
        "note": " ".join(note for note in (found.tools.note, found.filter_note) if note) or None,
        "filters": found.constraints.applied(),
        "rerank": None
        if reranking is None
        else {"used": reranking.used, "reason": reranking.reason, "seconds": round(reranking.seconds, 3)},
        "known": found.known,
        "failed": [{"server": name, "cause": cause} for name, cause in failed.items()],
    }


def _item_data(result: Result, explain: bool) -> dict[str, Any]:
    data = dict(rendering.structured(result, with_schema=True)) | described(result.item)
    if explain:
        terms = [{"field": field, "term": term, "added": added} for field, term, added in result.terms]
        data |= {
            "learned": result.learned,
            "novelty": result.novelty,
            "cosine": result.cosine,
            "lexical": result.lexical,
            "need": result.need,
            "serves": result.serves,
            "terms": terms,
            "chunk": result.chunk,
            "matched": result.matched,
        }
    return data


def _show(console: Terminal, query: str, found: Found, reranking: Reranking | None, explain: bool) -> None:
    tools = found.tools
    documents = found.documents.results if found.documents else ()
    asked = f'"{one_line(query)}"'
    if tools.note:
        console.prose(Text(f"Note: {tools.note}", style="yellow"))
    if reranking is not None and (explain or not reranking.used):
        took = f", in {reranking.seconds:.1f} s" if reranking.seconds else ""
        console.prose(Text(f"Rerank: {one_line(reranking.reason)}{took}", style="dim"), hanging=8)
    if found.filter_note:
        console.prose(Text(found.filter_note, style="yellow"))
    if tools.results or documents:
        how = _how(tools, reranking)
        console.say(Text(asked, style="bold"), f"  {len(found.results)} of {found.known}, by {how}")
        _show_all(console, "Tools", tools.results, explain)
        _show_all(console, "Rules and references", documents, explain)
        _show_all(console, "No tool fits well; the nearest", found.near_misses, explain)
    elif found.near_misses:
        console.say(f"Nothing fits {asked} well. The nearest of {found.known}, in case one is meant:")
        _show_all(console, "", found.near_misses, explain)
    elif not found.filter_note:
        console.say(f"Nothing was found for {asked} among {counted(found.known, 'item')}.")


def _how(tools: Ranking, reranking: Reranking | None) -> str:
    how = "words and meaning" if tools.method == "hybrid" else "words only"
    return f"{how}, {reranking.reason}" if reranking is not None and reranking.used else how


def _show_all(console: Terminal, title: str, ranked: tuple[Result, ...], explain: bool) -> None:
    if not ranked:
        return
    if title:
        console.section(title)
    for rank, result in enumerate(ranked, 1):
        show_one(console, rank, Hit.of(result))
        if explain:
            _explain(console, result)


def _explain(console: Terminal, result: Result) -> None:
    meaning = "-" if result.cosine is None else f"{result.cosine:.3f}"
    need = f", need {result.need:.3f}" if result.need > 0 else ""
    learned = f", learned {result.learned:.3f}" if result.learned > 0 else ""
    new = f", new {result.novelty:.3f}" if result.novelty > 0 else ""
    console.say(f"meaning {meaning}, words {result.lexical:.2f}{need}{learned}{new}", indent=INDENT)
    rows = [(f"{added:.2f}", field, term) for field, term, added in result.terms]
    console.columns(rows, indent=INDENT + 2, right=(0,))
    for label, text in (("serves", result.serves), ("query", result.matched), ("text", result.chunk)):
        if text:
            console.prose(Text(f"{label}: {one_line(text)}", style="dim"), INDENT, hanging=len(label) + 2)
