"""Tools that the configuration turns off: the one place that decides it, for every way to reach a tool.

``allow`` and ``deny`` of a server are globs over the tools' own names, and ``enabled = false`` stands under
a single tool. Any of them turns a tool off, and none turns on what another one turns off. The catalog leaves
such tools out of the snapshot, so that lists, searches, the index, learned pairs and calls cannot disagree.
Prompts and resources are not tools: only ``enabled = false`` for the whole server turns them off.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.source import KeyPath, dotted

ANY: Final = "*"
"""Stands for any characters, or none. Nothing else is special in a glob, so a host's list of names is one of
globs."""


def reason(config: ServerConfig, tool: str) -> str | None:
    """Return the setting that turns a tool off, as the end of "is turned off ..."; None if it is on."""
    own = config.tools.get(tool)
    if own is not None and not own.enabled:
        return f"by {_place(config, ('tools', tool, 'enabled'))}"
    for index, glob in enumerate(config.deny):
        if matches(glob, tool):
            return f"by {_place(config, ('deny', index))}"
    if config.allow is not None and not any(matches(glob, tool) for glob in config.allow):
        return f"by {_place(config, ('allow',))}, which does not name it"
    return None


def without_effect(config: ServerConfig, tools: Iterable[str]) -> Iterator[str]:
    """Yield a finding for each setting that is about a tool which its server does not offer.

    Args:
        config: Settings of the server.
        tools: Own names of everything that the server offers, turned off or not.
    """
    offered = frozenset(tools)
    globs: list[tuple[KeyPath, str]] = [(("allow",), glob) for glob in config.allow or ()]
    globs += [(("deny", index), glob) for index, glob in enumerate(config.deny)]
    globs += [(("tools", name, "enabled"), name) for name, tool in config.tools.items() if not tool.enabled]
    for key, glob in globs:
        if glob in offered if key[0] == "tools" else any(matches(glob, tool) for tool in offered):
            continue
        own = glob.removeprefix(f"{config.name}__")
        hint = "" if own == glob else f"; write the name that the server itself uses: {own}"
        yield f"{_place(config, key)}: {glob!r} matches none of its tools{hint}"


def matches(glob: str, name: str) -> bool:
    """Return whether a glob matches a whole name; upper and lower case differ. Takes linear time."""
    first, *others = glob.split(ANY)
    if not others:
        return glob == name
    *inner, last = others
    if not name.startswith(first) or not name.endswith(last):
        return False
    # Taking the first place of each piece leaves most room for the next, so nothing is tried twice.
    at, end = len(first), len(name) - len(last)
    for piece in inner:
        found = name.find(piece, at, end)
        if found < 0:
            return False
        at = found + len(piece)
    return at <= end


def _place(config: ServerConfig, key: KeyPath) -> str:
    """Return key, file and line of a setting; the key alone where it comes from no file."""
    return config.places.get(dotted(key)) or f"servers.{config.name}.{dotted(key)}"
