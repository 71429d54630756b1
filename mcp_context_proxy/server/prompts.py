"""Prompts and completions of the downstream servers, under names that are unique behind this proxy.

The proxy has one prompt of its own, ``with_context``: it takes a query and returns the rules and references
that apply to it, as messages for the conversation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.catalog import definitions, names
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.session import QUERY_CHARACTERS, Handles, handle_of
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import ChangedMeaningError, UnknownItemError, WithheldError
from mcp_context_proxy.items import Prompt
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.strangers import one_line, stranger_json, unmarked
from mcp_context_proxy.server import rendering
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.forwarding import Forwarder, downstream_errors
from mcp_context_proxy.server.resources import SCHEME, Resources
from mcp_context_proxy.server.tools_list import encoded_list
from mcp_context_proxy.system.threads import in_thread

COMPLETIONS, COMPLETION_CHARACTERS = 100, 1_000
"""Values of a completion that pass, as many as the protocol allows, and the length of one."""

NAME = "with_context"

DEFINITION: dict[str, Any] = {
    "name": NAME,
    "title": "With context",
    "description": "The rules and references that apply to a query, and the tools that fit it.",
    "arguments": [{"name": "query", "description": "What you want to do", "required": True}],
}


class Prompts(Struct, frozen=True, kw_only=True, eq=False):
    """Answers the ``prompts/*`` methods and ``completion/complete``."""

    catalog: Catalog
    fleet: Fleet
    forwarder: Forwarder
    resources: Resources
    contexts: ContextEngine
    handles: Handles
    catch_up: Callable[[], Awaitable[None]]
    """Waits for the catalog, if a server has just become ready."""

    async def list(self, params: Members, caller: Caller) -> Members:
        """Return the result of ``prompts/list``."""
        del params, caller
        prompts = self.catalog.snapshot.prompts.values()
        return {"prompts": await encoded_list((), definitions.prompt_definition, prompts, (DEFINITION,))}

    async def get(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``prompts/get``, fitted to the caller's era."""
        name = envelope.text(params["name"]) or ""
        if name == NAME:
            return eras.fit_result_to_client(
                "prompts/get", await self._with_context(params, caller), caller.era
            )
        prompt = await self._resolve(name, params, caller)
        sent = {**params, "name": envelope.raw(prompt.name)}
        return await self._forward(prompt.server, "prompts/get", sent, caller, f"prompt {prompt.name!r}")

    async def complete(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``completion/complete``, fitted to the caller's era."""
        reference = envelope.members(params["ref"])
        of_prompt = envelope.text(reference.get("type")) == "ref/prompt"
        name, uri = (envelope.text(reference.get(key)) or "" for key in ("name", "uri"))
        if name == NAME if of_prompt else uri.startswith(SCHEME):
            # There are no completions for the proxy's own prompt and resources.
            result = envelope.encode({"completion": {"values": [], "total": 0, "hasMore": False}})
            return eras.fit_result_to_client("completion/complete", result, caller.era)
        if of_prompt:
            prompt = await self._resolve(name, params, caller)
            server, reference = prompt.server, {**reference, "name": envelope.raw(prompt.name)}
        else:
            template = self.catalog.snapshot.templates.get(uri)
            # The URI is a parameter here, so an unknown one is an invalid parameter in either era.
            server = self.resources.owner(uri, Era.MODERN).name if template is None else template.server
        sent = {**params, "ref": envelope.raw(reference)}
        result = await self._forward(server, "completion/complete", sent, caller, "a completion")
        redact = self.fleet.clients[server].redact.json
        if len(result) > envelope.TAKEN_APART_BYTES:
            return await in_thread(shown_completions, result, redact)
        return shown_completions(result, redact)

    async def _with_context(self, params: Members, caller: Caller) -> bytes:
        """Return the query's rules and references, one message each, then its tools, then the query."""
        given = params.get("arguments", Raw(b"{}"))
        if len(given) > envelope.TAKEN_APART_BYTES:
            text = f"arguments of prompt {NAME!r} have {len(given):,} bytes"
            raise RequestError(INVALID_PARAMS, f"{text}; {envelope.TAKEN_APART_BYTES:,} are allowed")
        try:
            arguments = envelope.members(given)
        except (KeyError, msgspec.DecodeError):
            arguments = {}
        query = envelope.text(arguments.get("query"))
        if query is None or not query.strip():
            raise RequestError(INVALID_PARAMS, f"prompt {NAME!r} needs a query: what you want to do")
        query = query[:QUERY_CHARACTERS]
        session = handle_of(params, self.handles, caller.principal) or caller.session
        selected = await self.contexts.select(query, session, owner=caller.principal, deliver="whole")
        context, snapshot = selected.context, selected.found.snapshot
        texts = [rendering.document_message(one) for one in rendering.documents_of(context, snapshot)]
        if tools := rendering.tools_text(context, snapshot, caller.name_of):
            texts.append(tools)
        if selected.recalled:
            texts.append(rendering.recalled_text(selected.recalled))
        messages = [{"role": "user", "content": {"type": "text", "text": text}} for text in (*texts, query)]
        return envelope.encode({"description": f"Context for: {query}", "messages": messages})

    async def _resolve(self, name: str, params: Members, caller: Caller) -> Prompt:
        """Return the prompt that a request names; `catalog.names` tells which names a prompt has."""
        prompts, servers = self.catalog.snapshot.prompts, self.catalog.snapshot.servers
        prompt = names.by_full_name(prompts, name, servers)
        if prompt is None:
            await self.catch_up()
            prompts, servers = self.catalog.snapshot.prompts, self.catalog.snapshot.servers
            prompt = names.by_full_name(prompts, name, servers)
        if prompt is None:
            with downstream_errors(caller.era):
                self.fleet.raise_if_unavailable(names.owner(name, servers))
            self._raise_if_withheld(name)
            near = await in_thread(names.suggested, prompts, name, servers, names.COMPARED_IN_THREAD)
            raise RequestError(INVALID_PARAMS, str(UnknownItemError("prompt", name, near)))
        if names.is_full(name):
            return prompt
        self._raise_if_withheld(name)
        session = handle_of(params, self.handles, caller.principal) or caller.session
        if session is not None:
            try:
                session.means("prompt", name, prompt.server)
            except ChangedMeaningError as error:
                raise RequestError(INVALID_PARAMS, str(error)) from None
        return prompt

    def _raise_if_withheld(self, name: str) -> None:
        snapshot = self.catalog.snapshot
        try:
            names.raise_if_withheld("prompt", snapshot.withheld_prompts, name, snapshot.servers)
        except WithheldError as error:
            raise RequestError(INVALID_PARAMS, str(error)) from None

    async def _forward(
        self, server: str, method: str, params: Members, caller: Caller, subject: str
    ) -> bytes:
        with downstream_errors(caller.era):
            client = self.fleet.clients[server]
            return await self.forwarder.forward(client, method, params, caller, subject)


def shown_completions(result: bytes, redact: Callable[[bytes], bytes]) -> bytes:
    """Return a completion as a person may be shown it, to choose a value: few, short, and hiding nothing.

    A value that hides something is left out, because it would be sent back as another one.
    """
    parts = envelope.members(stranger_json(result, redact))
    try:
        completion = envelope.members(parts["completion"])
        given = envelope.members(envelope.members(result)["completion"])["values"]
        values = [envelope.value_or_none(each) for each in msgspec.json.decode(given, type=list[Raw])]
    except (KeyError, msgspec.DecodeError):
        return envelope.encode(parts)
    shown = [one for one in values if isinstance(one, str) and unmarked(one_line(one)) == one.strip()]
    kept = [one for one in shown if len(one) <= COMPLETION_CHARACTERS][:COMPLETIONS]
    return envelope.encode({**parts, "completion": {**completion, "values": kept}})
