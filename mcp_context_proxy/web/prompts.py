"""REST operation for prompt hooks: the facts that go to a model beside the words of its user.

The request is recorded like any other, for the session of the host that was asked. So its context, its
history and what is learned from the calls that follow know the words of the user, and not only a model's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from mcp_context_proxy.catalog.names import EXPOSED
from mcp_context_proxy.context.records import DomainOverrides, Overrides
from mcp_context_proxy.context.session import QUERY_CHARACTERS
from mcp_context_proxy.items import Kind, Snapshot, Tool, ToolClass
from mcp_context_proxy.retrieval.results import Result
from mcp_context_proxy.retrieval.text import content_words
from mcp_context_proxy.server.after_call import InteractionLog
from mcp_context_proxy.server.caller import ConnectedHost
from mcp_context_proxy.server.meta_definitions import CALL_READ_ONLY, READ_MARK
from mcp_context_proxy.server.profiles import Profiles
from mcp_context_proxy.server.rendering import recalled_text
from mcp_context_proxy.server.search_answers import Fitting, further, item_name
from mcp_context_proxy.system.flights import assigned
from mcp_context_proxy.system.threads import in_thread
from mcp_context_proxy.trust.tokens import ACTING, Principal, Role
from mcp_context_proxy.web.api import Api, Given, Name, Operation, Words
from mcp_context_proxy.web.inventory import Served

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

DOCUMENTS: Final = 2
"""Rules and references in the text."""

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

    def __init__(self, proxy: Served, profiles: Profiles, log: InteractionLog | None) -> None:
        """Work on a proxy that serves; without ``log`` no query is remembered."""
        self._proxy, self._profiles, self._log = proxy, profiles, log

    @Operation(
        "POST",
        "/prompt",
        "The tools, rules and references that fit the words of a user, as facts for a model.",
        body=PromptWanted,
        answer=PromptAnswer,
        role=Role.ADMIN,
    )
    async def _answer_prompt(self, given: Given) -> PromptAnswer:
        wanted: PromptWanted = given.body
        host = host_of(wanted, self._proxy.hosts)
        if wanted.connected and host is None:
            return NOTHING
        if len(content_words(wanted.prompt[:QUERY_CHARACTERS]).split()) < LEAST_WORDS:
            return NOTHING
        rights = host.rights if host is not None else self._profiles.of_prompt(wanted.host, wanted.folder)
        with assigned(ACTING, rights):
            return await self._answer(wanted, host, rights)

    async def _answer(
        self, wanted: PromptWanted, host: ConnectedHost | None, rights: Principal
    ) -> PromptAnswer:
        proxy, session = self._proxy, None if host is None else host.session
        answer = await proxy.contexts.select(
            wanted.prompt[:QUERY_CHARACTERS],
            session,
            Overrides(DomainOverrides(top_n=PROMPT_TOOLS + FURTHER), DomainOverrides(top_n=DOCUMENTS)),
            rerank="never",
            owner=rights.name,
        )
        if self._log is not None:
            name = wanted.host if host is None else host.name
            self._log.searched(answer.context.query, name, rights.owner)
        found = answer.found
        # Where a model reads all tools in any case, it needs no second list.
        listed = proxy.tool_list.lists_all(found.snapshot)
        tools = [] if listed or found.near_misses else found.tools.results
        documents = [] if found.documents is None else found.documents.results[:DOCUMENTS]
        count = proxy.contexts.count_tokens
        write = partial(prompt_text, tools, documents, found.snapshot, count, wanted.tokens, answer.recalled)
        text: str = await in_thread(write)
        names = {item.name for item in answer.context.of(Kind.TOOL)}
        told: list[Any] = [one.item for one in tools]
        return PromptAnswer(
            text,
            [tool.exposed_name for tool in told if tool.exposed_name in names],
            answer.context.id,
            None if session is None else session.id,
        )


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
    signatures, and further ones their names as long as there is room.

    Args:
        tools: Tools that fit, best first.
        documents: Rules and references that apply.
        snapshot: The catalog.
        count: Counts the tokens of a text.
        tokens: Budget of the text.
        recalled: Lines with remembered interactions.
    """
    lines, whole = _remembered(recalled, count, tokens), tokens
    last = [recalled_text(lines)] if lines else []
    if not tools and not documents:
        return "".join(last)
    tokens -= sum(map(count, last))
    items = [one.item for one in tools]
    marked = any(isinstance(one, Tool) and one.tool_class is ToolClass.READ for one in items)
    tail = [_PROMPT_CALL.format(marked=_PROMPT_MARKED if marked else "")] if tools else []
    text = ""
    for signed in range(min(PROMPT_TOOLS, len(tools)), -1, -1):
        named = further(
            _within([item_name(one, EXPOSED) for one in tools[signed:]], count, int(tokens * NAMES_SHARE))
        )
        shown = [*tools[:signed], *documents]
        told = Fitting(shown, snapshot, count, EXPOSED).fit([_PROMPT_HEAD, *named, *tail], tokens)
        text = "\n\n".join([_PROMPT_HEAD, *told, *named, *tail, *last])
        if count(text) <= whole:
            break
    return text if len(text) <= PROMPT_CHARACTERS else f"{text[:PROMPT_CHARACTERS]} ..."


def _remembered(lines: Sequence[str], count: Callable[[str], int], tokens: int) -> list[str]:
    """Return the first lines that fit into their share of a budget."""
    left, taken = int(tokens * RECALLED_SHARE), list[str]()
    for line in lines:
        left -= count(line)
        if left < 0:
            break
        taken.append(line)
    return taken


def _within(names: Sequence[str], count: Callable[[str], int], tokens: int) -> list[str]:
    """Return the first names that cost no more than some tokens together."""
    taken: list[str] = []
    for name in names:
        tokens -= count(f"{name}, ")
        if tokens < 0:
            break
        taken.append(name)
    return taken
