"""docs/bounds.md states the figures that are in force."""

from __future__ import annotations

import importlib
import re

from docs.conftest import page

from mcp_context_proxy.config import Limits

MODULES = [
    importlib.import_module(f"mcp_context_proxy.{name}")
    for name in (
        "context.session",
        "protocol.envelope",
        "protocol.framing",
        "protocol.validation",
        "downstream.jsonrpc",
        "downstream.inbound",
        "downstream.listing",
        "downstream.subscriptions",
        "downstream.stdio",
        "downstream.http_session",
        "results.kept",
        "results.texts",
        "results.json_values",
        "server.forwarding",
        "server.meta_definitions",
        "server.notifications",
        "server.resources",
        "server.subscriptions",
        "front.http_exchange",
        "server.skills",
        "catalog.skills",
        "retrieval.indexing",
        "front.conversation",
        "front.local",
        "bridge.meeting",
        "bridge.session",
        "store.approvals",
        "trust.approval",
        "trust.audit",
        "trust.fingerprints",
        "trust.tokens",
    )
]

UNITS = {"KiB": 1 << 10, "MiB": 1 << 20}

_BOUND = re.compile(r"(?P<figure>\d[\d,.]*)(?P<text>[^()|\d]*?) \(`(?P<name>[\w.]+)`\)")
_NAME = re.compile(r"\(`([\w.]+)`\)")


def value(name: str) -> float:
    if name.startswith("limits."):
        return float(getattr(Limits(), name.removeprefix("limits.")))
    (found,) = {float(getattr(module, name)) for module in MODULES if hasattr(module, name)}
    return found


def figure(match: re.Match[str]) -> float:
    unit = match["text"].strip().split(" ")[0]
    return float(match["figure"].replace(",", "")) * UNITS.get(unit, 1)


def test_each_figure_is_that_of_its_bound() -> None:
    text = page("docs/bounds.md").text
    stated = {match["name"]: figure(match) for match in _BOUND.finditer(text)}

    assert len(stated) > 40
    assert set(stated) == set(_NAME.findall(text))
    assert stated == {name: value(name) for name in stated}
