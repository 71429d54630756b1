"""Profiles: the part of everything that one kind of client gets, such as a coding host or a chat host.

A table ``[clients.NAME]`` is a profile. A client has it by a token that is bound to it, by its address
``/mcp/p/NAME`` or ``serve --profile NAME``, by the name of its agent, or by the name under which it
introduces itself, in this order.
"""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal, TypeAlias

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from mcp_context_proxy.config.tables import KEY_ERROR, ClassesConfig, Flag, Table, Text, by_default

ExposeMode: TypeAlias = Literal["auto", "all", "search"]

PROFILE_CHARACTERS: Final = 32
_PROFILE_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{PROFILE_CHARACTERS - 1}}}", re.ASCII)


def _is_profile_name(text: str) -> str:
    if not _PROFILE_NAME.fullmatch(text):
        message = "must be 1 to {most} letters, digits, '_' or '-', and begin with a letter or digit"
        raise PydanticCustomError(KEY_ERROR, message, {"most": PROFILE_CHARACTERS})
    return text


ProfileName = Annotated[str, AfterValidator(_is_profile_name)]
"""Name of a profile: it stands in addresses and commands."""


class ClientConfig(Table):
    """Settings of one profile. Lists are globs; None leaves everything in."""

    client: tuple[Text, ...] = ()
    """Names under which clients introduce themselves (``clientInfo``), in upper or lower case."""
    agent: tuple[Text, ...] = ()
    """Names of agents, as they stand in the header ``X-Agent-Name``."""
    tokens: tuple[Text, ...] = ()
    """Names of tokens that are bound to the profile: whoever has one gets it at every address."""
    servers: tuple[Text, ...] | None = None
    """Servers that the clients get."""
    tools: tuple[Text, ...] | None = None
    """Tools of these servers that they get, as ``SERVER__TOOL``."""
    documents: tuple[Text, ...] | None = None
    """The user's own rules and references that they get, by name."""
    presets: tuple[Text, ...] = ()
    """Presets that each of their sessions begins with: saved ones, or one that says how much is selected."""
    expose: ExposeMode | None = None
    """By default ``expose.mode``."""
    classes: ClassesConfig = by_default()
    """Calls that are asked about or refused, beside those that are so for all clients."""
    learn: Flag = False
    """Whether their calls teach the ranking, which all clients share."""


Clients = dict[ProfileName, ClientConfig]
"""Profiles by name, in the order of the file: of several that match a client, the first counts."""
