"""Checks of the params of requests: whether each member that this proxy acts on is there, and of which kind.

The server judges the rest.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Raw

from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.eras import CLIENT_CAPABILITIES_KEY, Meta, meta_of

STRING, OBJECT, NULL = b'"', b"{", b"n"
"""First characters that tell the kind of a JSON value."""

_KINDS = {STRING[0]: "a string", OBJECT[0]: "an object"}

_NEEDED: Mapping[str, Mapping[str, bytes]] = {
    "tools/call": {"name": STRING},
    "prompts/get": {"name": STRING},
    "resources/read": {"uri": STRING},
    "resources/directory/read": {"uri": STRING},
    "resources/subscribe": {"uri": STRING},
    "resources/unsubscribe": {"uri": STRING},
    "completion/complete": {"ref": OBJECT, "argument": OBJECT},
    "logging/setLevel": {"level": STRING},
    "skills/get": {"uri": STRING},
    "tasks/get": {"taskId": STRING},
    "tasks/update": {"taskId": STRING, "inputResponses": OBJECT},
    "tasks/cancel": {"taskId": STRING},
}
"""Required members of the params of each method, with their kind."""

_LISTS = (
    "tools/list",
    "prompts/list",
    "resources/list",
    "resources/templates/list",
    "resources/directory/read",
    "skills/list",
)

_ALLOWED: Mapping[str, Mapping[str, bytes]] = {
    # Models sometimes write the object as a string of JSON; it is accepted.
    "tools/call": {"arguments": OBJECT + STRING + NULL},
    "prompts/get": {"arguments": OBJECT + NULL},
    **{method: {"cursor": STRING + NULL} for method in _LISTS},
}
"""Optional members of the params of each method, with the first characters of their possible kinds."""

_PASSED_ON = "arguments"
"""The param that is only passed on; all others are decoded here, and so bounded, as ``_meta`` is."""

_CHECKS: Mapping[str, tuple[tuple[str, bytes, bool, bool], ...]] = {
    method: tuple(
        (name, kinds, name in _NEEDED.get(method, {}), name != _PASSED_ON)
        for name, kinds in {**_NEEDED.get(method, {}), **_ALLOWED.get(method, {})}.items()
    )
    for method in {**_NEEDED, **_ALLOWED}
}
"""All of these by method, because every call is checked: each name with its kinds, whether it is needed, and
whether it is bounded."""

_REFERENCES = {"ref/prompt": "name", "ref/resource": "uri"}


def params_fault(
    method: str, params: Members, *, modern: bool = False, meta: Meta | None = None
) -> str | None:
    """Return the fault in the params of a request, for its sender; None if they are right.

    `meta` is their ``_meta``, if it is decoded already.
    """
    for name, kinds, needed, bounded in _CHECKS.get(method, ()):
        raw = params.get(name)
        if raw is None:
            if needed:
                return f"{method} needs {name}, {_KINDS[kinds[0]]}"
        elif bounded and len(raw) > envelope.TAKEN_APART_BYTES:
            return _too_large(name, method, raw)
        elif not envelope.starts_with(raw, kinds):
            needs = f"{method} needs {name}," if needed else f"{name} of {method} must be"
            return f"{needs} {_KINDS[kinds[0]]}"
    raw_meta = params.get("_meta")
    # One that is decoded, and not empty, is an object of a right size.
    if raw_meta is not None and not meta:
        if len(raw_meta) > envelope.TAKEN_APART_BYTES:
            return _too_large("_meta", method, raw_meta)
        if not envelope.starts_with(raw_meta, OBJECT + NULL):
            return "_meta must be an object"
    if method == "completion/complete" and (wrong := _reference_fault(params)) is not None:
        return wrong
    if raw_meta is None:
        return f"{CLIENT_CAPABILITIES_KEY} must be an object" if modern else None
    meta = meta_of(params) if meta is None else meta
    return meta.modern_fault if modern else meta.fault


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


def _too_large(name: str, method: str, raw: Raw) -> str:
    return f"{name} of {method} has {len(raw):,} bytes; {envelope.TAKEN_APART_BYTES:,} are allowed"


def _is(raw: Raw | None, kinds: bytes) -> bool:
    return raw is not None and envelope.starts_with(raw, kinds)
