"""Commands on the proxy that runs: its state, its logs, calls, and orders to it.

They ask the proxy over its socket by the operations of the REST API, as the pages do. Other commands
ask it, too, where one runs for the configuration (`asking`); with ``--fresh`` they start the servers.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlencode

import click
from rich.text import Text

from mcp_context_proxy import __version__
from mcp_context_proxy.bridge import BASE, OWN, AskError, ask, running
from mcp_context_proxy.bridge.meeting import process_of
from mcp_context_proxy.cli import (
    WholeNumber,
    config_option,
    configuration_path,
    echo_json,
    json_option,
    load_config,
    named_path,
    open_configured_store,
    run,
    shown,
    unknown_server,
)
from mcp_context_proxy.cli.terminal import (
    Terminal,
    counted,
    headings,
    messages,
    moment,
    open_started_proxy,
    print_answer,
    results,
    span,
)
from mcp_context_proxy.items import Kind
from mcp_context_proxy.system import APP

if TYPE_CHECKING:
    from mcp_context_proxy.config import Config

ANSWER_SECONDS: Final = 60.0
"""Time limit for most answers: a first search may have to open a model."""

CALL_SECONDS: Final = 3600.0
"""The same for a call of a tool, which its own timeout ends."""

STATE_SECONDS: Final = 5.0
"""The same for the state of a proxy, which takes milliseconds: one that needs longer hangs, or is stopped."""

FOLLOW_SECONDS: Final = 0.5
"""Time between two looks at a log."""

FOLLOWED: Final = 2_000
"""Most new lines of one look."""

NOT_FOUND: Final = 404
NOT_VALID: Final = 422

STATES: Final = {"ready": "green", "asleep": "cyan", "failed": "bold red", "off": "dim"}
"""Colours of states."""


class AskedProxy(ABC):
    """A proxy whose REST API a command asks."""

    def get(self, path: str, query: Mapping[str, Any] | None = None) -> Any:
        """Return the answer to a GET; parameters that are None are left out."""
        given = {name: _text(value) for name, value in (query or {}).items() if value not in (None, (), [])}
        return self._answer("GET", f"{path}?{urlencode(given)}" if given else path)

    def post(self, path: str, body: Any = None, seconds: float = ANSWER_SECONDS) -> Any:
        return self._answer("POST", path, body, seconds)

    def patch(self, path: str, body: Any) -> Any:
        return self._answer("PATCH", path, body)

    def delete(self, path: str) -> Any:
        return self._answer("DELETE", path)

    def _answer(self, method: str, target: str, body: Any = None, seconds: float = ANSWER_SECONDS) -> Any:
        try:
            return self._ask(method, target, body, seconds)
        except AskError as error:
            # Sentences of the API end with a full stop, those of commands do not.
            text = str(error).removesuffix(".")
            if text.lower().startswith("unknown tool ") and "; did you mean " not in text:
                text += f"; '{APP} tools' lists them"
            if error.status is None:
                text += f"; '{APP} status' shows whether it hangs"
            if error.status in (NOT_FOUND, NOT_VALID):
                raise click.UsageError(text) from None
            raise click.ClickException(text) from None

    @abstractmethod
    def _ask(self, method: str, target: str, body: Any, seconds: float) -> Any:
        """Return the decoded answer; raises `AskError` if there is none, or a refusal."""


class OwnProxy(AskedProxy):
    """A proxy that a command starts for one question."""

    def __init__(self, config: Config, indexed: bool) -> None:
        self._config, self._indexed = config, indexed

    def _ask(self, method: str, target: str, body: Any, seconds: float) -> Any:
        return run(self.answered, method, target, body, seconds)

    async def answered(self, method: str, target: str, body: Any, seconds: float) -> Any:
        """Start the proxy, and return its decoded answer; raises `AskError` if that is a refusal."""
        import httpx2

        from mcp_context_proxy.app.serve import local_api

        async with open_started_proxy(self._config, indexed=self._indexed) as proxy:
            if proxy.contexts.recollector is not None:
                proxy.contexts.recollector.seconds = seconds  # its first search reads the whole memory
            api = httpx2.ASGITransport(local_api(proxy).app)
            async with httpx2.AsyncClient(transport=api, base_url=f"http://localhost{BASE}") as client:
                response = await client.request(method, target, json=body, timeout=seconds)
        answer = response.json()
        if response.is_error:
            raise AskError(answer["detail"], response.status_code)
        return answer


class RunningProxy(AskedProxy):
    """A proxy that runs for a configuration."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    def _ask(self, method: str, target: str, body: Any, seconds: float) -> Any:
        return ask(self._socket, method, target, body, seconds=seconds)

    def status(self) -> Any:
        """Return its state; None if it hangs."""
        try:
            return ask(self._socket, "GET", "/status", seconds=STATE_SECONDS)
        except AskError as error:
            if error.status is not None:
                raise click.ClickException(str(error).removesuffix(".")) from None
            return None

    @property
    def process(self) -> int | None:
        """Its process id, also if it hangs; None if that is not known, or the process is another one."""
        process = process_of(self._socket)
        if process is None or sys.platform == "win32":
            return None
        try:
            if sys.platform == "linux":
                words = Path(f"/proc/{process}/cmdline").read_bytes()
            else:
                words = subprocess.check_output(["ps", "-o", "command=", "-p", str(process)])
        except (OSError, subprocess.SubprocessError):
            return None
        return process if b"mcp_context_proxy" in words or APP.encode() in words else None

    def kill(self) -> int:
        """Kill a proxy that hangs, and return its process id; its servers end with it."""
        process = self.process
        if process is None or f"-{OWN}-" in self._socket:
            which = "a proxy" if process is None else f"process {process}, which serves one host or HTTP,"
            raise click.ClickException(f"{which} does not answer; end it by hand")
        os.kill(process, signal.SIGKILL)
        return process


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


class AnswerSource:
    """The source of the answer to a command: the proxy that runs, or one that the command starts."""

    def __init__(self, ctx: click.Context, config_path: Path | None, fresh: bool) -> None:
        self._ctx, self._config_path, self._fresh = ctx, config_path, fresh

    @cached_property
    def running(self) -> RunningProxy | None:
        """The proxy that runs; None if none does, or the command is to start its own."""
        found = [] if self._fresh else running(self.file, os.environ)
        if len(found) > 1:
            # They differ in what their hosts' environments give to servers.
            process = process_of(found[0])
            which = Path(found[0]).name if process is None else f"process {process}"
            text = f"{len(found)} proxies run for this configuration; {which} is asked"
            messages().say(Text(text, style="dim"))
        return RunningProxy(found[0]) if found else None

    def proxy(self, *, indexed: bool = True) -> AskedProxy:
        """Return the proxy that runs, or else one that is started to answer, `indexed` if need be."""
        return self.running or OwnProxy(self.config, indexed)

    def expect_running(self) -> RunningProxy:
        """Return the proxy that runs; fail if none does."""
        if self.running is None:
            raise click.ClickException(
                f"no proxy runs for {self.file}: a host starts it with its session, and it ends some minutes "
                "after the last one; 'mcp-context-proxy serve --http' starts one that stays"
            )
        return self.running

    def every(self) -> list[RunningProxy]:
        return list(map(RunningProxy, running(self.file, os.environ)))

    @property
    def named(self) -> Path | None:
        """Path of the configuration that the command line names; None if it names none."""
        return named_path(self._ctx, self._config_path)

    @cached_property
    def config(self) -> Config:
        return load_config(self._ctx, self._config_path)

    @property
    def file(self) -> Path:
        return configuration_path(self._ctx, self._config_path)


kind_option = click.option(
    "--type",
    "--kind",
    "kind",
    type=click.Choice([kind.value for kind in Kind]),
    default=Kind.TOOL.value,
    show_default=True,
    help="Type of the item; needed only where a tool has the same name.",
)


def of_running(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command, as its first argument, the `AnswerSource` of its answer, which is never a new proxy."""
    return config_option(_with_source(command))


def asking(command: Callable[..., None]) -> Callable[..., None]:
    fresh = click.option("--fresh", is_flag=True, help="Start the servers, also where a proxy runs already.")
    return config_option(fresh(_with_source(command)))


def _with_source(command: Callable[..., None]) -> Callable[..., None]:
    @click.pass_context
    @functools.wraps(command)
    def source_and_run(
        ctx: click.Context, /, config_path: Path | None, fresh: bool = False, **options: Any
    ) -> None:
        command(AnswerSource(ctx, config_path, fresh), **options)

    return source_and_run


@click.command("status")
@of_running
@json_option
def status_command(source: AnswerSource, as_json: bool) -> None:
    """Show the proxies that run for the configuration: their hosts, memory, and the state of each server."""
    every = [(proxy, proxy.status()) for proxy in source.every()]
    found = [status for _, status in every if status is not None]
    hanging = [proxy.process for proxy, status in every if status is None]
    if as_json:
        echo_json({"proxies": found, "hanging": hanging})
        return
    console = results()
    if not every:
        console.say(f"No proxy runs for {source.file}.")
    for process in hanging:
        which = "A proxy" if process is None else f"Process {process}"
        console.note(f"{which} does not answer; '{APP} stop' ends it.", style="bold red")
    for number, status in enumerate(found):
        if number:
            console.say()
        _show_status(console, status)


def _show_status(console: Terminal, status: Mapping[str, Any]) -> None:
    facts = [
        f"up {span(status['uptime'])}",
        counted(len(status["hosts"]), "host") if status["shared"] else None,
        _size(status["memory"]),
        f"version {status['version']}",
    ]
    console.say(Text(f"Process {status['pid']}", style="bold"), f"  {', '.join(filter(None, facts))}")
    if status["version"] != __version__:
        console.note(f"This is version {__version__}: the next host starts it, or stop this one.")
    # The causes of servers stand below, each beside its server.
    below = tuple(f"server {server['name']}: " for server in status["servers"] if server["cause"])
    for problem in status["problems"]:
        if problem.startswith(below):
            continue
        console.prose(Text(problem, style="yellow"), 2, hanging=2)
    if status["hosts"]:
        console.section("Hosts")
        console.columns(
            [
                (
                    Text(f"{host['name']} {host['version']}".strip() or "(no name yet)", style="cyan"),
                    f"since {moment(host['since'])}",
                    "" if host["pid"] is None else f"process {host['pid']}",
                    host["folder"] or "",
                )
                for host in status["hosts"]
            ],
            indent=2,
        )
    if status["servers"]:
        console.section("Servers")
        titles = ["Server", "State", "Tools", "Calls", "Failed", "Memory", "Process"]
        waits = any(server["next_retry"] is not None for server in status["servers"])
        rows: list[list[Text]] = [headings(*titles, *(["Retry"] if waits else []))]
        for server in status["servers"]:
            texts = [f"{server[key]:,}" for key in ("tools", "calls", "errors")]
            texts += [_size(server["memory"]) or "-", str(server["pid"] or "-")]
            texts += [_until(server["next_retry"])] if waits else []
            state = Text(server["state"], style=STATES.get(server["state"], "yellow"))
            rows.append([Text(server["name"], style="cyan"), state, *map(Text, texts)])
        console.columns(rows, indent=2, right=(2, 3, 4, 5, 6))
    for server in status["servers"]:
        if server["cause"]:
            console.prose(Text(f"{server['name']}: {server['cause']}", style="red"), 2, hanging=2)


def _size(size: int | None) -> str:
    return "" if size is None else f"{size / 1_000_000:,.0f} MB"


def _until(moment: float | None) -> str:
    if moment is None:
        return ""
    seconds = moment - time.time()
    return "now" if round(seconds) < 1 else f"in {span(seconds)}"


@click.command("logs")
@of_running
@click.argument("name", metavar="[SERVER]", required=False)
@click.option("--follow", is_flag=True, help="Go on with new lines, until Ctrl-C.")
@click.option(
    "--lines", type=WholeNumber(1, FOLLOWED), default=50, show_default=True, help="Number of latest lines."
)
@json_option
def logs_command(source: AnswerSource, name: str | None, follow: bool, lines: int, as_json: bool) -> None:
    """Show what SERVER has written to stderr, or the messages of the proxy itself; without secrets.

    Logs are kept beside the store, also when no proxy runs. With --json and --follow, each line is an object.
    """
    read = _log_reader(source, name)
    found = read(lines, 0.0)
    if as_json and not follow:
        echo_json({"server": name, "lines": found})
        return
    console = results()
    for line in _with_new(found, read, follow):
        if as_json:
            click.echo(shown(json.dumps(line)))
        else:
            console.say(Text(f"{moment(line['time'])}  ", style="dim"), line["text"])
    if not found and not follow:
        console.say(f"Nothing was logged by {name or 'the proxy'}.")


Lines = list[dict[str, Any]]


def _with_new(found: Lines, read: Callable[[int, float], Lines], follow: bool) -> Iterator[dict[str, Any]]:
    """Yield lines, and then new ones as they come."""
    after = 0.0
    while True:
        for line in found:
            after = max(after, line["time"])
            yield line
        if not follow:
            return
        time.sleep(FOLLOW_SECONDS)
        found = read(FOLLOWED, after)


def _log_reader(source: AnswerSource, name: str | None) -> Callable[[int, float], Lines]:
    """Return a function of a number of lines and of the time after which they were logged."""
    running_proxy = source.running
    if running_proxy is not None:

        def ask_for(most: int, after: float) -> Lines:
            query = {"server": name, "limit": most, "after": after or None}
            lines: Lines = running_proxy.get("/logs", query)["lines"]
            return lines

        return ask_for
    from mcp_context_proxy.trust.audit import PROXY, kept_logs

    config = source.config
    if name is not None and name not in config.servers and name not in config.off:
        raise unknown_server(name, config)
    logs = kept_logs(config)
    return lambda most, after: logs.entries(name or PROXY, most, after)


@click.command("call")
@asking
@click.argument("tool")
@click.argument("arguments", metavar="[JSON]", default="{}")
@click.option("--server", help="Server of the tool, if several have one of that name.")
@json_option
def call_command(source: AnswerSource, tool: str, arguments: str, server: str | None, as_json: bool) -> None:
    """Call TOOL with the arguments in a JSON object, as a host would, and print its result.

    Where no proxy runs, it starts the servers for this call. Exits with 1 if the result is an error.
    """
    try:
        given = json.loads(arguments)
    except ValueError as error:
        where = f" at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else ""
        text = f'it is not JSON{where}; write it between single quotes, such as \'{{"text": "a"}}\''
        raise click.BadParameter(text, param_hint="JSON") from None
    if not isinstance(given, dict):
        raise click.BadParameter("it is not a JSON object", param_hint="JSON")
    body = {"tool": tool, "arguments": given} | ({} if server is None else {"server": server})
    answer = source.proxy(indexed=False).post("/call", body, CALL_SECONDS)
    print_answer(as_json, answer, _show_result)
    if answer["is_error"]:
        raise click.exceptions.Exit(1)


def _show_result(console: Terminal, answer: Mapping[str, Any]) -> None:
    result = answer["result"]
    content = result.get("content")
    for block in content if isinstance(content, list) else ():
        text = block.get("text") if isinstance(block, dict) else None
        console.say(text if isinstance(text, str) else json.dumps(block))
    if not content:
        console.say(json.dumps(result.get("structuredContent", result)))


@click.command("restart")
@of_running
@click.argument("name", metavar="SERVER")
@json_option
def restart_command(source: AnswerSource, name: str, as_json: bool) -> None:
    """Stop SERVER, after its pending calls, and start it again, in each proxy that runs."""
    source.expect_running()
    done = [proxy.post(f"/servers/{quote(name, safe='')}/restart") for proxy in source.every()]
    data = {"server": name, "proxies": len(done)}
    print_answer(as_json, data, lambda console, _data: console.say(done[0]["done"]))


@click.command("stop")
@of_running
@json_option
def stop_command(source: AnswerSource, as_json: bool) -> None:
    """Stop the proxies that hosts share, after the requests under way. A host that is open starts another.

    One that does not answer is killed.
    """
    every = [(proxy, proxy.status()) for proxy in source.every()]
    stopped = [proxy.post("/stop") for proxy, status in every if status is not None and status["shared"]]
    killed = [proxy.kill() for proxy, status in every if status is None]
    if as_json:
        echo_json({"stopped": len(stopped) + len(killed)})
        return
    for process in killed:
        results().say(f"Process {process} did not answer, and was killed.")
    if stopped:
        results().say(stopped[0]["done"])
    elif not killed:
        results().say(f"No shared proxy runs for {source.file}.")


@click.command("enable")
@of_running
@click.argument("name", metavar="SERVER|SERVER__TOOL")
@json_option
def enable_command(source: AnswerSource, name: str, as_json: bool) -> None:
    """Turn a server or a tool on, in the configuration file. A running proxy follows at once."""
    _switch(source, name, True, as_json)


@click.command("disable")
@of_running
@click.argument("name", metavar="SERVER|SERVER__TOOL")
@json_option
def disable_command(source: AnswerSource, name: str, as_json: bool) -> None:
    """Turn a server or a tool off, in the configuration file. A running proxy follows at once.

    The file as it was is kept beside it.
    """
    _switch(source, name, False, as_json)


def _switch(source: AnswerSource, name: str, enabled: bool, as_json: bool) -> None:
    proxy, order = source.running, "enable" if enabled else "disable"
    if proxy is not None:
        servers = {server["name"] for server in proxy.get("/servers")["servers"]}
        kind = "servers" if name in servers else "tools"
        try:
            switched = proxy.post(f"/{kind}/{quote(name, safe='')}/{order}")
        except click.UsageError as error:
            if kind == "servers" or "__" in name or "did you mean" in error.message:
                raise
            there = ", ".join(sorted(servers)) or "none"
            raise click.UsageError(f"{name!r} is no server and no tool. Servers: {there}") from None
    else:
        switched = _switch_alone(source, name, enabled)
    print_answer(as_json, switched, _show_switched)


def _show_switched(console: Terminal, switched: Mapping[str, Any]) -> None:
    what = switched["server"] if switched["tool"] is None else f"{switched['server']}__{switched['tool']}"
    state = "on" if switched["enabled"] else "off"
    where = f"in {switched['file']}" if switched["changed"] else f"there already: {switched['file']}"
    console.say(f"{what} is turned {state} {where}.")
    if switched["note"]:
        messages().note(f"But {switched['note']}.")


def _switch_alone(source: AnswerSource, name: str, enabled: bool) -> dict[str, Any]:
    """Switch in the file, where no proxy knows the tools: a tool is named with its server."""
    from msgspec.structs import asdict

    from mcp_context_proxy.config.tables import matches
    from mcp_context_proxy.errors import nearest_names
    from mcp_context_proxy.installation.journal import switch
    from mcp_context_proxy.trust.audit import note_now

    config = source.config
    server, _, tool = name.partition("__")
    if server not in config.servers | config.off:
        unknown = unknown_server(server, config).message
        raise click.UsageError(f"{unknown}. While no proxy runs, a tool is named SERVER__TOOL")
    known_tools = _last_known_tools(config, server) if tool and server in config.servers else []
    if known_tools and not any(matches(tool, one) for one in known_tools):
        near = " or ".join(f"{server}__{one}" for one in nearest_names(tool, known_tools))
        meant = f"; did you mean {near}?" if near else ""
        raise click.UsageError(f"server {server!r} has no tool {tool!r}{meant}")
    assert config.path is not None
    try:
        switched = switch(config.path, server, tool or None, enabled)
    except OSError as error:
        raise click.ClickException(f"{config.path}: {error.strerror or error}") from None
    if switched.changed:
        order = "enable" if enabled else "disable"
        note_now(config, "order", order=order, server=server, tool=tool or None)
    return asdict(switched)


def _last_known_tools(config: Config, server: str) -> list[str]:
    """Return the names of the tools that a server has listed last; none where nothing is known of it."""
    from mcp_context_proxy.downstream.listing import ListingCache
    from mcp_context_proxy.protocol import envelope

    with open_configured_store(config) as store:
        cached = ListingCache(config.servers[server], store.listings).load()
    tools = () if cached is None else cached.listing.tools
    names = (envelope.text(envelope.members(bytes(one)).get("name")) for one in tools)
    return [name for name in names if name]
