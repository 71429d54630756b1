"""Replays published versions of real servers through the approval of definitions; run by hand, online.

    python benchmarks/updates.py [PACKAGE...] [--versions N] [--folder DIR]

Each package is installed in its latest versions, oldest first, without its install scripts. Each version is
started twice and lists its tools, prompts and templates. The lists go through the approval as they would from
one start of the proxy to the next: twice under each version. Reported for each mode: definitions that were
held although every update is honest, and in `notice` those that were taken with the hints that were approved
before, because they promise less harm now. Lists are kept in the folder: a second run needs no network.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

from mcp_context_proxy.catalog.definitions import fit, markers_of
from mcp_context_proxy.config import Limits
from mcp_context_proxy.config.settings import ApprovalMode
from mcp_context_proxy.items import ToolClass
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.trust import NO_HINTS, Hints
from mcp_context_proxy.trust.approval import Approvals, Origin
from mcp_context_proxy.trust.decisions import decide, hash_of, pending
from mcp_context_proxy.trust.fingerprints import Approvable, Candidate, State

NPM = {
    "@modelcontextprotocol/server-filesystem": ["/tmp"],
    "@modelcontextprotocol/server-memory": [],
    "@modelcontextprotocol/server-sequential-thinking": [],
    "@modelcontextprotocol/server-everything": [],
    "@upstash/context7-mcp": [],
    "@notionhq/notion-mcp-server": [],
    "@playwright/mcp": [],
    "chrome-devtools-mcp": [],
    "exa-mcp-server": [],
    "firecrawl-mcp": [],
    "tavily-mcp": [],
}
"""Packages of npm, with the arguments of their programs."""

PYPI = {
    "mcp-server-time": ["mcp-server-time"],
    "mcp-server-fetch": ["mcp-server-fetch"],
    "mcp-server-git": ["mcp-server-git"],
    "mcp-server-sqlite": ["mcp-server-sqlite", "--db-path", "empty.db"],
    "duckduckgo-mcp-server": ["duckduckgo-mcp-server"],
    "mcp-server-calculator": ["mcp-server-calculator"],
    "wikipedia-mcp": ["wikipedia-mcp"],
}
"""Packages of PyPI, with their programs and the arguments of these."""

KEYS = {
    "FIRECRAWL_API_KEY": "fc-none",
    "TAVILY_API_KEY": "tvly-none",
    "NOTION_TOKEN": "ntn-none",
    "EXA_API_KEY": "none",
}
"""Variables without which some do not start; nothing is called."""

SECONDS = 120.0
LISTS = {
    Approvable.TOOL: ("tools/list", "tools", "name"),
    Approvable.PROMPT: ("prompts/list", "prompts", "name"),
    Approvable.TEMPLATE: ("resources/templates/list", "resourceTemplates", "uriTemplate"),
}

Lists = dict[str, list[Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("packages", nargs="*", default=[*NPM, *PYPI])
    parser.add_argument("--versions", type=int, default=4)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "updates")
    options = parser.parse_args()
    rows = []
    for package in options.packages:
        try:
            history = recorded(options.folder, package, options.versions)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            print(f"{package}: left out: {error}", file=sys.stderr)
            continue
        rows.append(
            (package, history, {mode: replayed(package, history, mode) for mode in get_args(ApprovalMode)})
        )
    columns = ["server", "versions", "definitions", "changed or new", "held in `notice`", "old hints kept"]
    print(f"| {' | '.join([*columns, 'held in `changed`', 'in `all`'])} |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for package, history, held in rows:
        last = sum(map(len, history[-1][1][0].values()))
        others = [held["changed"][0], held["all"][0]]
        counted = [len(history), last, differing(history), *held["notice"], *others]
        print(f"| {package} | {' | '.join(map(str, counted))} |")


def recorded(folder: Path, package: str, count: int) -> list[tuple[str, list[Lists]]]:
    """Return the lists of two starts of each version, from the folder or from the programs themselves.

    Versions that do not start here, with the other packages of today, are told and left out.
    """
    file = folder / f"{package.replace('/', '_')}.json"
    if not file.exists():
        folder.mkdir(parents=True, exist_ok=True)
        found: list[tuple[str, list[Lists]]] = []
        for version in published(package)[::-1][: 2 * count]:
            if len(found) < count:
                try:
                    found.append((version, two_starts(package, version)))
                except (OSError, subprocess.SubprocessError, ValueError) as error:
                    print(f"{package} {version}: left out: {error}", file=sys.stderr)
        file.write_text(json.dumps(found[::-1]), encoding="utf-8")
    return [(version, lists) for version, lists in json.loads(file.read_text(encoding="utf-8"))]


def two_starts(package: str, version: str) -> list[Lists]:
    """Install a version, and return its lists of two starts."""
    with tempfile.TemporaryDirectory() as place:
        command, more = installed(Path(place), package, version)
        return [listed(command, more, Path(place)) for _ in range(2)]


def published(package: str) -> list[str]:
    """Return the released versions of a package, oldest first."""
    if package in NPM:
        told = run(["npm", "view", package, "versions", "--json"])
        return [version for version in json.loads(told) if "-" not in version]
    told = run([sys.executable, "-m", "pip", "index", "versions", package])
    line = next(line for line in told.splitlines() if line.startswith("Available versions:"))
    return line.partition(":")[2].replace(" ", "").split(",")[::-1]


def installed(place: Path, package: str, version: str) -> tuple[list[str], dict[str, str]]:
    """Install a version; return the command that starts it, and its variables."""
    if package in NPM:
        run(
            [
                "npm",
                "install",
                "--prefix",
                str(place),
                "--ignore-scripts",
                "--no-audit",
                "--no-fund",
                f"{package}@{version}",
            ]
        )
        root = place / "node_modules" / package
        programs = json.loads((root / "package.json").read_text(encoding="utf-8"))["bin"]
        program = programs if isinstance(programs, str) else next(iter(programs.values()))
        return ["node", str(root / program), *NPM[package]], {}
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(place)]
    try:
        # Versions from before the second SDK did not bound it.
        run([*pip, f"{package}=={version}", "mcp<2"])
    except subprocess.CalledProcessError:
        run([*pip, f"{package}=={version}"])
    program, *arguments = PYPI[package]
    return [str(place / "bin" / program), *arguments], {"PYTHONPATH": str(place)}


def run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    return done.stdout


def listed(command: list[str], more: dict[str, str], folder: Path) -> Lists:
    """Start a server, and return its lists."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **KEYS, **more},
        cwd=folder,
        text=True,
        encoding="utf-8",
    ) as process:
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            hello = {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "updates", "version": "1"},
            }
            introduced = ask(process, 1, "initialize", hello)
            tell(process, {"jsonrpc": "2.0", "method": "notifications/initialized"})
            found: Lists = {}
            for kind, (method, member, _) in LISTS.items():
                if method.partition("/")[0] in introduced.get("capabilities", {}):
                    found[kind] = ask(process, len(found) + 2, method, {}).get(member, [])
            return found
        finally:
            timer.cancel()
            process.kill()


def tell(process: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert process.stdin is not None
    process.stdin.write(json.dumps(message) + "\n")
    process.stdin.flush()


def ask(process: subprocess.Popen[str], number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
    tell(process, {"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{") and (message := json.loads(line)).get("id") == number:
            result = message.get("result", {})
            return result if isinstance(result, dict) else {}
    raise ValueError(f"it ended before it answered {method}")


def replayed(package: str, history: list[tuple[str, list[Lists]]], mode: ApprovalMode) -> tuple[int, int]:
    """Return how many definitions were held after the first version, and how many kept their old hints."""
    held = restrained = 0
    with open_store("memory") as store:
        for number, (version, starts) in enumerate(history):
            for lists in starts:
                approvals = Approvals(store.approvals, mode)
                origin = Origin(package, mode, "connection", f"{package} {version}")
                for kind, entries in lists.items():
                    found = candidates(Approvable(kind), entries)
                    rulings = approvals.rulings(origin, Approvable(kind), found, found.keys)
                    held += sum(not ruling.taken for ruling in rulings.values()) if number else 0
                    restrained += sum(ruling.state is State.RESTRAINED for ruling in rulings.values())
                # A person approves at once, so that each change is counted once.
                if waiting := pending(store.approvals.record(package).rows):
                    decide(store, package, (), State.APPROVED, by="benchmark", expected=hash_of(waiting))
    return held, restrained


def candidates(kind: Approvable, entries: list[Any]) -> dict[str, Candidate]:
    found = {}
    for entry in entries:
        definition = json.dumps(entry).encode()
        name = entry[LISTS[kind][2]]
        markers = markers_of(envelope.members(definition))
        hints = NO_HINTS
        if kind is Approvable.TOOL:
            hints = Hints(markers.hinted or ToolClass.WRITE, markers.interactive)
        found[name] = Candidate.of(kind, name, definition, fit(definition, Limits())[0], hints)
    return found


def differing(history: list[tuple[str, list[Lists]]]) -> int:
    """Return the number of definitions that are new or other than in the version before."""
    count = 0
    for (_, before), (_, after) in pairwise(history):
        for kind, entries in after[0].items():
            known = {json.dumps(entry, sort_keys=True) for entry in before[0].get(kind, [])}
            count += sum(json.dumps(entry, sort_keys=True) not in known for entry in entries)
    return count


if __name__ == "__main__":
    main()
