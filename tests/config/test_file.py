"""The file itself: one that is missing is told with how to begin, one that others may change is refused."""

import os
from pathlib import Path

import pytest

from mcp_context_proxy.config import load
from mcp_context_proxy.errors import ConfigError


def test_a_missing_file_is_reported_with_the_first_step(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(tmp_path / "config.toml", {})

    assert str(caught.value) == (
        "1 problem in the configuration:\n"
        f"  {tmp_path}/config.toml: the file does not exist; correct the path, or create it: "
        "a table [servers.NAME] is enough"
    )


def test_without_any_file_the_searched_places_are_named(tmp_path):
    with pytest.raises(ConfigError) as caught:
        load(None, {"XDG_CONFIG_HOME": str(tmp_path)})

    assert str(caught.value) == (
        "there is no configuration: MCP_CONTEXT_PROXY_CONFIG is not set, and "
        f"{tmp_path}/mcp-context-proxy/config.toml does not exist; 'mcp-context-proxy install' moves the "
        "servers of your hosts there, 'mcp-context-proxy add NAME -- COMMAND...' adds one; or give a "
        "host's own JSON with --config"
    )


def test_a_folder_in_place_of_the_file_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        load(tmp_path, {})


def test_an_invalid_path_is_reported(tmp_path):
    with pytest.raises(ConfigError, match="embedded null byte"):
        load(tmp_path / "a\0b", {})


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
def test_a_file_that_everyone_may_change_is_refused_with_the_command_to_run(tmp_path):
    """A person who may write it may run programs as its reader."""
    file = tmp_path / "config.toml"
    file.write_text("[http]\nport = -1\n", encoding="utf-8")
    file.chmod(0o666)

    with pytest.raises(ConfigError) as caught:
        load(file, {})

    assert [problem.message for problem in caught.value.problems] == [
        f"everyone on this machine can change it, and so run programs as you; run: chmod o-w '{file}'"
        ", or set MCP_CONTEXT_PROXY_TRUST_CONFIG=1 to allow it",
        "must be at least 0",
    ]


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize("by_link", [False, True])
def test_a_folder_in_which_everyone_may_replace_the_file_is_refused(tmp_path: Path, by_link: bool):
    folder = tmp_path / "open"
    folder.mkdir()
    file = folder / "config.toml"
    file.write_text("", encoding="utf-8")
    given = tmp_path / "link.toml" if by_link else file
    if by_link:
        given.symlink_to(file)
    folder.chmod(0o777)

    with pytest.raises(ConfigError, match=f"can replace it.*chmod o-w '{folder}'"):
        load(given, {})

    assert load(given, {"MCP_CONTEXT_PROXY_TRUST_CONFIG": "1"}).servers == {}
    # As that of /tmp: there, only its owner may replace a file.
    folder.chmod(0o1777)
    assert load(given, {}).servers == {}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root may give files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path):
    file = tmp_path / "config.toml"
    file.write_text("", encoding="utf-8")
    os.chown(file, 12345, -1)

    with pytest.raises(ConfigError, match=r"belongs to another user \(id 12345\)"):
        load(file, {})
    assert load(file, {"MCP_CONTEXT_PROXY_TRUST_CONFIG": "1"}).servers == {}


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions")
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664, 0o660])
def test_a_file_that_a_group_may_change_is_accepted(tmp_path: Path, mode: int):
    file = tmp_path / "config.toml"
    file.write_text("", encoding="utf-8")
    file.chmod(mode)

    assert load(file, {}).servers == {}
