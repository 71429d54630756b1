"""Globs of tools that are turned off: their matches, their order, and those without effect."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tables import each

from mcp_context_proxy.catalog.names import turned_off_by, without_effect
from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.tables import matches
from mcp_context_proxy.trust import danger_of

TEXT = st.text("ab*.[", max_size=12)
OFFERED = ("get_issue", "get_repo", "delete_repo")


def server(**settings: Any) -> ServerConfig:
    return ServerConfig.of({"command": "x", **settings}, name="git")


def on(config: ServerConfig) -> list[str]:
    return [tool for tool in OFFERED if turned_off_by(config, tool, danger_of(tool, None, None, "")) is None]


@given(glob=TEXT, name=TEXT)
def test_a_star_stands_for_any_characters_and_nothing_else_is_special(glob: str, name: str) -> None:
    expression = ".*".join(map(re.escape, re.sub(r"\*+", "*", glob).split("*")))

    assert matches(glob, name) == (re.fullmatch(expression, name, re.DOTALL) is not None)


def test_a_glob_is_matched_in_time_that_grows_with_the_length_of_the_name_only() -> None:
    """Trying every place of every piece would take longer than the universe has existed."""
    assert not matches("*a" * 50_000 + "*b*c", "a" * 100_000 + "b")


def test_upper_and_lower_case_differ() -> None:
    assert not matches("Get_*", "get_issue")


@each(
    ("settings", "left"),
    [
        pytest.param({}, [*OFFERED], id="nothing"),
        pytest.param({"allow": ["get_*"]}, ["get_issue", "get_repo"], id="allow"),
        pytest.param({"allow": []}, [], id="allow-nothing"),
        pytest.param({"deny": ["*_repo"]}, ["get_issue"], id="deny"),
        pytest.param({"allow": ["*_repo"], "deny": ["delete_*"]}, ["get_repo"], id="deny-wins"),
        pytest.param({"tools": {"get_repo": {"enabled": False}}}, ["get_issue", "delete_repo"], id="tool"),
        pytest.param(
            {"deny": ["get_*"], "tools": {"get_repo": {"enabled": True}}},
            ["delete_repo"],
            id="deny-beats-tool",
        ),
        pytest.param(
            {"allow": ["get_repo"], "tools": {"get_repo": {"enabled": False}}}, [], id="tool-beats-allow"
        ),
        pytest.param({"tools": {"*_repo": {"enabled": False}}}, ["get_issue"], id="glob"),
        pytest.param({"tools": {"*_repo": {"allow": "never"}}}, ["get_issue"], id="glob-never"),
        pytest.param({"classes": {"destructive": "never"}}, ["get_issue", "get_repo"], id="class-never"),
        pytest.param(
            {"classes": {"destructive": "never"}, "tools": {"delete_*": {"allow": "ask"}}},
            [*OFFERED],
            id="glob-before-class",
        ),
        pytest.param(
            {"tools": {"delete_*": {"allow": "never"}, "delete_repo": {"allow": "always"}}},
            [*OFFERED],
            id="name-before-glob",
        ),
        pytest.param(
            {"tools": {"get_*": {"allow": "always"}, "*_repo": {"allow": "never"}}},
            ["get_issue"],
            id="strictest-of-globs",
        ),
        pytest.param(
            {"deny": ["delete_*"], "tools": {"delete_repo": {"allow": "always"}}},
            ["get_issue", "get_repo"],
            id="deny-beats-always",
        ),
    ],
)
def test_any_setting_turns_a_tool_off_and_none_turns_it_on_again(
    settings: dict[str, Any], left: list[str]
) -> None:
    assert on(server(**settings)) == left


def test_a_tool_is_denied_by_the_name_that_hosts_write_and_their_rules_have() -> None:
    for tool in ("repo.delete", "repo/delete", "repo delete"):
        config = server(deny=["repo_delete"])
        assert turned_off_by(config, tool, None) == "by servers.git.deny[0]"
        assert turned_off_by(server(deny=["repo*"], allow=["repo_delete"]), tool, None) is not None
        assert [*without_effect(config, [tool])] == []
    assert turned_off_by(server(deny=["repo.delete"]), "repo_delete", None) is None


def test_settings_about_tools_that_are_not_offered_are_found() -> None:
    config = server(
        allow=["get_*", "put_*"],
        deny=["git__delete_repo", "delete_*"],
        tools={"gone": {"enabled": False}, "other": {"include": "always"}},
    )

    assert [*without_effect(config, OFFERED)] == [
        "servers.git.allow: 'put_*' matches none of its tools",
        "servers.git.deny[0]: 'git__delete_repo' matches none of its tools; write the name that the server "
        "itself uses: delete_repo",
        "servers.git.tools.gone.enabled: 'gone' matches none of its tools",
    ]
