"""Says what is wrong with the params of a request: only members that this proxy acts on are looked at.

What a server is sent is for the server to judge; what would be silently taken for something else is refused.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from mcp_context_proxy.wire import envelope, era
from mcp_context_proxy.wire.envelope import Members
from mcp_context_proxy.wire.levels import LOG_LEVELS

STRING, OBJECT, NULL = '"', "{", "n"
"""With what a value of that kind begins."""

_KINDS = {STRING: "a string", OBJECT: "an object"}

_NEEDED: Mapping[str, Mapping[str, str]] = {
    "tools/call": {"name": STRING},
    "prompts/get": {"name": STRING},
    "resources/read": {"uri": STRING},
    "resources/subscribe": {"uri": STRING},
    "resources/unsubscribe": {"uri": STRING},
    "completion/complete": {"ref": OBJECT, "argument": OBJECT},
    "logging/setLevel": {"level": STRING},
}
"""Members that a method needs, and of what kind."""

_LISTS = ("tools/list", "prompts/list", "resources/list", "resources/templates/list")

_ALLOWED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    # Models write an object as a string of JSON; it is read as what it means.
    "tools/call": {"arguments": (OBJECT, STRING, NULL)},
    "prompts/get": {"arguments": (OBJECT, NULL)},
    **{method: {"cursor": (STRING, NULL)} for method in _LISTS},
}
"""Members that may be left out, and of what kinds they may be."""

_REFERENCES = {"ref/prompt": "name", "ref/resource": "uri"}


def fault(method: str, params: Members, *, modern: bool = False) -> str | None:
    """What is wrong with the params of a request, for whoever sent it; None when nothing is."""
    for name, kind in _NEEDED.get(method, {}).items():
        if not _is(params.get(name), kind):
            return f"{method} needs {name}, {_KINDS[kind]}"
    for name, kinds in _ALLOWED.get(method, {}).items():
        if name in params and not any(_is(params[name], kind) for kind in kinds):
            return f"{name} of {method} must be {_KINDS[kinds[0]]}"
    if "_meta" in params and not any(_is(params["_meta"], kind) for kind in (OBJECT, NULL)):
        return "_meta must be an object"
    if method == "completion/complete" and (wrong := _reference_fault(params)) is not None:
        return wrong
    return _meta_fault(era.meta_of(params), modern)


def _reference_fault(params: Members) -> str | None:
    try:
        reference, argument = envelope.members(params["ref"]), envelope.members(params["argument"])
    except msgspec.DecodeError:
        return "completion/complete needs ref and argument, objects"
    needed = _REFERENCES.get(envelope.text(reference.get("type")) or "")
    if needed is None or not _is(reference.get(needed), STRING):
        return "ref must be of type ref/prompt with a name, or of type ref/resource with a uri"
    if not (_is(argument.get("name"), STRING) and _is(argument.get("value"), STRING)):
        return "argument needs a name and a value, strings"
    return None


def _meta_fault(meta: Members, modern: bool) -> str | None:
    token = meta.get("progressToken")
    if token is not None and type(envelope.value(token)) not in (int, str):
        return "progressToken must be a string or an integer"
    if modern and not _is(meta.get(era.CLIENT_CAPABILITIES_KEY), OBJECT):
        return f"{era.CLIENT_CAPABILITIES_KEY} must be an object"
    level = meta.get(era.LOG_LEVEL_KEY)
    if modern and level is not None and envelope.text(level) not in LOG_LEVELS:
        return f"{era.LOG_LEVEL_KEY} must be one of {', '.join(LOG_LEVELS)}"
    return None


def _is(raw: Raw | None, kind: str) -> bool:
    return raw is not None and envelope.starts_with(raw, kind.encode())
