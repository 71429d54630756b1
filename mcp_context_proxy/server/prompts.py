"""Prompts and completions of the downstream servers, under names that are unique behind this proxy.

The proxy has one prompt of its own, ``with_context``: it takes a query and returns the rules and references
that apply to it, as messages for the conversation.
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
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.items import Prompt
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.server import rendering
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.forwarding import Forwarder, downstream_errors, fit_to_caller
from mcp_context_proxy.server.resources import SCHEME, Resources

NAME = "with_context"

DEFINITION: dict[str, Any] = {
    "name": NAME,
    "title": "With context",
    "description": "The rules and references that apply to a query, and the tools that fit it.",
    "arguments": [{"name": "query", "description": "What you want to do", "required": True}],
}


class Prompts:
    """Answers the ``prompts/*`` methods and ``completion/complete``."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        fleet: Fleet,
        forwarder: Forwarder,
        resources: Resources,
        contexts: ContextEngine,
        handles: Handles,
    ) -> None:
        self._catalog, self._fleet, self._forwarder, self._resources = catalog, fleet, forwarder, resources
        self._contexts, self._handles = contexts, handles

    async def list(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``prompts/list``."""
        del params, caller
        prompts = [
            definitions.prompt_definition(prompt) for prompt in self._catalog.snapshot.prompts.values()
        ]
        return envelope.encode({"prompts": [*prompts, DEFINITION]})

    async def get(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``prompts/get``, fitted to the caller's era.

        Raises:
            RequestError: nobody has the prompt, or its server could not be asked.
        """
        name = envelope.text(params.get("name"))
        if name == NAME:
            return fit_to_caller("prompts/get", await self._with_context(params, caller), caller)
        prompt = self._resolve(name)
        sent = {**params, "name": envelope.raw(prompt.name)}
        return await self._forward(prompt.server, "prompts/get", sent, caller, f"prompt {prompt.name!r}")

    async def complete(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``completion/complete``, fitted to the caller's era.

        Raises:
            RequestError: nobody has the prompt or resource, or its server could not be asked.
        """
        reference = envelope.members(params["ref"])
        of_prompt = envelope.text(reference.get("type")) == "ref/prompt"
        name, uri = envelope.text(reference.get("name")), envelope.text(reference.get("uri")) or ""
        if name == NAME if of_prompt else uri.startswith(SCHEME):
            # There are no completions for the proxy's own prompt and resources.
            result = envelope.encode({"completion": {"values": [], "total": 0, "hasMore": False}})
            return fit_to_caller("completion/complete", result, caller)
        if of_prompt:
            prompt = self._resolve(name)
            server, reference = prompt.server, {**reference, "name": envelope.raw(prompt.name)}
        else:
            templates = self._catalog.snapshot.templates
            # The URI is a parameter here, so an unknown one is an invalid parameter in either era.
            server = next(
                (template.server for template in templates if template.uri == uri), ""
            ) or self._resources.owner(uri, Era.MODERN)
        sent = {**params, "ref": envelope.raw(reference)}
        return await self._forward(server, "completion/complete", sent, caller, "a completion")

    async def _with_context(self, params: Members, caller: Caller) -> bytes:
        """Return the query's rules and references, one message each, then its tools, then the query."""
        try:
            arguments = envelope.members(params["arguments"])
        except (KeyError, msgspec.DecodeError):
            arguments = {}
        query = envelope.text(arguments.get("query"))
        if query is None or not query.strip():
            raise RequestError(INVALID_PARAMS, f"prompt {NAME!r} needs a query: what you want to do")
        query = query[:QUERY_CHARACTERS]
        session = handle_of(params, self._handles, caller.principal) or caller.session
        selected = await self._contexts.select(query, session, owner=caller.principal)
        context, snapshot = selected.context, selected.snapshot
        texts = [rendering.document_message(one) for one in rendering.documents_of(context, snapshot)]
        if tools := rendering.tools_text(context, snapshot):
            texts.append(tools)
        messages = [{"role": "user", "content": {"type": "text", "text": text}} for text in (*texts, query)]
        return envelope.encode({"description": f"Context for: {query}", "messages": messages})

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
        with downstream_errors(caller.era):
            client = self._fleet.clients[server]
            return await self._forwarder.forward(client, method, params, caller, subject)
