"""Prompts and completions of the downstream servers, under names that are unique behind this proxy."""

from __future__ import annotations

import difflib

from mcp_context_proxy.catalog import exposed
from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.errors import DownstreamError, RemoteError, UnknownItemError
from mcp_context_proxy.items import Prompt
from mcp_context_proxy.server import context_prompt, context_resources, forwarding
from mcp_context_proxy.server.caller import Caller
from mcp_context_proxy.server.context_prompt import ContextPrompt
from mcp_context_proxy.server.forwarding import Forwarder
from mcp_context_proxy.server.resources import Resources
from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import INTERNAL_ERROR, INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.wire.era import Era


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
        prompts = [exposed.prompt_definition(prompt) for prompt in self._catalog.snapshot.prompts.values()]
        return envelope.encode({"prompts": [*prompts, context_prompt.DEFINITION]})

    async def get(self, params: Members, caller: Caller) -> bytes:
        """The result of ``prompts/get``.

        Raises:
            RequestError: nobody has the prompt, or its server could not be asked.
        """
        name = envelope.text(params.get("name"))
        if name == context_prompt.NAME:
            result = await self._own.get(params, caller)
            return era.upward("prompts/get", result, caller.era, forwarding.SERVER_INFO)
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
            return era.upward("completion/complete", result, caller.era, forwarding.SERVER_INFO)
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
        return envelope.text(reference.get("name")) == context_prompt.NAME
    return (envelope.text(reference.get("uri")) or "").startswith(context_resources.SCHEME)
