"""Facts about each host, and the lists and results that its model gets."""

import json
from typing import Any

import pytest
from msgspec.structs import replace
from support.host_models import description_seen, model_sees, tools_seen
from support.servers import real_lists, tool
from support.tables import each

from mcp_context_proxy.catalog.names import exposed_name
from mcp_context_proxy.config import Limits
from mcp_context_proxy.config.host_profiles import (
    HOSTS,
    NAME_CHARACTERS,
    PLUGIN,
    PLUGIN_SERVER,
    SERVER,
    Fact,
    HostProfile,
    host_named,
    name_room,
    room_given,
)

EVERY_HOST = pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
PAIRS = [(server, tool["name"]) for server, tools in real_lists().items() for tool in tools]


def listed(length: int = NAME_CHARACTERS) -> list[dict[str, Any]]:
    """The tools of all real lists, under the names that we list."""
    return [
        {**tool, "name": exposed_name(server, tool["name"], length)}
        for server, tools in real_lists().items()
        for tool in tools
    ]


def without_limits(host: HostProfile) -> HostProfile:
    return replace(host, tools=Fact(None, "a test"))


def test_every_host_of_the_acceptance_has_a_profile() -> None:
    assert [host.title for host in HOSTS.values()] == [
        "Claude Code",
        "Claude Code (plugin)",
        "Claude Desktop",
        "Codex",
        "VS Code",
        "Copilot CLI",
        "Copilot in JetBrains IDEs",
        "Cursor",
        "opencode",
        "Gemini CLI",
        "Qwen Code",
        "Cline",
        "Continue",
        "A plain client",
    ]


@EVERY_HOST
def test_every_value_has_a_source(host: HostProfile) -> None:
    for field in {*HostProfile.__struct_fields__} - {"name", "title", "server"}:
        fact = getattr(host, field)
        assert isinstance(fact, Fact), field
        assert fact.source.strip(), field


@each(
    ("sent", "name"),
    [
        ("claude-code", "claude-code"),
        ("claude-ai", "claude-desktop"),
        ("claude-ai (via mcp-remote 0.1.37)", "claude-desktop"),
        ("codex-mcp-client", "codex"),
        ("Visual Studio Code", "vscode"),
        ("Visual-Studio-Code", "vscode"),
        ("github-copilot-developer", "copilot-cli"),
        ("JetBrains-IU-copilot-intellij", "jetbrains"),
        ("cursor-vscode", "cursor"),
        ("opencode", "opencode"),
        ("gemini-cli-mcp-client", "gemini-cli"),
        ("claude-code-plugin", "claude-code-plugin"),
        ("Zed", None),
        ("", None),
    ],
)
def test_a_host_is_known_by_the_name_that_its_client_sends(sent: str, name: str | None) -> None:
    assert host_named(sent) == (HOSTS[name] if name else None)


@each(
    ("name", "prefix", "most"),
    [
        ("claude-code", f"mcp__{SERVER}__", 64),
        ("claude-code-plugin", f"mcp__plugin_{PLUGIN}_{PLUGIN_SERVER}__", 64),
        ("gemini-cli", f"mcp_{SERVER}_", 63),
        ("cursor", f"{SERVER}:", 60),
    ],
)
def test_no_name_of_a_thousand_real_tools_breaks_a_host(name: str, prefix: str, most: int) -> None:
    assert len({prefix + tool["name"] for tool in listed()}) == len(PAIRS)
    assert max(len(prefix + tool["name"]) for tool in listed()) <= most
    assert HOSTS[name].names.value.prefix_with(HOSTS[name].server) == prefix


@EVERY_HOST
def test_every_real_tool_reaches_the_model_under_a_name_of_its_own(host: HostProfile) -> None:
    given = listed(room_given(host))
    seen = tools_seen(without_limits(host), given)

    assert len(seen) == len({tool["name"] for tool in seen}) == len(PAIRS) == 1035
    prefix = host.names.value.prefix_with(host.server)
    assert [tool["name"] for tool in seen] == [prefix + tool["name"] for tool in given]


@each(
    ("client", "room"),
    [
        ("claude-code", 41),  # a plugin sends this name as well, and leaves three characters less
        ("claude-ai", 50),
        ("codex-mcp-client", 44),
        ("Visual Studio Code", 46),
        ("github-copilot-developer", 41),  # Copilot CLI, also where it runs in a JetBrains IDE
        ("JetBrains-IU-copilot-intellij", 41),
        ("cursor-vscode", 46),
        ("opencode", 50),
        ("gemini-cli-mcp-client", 45),
        ("an agent of my own", NAME_CHARACTERS),
        ("", NAME_CHARACTERS),
    ],
)
def test_the_room_for_a_name_follows_from_the_name_of_the_client(client: str, room: int) -> None:
    assert name_room(client) == room
    host = host_named(client)
    assert host is None or name_room(client) <= host.name_characters


def test_host_rooms_are_never_more_than_the_host_has() -> None:
    assert all(NAME_CHARACTERS <= room_given(host) <= host.name_characters for host in HOSTS.values())


def test_longer_names_would_break_the_hosts_as_their_users_report() -> None:
    seen = {name: len(tools_seen(without_limits(host), listed(64))) for name, host in HOSTS.items()}

    assert seen["claude-code"] == seen["claude-code-plugin"] == seen["vscode"] == 0
    assert 900 < seen["cursor"] < 1035
    assert seen["plain"] == 1035


def test_the_length_is_the_one_that_the_strictest_host_leaves() -> None:
    room = {name: host.name_characters for name, host in HOSTS.items()}

    assert min(room.values()) == NAME_CHARACTERS == room["claude-code-plugin"] == 41
    assert (room["claude-code"], room["gemini-cli"], room["cursor"]) == (44, 45, 46)


def test_names_stay_readable_for_nine_of_ten_real_tools() -> None:
    kept = [pair for pair in PAIRS if exposed_name(*pair, NAME_CHARACTERS) == "__".join(pair)]

    assert len(kept) >= 0.89 * len(PAIRS)


def test_claude_code_cuts_the_dozen_longest_descriptions() -> None:
    cut = [
        tool["name"]
        for tools in real_lists().values()
        for tool in tools
        if description_seen(HOSTS["claude-code"], tool.get("description", "")) != tool.get("description", "")
    ]

    assert len(cut) == 12


@each(("name", "most"), [("cursor", 40), ("vscode", 128), ("jetbrains", 128)])
def test_a_host_with_a_limit_gives_its_model_no_more_tools(name: str, most: int) -> None:
    assert len(tools_seen(HOSTS[name], listed())) == most


RESULT = {"content": [{"type": "text", "text": "five notes"}], "structuredContent": {"notes": 5}}


@EVERY_HOST
def test_the_model_reads_the_part_of_a_result_that_its_host_forwards(host: HostProfile) -> None:
    seen = model_sees(host, RESULT)

    form = host.result.value
    assert ("five notes" in seen) == (form in ("text", "both"))
    assert ('{"notes":5}' in seen) == (form in ("structured", "both"))


@EVERY_HOST
def test_a_result_of_text_alone_reaches_every_model(host: HostProfile) -> None:
    assert model_sees(host, {"content": [{"type": "text", "text": "five notes"}]}) == "five notes"


@each(
    ("name", "kept", "cut"),
    [
        ("claude-code", 100_000, "in a file"),
        ("codex", 10_000, "x" * 10_000),
        ("vscode", 8_192, "in a file"),
        ("copilot-cli", 20_480, "in a file"),
        ("opencode", 51_200, "in a file"),
        ("gemini-cli", 40_000, "in a file"),
    ],
)
def test_a_long_result_does_not_reach_the_model_whole(name: str, kept: int, cut: str) -> None:
    def answer(length: int) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": "x" * length}]}

    assert model_sees(HOSTS[name], answer(kept)) == "x" * kept
    seen = model_sees(HOSTS[name], answer(kept + 1))
    assert cut in seen
    assert len(seen) <= kept


def test_a_tool_of_the_list_keeps_everything_but_its_name_and_a_long_description() -> None:
    long = tool("a", "y" * 3000)
    (seen,) = tools_seen(HOSTS["claude-code"], [long])

    assert seen == {**long, "name": f"mcp__{SERVER}__a", "description": "y" * 2048}
    assert json.dumps(seen)


def test_the_first_list_is_answered_in_the_time_that_every_host_waits_for_it() -> None:
    known = [host.first_list_seconds.value for host in HOSTS.values() if host.first_list_seconds.value]

    assert Limits().first_list_seconds < min(known)


def test_a_host_whose_prefix_is_not_known_gets_the_shortest_names() -> None:
    unknown = [host for host in HOSTS.values() if host.names.source.startswith("not known")]

    assert {room_given(host) for host in unknown} == {NAME_CHARACTERS}
