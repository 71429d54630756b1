"""The README is right about hosts, commands and names."""

import json
import re
import shlex
from pathlib import Path

import pytest

from mcp_context_proxy.cli import COMMANDS
from mcp_context_proxy.cli.pins import unpinned
from mcp_context_proxy.config import ServerConfig, load
from mcp_context_proxy.config.settings import ExposeConfig, HttpConfig
from mcp_context_proxy.config.tables import Limits
from mcp_context_proxy.protocol import eras
from mcp_context_proxy.server import meta_definitions
from mcp_context_proxy.trust.tokens import TOKEN_VARIABLE

ROOT = Path(__file__).parents[2]


@pytest.fixture
def entries(readme):
    """The entry for hosts."""
    found = [(key, entry) for block in readme.blocks("json") for key, entry in json.loads(block).items()]
    assert [key for key, _ in found] == ["mcpServers"]
    return [entry["context-proxy"] for _, entry in found]


def test_every_host_starts_the_proxy_over_stdio(entries, understood):
    for entry in entries:
        assert entry["command"].rsplit("/", 1)[-1] == "mcp-context-proxy"
        assert entry["args"][0] == "serve"
        understood(entry["args"])


def test_the_command_for_claude_code_starts_the_proxy(understood):
    recipes = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    [as_json] = re.findall(r"claude mcp add-json --scope user context-proxy (.*?)`", recipes)

    entry = json.loads(shlex.split(as_json)[0])
    assert entry["alwaysLoad"] is True
    understood(entry["args"])


@pytest.mark.parametrize("page", ["README.md", "config.example.toml"])
def test_check_warns_about_no_server_of_the_examples(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    pasted = re.findall(r"^(?:# )?args = (\[.*?\])", text, re.M)
    assert pasted
    for args in pasted:
        assert unpinned(ServerConfig(name="s", command="npx", args=tuple(json.loads(args)))) is None


def test_a_host_file_that_starts_the_proxy_can_be_its_configuration(readme, tmp_path):
    for number, block in enumerate(readme.blocks("json")):
        host = json.loads(block)
        (servers,) = host.values()
        servers["memory"] = {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-memory"]}
        file = tmp_path / f"{number}.json"
        file.write_text(json.dumps(host), encoding="utf-8")

        assert list(load(file, environ={}).servers) == ["memory"]


def test_every_command_is_listed(commands, readme):
    assert sorted(re.findall(r"^\| `mcp-context-proxy (\w+)", commands.text, re.M)) == sorted(COMMANDS)
    daily = readme.text.partition("## Commands")[2].partition("\n## ")[0]
    assert {*re.findall(r"`(\w+)[ `]", daily)} - {"enable", "disable"} <= {*COMMANDS}


def test_the_tools_of_the_proxy_are_listed(readme):
    seen = readme.text.partition("## What a model sees")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `(\w+)` \|", seen, re.M) == [
        meta_definitions.SEARCH,
        meta_definitions.CALL,
        meta_definitions.CALL_READ_ONLY,
        meta_definitions.READ_DOCUMENT,
    ]


@pytest.mark.parametrize(
    "name",
    [eras.QUERY_KEY, eras.CONTEXT_KEY, TOKEN_VARIABLE, "http.token_file", "/healthz"],
)
def test_names_are_those_of_the_code(readme, api, name):
    assert f"`{name}`" in readme.text + api.text


def test_numbers_are_those_of_the_code(readme, api):
    http = HttpConfig()

    assert f"http://{http.host}:{http.port}/mcp" in api.text
    assert f"`expose.list_all_below`, {ExposeConfig().list_all_below} estimated tokens" in readme.text
    assert Limits().http_body_bytes > 0


@pytest.mark.parametrize(
    "command",
    ["pip install . && mcp-context-proxy demo", "pip install -e '.[dev]' && pytest -n auto --dist loadfile"],
    ids=["try", "test"],
)
def test_ci_runs_what_the_readme_says(readme, command):
    assert f"```sh\n{command}\n```" in readme.text
    assert f'"{command}"' in (ROOT / ".ci" / "run").read_text(encoding="utf-8")
