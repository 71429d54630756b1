"""``search``, and on remembered interactions ``interactions``, ``recall`` and ``backfill``.

``search`` asks the proxy that runs, or starts the servers. The others read the store: ``interactions``
counts, forgets, exports and imports them, ``recall`` searches them, ``backfill`` embeds those that have no
embedding.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from msgspec import inspect, to_builtins
from rich.text import Text

from mcp_context_proxy.cli import (
    Number,
    WholeNumber,
    configured,
    echo_json,
    group,
    json_option,
    open_configured_store,
    query_argument,
    shown,
    terminal,
)
from mcp_context_proxy.cli.running import AnswerSource, asking
from mcp_context_proxy.cli.terminal import (
    GAP,
    Terminal,
    counted,
    duration,
    messages,
    moment,
    print_answer,
    results,
)
from mcp_context_proxy.errors import some_of
from mcp_context_proxy.items import Kind, SearchFilters
from mcp_context_proxy.protocol.strangers import one_line

if TYPE_CHECKING:
    from mcp_context_proxy.config import Config
    from mcp_context_proxy.interactions import InteractionMemory, Recall, Recollection


INDENT: Final = 12
"""Column of names, after rank and score."""

Command = TypeVar("Command", bound=Callable[..., Any])


def narrowing_options(command: Command) -> Command:
    """Give a command an option for each search filter, which it takes as keywords."""
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
    wanted = {"query": query, "top": top, "kinds": kinds, "rerank": rerank, "explain": explain}
    data = source.proxy().get("/search", wanted | narrowing)
    if as_json:
        echo_json(_data(data))
    elif explain:
        _show(results(), data)
    else:
        if data["read_as"] is not None:
            messages().aside("Read as", data["read_as"])
        reranking = data["rerank"]
        if reranking is not None and not reranking["used"]:
            messages().aside("Rerank", reranking["reason"])
        click.echo(shown(data["text"]))


def _data(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of an answer without its text, which is for models."""
    told = " ".join(note for note in (found["note"], found["filter_note"]) if note)
    left_out = {"text", "filter_note", "over_budget"}
    return {key: value for key, value in found.items() if key not in left_out} | {"note": told or None}


def _show(console: Terminal, found: Mapping[str, Any]) -> None:
    asked, rerank = f'"{one_line(found["query"])}"', found["rerank"]
    if found["read_as"] is not None:
        console.aside("Read as", found["read_as"])
    if found["note"]:
        console.prose(Text(f"Note: {found['note']}", style="yellow"))
    if rerank is not None:
        took = f", in {rerank['seconds']:.1f} s" if rerank["seconds"] else ""
        console.aside("Rerank", f"{rerank['reason']}{took}")
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
        at = items.index(searched[0]) if searched else 0
        _show_all(console, "Named by a far better document", items[:at])
        _show_all(console, "Tools", [one for one in searched if one["type"] == "tool"])
        _show_all(console, "Rules and references", [one for one in searched if one["type"] != "tool"])
        _show_all(console, "Come with these", [one for one in items[at:] if one["brought"]])
        _show_all(console, "No tool fits well; closest", nearest)
    elif nearest:
        console.say(f"Nothing fits {asked} well. Closest of {found['known']} (probably not what you need):")
        _show_all(console, "", nearest)
    elif not (found["filter_note"] or found["over_budget"]):
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
    console.aside("why", str(data["why"]), INDENT)


def parts_of(score: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return the amounts of which a score is the sum, but for those that are nothing."""
    parts = [
        ("similarity", score["cosine"] or 0.0),
        ("words", sum(amount for *_, amount in words_of(score))),
        ("action", score["action"]),
        ("server", score["instructions"]),
        ("part of the query", score["need"]),
        ("learned", score["learned"]),
        ("new", score["novelty"]),
    ]
    return [(label, amount) for label, amount in parts if amount]


def words_of(score: Mapping[str, Any]) -> list[tuple[str, str, float]]:
    """Return the fields and words of a score, each with the amount that it adds."""
    from mcp_context_proxy.retrieval.scoring import LEXICAL_FACTOR

    # Without vectors, words are all there is.
    factor = float(LEXICAL_FACTOR) if score["cosine"] is not None else 1.0
    return [(one["field"], one["term"], factor * one["added"]) for one in score["terms"]]


def _explain(console: Terminal, one: Mapping[str, Any]) -> None:
    console.prose(", ".join(f"{label} {amount:.3f}" for label, amount in parts_of(one)), INDENT)
    if one.get("calls"):
        mean, slow = duration(one["avg_latency_ms"]), duration(one["p95_latency_ms"])
        failed = f"{one['success_rate']:.0%} succeeded".replace("%", " %")
        console.prose(f"{counted(one['calls'], 'call')}, {failed}, {mean} on average, p95 {slow}", INDENT)
    rows = [(f"{amount:.3f}", field, term) for field, term, amount in words_of(one)]
    console.columns(rows, indent=INDENT + 2, right=(0,))
    labels = {"serves": "serves", "matched": "query", "used_before_for": "used before for", "chunk": "text"}
    for key, label in labels.items():
        if text := one[key]:
            console.aside(label, text, INDENT)


MOST: Final = 1000
"""Limit of the number of results; a person reads tens."""

LEAST_IN_BRIEF: Final = 20
"""Characters of an interaction beside another one in a narrow terminal."""

RECALLED_INDENT: Final = 6
"""Spaces before the text of an interaction, under its score."""


@group("interactions", default="stats")
def interactions_command() -> None:
    """Manage the remembered searches, calls and messages of agents.

    Without a subcommand, shows stats. A running proxy with the same store notices a change at once.
    """


@interactions_command.command("stats")
@configured
@json_option
def stats(config: Config, as_json: bool) -> None:
    """Count the interactions by agent and type."""
    from mcp_context_proxy.store.memory import InteractionScope

    with open_configured_store(config) as store:
        total, kinds = store.interactions.count(InteractionScope()), store.interactions.kinds()
    names = ("agent_name", "interaction_type", "count", "latest")
    found = [dict(zip(names, kind, strict=True)) for kind in kinds]
    data = {"enabled": config.interactions.enabled, "interactions": total, "kinds": found}
    print_answer(as_json, data, _show_kinds)


def _show_kinds(console: Terminal, data: Mapping[str, Any]) -> None:
    console.say(f"{counted(data['interactions'], 'interaction')}.")
    _note_if_off(console, data["enabled"])
    if data["kinds"]:
        console.say()
        rows = [("count", "type", "latest", "agent")]
        for one in data["kinds"]:
            agent, latest = one_line(one["agent_name"]), moment(one["latest"])
            rows.append((f"{one['count']:,}", one["interaction_type"], latest, agent))
        console.columns(rows, right=(0,))


@interactions_command.command("forget")
@configured
@click.option("--agent", help="Forget those of this agent.")
@click.option("--type", "kind", help="Forget those of this type: search, call, message, ...")
@click.option("--older-than", "days", metavar="DAYS", type=Number(0), help="Forget those older than this.")
@click.option("--id", "interaction", type=WholeNumber(1), help="Forget this single interaction.")
@click.option("--all", "everything", is_flag=True, help="Forget all interactions.")
def forget(
    config: Config,
    agent: str | None,
    kind: str | None,
    days: float | None,
    interaction: int | None,
    everything: bool,
) -> None:
    """Forget one interaction, or all that meet the options, for good."""
    from mcp_context_proxy.interactions import scope_of

    narrowed = any(each is not None for each in (agent, kind, days))
    if sum((narrowed, interaction is not None, everything)) != 1:
        raise click.UsageError("give --id alone, or --all alone, or any of --agent, --type and --older-than")
    with open_configured_store(config) as store:
        if interaction is not None:
            gone = int(store.interactions.forget_one(interaction))
        else:
            before = None if days is None else time.time() - days * 86_400
            gone = store.interactions.forget(scope_of(agent, kind, before))
    results().say(f"Forgot {counted(gone, 'interaction')}.")


@interactions_command.command("export")
@configured
@click.argument("file", type=click.Path(dir_okay=False, writable=True, allow_dash=True, path_type=Path))
@click.option("--agent", help="Only interactions of this agent.")
@click.option("--type", "kind", help="Only interactions of this type: search, call, message, ...")
def export_command(config: Config, file: Path, agent: str | None, kind: str | None) -> None:
    """Write the interactions to FILE, a line of JSON each; - is the standard output."""
    from mcp_context_proxy.interactions import scope_of
    from mcp_context_proxy.interactions.transfer import export_file, export_lines

    with open_configured_store(config) as store:
        scope = scope_of(agent, kind)
        if str(file) == "-":
            sys.stdout.buffer.writelines(export_lines(store.interactions, scope))
            return
        count = export_file(store.interactions, scope, file)
    results().say(f"Wrote {counted(count, 'interaction')} to {file}.")


@interactions_command.command("import")
@configured
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--table", default="messages", show_default=True, help="Table of a SQLite file.")
@click.option(
    "--agent-column",
    default="agent_name",
    show_default=True,
    help="Column with the agent.",
)
@click.option("--type-column", default="role", show_default=True, help="Column that becomes the type.")
@click.option("--content-column", default="content", show_default=True, help="Column with the text.")
@click.option("--time-column", default="timestamp", show_default=True, help="Column with the time.")
@json_option
def import_command(
    config: Config,
    file: Path,
    table: str,
    agent_column: str,
    type_column: str,
    content_column: str,
    time_column: str,
    as_json: bool,
) -> None:
    """Import interactions from FILE: lines of JSON, such as export writes, or a table of a SQLite file.

    The options name the columns of the table, or the fields of the lines. Only the text is needed in a line.

    Interactions that are there already are not imported again: after an interruption, the next run continues.
    """
    from mcp_context_proxy.interactions.transfer import MessageTable, import_file

    columns = MessageTable(table, agent_column, type_column, content_column, time_column)
    with _opened_memory(config) as memory, terminal.indexing("Importing") as report:
        done = import_file(memory, file, columns, report)
    if as_json:
        echo_json(to_builtins(done))
        return
    console = results()
    console.say(f"Imported {counted(done.kept, 'interaction')} of {done.read:,}.")
    if done.known:
        console.say(f"{counted(done.known, 'interaction')} there already.")
    if done.no_room:
        console.note(
            f"{counted(done.no_room, 'interaction')} left out, the oldest: no more than "
            f"{config.interactions.keep:,} are kept; raise keep under [interactions] to import them."
        )
    if done.unusable:
        console.note(f"{counted(done.unusable, 'row')} left out: {'; '.join(done.reasons)}")
    if done.kept:
        console.say("They have no embeddings yet: mcp-context-proxy backfill makes them.")


@contextmanager
def _opened_memory(config: Config, *, tries_again: bool = False) -> Iterator[InteractionMemory]:
    """Open the memory of a configuration; its model may be tried again at once after a failure."""
    from mcp_context_proxy.config.secrets import Redactor, all_secrets_of
    from mcp_context_proxy.embedding.embeddings import RETRY_SECONDS, LazyModel, open_model
    from mcp_context_proxy.interactions import InteractionMemory

    model = LazyModel(partial(open_model, config), retry_seconds=0 if tries_again else RETRY_SECONDS)
    with open_configured_store(config) as store, closing(model):
        yield InteractionMemory(model, store.interactions, config, redact=Redactor(all_secrets_of(config)))


def _note_if_off(console: Terminal, enabled: bool) -> None:
    if not enabled:
        console.note("Interactions are not recorded: set enabled = true under [interactions] to record them.")


@click.command("recall")
@configured
@query_argument
@click.option("--agent", help="Only interactions of this agent.  [default: all agents]")
@click.option("--type", "kind", help="Only interactions of this type: search, call, message, ...")
@click.option("--top-k", type=WholeNumber(1, MOST), help="Results.  [default: interactions.top_k, 10]")
@click.option(
    "--decay",
    type=Number(most=1, above=0),
    help="Factor of a score for each day of age.  [default: interactions.time_decay_factor, 0.95]",
)
@click.option(
    "--compare", type=click.Choice(["recent"]), help="Show what was found beside the latest interactions."
)
@json_option
def recall_command(
    config: Config,
    query: str,
    agent: str | None,
    kind: str | None,
    top_k: int | None,
    decay: float | None,
    compare: str | None,
    as_json: bool,
) -> None:
    """Find the searches, calls and messages of agents that QUERY means."""
    from mcp_context_proxy.server.rendering import recall_data

    with _opened_memory(config) as memory:
        found = memory.semantic_search_interactions(query, agent, top_k, decay, kind)
        latest = memory.recent(agent, top_k, kind) if compare else None
        kinds = [] if found.known else memory.kinds()
    if as_json:
        beside = {} if latest is None else {"recent": recall_data(latest)["results"]}
        echo_json({"query": query, **recall_data(found), **beside})
        return
    console = results()
    _note_if_off(console, config.interactions.enabled)
    if latest is not None:
        _compare(console, found, latest)
        return
    if found.note is not None:
        console.note(f"Note: {found.note}")
    if not found.results:
        console.say(f'Nothing fits "{one_line(query)}" among {counted(found.known, "interaction")}.')
    if kinds:
        # There are some, and none of the agent and type that were asked for.
        agents, types = ({one_line(str(row[at])): None for row in kinds} for at in (0, 1))
        known = f"agents {some_of([*agents])}, and types {some_of([*types])}"
        console.prose(f"None is of that agent and type; there are {known}.")
    for one in found.results:
        interaction = one.interaction
        score = "-" if one.score is None else f"{one.score:.2f}"
        facts = f"{interaction.interaction_type} of {interaction.agent_name}, {moment(interaction.time)}"
        facts += f", {one.times:,} times" if one.times > 1 else ""
        number = Text(f"  #{interaction.id}", style="dim")
        console.say(Text(f"{score:>4}", style="bold"), f"  {one_line(facts)}", number)
        console.prose(one_line(interaction.content), indent=RECALLED_INDENT)


def _compare(console: Terminal, found: Recall, latest: Recall) -> None:
    from mcp_context_proxy.context.engine import age

    places = {one.interaction.id: place for place, one in enumerate(latest.results, 1)}
    common = sum(one.interaction.id in places for one in found.results)
    pairs = list(zip_longest(found.results, latest.results))
    width, now = len(str(len(pairs))), time.time()
    room = max(LEAST_IN_BRIEF, (console.width - width - 2 * GAP) // 2)

    def brief(one: Recollection | None) -> str:
        if one is None:
            return ""
        said = one.interaction
        return one_line(f"#{said.id}, {age(said.time, now)}: {said.content}", room - len(" …"))

    rows = [("", "found by the query", "the latest")]
    rows += [(str(place), brief(one), brief(other)) for place, (one, other) in enumerate(pairs, 1)]
    console.columns(rows, right=(0,), useful=LEAST_IN_BRIEF)
    console.say(f"{common} of {len(found.results)} found are among the latest {len(latest.results)}.")


@click.command("backfill")
@configured
@click.option(
    "--batch-size",
    type=WholeNumber(1, 1000),
    default=50,
    show_default=True,
    help="Interactions per request.",
)
@json_option
def backfill_command(config: Config, batch_size: int, as_json: bool) -> None:
    """Embed the interactions that have no embedding of the current model.

    Each batch is stored at once: after an interruption, the next run continues.
    """
    from mcp_context_proxy.interactions import backfill

    # Nobody waits here, and the failure of one batch is not that of all.
    with _opened_memory(config, tries_again=True) as memory, terminal.indexing("Embedding") as report:
        done = backfill(memory, batch_size, report)
    if as_json:
        echo_json(to_builtins(done))
    else:
        console = results()
        console.say(f"Embedded {counted(done.embedded, 'interaction')}.")
        if done.failed:
            console.note(f"{counted(done.failed, 'error')}; the last one: {done.error}")
        if done.left:
            console.note(
                f"{counted(done.left, 'interaction')} not tried, because the model failed each time."
            )
    if done.failed or done.left:
        raise click.exceptions.Exit(1)
