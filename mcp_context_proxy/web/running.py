"""REST operations on the running proxy: its state, its logs, a call, its end; and for prompt hooks.

The pages, the commands and other programs use these. An operation that changes something needs a proven
administrator (`Operation.decides`), also where no other one needs a token, and is in the audit. Over the
local socket, the connection itself proves who asks.

The request is recorded like any other, for the session of the host that was asked. So its context, its
history and what is learned from the calls that follow know the words of the user, and not only a model's.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from mcp_context_proxy import __version__
from mcp_context_proxy.catalog.names import EXPOSED
from mcp_context_proxy.context import SESSION_MODES, Delivery, DomainOverrides, Overrides, RequestContext
from mcp_context_proxy.context.selection import SearchAnswer
from mcp_context_proxy.context.session import QUERY_CHARACTERS
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.fleet import failure_and_remedy
from mcp_context_proxy.items import Document, ItemKey, Snapshot, Tool, ToolClass, key_of
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import RequestError
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.retrieval import FITTING, Ranking, Result
from mcp_context_proxy.retrieval.scoring import needed_evidence
from mcp_context_proxy.retrieval.text import content_words
from mcp_context_proxy.server import Caller, ConnectedHost
from mcp_context_proxy.server.meta_definitions import CALL_READ_ONLY, READ_MARK
from mcp_context_proxy.server.rendering import recalled_text
from mcp_context_proxy.server.search_answers import Fitting, item_name
from mcp_context_proxy.server.tools_call import InteractionLog
from mcp_context_proxy.system.process import resident, time_of_day
from mcp_context_proxy.system.threads import assigned, in_thread
from mcp_context_proxy.trust import ACTING, Principal, Role, reaches
from mcp_context_proxy.trust.audit import PROXY
from mcp_context_proxy.web import (
    Api,
    BadRequestError,
    Given,
    Name,
    Operation,
    Order,
    Words,
    note_order,
    sentence,
)
from mcp_context_proxy.web.inventory import Done, expect_server, exposed_name
from mcp_context_proxy.web.search import Served

LINES: Final = 2_000
"""Lines of a log in one answer."""


class HostFacts(Struct, frozen=True):
    """A host that is connected to the shared proxy."""

    name: str
    version: str
    since: float
    """Seconds since 1970."""
    pid: int | None
    """Process that the host has started."""
    folder: str | None
    session: str | None
    """Public id of its session; null in the era without sessions."""


class ServerStatus(Struct, frozen=True):
    """The state of a server."""

    name: str
    state: str
    """Such as ``ready``, ``asleep``, ``failed``, ``still starting`` or ``off``."""
    cause: str = ""
    """Reason of a failure."""
    tools: int = 0
    """Tools that it offers, without those that are turned off or withheld."""
    calls: int = 0
    """Answered or failed calls since the proxy started."""
    errors: int = 0
    """Calls among them that failed."""
    failures: int = 0
    """Failed attempts to connect in a row."""
    restarts: int = 0
    next_retry: float | None = None
    """Time of the next attempt to connect, in seconds since 1970."""
    pid: int | None = None
    memory: int | None = None
    """Resident bytes of its processes; null where that is not known."""


class StatusAnswer(Struct, frozen=True):
    """The state of the proxy."""

    version: str
    pid: int
    python: str
    started: float
    """Seconds since 1970."""
    uptime: float
    """Seconds."""
    memory: int | None
    """Resident bytes of the proxy itself; null where that is not known."""
    config: str | None
    shared: bool
    """True if hosts share it over a socket."""
    hosts: list[HostFacts]
    servers: list[ServerStatus]
    problems: list[str]


class LogsWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The lines of a log that are wanted."""

    server: Name | None = None
    """None for the messages of the proxy itself."""
    limit: Annotated[int, Meta(ge=1, le=LINES)] = 200
    after: float = 0.0
    """Only lines that are newer than this time, in seconds since 1970."""


class LogLine(Struct, frozen=True):
    """A line of a log."""

    time: float
    kind: str
    """``stderr`` for a line of a server, and otherwise the level of the message."""
    text: str
    pid: int | None = None
    """The proxy that has written it."""


class LogsAnswer(Struct, frozen=True):
    """Lines of a log, oldest first."""

    lines: list[LogLine]


class CallWanted(Struct, forbid_unknown_fields=True, frozen=True):
    """A call of a tool."""

    tool: Name
    arguments: dict[str, Any] = {}
    server: Name | None = None
    """Server of the tool, if several have one of that name."""


class CallAnswer(Struct, frozen=True):
    """Result of a call."""

    tool: str
    is_error: bool
    result: Raw
    """The result of ``tools/call``."""


def _problems(proxy: Served) -> list[str]:
    health = proxy.health()
    problems: list[str] = health.get("problems", [])
    if keys := health.get("needs_restart"):
        how = "'mcp-context-proxy stop', and the next host starts it anew" if proxy.shared else "restart it"
        problems = [*problems, f"changed since it started, and not in use yet: {', '.join(keys)}: {how}"]
    return problems


def resident_of_groups(groups: Collection[int]) -> dict[int, int]:
    """Return the resident memory of process groups in bytes; empty where the system does not tell. Blocks."""
    found: dict[int, int] = {}
    if sys.platform != "linux":
        return found
    page = os.sysconf("SC_PAGE_SIZE")
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with suppress(OSError, ValueError, IndexError):
                # The name of a program, in parentheses, may have any characters.
                fields = (process / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                if (group := int(fields[2])) in groups:
                    found[group] = found.get(group, 0) + int(fields[21]) * page
    return found


class RunningApi(Api):
    """Operations on the running proxy."""

    def __init__(self, proxy: Served) -> None:
        self._proxy = proxy

    @Operation("GET", "/status", role=Role.VIEW)
    async def _get_status(self, given: Given) -> StatusAnswer:
        """The proxy's process, the hosts that are connected, and the state of each server."""
        proxy, now = self._proxy, time_of_day()
        clients = [*proxy.fleet.clients.values()]
        groups = {client.name: group for client in clients if (group := _group(client)) is not None}
        memory = await in_thread(resident_of_groups, {*groups.values()})
        usage, snapshot = proxy.usage, proxy.catalog.snapshot
        counts = {} if usage is None else usage.counters.servers
        away = Counter(one.server for of in (snapshot.turned_off, snapshot.withheld) for one in of.values())
        servers = [
            ServerStatus(
                name=client.name,
                state=client.standing,
                cause=failure_and_remedy(client),
                tools=max(len(client.listing.tools) - away[client.name], 0),
                calls=counts[client.name].calls if client.name in counts else 0,
                errors=counts[client.name].errors if client.name in counts else 0,
                failures=client.failures,
                restarts=client.restarts,
                next_retry=client.retry_at,
                pid=groups.get(client.name),
                memory=memory.get(groups.get(client.name, 0)),
            )
            for client in clients
        ]
        servers += [
            ServerStatus(
                name=name,
                state="off",
                cause=f"turned off by {one.places.get('enabled', f'servers.{name}.enabled')}",
            )
            for name, one in proxy.config.servers.items()
            if not one.enabled
        ]
        servers += [ServerStatus(name=n, state="off", cause=str(w)) for n, w in proxy.config.off.items()]
        return StatusAnswer(
            version=__version__,
            pid=os.getpid(),
            python=sys.version.split()[0],
            started=proxy.started,
            uptime=now - proxy.started,
            memory=resident(),
            config=None if proxy.config.path is None else str(proxy.config.path),
            shared=proxy.shared,
            hosts=[
                HostFacts(
                    host.name,
                    host.version,
                    host.since,
                    host.pid,
                    host.folder,
                    None if host.session is None else host.session.id,
                )
                for host in proxy.hosts()
            ],
            servers=[one for one in servers if reaches(one.name)],
            problems=_problems(proxy),
        )

    @Operation("GET", "/logs", problems=(HTTPStatus.NOT_FOUND,), role=Role.VIEW)
    async def _list_logs(self, given: Given, wanted: LogsWanted) -> LogsAnswer:
        """The latest lines that a server, or the proxy itself, has logged."""
        if wanted.server is not None:
            expect_server(self._proxy, wanted.server)
        elif not given.principal.sees_all:
            detail = "The proxy's own messages are about all servers, and some are beyond your reach."
            raise BadRequestError(HTTPStatus.FORBIDDEN, detail)
        read = partial(self._proxy.logs.entries, wanted.server or PROXY, wanted.limit, wanted.after)
        return LogsAnswer([msgspec.convert(entry, LogLine) for entry in await in_thread(read)])

    @Order(
        "/call",
        problems=(HTTPStatus.NOT_FOUND, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY),
    )
    async def _call_tool(self, given: Given, body: CallWanted) -> CallAnswer:
        """Call a tool as a host would; the call is in the audit and in the statistics."""
        gateway, principal = self._proxy.gateway, given.principal
        name = exposed_name(self._proxy, body.tool, body.server)
        # A replica sees only its share of requests that belong to no session.
        if not gateway.quota.take(principal, spread=True):
            raise BadRequestError(HTTPStatus.TOO_MANY_REQUESTS, sentence(gateway.quota))
        params = {"name": envelope.raw(name), "arguments": envelope.raw(body.arguments)}
        try:
            with gateway.drain:
                result = await gateway.handle("tools/call", params, _caller(principal))
        except RequestError as error:
            raise BadRequestError(HTTPStatus.BAD_GATEWAY, f"{one_line(error.message)}.") from None
        failed = bytes(envelope.members(result).get("isError", b"false")) == b"true"
        return CallAnswer(name, failed, Raw(result))

    @Operation("POST", "/stop", problems=(HTTPStatus.CONFLICT,), role=Role.ADMIN, decides=True)
    async def _stop_proxy(self, given: Given) -> Done:
        """Stop the proxy, after the requests that are under way."""
        if self._proxy.stop is None:
            raise BadRequestError(HTTPStatus.CONFLICT, "This proxy is part of another program.")
        note_order(self._proxy.audit, given, "stop")
        self._proxy.stop()
        return Done("The proxy stops, after the requests that are under way.")


def _group(client: DownstreamClient) -> int | None:
    return None if client.connected is None else client.connected.process_group


def _caller(principal: Principal) -> Caller:
    async def refuse(method: str, params: object) -> bytes:
        del params
        raise RequestError(envelope.METHOD_NOT_FOUND, f"{method}: nobody can be asked here")

    return Caller(
        era=Era.HANDSHAKE,
        session=None,
        capabilities=Raw(b"{}"),
        client_info=envelope.raw({"name": "mcp-context-proxy call", "version": __version__}),
        principal=principal.name,
        rights=principal,
        notify=lambda _method, _params: None,
        ask=refuse,
    )


PROMPT_TOKENS: Final = 400
"""Budget of the text for a host's prompt hook."""

PROMPT_CHARACTERS: Final = 9_500
"""Length of that text: hosts put one of over 10,000 characters into a file."""

PROMPT_TOOLS: Final = 5
"""Tools that it tells with their signatures."""

NAMES_SHARE: Final = 0.4
"""Share of the budget for the names of further tools: a model that has a name can look its signature up."""

RECALLED_SHARE: Final = 0.4
"""Share of the budget for remembered interactions, where contexts have them."""

_PROMPT_HEAD: Final = "Found by the search of the MCP server context-proxy for this request:"
_PROMPT_CALL: Final = "Its tools are called through call_tool{marked}, with name and arguments."
_PROMPT_MARKED: Final = f", or {CALL_READ_ONLY} if marked {READ_MARK}"

FURTHER: Final = 15
"""Tools that are named beside those with signatures."""

NEAR_THE_BEST: Final = 0.5
"""Share of the best score that a tool in the text needs, less the leeway of a search; the others are noise.
The share of answers to searches would leave out the right tool of some vague requests."""

BEFORE_BROUGHT: Final = 3
"""Tools that were found and stand before those that a rule of the prompt brings."""

DOCUMENTS: Final = 2
"""Rules and references in the text."""

BEFORE_DOCUMENTS: Final = 2
"""Tools that stand before them: the first items keep their details where the room is short."""

PROMPT_SECONDS: Final = 1.0
"""Time for which a prompt waits at most for servers that start and for indexing: its hook waits 2 s."""

LEAST_WORDS: Final = 2
"""Telling words of a prompt that is searched for: "thanks" and "go on" ask for no tool."""


class PromptWanted(Struct, frozen=True, forbid_unknown_fields=True):
    """The words of a user, and the session of the host in which they were said."""

    prompt: Words
    host: Name | None = None
    """Name of the host on the command line, such as ``claude-code``."""
    session: Name | None = None
    """The host's own id of its session."""
    folder: Name | None = None
    """Working folder of the host's session."""
    tokens: Annotated[int, Meta(ge=50, le=5_000)] = PROMPT_TOKENS
    connected: bool = False
    """True: only if the session is connected here, where several proxies run."""


class PromptAnswer(Struct, frozen=True):
    """Facts for a model; the text is empty if nothing fits."""

    text: str
    tools: list[str]
    """Names of the tools in the text."""
    request: str | None
    """Id of the recorded request."""
    session: str | None
    """Public id of the session; null if none is connected."""


NOTHING: Final = PromptAnswer("", [], None, None)


class PromptsApi(Api):
    """The operation for prompt hooks."""

    def __init__(self, proxy: Served, log: InteractionLog | None) -> None:
        """Work on a proxy that serves; without ``log`` no query is remembered."""
        self._proxy, self._profiles, self._log = proxy, proxy.gateway.profiles, log

    @Operation("POST", "/prompt", role=Role.ADMIN)
    async def _answer_prompt(self, given: Given, body: PromptWanted) -> PromptAnswer:
        """The tools, rules and references that fit the words of a user, as facts for a model."""
        host = host_of(body, self._proxy.hosts)
        if body.connected and host is None:
            return NOTHING
        if len(content_words(body.prompt[:QUERY_CHARACTERS]).split()) < LEAST_WORDS:
            return NOTHING
        rights = host.rights if host is not None else self._profiles.of_prompt(body.host, body.folder)
        with assigned(ACTING, rights):
            return await self._answer(body, host, rights)

    async def _answer(
        self, wanted: PromptWanted, host: ConnectedHost | None, rights: Principal
    ) -> PromptAnswer:
        proxy, session = self._proxy, None if host is None else host.session
        told = list[Result]()
        answer = await proxy.contexts.select(
            wanted.prompt[:QUERY_CHARACTERS],
            session,
            Overrides(DomainOverrides(top_n=PROMPT_TOOLS + FURTHER), DomainOverrides(top_n=DOCUMENTS)),
            rerank="never",
            owner=rights.name,
            finish=partial(self._finish, wanted.tokens, told),
            within=PROMPT_SECONDS,
        )
        if self._log is not None:
            name = wanted.host if host is None else host.name
            self._log.searched(answer.context.query, name, rights.owner)
        items = [one.item for one in told]
        return PromptAnswer(
            answer.text or "",
            [item.exposed_name for item in items if isinstance(item, Tool)],
            answer.context.id,
            None if session is None else session.id,
        )

    async def _finish(self, tokens: int, told: list[Result], answer: SearchAnswer) -> SearchAnswer:
        """Return an answer with its text, and with the context that the text gives of it; add what it tells.

        What is not told is no part of the record: a model cannot leave aside what it never read.
        """
        found = answer.found
        # Where a model reads all tools in any case, it needs no second list.
        listed = self._proxy.tool_list.lists_all(found.snapshot)
        is_silent = listed or found.near_misses or not fits_a_prompt(found.tools)
        tools = [] if is_silent else near_the_best(found.tools.results)
        # Of what was brought, only documents for a file that the prompt names: all the rest came with other
        # items, or with earlier requests.
        documents = [
            one
            for one in found.brought
            if isinstance(one.item, Document) and key_of(one.item) not in answer.brought_by
        ]
        documents += [] if found.documents is None else found.documents.results
        documents = documents[:DOCUMENTS]
        sources = {key_of(one.item) for one in documents}
        if not listed:
            brought = [one for one in found.brought if answer.brought_by.get(key_of(one.item)) in sources]
            first = sum(one in brought for one in found.brought[: found.foremost])
            tools[BEFORE_BROUGHT:BEFORE_BROUGHT] = brought[first:]
            tools = brought[:first] + tools
        count = self._proxy.contexts.costs.count
        text = await in_thread(
            partial(prompt_text, tools, documents, found.snapshot, count, tokens, answer.recalled)
        )
        told += [*tools, *documents]
        read = [*told, *found.tools.results] if listed else told
        ranked = sum(one in found.tools.results for one in read)
        return replace(answer, context=as_told(answer.context, read, ranked, text), text=text)


def as_told(context: RequestContext, told: Sequence[Result], ranked: int, text: str) -> RequestContext:
    """Return a context with the items of its session and those told; a document that the text has is given.

    A replay looks for as many tools as were ``ranked``.
    """
    keys = (key_of(item) for one in told for item in (one.item, *one.twins))
    forms: dict[ItemKey, Delivery | None] = dict.fromkeys(keys)
    for one in told:
        if isinstance(one.item, Document) and "\n  ".join(one.item.text.strip().splitlines()) in text:
            forms[key_of(one.item)] = Delivery.WHOLE
    items = (
        replace(item, delivered=forms.get((item.type, item.name)))
        for item in context.items
        if item.include_mode in SESSION_MODES or (item.type, item.name) in forms
    )
    tools = replace(context.options.tools, top_n=max(1, ranked))
    return replace(context, items=tuple(items), options=replace(context.options, tools=tools))


def fits_a_prompt(found: Ranking) -> bool:
    """Return whether a tool is meant by what people type to an assistant: it needs none more often than not.

    What shows by other things than evidence that a tool is meant counts as it does in a search.
    """
    if not found.results or found.evidence is None or found.results[0].exact or found.results[0].support:
        return found.fits
    return not 0 <= found.evidence - needed_evidence(found.considered) < found.unaided


def near_the_best(tools: Sequence[Result]) -> list[Result]:
    """Return the tools with a score near that of the best."""
    least = NEAR_THE_BEST * max((one.proven for one in tools), default=0.0) - FITTING.leeway
    return [one for one in tools if one.exact or one.score >= least]


def host_of(wanted: PromptWanted, hosts: Callable[[], list[ConnectedHost]]) -> ConnectedHost | None:
    """Return the connection of the host that a prompt was given to; None if that cannot be told.

    The host's id of its session decides. Where it is not known yet, the host's name and its folder do, if
    only one connection has them.
    """
    connected = hosts()
    for host in connected:
        if wanted.session is not None and host.host_session == wanted.session:
            return host
    if wanted.host is None:
        return None
    word = wanted.host.partition("-")[0]
    same = [host for host in connected if word in host.name.casefold() and host.host_session is None]
    if len(same) > 1:
        same = [host for host in same if host.folder == wanted.folder]
    return same[0] if len(same) == 1 else None


def prompt_text(
    tools: Sequence[Result],
    documents: Sequence[Result],
    snapshot: Snapshot,
    count: Callable[[str], int],
    tokens: int = PROMPT_TOKENS,
    recalled: Sequence[str] = (),
) -> str:
    """Return the facts that a model gets beside a prompt; empty if nothing fits. Blocks.

    It states and never orders: hosts take a text that orders for an injection. The best tools have their
    signatures, and further ones their names as long as there is room. What applies goes before the signatures
    of later tools: a model that has only the name of a rule does not follow it.

    Args:
        tools: Tools that fit, best first.
        documents: Rules and references that apply.
        snapshot: The catalog.
        count: Counts the tokens of a text.
        tokens: Budget of the text.
        recalled: Lines with remembered interactions.
    """
    lines, whole = _within(recalled, count, int(tokens * RECALLED_SHARE)), tokens
    last = [recalled_text(lines)] if lines else []
    if not tools and not documents:
        return "".join(last)
    tokens -= sum(map(count, last))
    items = [one.item for one in tools]
    marked = any(isinstance(one, Tool) and one.tool_class is ToolClass.READ for one in items)
    tail = [_PROMPT_CALL.format(marked=_PROMPT_MARKED if marked else "")] if tools else []
    text = ""
    for signed in range(min(PROMPT_TOOLS, len(tools)), -1, -1):
        named = _within(
            [item_name(one, EXPOSED) for one in tools[signed:]],
            lambda name: count(f"{name}, "),
            int(tokens * NAMES_SHARE),
        )
        shown = list(tools[:signed])
        shown[BEFORE_DOCUMENTS:BEFORE_DOCUMENTS] = documents
        told = Fitting(shown, snapshot, count, EXPOSED).fit([_PROMPT_HEAD, *tail], tokens, named)
        text = "\n\n".join([_PROMPT_HEAD, *told, *tail, *last])
        if count(text) <= whole:
            break
    return text if len(text) <= PROMPT_CHARACTERS else f"{text[:PROMPT_CHARACTERS]} ..."


def _within(lines: Sequence[str], count: Callable[[str], int], tokens: int) -> list[str]:
    """Return the first lines that cost no more than some tokens together."""
    spent = accumulate(map(count, lines))
    return [line for line, cost in zip(lines, spent, strict=True) if cost <= tokens]
