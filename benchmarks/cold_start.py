"""Starts twelve published servers from npm and PyPI in a fresh home folder, all at once; run by hand.

    python benchmarks/cold_start.py [--json FILE] [--serve]

Every package is downloaded, as at the first start on a new machine. Needs the registries, `npx` and `uvx`.
The home folder is deleted afterwards. Exits with 1 if a server is not ready after its first start, or when
all are started again. No server needs an account, and none is called. With --serve, a host connects to a
fresh proxy instead, and waits until the tools of all servers are listed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from raw_clients import StdioClient

SERVERS = {
    "everything": ["npx", "-y", "@modelcontextprotocol/server-everything"],
    "filesystem": ["npx", "-y", "@modelcontextprotocol/server-filesystem", "."],
    "memory": ["npx", "-y", "@modelcontextprotocol/server-memory"],
    "thinking": ["npx", "-y", "@modelcontextprotocol/server-sequential-thinking"],
    "context7": ["npx", "-y", "@upstash/context7-mcp"],
    "playwright": ["npx", "-y", "@playwright/mcp", "--headless"],
    "time": ["uvx", "mcp-server-time", "--local-timezone", "UTC"],
    "fetch": ["uvx", "mcp-server-fetch"],
    "git": ["uvx", "mcp-server-git"],
    "sqlite": ["uvx", "--with", "mcp<2", "mcp-server-sqlite", "--db-path", "cold.db"],
    "duckduckgo": ["uvx", "duckduckgo-mcp-server"],
    "arxiv": ["uvx", "arxiv-mcp-server"],
}

NEEDED = re.compile(
    r"(?i)^(https?_proxy|no_proxy|ssl_cert_.*|node_extra_ca_certs|npm_config_.*|uv_.*|pip_.*)$"
)
"""Variables by which the runners reach the registries."""

SECONDS = 900


def main() -> None:
    """Start the servers twice, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the facts of each server")
    parser.add_argument("--serve", action="store_true", help="wait as a host, for the tools of all servers")
    arguments = parser.parse_args()
    if arguments.serve:
        listed = listed_to_a_host()
        print("| server | listed after, seconds |\n|---|---:|")
        print(
            "\n".join(
                f"| {name} | {listed[name]:.1f} |" if name in listed else f"| {name} | never |"
                for name in SERVERS
            )
        )
        raise SystemExit(0 if len(listed) == len(SERVERS) else 1)
    with tempfile.TemporaryDirectory(prefix="cold-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        config = home / "config.toml"
        config.write_text(configuration(home), encoding="utf-8")
        cold, warm = started(config, home), started(config, home)
    print("| server | first start | seconds | again | seconds | tools |")
    print("|---|---|---:|---|---:|---:|")
    for name in SERVERS:
        one, two = cold[name], warm[name]
        cells = [one["state"], f"{one['start_ms'] / 1000:.1f}", two["state"], f"{two['start_ms'] / 1000:.1f}"]
        print(f"| {name} | {' | '.join(cells)} | {one.get('tools', '-')} |")
    failed = [facts for facts in (*cold.values(), *warm.values()) if facts["state"] != "ready"]
    for facts in failed:
        print(f"\n{facts['name']}: {facts.get('cause')}", *facts.get("stderr", ()), sep="\n| ")
    if arguments.json is not None:
        arguments.json.write_text(json.dumps({"cold": cold, "again": warm}, indent=1), encoding="utf-8")
    raise SystemExit(1 if failed else 0)


def configuration(home: Path) -> str:
    """Return the configuration of all servers; their data stays in the fresh home folder."""
    environment = {name: value for name, value in os.environ.items() if NEEDED.match(name)}
    variables = ", ".join(f"{json.dumps(name)} = {json.dumps(value)}" for name, value in environment.items())
    lines = ["[store]", f"path = {json.dumps(str(home / 'store.sqlite3'))}"]
    for name, (command, *args) in SERVERS.items():
        lines += [f"[servers.{name}]", f"command = {json.dumps(command)}", f"args = {json.dumps(args)}"]
        lines += [f"env = {{ {variables} }}"] if variables else []
    return "\n".join(lines) + "\n"


def started(config: Path, home: Path) -> dict[str, dict[str, Any]]:
    """Start every server once with the command that shows their states; return the facts of each."""
    environment = {**os.environ, "HOME": str(home)}
    environment = {name: value for name, value in environment.items() if not name.startswith("XDG_")}
    command = [sys.executable, "-m", "mcp_context_proxy", "--config", str(config), "servers", "--json"]
    done = subprocess.run(
        command, env=environment, cwd=home, stdout=subprocess.PIPE, text=True, timeout=SECONDS, check=True
    )
    return {facts["name"]: facts for facts in json.loads(done.stdout)["servers"]}


def listed_to_a_host() -> dict[str, float]:
    """Serve a host in a fresh home folder; return the seconds until each server's tools were listed."""
    listed: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="cold-", ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        config = home / "config.toml"
        config.write_text(configuration(home) + '[expose]\nmode = "all"\n', encoding="utf-8")
        program = [sys.executable, "-m", "mcp_context_proxy", "serve", "--own", "--config", str(config)]
        client = StdioClient(["env", "-u", "XDG_CACHE_HOME", "-u", "XDG_DATA_HOME", f"HOME={home}", *program])
        client.open()
        while len(listed) < len(SERVERS) and (seconds := time.perf_counter() - client.spawned) < SECONDS:
            for tool in client.request("tools/list")["tools"]:
                server, _, own = tool["name"].partition("__")
                if own:
                    listed.setdefault(server, seconds)
            time.sleep(1)
        client.close()
    return listed


if __name__ == "__main__":
    main()
