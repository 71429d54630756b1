"""A call runs, is asked about or is refused by one rule, whichever way it is made and whoever makes it.

The table is that of docs/calls.md, "Which calls run".
"""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.proxies import Host, host_of, inside
from support.servers import Server, Workshop, tool
from support.tables import each

from mcp_context_proxy.app.proxy import Proxy

ASKS_USER = {"_meta": {"anthropic/requiresUserInteraction": True}}
READS = {"annotations": {"readOnlyHint": True}}
MARKERS: dict[str, dict[str, Any]] = {
    "unmarked": {},
    "reading": READS,
    "destroying": {"annotations": {"destructiveHint": True}},
    "interactive": ASKS_USER,
    "interactive_reading": READS | ASKS_USER,
}
SETTINGS = ("free", "asked", "refused", "denied", "disabled")
TOOLS = {f"{setting}_{marker}": MARKERS[marker] for setting in SETTINGS for marker in MARKERS}
"""One tool for each setting and marker. No name has a verb in it."""

WAYS = {
    "its listed name": lambda name: (f"s__{name}", {}),
    "its own name": lambda name: (name, {}),
    "call_tool": lambda name: ("call_tool", {"name": f"s__{name}"}),
    "call_tool and its own name": lambda name: ("call_tool", {"name": name}),
    "call_read_only_tool": lambda name: ("call_read_only_tool", {"name": f"s__{name}"}),
}
PAGE = (Path(__file__).parents[2] / "docs" / "calls.md").read_text(encoding="utf-8")


def outcome_of(name: str, way: str, can_be_asked: bool) -> str:
    """The table: ``runs``, ``asks`` or ``refuses``."""
    setting, _, marker = name.partition("_")
    if setting in ("refused", "denied", "disabled"):
        return "refuses"
    if way == "call_read_only_tool" and not marker.endswith("reading"):
        return "refuses"
    host_asks = way == "its listed name"
    if setting == "asked" or (marker.startswith("interactive") and not host_asks):
        return "asks" if can_be_asked else "refuses"
    return "runs"


@pytest.fixture(scope="module", params=["handshake", "modern"])
async def served(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> AsyncIterator[tuple[Proxy, Server]]:
    """A proxy in front of a server of either era."""
    workshop = Workshop(tmp_path_factory.mktemp("permissions"))
    settings = {
        "deny": ["denied_*"],
        "tools": {
            "asked_*": {"allow": "ask"},
            "refused_*": {"allow": "never"},
            "disabled_*": {"enabled": False},
        },
    }
    defined = [tool(name, **marker) for name, marker in TOOLS.items()]
    server = workshop.server("s", era=request.param, tools=defined, settings=settings)
    async with inside(workshop.config(expose={"mode": "all"}), patience=None) as proxy:
        yield proxy, server


async def outcome(host: Host, name: str, arguments: dict[str, Any]) -> str:
    result = await host.call(name, arguments)
    if result.get("resultType") == "input_required" or host.asked:
        return "asks"
    return "refuses" if result.get("isError") else "runs"


@each("can_be_asked", [True, False])
@each("way", WAYS)
async def test_every_way_of_calling_has_the_same_rule(
    served: tuple[Proxy, Server], era: str, way: str, can_be_asked: bool
) -> None:
    proxy, server = served
    found, ran = {}, {}
    for name in TOOLS:
        before = len(server.ledger.calls(name))
        capabilities = {"elicitation": {}} if can_be_asked else {}
        host = Host(proxy, era, capabilities, {"elicitation/create": lambda params: {"action": "decline"}})
        found[name] = await outcome(host, *WAYS[way](name))
        ran[name] = len(server.ledger.calls(name)) - before

    assert found == {name: outcome_of(name, way, can_be_asked) for name in TOOLS}
    assert ran == {name: int(found[name] == "runs") for name in TOOLS}


def test_the_page_has_the_same_table() -> None:
    rows = re.findall(r"^\| ([^|]+) \| (\w+) \| (\w+) \| (\w+) \| (\w+) \|$", PAGE, re.MULTILINE)
    examples = {
        "turned off": "refused_reading",
        '`"ask"`, it reads': "asked_reading",
        '`"ask"`, it does more': "asked_unmarked",
        "it demands its user, and reads": "interactive_reading",
        "it demands its user, and does more": "interactive",
        "none of these, it reads": "free_reading",
        "none of these, it does more": "free_unmarked",
    }
    shown = {"runs": "runs", "asks": "asked", "refuses": "refused"}
    told = {row[0]: row[1:] for row in rows if row[0] in examples}

    assert told == {
        row: tuple(
            shown[
                outcome_of(
                    name if "_" in name and name.split("_")[0] in SETTINGS else f"free_{name}", way, True
                )
            ]
            for way in ("its listed name", "its own name", "call_tool", "call_read_only_tool")
        )
        for row, name in examples.items()
    }


@pytest.mark.parametrize("setting", ["refused", "denied", "disabled"])
async def test_a_refusal_names_the_rule_with_its_file_and_line(
    served: tuple[Proxy, Server], era: str, setting: str
) -> None:
    keys = {
        "refused": 'tools."refused_*".allow',
        "denied": "deny[0]",
        "disabled": 'tools."disabled_*".enabled',
    }
    result = await Host(served[0], era).call(f"s__{setting}_reading")

    assert re.search(
        rf"is turned off by servers\.s\.{re.escape(keys[setting])} \(config\.toml:\d+\)",
        result["content"][0]["text"],
    )


async def test_a_person_who_cannot_be_asked_is_told_by_which_line(
    served: tuple[Proxy, Server], era: str
) -> None:
    result = await Host(served[0], era).call("s__asked_reading")

    assert re.search(
        r'by servers\.s\.tools\."asked_\*"\.allow \(config\.toml:\d+\)', result["content"][0]["text"]
    )


async def test_a_class_that_is_never_allowed_is_in_no_list_and_the_refusal_says_why(
    workshop: Workshop, era: str
) -> None:
    server = workshop.server(
        "s",
        tools=[tool("delete_all", **READS), tool("peek", **READS)],
        settings={"classes": {"destructive": "never"}},
    )
    async with host_of(workshop.config(expose={"mode": "all"}), era) as host:
        names = await host.names()
        refused = await host.call("call_tool", {"name": "s__delete_all"})

    assert "s__peek" in names
    assert "s__delete_all" not in names
    assert re.search(
        r"turned off by servers\.s\.classes\.destructive \(config\.toml:\d+\), because it is destructive: "
        r"its name says 'delete'",
        refused["content"][0]["text"],
    )
    assert server.ledger.calls() == []


async def test_a_tool_that_only_calls_itself_read_only_is_refused_by_the_read_only_way(
    workshop: Workshop, era: str
) -> None:
    server = workshop.server(
        "s",
        tools=[tool("delete_all", **READS), tool("ponder", **READS)],
        settings={"tools": {"ponder": {"danger": "write"}}},
    )
    async with host_of(workshop.config(), era) as host:
        results = [
            await host.call("call_read_only_tool", {"name": name}) for name in ("delete_all", "ponder")
        ]

    assert "counts as destructive: its name says 'delete'" in results[0]["content"][0]["text"]
    assert (
        "counts as write: by servers.s.tools.ponder.danger (config.toml:" in results[1]["content"][0]["text"]
    )
    assert server.ledger.calls() == []
