"""The configuration is the named file, else the user's own; never one in the working directory."""

import sys
from pathlib import Path

import pytest

from mcp_context_proxy.bridge import configuration_file
from mcp_context_proxy.config import default_path
from mcp_context_proxy.config.load import find
from mcp_context_proxy.errors import ConfigError


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    file = tmp_path / "mcp-context-proxy" / "config.toml"
    file.parent.mkdir()
    file.write_text("", encoding="utf-8")
    return file


def test_the_environment_variable_is_looked_at_first(tmp_path, users_file):
    named = tmp_path / "servers.json"
    named.touch()
    environ = {"MCP_CONTEXT_PROXY_CONFIG": str(named), "XDG_CONFIG_HOME": str(tmp_path)}

    assert find(None, environ) == named


def test_a_tilde_in_the_variable_is_the_home_folder(tmp_path):
    (tmp_path / "c.toml").touch()

    environ = {"MCP_CONTEXT_PROXY_CONFIG": "~/c.toml", "HOME": str(tmp_path)}
    assert find(None, environ) == tmp_path / "c.toml"


def test_an_empty_variable_names_no_file_for_a_proxy_of_its_own_nor_for_one_to_join(tmp_path: Path) -> None:
    environ = {"MCP_CONTEXT_PROXY_CONFIG": "", "XDG_CONFIG_HOME": str(tmp_path)}

    with pytest.raises(ConfigError, match="there is no configuration"):
        find(None, environ)
    assert configuration_file(None, environ) == str(default_path(environ))


def test_a_missing_file_is_one_in_the_words_of_any_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stat(_path: Path) -> None:
        raise FileNotFoundError(2, "The system cannot find the file specified")

    monkeypatch.setattr(Path, "stat", stat)
    for path, said in (
        (None, "there is no configuration"),
        (tmp_path / "none.toml", "the file does not exist"),
    ):
        with pytest.raises(ConfigError, match=said):
            find(path, {"XDG_CONFIG_HOME": str(tmp_path)})


@pytest.mark.skipif(sys.platform == "win32", reason="XDG folders")
def test_the_users_configuration_folder_is_looked_at_second(tmp_path, users_file):
    assert find(None, {"XDG_CONFIG_HOME": str(tmp_path)}) == users_file


@pytest.mark.skipif(sys.platform == "win32", reason="XDG folders")
def test_the_working_directory_is_never_looked_at(tmp_path, monkeypatch):
    """A repository someone opens must not be able to start programs."""
    for name in ("config.toml", ".mcp.json", "mcp.json"):
        (tmp_path / name).write_text("{}", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    with pytest.raises(ConfigError, match="there is no configuration"):
        find(None, {"XDG_CONFIG_HOME": str(tmp_path / "empty")})
