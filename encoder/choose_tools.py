"""Choice of the tools that requests are written for, and their split by server into train, dev and test.

    python encoder/choose_tools.py --lists TOOL_LISTS --toucan TOUCAN.git --eval EVALUATION_SETS

Sources: a folder of recorded tool lists, and a bare clone of TheAgentArk/Toucan. A server is taken only when
the licence it states is permissive and neither it nor most of its tools occur in an evaluation set. Two runs
over the same sources choose the same tools; the choice is frozen in ``tools.jsonl.gz`` and its hash in
``splits.json``, which the other scripts check. Tools of recorded lists that requests were written for before
(``requests/earlier.txt``) stay in, also beyond the number that is taken of one server.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import hashlib
import json
import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

PERMISSIVE = {"MIT", "Apache-2.0", "ISC", "BSD-3-Clause", "BSD-2-Clause"}
MAX_TOOLS_A_SERVER = 30
MIN_TOOLS_A_SERVER = 3
MIN_DESCRIPTION = 15
"""Characters; a shorter description says no more than the name."""

SCHEMAS_COUNT = 4
"""A server whose tools come with parameters counts as this many times as popular as one without."""
TRAIN_TOOLS = 2_480
DEV_TOOLS, DEV_SERVERS = 120, 10
TEST_TOOLS, TEST_SERVERS = 150, 12

LISTS_FOR_DEV = ("kubernetes", "mongodb", "slack", "google-maps")
"""Recorded lists that earlier models were chosen with, so they stay out of training."""
NAMES_HELD_OUT = re.compile(r"slack|kubernetes|k8s|kubectl|mongo|google-maps|googlemap")
"""Other servers for the same products stay out of training, too."""
LISTS_NEVER_USED = {"everything", "eslint"}
"""A test server, and a server whose only tool has no siblings."""

NOT_REAL = re.compile(
    r"^reference$|hello|demo|example|template|echo|tutorial|\btest|playground|my-mcp|boilerplate|sample"
)
NOT_REAL_ABOUT = re.compile(
    r"(?i)\btemplate for|hello world|boilerplate|example server|scaffold|starter (kit|project)"
)
NAMES_IN_EVALUATION = re.compile(
    r"filesystem|\bfetch\b|^git$|^git-commands|^memory$|sqlite|sequential-?thinking|^time$|playwright|puppeteer|"
    r"desktop-?commander|context7|duckduckgo|airbnb|yahoo|yfinance|yfm|wikipedia|hacker-?news|arxiv|searxng|"
    r"basic-memory|deepwiki|excel|word|biomcp|met-?museum|opgg|npm-sentinel|hugeicons|calculator|12306|chess|"
    r"whois|bazi|mermaid|howtocook|coin-?flip|random-number|text-editor|openstreetmap|osm\b|ppt|powerpoint|"
    r"shadcn|magic-?ui|exchange-rate|task-?manager|pdf-reader|^docker$|mindmap|mcp-chart|antv|trends-hub|^painter$"
)
"""Names of servers in the evaluation sets, as other packages of the same thing are called too."""

TOOL_NAME = re.compile(r"[A-Za-z0-9_./:-]{2,64}")
PARAMETER = re.compile(r"[a-z][A-Za-z0-9_]+")
NO_PARAMETERS = {"an", "all", "the", "params", "access_token", "api_key"}
PAGE_NOT_DESCRIPTION = re.compile(r"Try in Playground|^Deploy Server")

PROPERTY_KEYS = ("type", "description", "enum", "items", "properties", "title")


@dataclass(frozen=True, slots=True)
class Server:
    """One server as a candidate."""

    name: str
    about: str
    domain: str
    source: str
    licence: str
    used: int
    tools: tuple[dict[str, Any], ...]


def normalised(text: str) -> str:
    """Lower-case letters and digits only, one space between words."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def words_of(name: str) -> str:
    """A tool's name as words."""
    return normalised(re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name))


def is_english(text: str) -> bool:
    """True for a text that is nearly all ASCII and has a common English word."""
    ascii_part = sum(character < "\x7f" for character in text) / max(1, len(text))
    common = re.search(
        r"\b(the|a|an|of|for|in|to|with|by|from|and|all|on|get|list|create|search)\b", text.lower()
    )
    return ascii_part > 0.97 and common is not None


def read_lists(folder: Path) -> Iterator[Server]:
    """Recorded tool lists: one JSON file a server."""
    for path in sorted(folder.glob("*.json")):
        record = json.loads(path.read_text("utf-8"))
        about = record.get("instructions") or (record.get("serverInfo") or {}).get("title") or path.stem
        tools = [
            _tool(
                tool["name"],
                tool.get("description") or tool.get("title") or "",
                tool.get("inputSchema") or {},
            )
            for tool in record["tools"]
        ]
        licence = "Apache-2.0" if "Apache-2.0" in record["license"] else record["license"]
        source = f"{record['registry']}:{record['package']}@{record['version']}"
        yield Server(path.stem, _one_line(about), "", source, licence, 10**9, tuple(tools))


def read_toucan(repository: Path) -> Iterator[Server]:
    """Servers of the Toucan snapshot, with the licence that each states."""
    git = ["git", "-C", str(repository)]
    listing = subprocess.run(
        [*git, "ls-tree", "-r", "HEAD", "mcp_servers/"], capture_output=True, text=True, check=True
    )
    entries = [line.split("\t", 1) for line in listing.stdout.splitlines()]
    hashes = "\n".join(meta.split()[2] for meta, _ in entries) + "\n"
    blobs = subprocess.run(
        [*git, "cat-file", "--batch"], input=hashes.encode(), capture_output=True, check=True
    ).stdout
    at = 0
    for _, path in entries:
        end_of_header = blobs.index(b"\n", at)
        size = int(blobs[at:end_of_header].split()[2])
        at = end_of_header + 1 + size + 1
        if path.endswith(".json"):
            server = _toucan_server(path, json.loads(blobs[end_of_header + 1 : at - 1]))
            if server is not None:
                yield server


def _toucan_server(path: str, record: dict[str, Any]) -> Server | None:
    metadata = record["metadata"]
    crawled = metadata.get("server_info_crawled") or {}
    definitions = crawled.get("tools") or []
    author = re.sub(r"^[a-z]*_?\d+\.|_labeled\.json$", "", path.rsplit("/", 1)[1])
    used = int(re.sub(r"\D", "", str(metadata.get("usage_count") or "0")) or 0)
    name = _server_name(author)
    if not name or not definitions:
        return None
    tools = [
        _tool(t["name"], t.get("description") or "", t.get("input_schema") or _listed(t)) for t in definitions
    ]
    about = f"{metadata['server_name']}: {crawled.get('overview') or ''}"
    domain = record["labels"].get("primary_label") or "Others"
    source = f"Toucan:{path}"
    return Server(name, _one_line(about), domain, source, str(crawled.get("license")), used, tuple(tools))


def _listed(tool: dict[str, Any]) -> dict[str, Any]:
    """A schema from the parameter names of a crawled page, without words that are no parameters."""
    names = [parameter["name"] for parameter in tool.get("parameters") or ()]
    real = (
        name
        for name in names
        if PARAMETER.fullmatch(name) and name != tool["name"] and name not in NO_PARAMETERS
    )
    return {"type": "object", "properties": {name: {} for name in real}}


def _server_name(author: str) -> str:
    """The name a person would configure: the package without its owner, "mcp" and "server"."""
    package = (
        author.partition("_")[2] if author.startswith("@") and "_" in author else author.rpartition("_")[2]
    )
    package = re.sub(r"(?<=[a-z])(?=[A-Z][a-z])", "-", package).lower()
    kept = [
        w
        for w in re.split(r"[-_.\s]+", package)
        if w and w not in {"mcp", "server", "servers", "smithery", "ai"}
    ]
    return "-".join(kept)


def _tool(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "description": description.strip(), "input_schema": _trimmed(schema)}


def _trimmed(schema: Any, depth: int = 0) -> Any:
    """Parts of a schema that are searched: names, types, descriptions and values of parameters."""
    if not isinstance(schema, dict):
        return schema
    kept: dict[str, Any] = {}
    for key in PROPERTY_KEYS:
        value = schema.get(key)
        if key == "properties" and isinstance(value, dict) and depth < 3:
            kept[key] = {name: _trimmed(inner, depth + 1) for name, inner in value.items()}
        elif key == "items" and isinstance(value, dict) and depth < 3:
            kept[key] = _trimmed(value, depth + 1)
        elif key == "enum" and isinstance(value, list):
            kept[key] = value[:12]
        elif key in ("type", "description", "title") and isinstance(value, str | list):
            kept[key] = value if not isinstance(value, str) else value[:300]
    return kept


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()[:240]


class Evaluated:
    """Texts of the evaluation sets, which must not be trained on."""

    def __init__(self, folder: Path) -> None:
        self.descriptions: set[str] = set()
        self.mcp_names: dict[str, set[str]] = collections.defaultdict(set)
        self.mcp_tools: set[str] = set()
        for path in sorted(folder.glob("*/corpus.jsonl.gz")):
            with gzip.open(path, "rt", encoding="utf-8") as file:
                tools = [json.loads(line) for line in file]
            for tool in tools:
                if len(tool["description"]) >= MIN_DESCRIPTION:
                    self.descriptions.add(normalised(tool["description"])[:120])
                if path.parent.name in ("livemcp", "livemcp_steps", "mcpproxy_golden"):
                    self.mcp_names[tool["server"]].add(words_of(tool["name"]))
        self.servers = {_server_name(name) for name in self.mcp_names}
        long_names = (name for names in self.mcp_names.values() for name in names)
        self.mcp_tools = {name for name in long_names if len(name.split()) >= 2}

    def has_server(self, server: Server) -> bool:
        """True for a server of an evaluation set, also under another name."""
        if server.name in self.servers or NAMES_IN_EVALUATION.search(server.name):
            return True
        names = {words_of(tool["name"]) for tool in server.tools}
        for evaluated in self.mcp_names.values():
            shared = len(names & evaluated)
            if shared >= 2 and shared >= 0.25 * min(len(names), len(evaluated)):
                return True
        same = sum(normalised(tool["description"])[:120] in self.descriptions for tool in server.tools)
        return same >= 2 or same / len(server.tools) >= 0.2

    def has_tool(self, tool: dict[str, Any]) -> bool:
        """True for a tool with the description, or the name of two words or more, of an evaluated one."""
        return (
            normalised(tool["description"])[:120] in self.descriptions
            or words_of(tool["name"]) in self.mcp_tools
        )


def named_earlier(path: Path) -> set[tuple[str, str]]:
    """Servers and tools of the earlier requests."""
    server, named = "", set()
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("# "):
            server = line[2:].strip()
        elif ": " in line:
            named.add((server, line.split(": ", 1)[0]))
    return named


def usable(servers: Iterable[Server], evaluated: Evaluated, named: set[tuple[str, str]]) -> Iterator[Server]:
    """Servers that may be used, each with its usable tools, without copies of an earlier one."""
    taken_names: list[set[str]] = []
    taken_servers: set[str] = set()
    taken_descriptions: set[str] = set()
    for server in servers:
        if (
            server.name in taken_servers
            or server.licence not in PERMISSIVE
            or server.name in LISTS_NEVER_USED
        ):
            continue
        if (
            NOT_REAL.search(server.name)
            or NOT_REAL_ABOUT.search(server.about)
            or evaluated.has_server(server)
        ):
            continue
        names = {words_of(tool["name"]) for tool in server.tools}
        if server.domain and NAMES_HELD_OUT.search(server.name):
            continue
        if server.domain and any(
            len(names & other) >= 0.34 * min(len(names), len(other)) for other in taken_names
        ):
            continue
        tools, seen = [], set()
        for tool in server.tools:
            key = normalised(tool["description"])[:120]
            if len(tool["description"]) < MIN_DESCRIPTION or key in seen or key in taken_descriptions:
                continue
            if not is_english(tool["description"]) or PAGE_NOT_DESCRIPTION.search(tool["description"]):
                continue
            if evaluated.has_tool(tool) or not TOOL_NAME.fullmatch(tool["name"]):
                continue
            seen.add(key)
            tools.append(tool)
        if len(tools) < MIN_TOOLS_A_SERVER or len(tools) < 0.6 * min(len(server.tools), MAX_TOOLS_A_SERVER):
            continue
        taken_servers.add(server.name)
        taken_names.append(names)
        taken_descriptions |= seen
        further = [tool for tool in tools[MAX_TOOLS_A_SERVER:] if (server.name, tool["name"]) in named]
        yield replace(server, tools=(*tools[:MAX_TOOLS_A_SERVER], *further))


def has_schemas(server: Server) -> bool:
    """True where most tools name their parameters."""
    return sum(bool(tool["input_schema"].get("properties")) for tool in server.tools) >= 0.5 * len(
        server.tools
    )


def spread(servers: list[Server]) -> list[Server]:
    """Servers in the order in which they are taken: domains in turn, the most used of each first."""
    by_domain: dict[str, list[Server]] = collections.defaultdict(list)
    for server in sorted(servers, key=lambda s: (-s.used * (SCHEMAS_COUNT if has_schemas(s) else 1), s.name)):
        by_domain[server.domain].append(server)
    order: list[tuple[float, str, Server]] = []
    for domain, members in by_domain.items():
        order += [((rank + 0.5) / len(members) ** 0.6, domain, member) for rank, member in enumerate(members)]
    return [server for _, _, server in sorted(order, key=lambda entry: entry[:2])]


def split(servers: list[Server]) -> dict[str, list[Server]]:
    """Whole servers by split. Held-out servers have 5 to 25 tools and come from different domains."""
    recorded = [server for server in servers if not server.domain]
    crawled = spread([server for server in servers if server.domain])
    chosen = {"dev": [s for s in recorded if s.name in LISTS_FOR_DEV], "test": []}
    train = [s for s in recorded if s.name not in LISTS_FOR_DEV]
    eligible = [s for s in crawled if 5 <= len(s.tools) <= 25 and has_schemas(s)]
    eligible.sort(key=lambda s: hashlib.sha256(s.name.encode()).hexdigest())
    for name, tools, count in (("test", TEST_TOOLS, TEST_SERVERS), ("dev", DEV_TOOLS, DEV_SERVERS)):
        domains = {s.domain for s in chosen[name] if s.domain}
        for server in eligible:
            left = count - len(chosen[name])
            room = tools - sum(len(s.tools) for s in chosen[name])
            fits = left > 0 and abs(len(server.tools) - room / left) <= 6
            if server.domain in domains or not fits or any(server in members for members in chosen.values()):
                continue
            domains.add(server.domain)
            chosen[name].append(server)
    held_out = {s.name for members in chosen.values() for s in members}
    for server in crawled:
        if sum(min(len(s.tools), MAX_TOOLS_A_SERVER) for s in train) >= TRAIN_TOOLS:
            break
        if server.name not in held_out:
            train.append(server)
    return {"train": train, **chosen}


def write(chosen: dict[str, list[Server]], out: Path) -> None:
    """Freeze the choice: every tool in ``tools.jsonl.gz``, servers and hashes in ``splits.json``."""
    lines: list[str] = []
    splits: dict[str, Any] = {}
    for name, servers in chosen.items():
        own = [
            json.dumps({"split": name, "server": s.name, **tool}, ensure_ascii=False, sort_keys=True)
            for s in servers
            for tool in s.tools
        ]
        splits[name] = {
            "tools": len(own),
            "sha256": hashlib.sha256("\n".join(own).encode()).hexdigest(),
            "servers": {
                s.name: {"about": s.about, "domain": s.domain, "licence": s.licence, "source": s.source}
                for s in servers
            },
        }
        lines += own
    out.mkdir(parents=True, exist_ok=True)
    with (out / "tools.jsonl.gz").open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed:
        packed.write(("\n".join(lines) + "\n").encode())
    (out / "splits.json").write_text(json.dumps(splits, indent=1, ensure_ascii=False) + "\n", "utf-8")
    for name, part in splits.items():
        print(name, part["tools"], "tools of", len(part["servers"]), "servers")


def main() -> None:
    """Choose, split and freeze."""
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("lists", "toucan", "eval"):
        parser.add_argument(f"--{option}", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "data")
    arguments = parser.parse_args()
    evaluated = Evaluated(arguments.eval)
    crawled = sorted(read_toucan(arguments.toucan), key=lambda s: (-s.used, s.source))
    named = named_earlier(arguments.out / "requests" / "earlier.txt")
    servers = list(usable([*read_lists(arguments.lists), *crawled], evaluated, named))
    print(len(servers), "usable servers,", sum(len(s.tools) for s in servers), "tools")
    write(split(servers), arguments.out)


if __name__ == "__main__":
    main()
