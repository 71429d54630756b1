"""Builds the files with which hosts and registries find and install the proxy.

``python distribution/build.py FOLDER --wheel FILE`` writes into the folder:

* ``server.json``, the entry of the MCP registry;
* ``mcp-context-proxy-VERSION.mcpb``, a bundle for Claude Desktop with the wheel inside;
* ``mcp-context-proxy-claude-code-VERSION.zip``, the plugin for Claude Code.

``build.py --readme`` writes the install links of Cursor and VS Code into README.md.

The same inputs give the same bytes, so that anyone can check a release.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import re
import sys
import zipfile
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

ROOT = Path(__file__).parents[1]
PLUGIN = ROOT / "distribution" / "claude-code"

PACKAGE = "mcp-context-proxy"
NAME = "context-proxy"
"""Name in a host's settings, the one for which docs/hosts.md counts the lengths of names."""
TITLE = "Context Proxy"
SUMMARY = "One MCP server in front of many: shows the model only the tools that a request needs."
"""Description for people; the registry takes 100 characters."""
AUTHOR = "The mcp-context-proxy authors"

SCHEMA = "https://static.modelcontextprotocol.io/schemas/2025-12-11/server.schema.json"

ENTRY: dict[str, Any] = {"command": "uvx", "args": [PACKAGE, "serve"]}
"""How a host starts the published package."""

LINKS_BEGIN, LINKS_END = (
    "<!-- install links: distribution/build.py --readme -->",
    "<!-- end of install links -->",
)

CONFIG_VARIABLE = "MCP_CONTEXT_PROXY_CONFIG"

BUNDLE_MAIN = '''\
"""Serves the host that runs this bundle."""

import sys

from mcp_context_proxy.__main__ import main

sys.argv[1:] = sys.argv[1:] or ["serve"]
main()
'''

EPOCH = (2020, 1, 1, 0, 0, 0)
"""Time of every entry of an archive."""


def version() -> str:
    """The version of the package in this checkout."""
    text = (ROOT / "mcp_context_proxy" / "__init__.py").read_text(encoding="utf-8")
    (found,) = re.findall(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    return str(found)


def registry_name() -> str:
    """The name in the registry: README.md says it, by which the registry knows that the package is ours."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (found,) = re.findall(r"<!-- mcp-name: (\S+) -->", text)
    return str(found)


def server_json(bundle: Path | None = None, repository: str | None = None) -> dict[str, Any]:
    """The entry of the registry; a bundle can be named in it only where it is published, in a repository."""
    number = version()
    packages: list[dict[str, Any]] = [
        {
            "registryType": "pypi",
            "identifier": PACKAGE,
            "version": number,
            "runtimeHint": "uvx",
            "packageArguments": [{"type": "positional", "value": "serve"}],
            "transport": {"type": "stdio"},
            "environmentVariables": [
                {
                    "name": CONFIG_VARIABLE,
                    "description": "Configuration with the servers behind the proxy; by default your own.",
                    "format": "filepath",
                    "isRequired": False,
                }
            ],
        }
    ]
    entry: dict[str, Any] = {
        "$schema": SCHEMA,
        "name": registry_name(),
        "title": TITLE,
        "description": SUMMARY,
        "version": number,
        "packages": packages,
    }
    if repository is not None:
        entry["repository"] = {"url": repository, "source": "github"}
        if bundle is not None:
            packages.append(
                {
                    "registryType": "mcpb",
                    "identifier": f"{repository}/releases/download/v{number}/{bundle.name}",
                    "version": number,
                    "fileSha256": hashlib.sha256(bundle.read_bytes()).hexdigest(),
                    "transport": {"type": "stdio"},
                }
            )
    return entry


def bundle_manifest() -> dict[str, Any]:
    """The manifest of the bundle. The host brings uv, which brings Python and the packages."""
    main = "server/main.py"
    return {
        "manifest_version": "0.4",
        "name": PACKAGE,
        "display_name": TITLE,
        "version": version(),
        "description": SUMMARY,
        "long_description": (
            "Connects Claude to one server instead of many. The model finds the tool it needs by describing "
            "it, and reads a few short definitions instead of hundreds. The search runs on your machine.\n\n"
            "It asks for the file that names your servers. That can be a copy of the file of another host."
        ),
        "author": {"name": AUTHOR},
        "license": "Apache-2.0",
        "keywords": ["mcp", "proxy", "gateway", "tool-search"],
        "server": {
            "type": "uv",
            "entry_point": main,
            "mcp_config": {
                "command": "uv",
                "args": ["run", "--project", "${__dirname}", f"${{__dirname}}/{main}", "serve"],
                "env": {CONFIG_VARIABLE: "${user_config.config}"},
            },
        },
        "tools": [
            {"name": "search_available_tools", "description": "Finds tools, rules and references by purpose"},
            {"name": "call_tool", "description": "Calls any tool by name"},
            {"name": "call_read_only_tool", "description": "Calls a tool that only reads"},
        ],
        "tools_generated": True,
        "user_config": {
            "config": {
                "type": "file",
                "title": "Configuration",
                "description": "Your servers: config.toml of mcp-context-proxy, or any file with mcpServers.",
                "required": True,
            }
        },
        "compatibility": {"platforms": ["darwin", "linux", "win32"], "runtimes": {"python": ">=3.11"}},
    }


def bundle_project(wheel: str) -> str:
    """The project file of the bundle, in which uv finds the wheel."""
    return (
        f'[project]\nname = "{PACKAGE}-bundle"\nversion = "{version()}"\nrequires-python = ">=3.11"\n'
        f'dependencies = ["{PACKAGE}=={version()}"]\n\n'
        f'[tool.uv.sources]\n{PACKAGE} = {{ path = "{wheel}" }}\n'
    )


def write_archive(file: Path, contents: dict[str, bytes]) -> None:
    """Write an archive whose bytes depend on nothing but its contents."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(contents):
            entry = zipfile.ZipInfo(name, EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, contents[name])


def build_bundle(folder: Path, wheel: Path) -> Path:
    """Write the bundle for Claude Desktop."""
    expected = f"mcp_context_proxy-{version()}-py3-none-any.whl"
    if wheel.name != expected:
        raise SystemExit(f"{wheel} is not the wheel of this version: it should be called {expected}")
    file = folder / f"{PACKAGE}-{version()}.mcpb"
    contents = {
        "manifest.json": _json(bundle_manifest()),
        "pyproject.toml": bundle_project(wheel.name).encode(),
        "server/main.py": BUNDLE_MAIN.encode(),
        "LICENSE": (ROOT / "LICENSE").read_bytes(),
        wheel.name: wheel.read_bytes(),
    }
    write_archive(file, contents)
    return file


def build_plugin(folder: Path) -> Path:
    """Write the plugin for Claude Code."""
    file = folder / f"{PACKAGE}-claude-code-{version()}.zip"
    files = [one for one in PLUGIN.rglob("*") if one.is_file()]
    write_archive(file, {one.relative_to(PLUGIN).as_posix(): one.read_bytes() for one in files})
    return file


def cursor_link() -> str:
    """The link that has Cursor add the proxy: its entry in JSON, in base64."""
    config = base64.b64encode(_compact(ENTRY)).decode()
    return f"https://cursor.com/en/install-mcp?{urlencode({'name': NAME, 'config': config})}"


def vscode_link(insiders: bool = False) -> str:
    """The link that has VS Code add the proxy: its entry in JSON, encoded for an address."""
    config = quote(_compact({"type": "stdio", **ENTRY}).decode(), safe="")
    base = f"https://insiders.vscode.dev/redirect/mcp/install?name={NAME}&config={config}"
    return f"{base}&quality=insiders" if insiders else base


def links() -> str:
    """The lines of the links in README.md."""
    return (
        f"[Add to Cursor]({cursor_link()}) · [Add to VS Code]({vscode_link()}) · "
        f"[Add to VS Code Insiders]({vscode_link(insiders=True)})"
    )


def with_links(text: str) -> str:
    """The text of README.md with the links as they are now."""
    before, _, rest = text.partition(LINKS_BEGIN)
    _, found, after = rest.partition(LINKS_END)
    if not found:
        raise SystemExit(f"README.md lacks the lines {LINKS_BEGIN} and {LINKS_END}")
    return f"{before}{LINKS_BEGIN}\n{links()}\n{LINKS_END}{after}"


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, ensure_ascii=False) + "\n").encode()


def _compact(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def main(arguments: list[str]) -> None:
    """Build what is asked for, and say where it lies."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", help="folder for the files")
    parser.add_argument("--wheel", type=Path, help="wheel of this version, for the bundle")
    parser.add_argument(
        "--repository", help="address of the repository, such as https://github.com/OWNER/NAME"
    )
    parser.add_argument("--readme", action="store_true", help="write the links into README.md")
    given = parser.parse_args(arguments)
    if given.readme:
        readme = ROOT / "README.md"
        readme.write_text(with_links(readme.read_text(encoding="utf-8")), encoding="utf-8")
    if given.folder is None:
        return
    if given.repository and not registry_name().startswith(f"io.github.{given.repository.split('/')[-2]}/"):
        raise SystemExit(f"the registry gives {registry_name()} to the owner of {given.repository} only")
    given.folder.mkdir(parents=True, exist_ok=True)
    bundle = build_bundle(given.folder, given.wheel) if given.wheel else None
    made = [build_plugin(given.folder), given.folder / "server.json"]
    made[-1].write_bytes(_json(server_json(bundle, given.repository)))
    for file in [bundle, *made]:
        if file is not None:
            print(file)


if __name__ == "__main__":
    main(sys.argv[1:])
