"""What hosts and registries install: built by one script, and valid by each format's own means."""

import base64
import hashlib
import importlib.util
import json
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jsonschema
import pytest

from mcp_context_proxy import __version__
from mcp_context_proxy.bridge import CONFIG_VARIABLE
from mcp_context_proxy.cli import COMMANDS
from mcp_context_proxy.config import load

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "distribution"
PLUGIN = FOLDER / "claude-code"
REPOSITORY = "https://github.com/mcp-context-proxy/mcp-context-proxy"


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("distribution_build", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BUILD = builder()


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with everything; the wheel in it is none, because only its name counts here."""
    folder = tmp_path_factory.mktemp("built")
    wheel = folder / f"mcp_context_proxy-{__version__}-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    BUILD.main([str(folder / "out"), "--wheel", str(wheel), "--repository", REPOSITORY])
    return folder / "out"


@pytest.fixture(scope="module")
def bundle(built: Path) -> Path:
    """The unpacked bundle."""
    (file,) = built.glob("*.mcpb")
    with zipfile.ZipFile(file) as archive:
        archive.extractall(built / "bundle")
    return built / "bundle"


def ran(program: str, *arguments: str | Path, home: Path) -> str:
    """The output of a format's own tool, which must succeed."""
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"{program} is not on PATH: distribution/README.md says how to get it")
    done = subprocess.run(
        [found, *map(str, arguments)],
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_entry_of_the_registry_fits_its_schema(built: Path) -> None:
    schema = json.loads((FOLDER / "schemas" / "server.schema.json").read_text(encoding="utf-8"))
    entry = json.loads((built / "server.json").read_text(encoding="utf-8"))

    jsonschema.Draft7Validator.check_schema(schema)
    for one in (entry, BUILD.server_json()):
        assert one["$schema"] == schema["$id"]
        assert list(jsonschema.Draft7Validator(schema).iter_errors(one)) == []
        for package in one["packages"]:
            assert package["transport"] in [{"type": "stdio"}]
            assert package["version"] == one["version"] == __version__


def test_the_entry_names_our_variable_our_package_and_the_bundle_as_it_is(built: Path) -> None:
    entry = json.loads((built / "server.json").read_text(encoding="utf-8"))
    package, bundled = entry["packages"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    assert package["identifier"] == project["name"] in project["scripts"]
    assert [one["name"] for one in package["environmentVariables"]] == [CONFIG_VARIABLE]
    assert bundled["identifier"].endswith(f"/v{__version__}/mcp-context-proxy-{__version__}.mcpb")
    assert bundled["fileSha256"] == hashlib.sha256(next(built.glob("*.mcpb")).read_bytes()).hexdigest()


def test_the_name_in_the_registry_is_only_given_to_its_owner(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="to the owner of"):
        BUILD.main([str(tmp_path), "--repository", "https://github.com/somebody/mcp-context-proxy"])


def test_the_same_inputs_give_the_same_bytes(built: Path, tmp_path: Path) -> None:
    again = BUILD.build_plugin(tmp_path)

    assert again.read_bytes() == (built / again.name).read_bytes()


def test_a_wheel_of_another_version_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not the wheel of this version"):
        BUILD.build_bundle(tmp_path, tmp_path / "mcp_context_proxy-0.0.1-py3-none-any.whl")


def test_the_bundle_is_valid_for_its_own_tool(bundle: Path, tmp_path: Path) -> None:
    assert "passes" in ran("mcpb", "validate", bundle / "manifest.json", home=tmp_path)


def test_the_bundle_starts_the_proxy_of_its_wheel(bundle: Path) -> None:
    server = json.loads((bundle / "manifest.json").read_text(encoding="utf-8"))["server"]
    project = tomllib.loads((bundle / "pyproject.toml").read_text(encoding="utf-8"))
    words = [word.replace("${__dirname}", str(bundle)) for word in server["mcp_config"]["args"]]

    assert (bundle / server["entry_point"]).exists()
    assert words[:2] == ["run", "--project"]
    assert Path(words[2]) == bundle
    assert Path(words[3]).read_text(encoding="utf-8").count("mcp_context_proxy.__main__") == 1
    assert words[4:] == ["serve"]
    assert project["project"]["dependencies"] == [f"mcp-context-proxy=={__version__}"]
    assert (bundle / project["tool"]["uv"]["sources"]["mcp-context-proxy"]["path"]).exists()
    assert list(server["mcp_config"]["env"]) == [CONFIG_VARIABLE]


def test_the_plugin_and_the_marketplace_are_valid_for_claude_code(tmp_path: Path) -> None:
    for folder in (PLUGIN, ROOT):
        assert "passed" in ran("claude", "plugin", "validate", "--strict", folder, home=tmp_path)


def test_the_plugin_has_this_version_and_is_in_the_marketplace_and_the_archive(built: Path) -> None:
    plugin = json.loads((PLUGIN / ".claude-plugin" / "plugin.json").read_text(encoding="utf-8"))
    shop = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text(encoding="utf-8"))
    (listed,) = shop["plugins"]

    assert plugin["version"] == __version__
    assert (listed["name"], (ROOT / listed["source"]).resolve()) == (plugin["name"], PLUGIN)
    with zipfile.ZipFile(built / f"mcp-context-proxy-claude-code-{__version__}.zip") as archive:
        assert {".mcp.json", "hooks/hooks.json", ".claude-plugin/plugin.json"} <= set(archive.namelist())


def test_the_plugin_has_the_names_for_which_the_lengths_of_tools_are_counted() -> None:
    plugin = json.loads((PLUGIN / ".claude-plugin" / "plugin.json").read_text(encoding="utf-8"))
    (server,) = json.loads((PLUGIN / ".mcp.json").read_text(encoding="utf-8"))["mcpServers"]

    assert f"`mcp__plugin_{plugin['name']}_{server}__NAME`" in (ROOT / "docs" / "hosts.md").read_text("utf-8")


@pytest.mark.skipif(os.name != "posix", reason="runs a shell")
@pytest.mark.parametrize("status", [None, 1, 2])
def test_the_prompt_hook_never_costs_a_prompt(tmp_path: Path, status: int | None) -> None:
    """With exit code 2 Claude Code erases the prompt; a program that is old or missing must not do that."""
    (event,) = json.loads((PLUGIN / "hooks" / "hooks.json").read_text(encoding="utf-8"))["hooks"].values()
    ((hook,),) = (entry["hooks"] for entry in event)
    if status is not None:
        program = tmp_path / "mcp-context-proxy"
        program.write_text(f"#!/bin/sh\necho $*\nexit {status}\n", encoding="utf-8")
        program.chmod(0o755)
    done = subprocess.run(
        ["/bin/sh", "-c", hook["command"]],
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0
    assert done.stdout == ("" if status is None else "hook run claude-code\n")
    assert "hook" in COMMANDS


def test_the_skill_names_tools_and_commands_that_there_are() -> None:
    (file,) = PLUGIN.glob("skills/*/SKILL.md")
    text = file.read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert f"\nname: {file.parent.name}\n" in text
    for tool in set(re.findall(r"`(\w+_\w+)`", text)):
        assert f"`{tool}`" in readme, tool
    assert set(re.findall(r"^mcp-context-proxy (\w+)", text, re.MULTILINE)) <= set(COMMANDS)


def entry_of(link: str) -> tuple[str, dict[str, Any]]:
    """The name and the entry that a host reads from a link."""
    query = parse_qs(urlsplit(link).query, strict_parsing=True)
    (name,), (config,) = query["name"], query["config"]
    text = base64.b64decode(config, validate=True) if "cursor.com" in link else config
    entry: dict[str, Any] = json.loads(text)
    return name, entry


def test_the_links_of_the_readme_are_those_of_the_script() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")

    assert BUILD.with_links(readme) == readme


@pytest.mark.parametrize("link", [BUILD.cursor_link(), BUILD.vscode_link(), BUILD.vscode_link(insiders=True)])
def test_a_link_is_an_entry_that_starts_the_proxy(link: str, tmp_path: Path) -> None:
    name, entry = entry_of(link)
    servers = {name: entry, "memory": {"command": "npx", "args": ["-y", "a-server"]}}
    file = tmp_path / "host.json"
    file.write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")

    assert entry["command"] == "uvx"
    assert entry["args"][0] == "mcp-context-proxy"
    assert entry["args"][1] in COMMANDS
    assert list(load(file, environ={}).servers) == ["memory"], "it is not seen as an entry of this proxy"
