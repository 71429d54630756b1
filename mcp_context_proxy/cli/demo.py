"""``demo``: the proxy at work in front of the example servers, spoken to as a host speaks to it.

What the demo runs in: a temporary folder with a configuration of the example servers, gone afterwards.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import anyio
import click
from rich.text import Text

from mcp_context_proxy import examples
from mcp_context_proxy.cli import search
from mcp_context_proxy.cli.options import run
from mcp_context_proxy.cli.terminal import Terminal, counted, indexing, messages, one_line, results
from mcp_context_proxy.config import default_path
from mcp_context_proxy.errors import ContextProxyError

if TYPE_CHECKING:
    from mcp import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp.types import CallToolResult, Tool

    from mcp_context_proxy.context.background_indexing import OnProgress
    from mcp_context_proxy.embedding.tokens import TokenCounter


LOG_SHOWN: Final = 15
"""Lines of the proxy's own messages that are shown when it fails."""

DEADLINE_SECONDS: Final = 60.0
"""For the whole demo: it takes a few seconds, and must not hang on a machine where something is broken."""


class DemoError(ContextProxyError):
    """The demo could not be shown; the text has the proxy's own messages."""


@dataclass(frozen=True, slots=True)
class DemoStage:
    """The temporary folder and what is in it."""

    folder: Path
    config: Path
    log: Path
    """What the proxy writes to stderr."""

    @property
    def data(self) -> Path:
        """Where the example servers keep what they are given."""
        return self.folder / "data"


@contextmanager
def stage() -> Iterator[DemoStage]:
    """A folder for one run of the demo.

    Raises:
        DemoError: there is no place for one.
    """
    try:
        temporary = tempfile.TemporaryDirectory(prefix="mcp-context-proxy-demo-", ignore_cleanup_errors=True)
    except OSError as error:
        raise DemoError(f"the demo needs a temporary folder, and there can be none: {error}") from None
    with temporary as name:
        folder = Path(name)
        made = DemoStage(folder, folder / "config.toml", folder / "proxy.log")
        made.config.write_text(_config(made), encoding="utf-8")
        yield made


@asynccontextmanager
async def connected(command: Sequence[str], stage: DemoStage, log: TextIO) -> AsyncIterator[Client]:
    """The SDK's client to a server over stdio, as a host would start it."""
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    program, *args = command
    # In the temporary folder: in the user's, a file named like a Python module would be imported instead.
    server = StdioServerParameters(
        command=program,
        args=args,
        env={**os.environ, examples.DATA_VARIABLE: str(stage.data)},
        cwd=stage.folder,
    )
    async with Client(stdio_client(server, errlog=log)) as client:
        yield client


def proxy_command(stage: DemoStage) -> list[str]:
    """The proxy in front of the example servers."""
    return [sys.executable, "-m", "mcp_context_proxy", "--config", str(stage.config)]


def failure(stage: DemoStage, error: BaseException) -> DemoError:
    """What went wrong, with the last the proxy had to say."""
    lines = stage.log.read_text(encoding="utf-8", errors="replace").splitlines() if stage.log.exists() else []
    reason = str(error) or type(error).__name__
    return DemoError("\n  ".join([f"the demo failed: {reason}", *lines[-LOG_SHOWN:]]))


def _config(stage: DemoStage) -> str:
    lines = ["[store]", f"path = {_toml(str(stage.folder / 'store.sqlite3'))}"]
    # What is shown must not depend on how fast the machine is.
    lines += ["[limits]", f"indexing_wait_seconds = {DEADLINE_SECONDS:.1f}"]
    for name, (program, *args) in examples.servers().items():
        lines += [
            f"[servers.{name}]",
            f"command = {_toml(program)}",
            f"args = {_toml(args)}",
            f"env = {_table({examples.DATA_VARIABLE: str(stage.data)})}",
            f"cwd = {_toml(str(stage.folder))}",
        ]
    for kind, folder in examples.documents().items():
        lines += ["[[documents]]", f"kind = {_toml(kind)}", f"path = {_toml(str(folder))}"]
    return "\n".join(lines) + "\n"


def _toml(value: str | list[str]) -> str:
    """Strings of JSON are strings of TOML; a dollar in a path is no variable."""
    return json.dumps(value, ensure_ascii=False).replace("${", "$${")


def _table(table: Mapping[str, str]) -> str:
    return "{ " + ", ".join(f"{key} = {_toml(value)}" for key, value in table.items()) + " }"


SEARCHES: Final = (
    "write down what we agreed on in the meeting",
    "when is everybody free next Tuesday",
    "what does a loan of 200,000 cost each month",
)
"""None of them uses the name of a tool; each is for another server."""

SHOWN: Final = 2
"""Tools shown of each search; of the rules and references that were found too, the best."""

BAR: Final = 20
"""Cells of the longest bar."""

OWN_SERVER: Final = """\
[servers.memory]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-memory@2026.8.31"]"""

PROGRAM: Final = "mcp-context-proxy"


@dataclass(frozen=True, slots=True)
class Offer:
    """What one example server offers a host that connects to it directly."""

    server: str
    tools: tuple[Tool, ...]
    tokens: int


@click.command("demo")
def demo_command() -> None:
    """Show the proxy at work in front of the example servers. Offline; nothing is kept."""
    run(_demo, results())


async def _demo(console: Terminal) -> None:
    began = anyio.current_time()
    console.say(Text("mcp-context-proxy", style="bold"), ": one MCP server in front of many")
    console.prose(
        Text("Everything here is real and on this machine: no network, no key, no service.", style="dim")
    )
    with stage() as made, made.log.open("w", encoding="utf-8") as log:
        try:
            with anyio.fail_after(DEADLINE_SECONDS):
                await _play(console, made, log)
        except Exception as error:
            cause = _innermost(error)
            if isinstance(cause, BrokenPipeError):
                # The reader has gone; the proxy's pipes raise errors of their own.
                raise cause from None
            # boundary: whatever fails here, the proxy's own messages tell why
            raise failure(made, cause) from error
    _show_next(console, anyio.current_time() - began)


async def _play(console: Terminal, made: DemoStage, log: TextIO) -> None:
    with ExitStack() as starting:
        starting.enter_context(messages().status("Starting the proxy and the example servers"))
        async with connected(proxy_command(made), made, log) as client:
            offers = await _offers(made)
            starting.close()
            _show_servers(console, offers)
            _show_lists(console, offers, (await client.list_tools()).tools)
            await _show_searches(console, client)
            await _show_calls(console, client)


async def _offers(made: DemoStage) -> list[Offer]:
    """Connect to each server directly, as a host does that has no proxy."""
    found: dict[str, Offer] = {}

    async def ask(name: str, words: Sequence[str]) -> None:
        with (made.folder / f"{name}.log").open("w", encoding="utf-8") as log:
            async with connected(words, made, log) as client:
                tools = tuple((await client.list_tools()).tools)
        found[name] = Offer(name, tools, _tokens(tools))

    async with anyio.create_task_group() as group:
        for name, words in examples.servers().items():
            group.start_soon(ask, name, words)
    return [found[name] for name in examples.SERVERS]


@cache
def _counter() -> TokenCounter:
    from mcp_context_proxy.embedding.tokens import TokenCounter

    return TokenCounter()


def _tokens(tools: Sequence[Tool]) -> int:
    definitions = (tool.model_dump(mode="json", by_alias=True, exclude_none=True) for tool in tools)
    return sum(
        _counter().count(json.dumps(one, ensure_ascii=False, separators=(",", ":"))) for one in definitions
    )


def _show_servers(console: Terminal, offers: Sequence[Offer]) -> None:
    console.section("1  What is behind it")
    rows = [
        (
            Text(offer.server, style="cyan"),
            counted(len(offer.tools), "tool"),
            Text(", ".join(tool.name for tool in offer.tools), style="dim"),
        )
        for offer in offers
    ]
    console.columns(rows, indent=3, right=(1,))


def _show_lists(console: Terminal, offers: Sequence[Offer], listed: Sequence[Tool]) -> None:
    console.section("2  What a model has to read, with every request")
    full, short = sum(offer.tokens for offer in offers), _tokens(listed)
    rows = [
        ("Without the proxy", sum(len(offer.tools) for offer in offers), full),
        ("With the proxy", len(listed), short),
    ]
    console.columns(
        [
            (label, counted(number, "tool"), f"about {tokens:,} tokens", _bar(console, tokens, full))
            for label, number, tokens in rows
        ],
        indent=3,
        right=(1, 2),
    )
    saved = 100 * (full - short) / full
    console.prose(
        f"{saved:.0f} % less: only {', '.join(tool.name for tool in listed)}. "
        "The other tools are found when they are needed, and can all be called. "
        "(Tokens are estimates, by a tokenizer: WordPiece.)",
        indent=3,
    )


def _bar(console: Terminal, tokens: int, longest: int) -> Text:
    mark = "#" if console.options.ascii_only else "━"
    return Text(mark * max(1, round(BAR * tokens / longest)), style="green" if tokens < longest else "red")


async def _show_searches(console: Terminal, client: Client) -> None:
    console.section("3  Search: a model says what it needs, in its own words")
    for query in SEARCHES:
        began = anyio.current_time()
        with indexing(messages()) as report:
            answer = await client.call_tool(
                "search_available_tools", {"query": query}, progress_callback=_told(report)
            )
        _show_search(console, _data(answer), (anyio.current_time() - began) * 1000)


def _told(report: OnProgress) -> ProgressFnT:
    """What the SDK's client wants for progress notifications."""

    async def on_progress(progress: float, total: float | None, message: str | None) -> None:
        del message
        report(int(progress), int(total or 0))

    return on_progress


def _show_search(console: Terminal, data: Mapping[str, Any], milliseconds: float) -> None:
    indexed = ", all of them indexed first" if data["query"] == SEARCHES[0] else ""
    console.say()
    console.say("   ", Text(f'"{data["query"]}"', style="bold"))
    console.prose(
        Text(
            f"Among {data['known']} tools, rules and references, in {milliseconds:,.0f} ms{indexed}.",
            style="dim",
        ),
        indent=3,
    )
    if data.get("note"):
        console.prose(Text(data["note"], style="yellow"), indent=3)
    found = data["results"] or data["near_misses"]
    tools = [one for one in found if one["type"] == "tool"]
    documents = [one for one in found if one["type"] != "tool"]
    for rank, one in enumerate(tools[:SHOWN], 1):
        search.show_one(console, rank, one)
    for one in documents[:1]:
        search.show_one(console, "+", one)


async def _show_calls(console: Terminal, client: Client) -> None:
    console.section("4  Call: whatever was found, listed or not")
    today = datetime.now(UTC).date().isoformat()
    note = {"title": f"Meeting of {today}", "body": "We ship on Friday.", "tags": ["meeting"]}
    console.prose("Through call_tool, the one name a model always has:", indent=3)
    through = {"name": "notes__create_note", "arguments": note}
    _show_call(console, "call_tool", through, await client.call_tool("call_tool", through))
    console.say()
    console.prose("By its own name, as the search gave it:", indent=3)
    loan = {"amount": 200_000, "annual_rate": 3.5, "years": 20}
    name = "calculator__loan_payment"
    _show_call(console, name, loan, await client.call_tool(name, loan))


def _show_call(console: Terminal, name: str, arguments: Mapping[str, Any], answer: CallToolResult) -> None:
    text = " ".join(one_line(getattr(part, "text", "")) for part in answer.content)
    if answer.is_error:
        raise DemoError(f"{name} failed: {text}")
    call = Text.assemble((name, "bold cyan"), " ", json.dumps(arguments, ensure_ascii=False))
    console.prose(call, indent=5, hanging=2)
    console.prose(Text(f"-> {text}", style="green"), indent=5, hanging=3)


def _show_next(console: Terminal, seconds: float) -> None:
    console.section("Next: your own servers")
    _step(console, f"1. Put them into {default_path(os.environ)}", OWN_SERVER)
    _step(console, "2. See whether they all start", "mcp-context-proxy check")
    _step(console, "3. In your host's configuration, put this one in their place", _host_entry())
    console.say()
    console.prose(Text(f"This took {seconds:.1f} s, and nothing of it was kept.", style="dim"))


def _host_entry() -> str:
    """With the full path, where there is one: hosts often do not know the PATH of a shell."""
    command = shutil.which(PROGRAM) or PROGRAM
    return f'{{ "mcpServers": {{ "context-proxy": {{\n  "command": {json.dumps(command)} }} }} }}'


def _step(console: Terminal, what: str, snippet: str) -> None:
    console.prose(what, indent=3, hanging=3)
    for line in snippet.splitlines():
        console.say(Text(line, style="cyan"), indent=6)


def _data(answer: CallToolResult) -> Mapping[str, Any]:
    data = answer.structured_content
    if answer.is_error or not isinstance(data, dict):
        text = " ".join(one_line(getattr(part, "text", "")) for part in answer.content)
        raise DemoError(f"search_available_tools failed: {text}")
    return data


def _innermost(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
