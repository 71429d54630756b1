"""Prompts and completions of the downstream servers, under names that are unique behind this proxy.

The proxy's own prompt: a query in, its rules and references out, as messages for the conversation.
"""

from __future__ import annotations

import difflib
from typing import Any

import msgspec

from mcp_context_proxy.catalog import definitions
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.session import QUERY_CHARACTERS, Handles, handle_of
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import DownstreamError, RemoteError, UnknownItemError
from mcp_context_proxy.items import Prompt
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.server import forwarding, rendering
from mcp_context_proxy.server import resources as server_resources
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.forwarding import Forwarder
from mcp_context_proxy.server.resources import Resources

NAME = "with_context"

DEFINITION: dict[str, Any] = {
    "name": NAME,
    "title": "With context",
    "description": "The rules and references that apply to a query, and the tools that fit it.",
    "arguments": [{"name": "query", "description": "What you want to do", "required": True}],
}


class ContextPrompt:
    """Answers ``prompts/get`` for it."""

    def __init__(self, contexts: ContextEngine, handles: Handles) -> None:
        self._contexts, self._handles = contexts, handles

    async def get(self, params: Members, caller: Caller) -> bytes:
        """The query's rules and references, one message each, then its tools, then the query itself.

        Raises:
            RequestError: there is no query, or the context handle is unknown.
        """
        query = _query(params)
        session = handle_of(params, self._handles, caller.principal) or caller.session
        answer = await self._contexts.select(query, session, owner=caller.principal)
        context, snapshot = answer.context, answer.snapshot
        texts = [rendering.document_message(one) for one in rendering.documents_of(context, snapshot)]
        tools = rendering.tools_text(context, snapshot)
        messages = [_message(text) for text in (*texts, *([tools] if tools else []), query)]
        return envelope.encode({"description": f"Context for: {query}", "messages": messages})


def _message(text: str) -> dict[str, Any]:
    return {"role": "user", "content": {"type": "text", "text": text}}


def _query(params: Members) -> str:
    try:
        arguments = envelope.members(params["arguments"])
    except (KeyError, msgspec.DecodeError):
        arguments = {}
    query = envelope.text(arguments.get("query"))
    if query is None or not query.strip():
        raise RequestError(INVALID_PARAMS, f"prompt {NAME!r} needs a query: what you want to do")
    return query[:QUERY_CHARACTERS]


class Prompts:
    """Answers the ``prompts/*`` methods and ``completion/complete``."""

    def __init__(
        self,
        catalog: Catalog,
        fleet: Fleet,
        forwarder: Forwarder,
        resources: Resources,
        own: ContextPrompt,
    ) -> None:
        self._catalog, self._fleet, self._forwarder, self._resources = catalog, fleet, forwarder, resources
        self._own = own

    async def list(self, params: Members, caller: Caller) -> bytes:
        """The result of ``prompts/list``."""
        del caller
        if envelope.text(params.get("cursor")):
            raise RequestError(INVALID_PARAMS, "invalid cursor: the list has one page")
        prompts = [
            definitions.prompt_definition(prompt) for prompt in self._catalog.snapshot.prompts.values()
        ]
        return envelope.encode({"prompts": [*prompts, DEFINITION]})

    async def get(self, params: Members, caller: Caller) -> bytes:
        """The result of ``prompts/get``.

        Raises:
            RequestError: nobody has the prompt, or its server could not be asked.
        """
        name = envelope.text(params.get("name"))
        if name == NAME:
            result = await self._own.get(params, caller)
            return eras.fit_result_to_client("prompts/get", result, caller.era, forwarding.SERVER_INFO)
        prompt = self._resolve(name)
        sent = {**params, "name": envelope.raw(prompt.name)}
        return await self._forward(prompt.server, "prompts/get", sent, caller, f"prompt {prompt.name!r}")

    async def complete(self, params: Members, caller: Caller) -> bytes:
        """The result of ``completion/complete``.

        Raises:
            RequestError: nobody has what is referred to, or its server could not be asked.
        """
        reference = envelope.members(params["ref"])
        if _is_ours(reference):
            result = envelope.encode({"completion": {"values": [], "total": 0, "hasMore": False}})
            return eras.fit_result_to_client(
                "completion/complete", result, caller.era, forwarding.SERVER_INFO
            )
        if envelope.text(reference.get("type")) == "ref/prompt":
            prompt = self._resolve(envelope.text(reference.get("name")))
            server, reference = prompt.server, {**reference, "name": envelope.raw(prompt.name)}
        else:
            server = self._owner_of_template(envelope.text(reference.get("uri")) or "")
        sent = {**params, "ref": envelope.raw(reference)}
        return await self._forward(server, "completion/complete", sent, caller, "a completion")

    def _owner_of_template(self, uri: str) -> str:
        for template in self._catalog.snapshot.templates:
            if template.uri == uri:
                return template.server
        # What is referred to is a parameter here, in either era.
        return self._resources.owner(uri, Era.MODERN)

    def _resolve(self, name: str | None) -> Prompt:
        prompts = self._catalog.snapshot.prompts
        if name is None:
            raise RequestError(INVALID_PARAMS, "the name of a prompt is missing")
        prompt = prompts.get(name)
        if prompt is None:
            nearest = difflib.get_close_matches(name, prompts, n=3)
            raise RequestError(INVALID_PARAMS, str(UnknownItemError("prompt", name, nearest)))
        return prompt

    async def _forward(
        self, server: str, method: str, params: Members, caller: Caller, subject: str
    ) -> bytes:
        try:
            client = self._fleet.client(server)
            return await self._forwarder.forward(client, method, params, caller, subject)
        except RemoteError as error:
            raise forwarding.request_error(error, caller.era) from error
        except DownstreamError as error:
            raise RequestError(INTERNAL_ERROR, str(error), {"server": error.server}) from error


def _is_ours(reference: Members) -> bool:
    """Whether it refers to something of the proxy's own, for which there are no completions."""
    if envelope.text(reference.get("type")) == "ref/prompt":
        return envelope.text(reference.get("name")) == NAME
    return (envelope.text(reference.get("uri")) or "").startswith(server_resources.SCHEME)
