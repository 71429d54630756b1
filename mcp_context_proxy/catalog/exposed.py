"""Definitions as hosts see them: the bytes that came, with only the name changed.

The one addition: an ``inputSchema`` without ``type`` gets ``"type": "object"``, which the protocol demands
and without which hosts refuse the whole list. Some published servers leave it out.
"""

from __future__ import annotations

from msgspec import Raw

from mcp_context_proxy.items import Prompt, Tool
from mcp_context_proxy.wire import envelope
from mcp_context_proxy.wire.envelope import Members


def tool_definition(tool: Tool) -> Raw:
    """The definition of a tool under its exposed name."""
    members = envelope.members(tool.definition)
    members["name"] = envelope.raw(tool.exposed_name)
    schema = envelope.members(members["inputSchema"])
    if "type" not in schema:
        typed: Members = {"type": Raw(b'"object"')}
        members["inputSchema"] = envelope.raw({**typed, **schema})
    return envelope.raw(members)


def prompt_definition(prompt: Prompt) -> Raw:
    """The definition of a prompt under its exposed name."""
    members = envelope.members(prompt.definition)
    members["name"] = envelope.raw(prompt.exposed_name)
    return envelope.raw(members)
