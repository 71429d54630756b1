"""docs/bounds.md states the figures that are in force."""

import importlib
import re

from docs.conftest import page
from faults.test_floods import KINDS

from mcp_context_proxy.config import Limits

MODULES = [
    importlib.import_module(f"mcp_context_proxy.{name}")
    for name in (
        "context",
        "context.session",
        "web.contexts",
        "protocol.envelope",
        "protocol.framing",
        "protocol.eras",
        "downstream.jsonrpc",
        "downstream.inbound",
        "downstream.http_client",
        "downstream.listing",
        "downstream.stdio",
        "downstream.http_session",
        "oauth.bearer",
        "results.result_store",
        "results.json_values",
        "server.forwarding",
        "server.meta_definitions",
        "server.notifications",
        "server.resources",
        "server.negotiation",
        "front.http_requests",
        "server.skills",
        "catalog.catalog",
        "catalog.names",
        "catalog.skills",
        "retrieval.indexing",
        "protocol",
        "front.conversation",
        "front.local",
        "system",
        "bridge.meeting",
        "bridge.session",
        "store.tables",
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
    found = {module.__name__: getattr(module, name) for module in MODULES if hasattr(module, name)}
    assert len(set(found.values())) == 1, f"{name} is not the name of one bound: {found}"
    return float(next(iter(found.values())))


def figure(match: re.Match[str]) -> float:
    unit = match["text"].strip().split(" ")[0]
    return float(match["figure"].replace(",", "")) * UNITS.get(unit, 1)


def test_each_figure_is_that_of_its_bound() -> None:
    text = page("docs/bounds.md").text
    stated = {match["name"]: figure(match) for match in _BOUND.finditer(text)}

    assert len(stated) > 40
    assert set(stated) == set(_NAME.findall(text))
    assert stated == {name: value(name) for name in stated}


FLOODS: dict[str, set[str]] = {
    "`notifications/message`": {"log", "large-log"},
    "`notifications/progress`": {"progress", "progress-of-megabytes", "smallest-notifications"},
    "`notifications/progress` of no running call": {"progress-of-nothing"},
    "`notifications/cancelled`": {"cancelled"},
    "`notifications/tools/list_changed`": {"tools-changed", "prompts-changed", "resources-changed"},
    "`notifications/resources/updated` of a resource": {"updated", "updated-below"},
    "`notifications/resources/updated` of any other": {"updated-unasked"},
    "`notifications/elicitation/complete` of an unknown id": {"completed"},
    "`notifications/subscriptions/acknowledged`": {"acknowledged"},
    "`notifications/tasks/*`": {"task-status", "unknown-notification"},
    "`ping`": {"ping", "smallest-pings"},
    "`sampling/createMessage`": {"sampling", "elicitation", "roots"},
    "`tasks/*` and unknown requests": {"task-request", "unknown-request", "large-id"},
    "responses to unknown ids": {"response"},
    "blank lines": {"blank-lines"},
    "entries of `skills/list`": {"skills-changed"},
    "stray lines": {"stray"},
    "stderr": {"stderr"},
}
"""Floods in the fault matrix, by the beginning of the row of the message that they are made of."""

NOT_FLOODED = (
    "`notifications/elicitation/complete` of a question",  # each needs a question, which are bounded
    "the `instructions`",  # a server has one
    "`input_required` results",  # each needs a person who has confirmed a call
    "files of skills",  # a client reads them, in a test of its own beside the floods
    "entries of a folder",  # a client asks for them, page by page
)
"""Rows of what no server can send by itself as fast as it can."""


def test_each_kind_of_message_of_a_server_has_a_flood_in_the_fault_matrix() -> None:
    table = page("docs/bounds.md").text.split("## Sent by servers")[1].split("\n## ")[0]
    rows = [line.split(" | ")[0].removeprefix("| ") for line in table.splitlines() if line.startswith("| ")]
    beginnings = sorted((*FLOODS, *NOT_FLOODED), key=len, reverse=True)
    found = [
        next((one for one in beginnings if row.startswith(one)), row) for row in rows if row != "message"
    ]

    assert sorted(found) == sorted((*FLOODS, *NOT_FLOODED))
    assert set().union(*FLOODS.values()) == set(KINDS)
