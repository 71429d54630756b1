"""``servers``, ``tools``, ``index``, ``session``, ``cluster``: servers, their tools, sessions, and replicas.

``session`` asks the proxies that run; a model may change nothing that a person has chosen by it. ``index``
starts the servers, and so do the first two where no proxy runs. Servers are shown without their secrets.
``cluster`` reads the database that replicas share.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import click
from rich.text import Text

from mcp_context_proxy.cli import (
    CommandGroup,
    WholeNumber,
    configured,
    group,
    json_option,
    open_configured_store,
    run,
    terminal,
)
from mcp_context_proxy.cli.running import AnswerSource, RunningProxy, asking, kind_option, of_running
from mcp_context_proxy.cli.terminal import (
    Terminal,
    counted,
    duration,
    headings,
    marked,
    moment,
    print_answer,
    results,
)
from mcp_context_proxy.config.settings import PRESETS
from mcp_context_proxy.items import IncludeMode, ToolClass
from mcp_context_proxy.protocol.strangers import one_line

if TYPE_CHECKING:
    from mcp_context_proxy.cluster import ContextTable, ReplicaTable
    from mcp_context_proxy.config import Config


STYLES: Final = {
    "ready": "green",
    "asleep": "cyan",
    "failed": "bold red",
    "off": "bold red",
    "disabled": "dim",
}

ADDRESS_CELLS: Final = 40
"""With fewer, a cut command line or URL does not show which server it is."""

HEADINGS: Final = (
    *("Server", "State", "Era", "Protocol", "Tools", "Resources", "Prompts", "Start", "Command or URL"),
)


@click.command("servers")
@asking
@json_option
def servers_command(source: AnswerSource, as_json: bool) -> None:
    """Show the configured servers and their state; where no proxy runs, they are started once."""
    proxy = source.running
    found = run(_collect_servers, source.config) if proxy is None else proxy.get("/servers")["servers"]
    print_answer(as_json, {"servers": found}, _show_servers)


async def _collect_servers(config: Config) -> list[dict[str, Any]]:
    from mcp_context_proxy.app.serve import open_proxy
    from mcp_context_proxy.web.inventory import all_servers

    async with open_proxy(config) as proxy:
        seconds = await terminal.settle(proxy)
        found = all_servers(proxy)
        for facts in found:
            if facts["name"] in seconds:
                facts["start_ms"] = round(seconds[facts["name"]] * 1000)
        return found


def _show_servers(console: Terminal, found: dict[str, list[dict[str, Any]]]) -> None:
    servers = found["servers"]
    if not servers:
        console.say("No server is configured.")
        return
    rows = [headings(*HEADINGS)]
    for facts in servers:
        counts = [facts.get(key) for key in ("tools", "resources", "prompts")]
        if counts[0] is not None:
            counts[0] -= facts["turned_off"] + facts.get("withheld", 0)  # an older proxy does not say
        numbers = ["-" if count is None else f"{count:,}" for count in counts]
        plain = [facts.get("era", "-"), facts.get("protocol", "-"), *numbers, duration(facts.get("start_ms"))]
        name = Text(facts["name"], style="cyan")
        state = Text(facts["state"], style=STYLES.get(facts["state"], "yellow"))
        rows.append([name, state, *map(Text, plain), Text(facts["address"], style="dim")])
    console.columns(rows, right=(4, 5, 6, 7), useful=ADDRESS_CELLS)
    for facts in servers:
        if "cause" in facts:
            console.say()
            console.prose(Text(f"{facts['name']}: {facts['cause']}", style="red"), hanging=2)
            for line in (*facts.get("stderr", ()), *marked(facts.get("stdout", ()))):
                console.say(Text(f"| {line}", style="dim"), indent=2)
        if findings := facts.get("findings"):
            console.say()
            remarks = f"{counted(len(findings), 'remark')} on its definitions: see mcp-context-proxy check"
            console.prose(Text(f"{facts['name']}: {remarks}", style="yellow"), hanging=2)


CLASS_STYLES: Final = {ToolClass.READ: "dim", ToolClass.WRITE: "", ToolClass.DESTRUCTIVE: "red"}
"""Colours of the danger classes."""


@click.command("tools")
@asking
@json_option
@click.option(
    "--related", metavar="NAME", help="List only the items that are similar to this tool, rule or reference."
)
def tools_command(source: AnswerSource, as_json: bool, related: str | None) -> None:
    """List all tools behind the proxy, under the names that hosts see. Token counts are estimates."""
    if related is None:
        print_answer(as_json, source.proxy(indexed=False).get("/tools"), _show_tools)
    else:
        found = source.proxy().get(f"/tools/{quote(related, safe='')}/related")
        print_answer(as_json, found, _show_related)


def _show_related(console: Terminal, data: dict[str, Any]) -> None:
    if not data["related"]:
        console.say(f"Nothing is similar to {data['name']}.")
    rows = [(f"{one['cosine']:.2f}", one["type"], Text(one["name"], style="cyan")) for one in data["related"]]
    console.columns(rows, indent=2, right=(0,))


def _show_tools(console: Terminal, data: dict[str, Any]) -> None:
    for server, of_server in groupby(data["tools"], key=lambda tool: tool["server"]):
        tools = list(of_server)
        facts = f"  {counted(len(tools), 'tool')}, {sum(tool['tokens'] for tool in tools):,} tokens"
        console.say(Text(server, style="bold"), Text(facts, style="dim"))
        # Most are selected by requests, and a line of a terminal has no room to say so of each.
        chosen_by_hand = any(tool["include"] != IncludeMode.AGENT for tool in tools)
        titles = ["Name", "Class", "Tokens", *(["Include"] if chosen_by_hand else []), "Description"]
        rows: list[Sequence[Text | str]] = [headings(*titles)]
        rows += (
            (
                Text(tool["name"], style="cyan"),
                Text(tool["danger"], style=CLASS_STYLES[tool["danger"]]),
                str(tool["tokens"]),
                *([tool["include"]] if chosen_by_hand else []),
                Text(one_line(tool["description"]), style="dim"),
            )
            for tool in tools
        )
        console.columns(rows, indent=2, right=(2,))
        console.say()
    if chosen := [tool for tool in data["tools"] if tool["working_set"] is not None]:
        console.say(Text("Working set", style="bold"), Text("  in the default list", style="dim"))
        console.columns(
            [(Text(tool["name"], style="cyan"), Text(tool["working_set"], style="dim")) for tool in chosen],
            indent=2,
        )
        console.say()
    total, default = data["total"], data["default_list"]
    if not total["tools"]:
        console.say("There are no tools: 'mcp-context-proxy check' says why.")
        return
    sizes = [
        ("Full list", counted(total["tools"], "tool"), f"{total['tokens']:,} tokens"),
        ("Default list", counted(default["tools"], "tool"), f"{default['tokens']:,} tokens"),
    ]
    console.columns(sizes, right=(1, 2))
    if off := len(data["turned_off"]):
        verb = "is" if off == 1 else "are"
        console.prose(
            f"{counted(off, 'tool')} {verb} turned off: mcp-context-proxy check shows by which line."
        )
    if default["whole"]:
        console.prose("All tools are listed, because the catalog is small or [expose] mode is all.")
    console.note("Token counts are estimates (WordPiece tokenizer).", style="dim")


@click.command("index")
@configured
@click.option("--rebuild", is_flag=True, help="Forget all vectors in the store first.")
@json_option
def index_command(config: Config, rebuild: bool, as_json: bool) -> None:
    """Index all tools, rules and references, so that the first search does not have to wait."""
    report = run(_index, config, rebuild)
    print_answer(as_json, report, _show_index)
    if report["model_error"] is not None or report["failed"]:
        raise click.exceptions.Exit(1)


async def _index(config: Config, rebuild: bool) -> dict[str, Any]:
    import anyio.to_thread

    from mcp_context_proxy.app.serve import open_proxy

    async with open_proxy(config) as proxy:
        await terminal.settle(proxy)
        began = time.perf_counter()
        if rebuild:
            await anyio.to_thread.run_sync(proxy.store.vectors.clear)
        await terminal.index(proxy)
        snapshot, error = proxy.catalog.snapshot, proxy.search.model.error
        return {
            "tools": len(snapshot.tools),
            "documents": len(snapshot.documents),
            "seconds": time.perf_counter() - began,
            "store": proxy.store.place,
            "model_error": None if error is None else str(error),
            "failed": proxy.fleet.failures(),
        }


def _show_index(console: Terminal, report: dict[str, Any]) -> None:
    for name, cause in report["failed"].items():
        console.note(f"Server {name} has failed and was not indexed: {cause}")
    if report["model_error"] is not None:
        console.note(f"There are no vectors, so search uses words alone: {report['model_error']}")
    items = f"{counted(report['tools'], 'tool')} and {counted(report['documents'], 'document')}"
    console.say(f"Indexed {items} in {report['seconds']:.1f} s.")
    if report["model_error"] is None:
        kept = f"Kept in {report['store']}" if report["store"] else "Nothing is kept: there is no store."
        console.note(kept, style="dim")


DOMAINS: Final = ("tools", "documents")
"""Parts of a selection with options of their own."""


class ChosenSession:
    """A session that a command is about, and the proxy that has it."""

    def __init__(self, proxy: RunningProxy, facts: Mapping[str, Any]) -> None:
        self.proxy, self.facts = proxy, facts

    @property
    def id(self) -> str:
        return str(self.facts["id"])

    @property
    def path(self) -> str:
        return f"/sessions/{quote(self.id, safe='')}/context"


def all_sessions(source: AnswerSource) -> list[ChosenSession]:
    """Return the sessions of all proxies that run, each with the name of its host, oldest first."""
    source.expect_running()
    found = []
    for proxy in source.every():
        hosts = {one["session"]: one for one in proxy.get("/status")["hosts"]}
        for one in proxy.get("/sessions")["sessions"]:
            host = hosts.get(one["id"], {})
            found.append(
                ChosenSession(proxy, {**one, "host": host.get("name"), "folder": host.get("folder")})
            )
    return found


def chosen_session(source: AnswerSource, wanted: str | None) -> ChosenSession:
    """Return the session with an id that begins so; without one, the only session.

    Raises `click.UsageError` if there is no such session, or it cannot be told which is meant.
    """
    found = all_sessions(source)
    fitting = [one for one in found if one.id.startswith(wanted or "")]
    if len(fitting) == 1:
        return fitting[0]
    if not found:
        raise click.UsageError(
            "no session is open: older clients open one as they connect, newer ones as they call set_context"
        )
    known = ", ".join(f"{one.id} ({_host(one.facts)})" for one in fitting or found)
    if wanted is None:
        raise click.UsageError(f"there are {len(found)} sessions; choose one with --session: {known}")
    which = "several sessions begin so" if fitting else f"there is no session {wanted!r}"
    raise click.UsageError(f"{which}; there are: {known}")


def _of_one(command: Callable[..., None]) -> Callable[..., None]:
    @of_running
    @click.option("--session", "wanted", metavar="ID", help="The session, by the beginning of its id.")
    @json_option
    @functools.wraps(command)
    def find_and_run(source: AnswerSource, wanted: str | None, **options: Any) -> None:
        session = chosen_session(source, wanted)
        if session.id in options.get("names", ()):
            raise click.UsageError(f"{session.id} is no item: write --session {session.id}")
        command(session, **options)

    return find_and_run


def _named(command: Callable[..., None]) -> Callable[..., None]:
    for add in (
        click.argument("names", metavar="NAME...", nargs=-1, required=True),
        kind_option,
        click.option("--server", help="Server of a tool, if several have one of that name."),
    ):
        command = add(command)
    return command


@click.group("session", cls=CommandGroup)
def session_command() -> None:
    """Choose what a session has in its context, and save that as a preset for later sessions.

    What you add or remove here, no model can change.
    """


@session_command.command("list")
@of_running
@json_option
def list_sessions(source: AnswerSource, as_json: bool) -> None:
    """List the sessions that are open, with the items that each has in every context."""
    found = [dict(one.facts) for one in all_sessions(source)]
    print_answer(as_json, {"sessions": found}, _show_sessions)


def _show_sessions(console: Terminal, data: Mapping[str, Any]) -> None:
    if not data["sessions"]:
        console.say("No session is open.")
    for one in data["sessions"]:
        _show(console, one)


@session_command.command("add")
@_of_one
@_named
def add_items(session: ChosenSession, **named: Any) -> None:
    """Add items to every context of a session, whatever their include mode."""
    _change(session, "add", **named)


@session_command.command("remove")
@_of_one
@_named
def remove_items(session: ChosenSession, **named: Any) -> None:
    """Remove items from all contexts of a session: no query finds them until they are added again."""
    _change(session, "remove", **named)


@session_command.command("options")
@_of_one
@click.option("--preset", type=click.Choice(list(PRESETS)), help="How much is selected.")
@click.option("--max-tokens", type=WholeNumber(1), help="Budget of each context.")
@click.option("--history", type=WholeNumber(0, 100), help="Earlier queries that count.")
@click.option("--expansion-depth", type=WholeNumber(0, 5), help="Steps from selected items to similar ones.")
def set_options(session: ChosenSession, as_json: bool, **given: Any) -> None:
    """Change how much is selected in a session, beside what was changed before.

    Without an option, everything is as configured again.
    """
    changed = _set(given)
    options = {**_set(session.facts["options"]), **changed} if changed else {}
    if (preset := options.pop("preset", None)) is not None:
        options |= {domain: {**options.get(domain, {}), "preset": preset} for domain in DOMAINS}
    _patch(session, {"options": options}, as_json)


def _set(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are set, in either domain as well."""
    found = {name: _set(own) if isinstance(own, dict) else own for name, own in options.items()}
    return {name: own for name, own in found.items() if own not in (None, {})}


@session_command.command("save")
@_of_one
@click.argument("name")
def save_session(session: ChosenSession, name: str, as_json: bool) -> None:
    """Save what you have chosen in a session as the preset NAME.

    Other sessions begin with it by `serve --preset NAME`, or by `presets` in a table [clients.PROFILE].
    """
    saved = session.proxy.post("/presets", {"name": name, "session": session.id})["presets"]
    preset = next(one for one in saved if one["name"] == name)
    print_answer(
        as_json, preset, lambda console, saved: console.say(f"Saved as preset {name}: {_summary(saved)}.")
    )


@session_command.command("presets")
@of_running
@click.option("--forget", metavar="NAME", help="Forget this one.")
@json_option
def list_presets(source: AnswerSource, forget: str | None, as_json: bool) -> None:
    """List the saved presets, or forget one."""
    proxy = source.expect_running()
    saved = proxy.get("/presets") if forget is None else proxy.delete(f"/presets/{quote(forget, safe='')}")
    print_answer(as_json, saved, _show_presets)


def _show_presets(console: Terminal, data: Mapping[str, Any]) -> None:
    if not data["presets"]:
        console.say("No preset is saved.")
    console.columns([(Text(one["name"], style="cyan"), _summary(one)) for one in data["presets"]])


def _change(
    session: ChosenSession, how: str, names: Sequence[str], kind: str, server: str | None, as_json: bool
) -> None:
    items = [{"type": kind, "name": name, "server": server} for name in names]
    _patch(session, {how: items}, as_json)


def _patch(session: ChosenSession, change: Mapping[str, Any], as_json: bool) -> None:
    print_answer(as_json, {**session.facts, **session.proxy.patch(session.path, change)}, _show)


def _host(facts: Mapping[str, Any]) -> str:
    unnamed = "a handle" if facts["kind"] == "handle" else "an unnamed host"
    return one_line(facts["host"] or facts.get("client") or unnamed)


def _show(console: Terminal, facts: Mapping[str, Any]) -> None:
    told = [_host(facts), f"since {moment(facts['created'])}"]
    told += [f"profile {facts['profile']}"] if facts["profile"] else []
    told += [one_line(facts["folder"])] if facts["folder"] else []
    told += [f"begun with {', '.join(map(one_line, facts['presets']))}"] if facts["presets"] else []
    console.say(Text(facts["id"], style="bold cyan"), Text(f"  {', '.join(told)}"))
    if facts["query"]:
        console.short(Text(f"asked last: {one_line(facts['query'])}", style="dim"), indent=2)
    decided = {(one["type"], one["name"]) for one in facts["by_person"]}
    rows: list[tuple[Text | str, ...]] = [
        (
            Text(one["name"], style="cyan"),
            one["type"],
            one["why"] + _by(one, decided),
            f"{one['tokens']:,} tokens",
        )
        for one in facts["items"]
    ]
    rows += [
        (Text(one["name"], style="cyan"), one["type"], "removed" + _by(one, decided), "")
        for one in facts["removed"]
    ]
    console.columns(rows or [("nothing but what each query selects", "", "", "")], indent=2, right=(3,))
    for title, of in (("Options of presets", "preset_options"), ("Options", "options")):
        changed = _set(facts[of])
        said = [f"{name} {value}" for name, value in changed.items() if not isinstance(value, dict)]
        for domain in DOMAINS:
            said += [f"{domain} {name} {value}" for name, value in changed.get(domain, {}).items()]
        if said:
            console.aside(title, ", ".join(said), indent=2)
    most = facts["options"].get("max_tokens") or facts["preset_options"].get("max_tokens")
    if most is not None and (tokens := sum(one["tokens"] for one in facts["items"])) >= most:
        short = f"its items have {tokens:,} tokens, so {most:,} leave no room for what queries find"
        console.prose(Text(short, style="yellow"), indent=2)


def _by(item: Mapping[str, Any], decided: set[tuple[str, str]]) -> str:
    """Return who has added or removed an item, where somebody has."""
    if (item["type"], item["name"]) in decided:
        return ", by you"
    return ", by the model" if item.get("include_mode", "manual") == "manual" else ""


def _summary(preset: Mapping[str, Any]) -> str:
    changed = [value for value in preset["options"].values() if value not in (None, {})]
    domains = [one for one in changed if isinstance(one, dict)]
    options = (
        len(changed) - len(domains) + sum(value is not None for one in domains for value in one.values())
    )
    told = [f"{counted(len(preset['added']), 'item')} added", f"{len(preset['removed'])} removed"]
    return ", ".join([*told, *([counted(options, "option")] if options else [])])


@group("cluster", default="status")
def cluster_command() -> None:
    """Look after the replicas that share a database.

    Without a subcommand, shows them.
    """


@cluster_command.command("status")
@configured
@json_option
def cluster_status(config: Config, as_json: bool) -> None:
    """Show the replicas, when each gave its last sign of life, and the sessions that it is the home of."""
    with _cluster_tables(config) as (replicas, contexts):
        now, rows, homes = replicas.now(), replicas.all(), contexts.by_home()
    found = [
        {
            "replica": row.replica,
            "address": row.address,
            "version": row.version,
            "seconds_ago": round(now - row.seen, 1),
            "draining": bool(row.draining),
            "same_key": row.key_mark == rows[0].key_mark,
            "sessions": homes.get((row.replica, "session"), 0),
        }
        for row in rows
    ]
    handles = sum(number for (_, kind), number in homes.items() if kind == "handle")
    print_answer(as_json, {"replicas": found, "contexts": handles}, _show_replicas)


def _show_replicas(console: Terminal, data: Mapping[str, Any]) -> None:
    if not data["replicas"]:
        console.say("No replica uses this database.")
        return
    lines = [["replica", "address", "version", "seen", "sessions", ""]]
    for each in data["replicas"]:
        notes = ["draining"] * each["draining"] + ["another key"] * (not each["same_key"])
        facts = [str(each[key]) for key in ("replica", "address", "version")]
        lines.append([*facts, f"{each['seconds_ago']} s ago", str(each["sessions"]), ", ".join(notes)])
    console.columns(lines, right=(4,))
    console.say(f"Contexts that clients carry (context_id): {data['contexts']:,}.")


@cluster_command.command("drain")
@configured
@click.argument("replica")
def drain(config: Config, replica: str) -> None:
    """Have balancers send new clients elsewhere: the REPLICA says that it is not ready, and serves on.

    Sessions move to the other replicas once nothing of them is under way.

    It takes new clients again when it is started again.
    """
    with _cluster_tables(config) as (replicas, _):
        if not replicas.drain(replica, wanted=True):
            raise click.ClickException(f"there is no replica {replica}; see mcp-context-proxy cluster status")
    results().say(f"{replica} is not ready from its next sign of life on.")


@contextmanager
def _cluster_tables(config: Config) -> Iterator[tuple[ReplicaTable, ContextTable]]:
    from mcp_context_proxy.cluster import tables_of

    if config.store.url is None:
        raise click.ClickException("replicas share a database; there is no store.url in the configuration")
    with open_configured_store(config) as store:
        replicas, contexts, _ = tables_of(store.database)
        yield replicas, contexts
