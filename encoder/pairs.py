"""Tools and written requests as training and evaluation read them, and the check for overlap.

    python encoder/pairs.py --eval EVALUATION_SETS

Prints the counts, and fails where a tool or a request that is trained on occurs in an evaluation set, or a
held-out request among those of training.

Documents stand in ``data/documents/*.txt``, each after ``=== kind`` with its title, its text, requests that
mean it (``?``) and requests that only speak of the same things (``-``).

Requests stand in ``data/requests/*.txt``: ``## name`` begins a batch, ``# server`` the tools of a server in
it, ``tool: request | request`` gives requests for a tool, ``+ server/tool, server/tool: request`` one that
needs all of them, and ``- request`` one that no tool of the batch's servers can serve. ``#+ server`` is one
outside of the batch that also serves some of its requests: what stands at two tools is served by either.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcp_context_proxy import items
from mcp_context_proxy.evaluation import read_corpus
from mcp_context_proxy.items import Kind, Snapshot, Source, Tool, ToolKey
from mcp_context_proxy.retrieval.item_metadata import item_text

DATA = Path(__file__).parent / "data"
TOOLS, SPLITS, REQUESTS = DATA / "tools.jsonl.gz", DATA / "splits.json", DATA / "requests"
DOCUMENTS = DATA / "documents"
DEV_DOCUMENTS = 8
"""One in so many documents is for dev, by the hash of its title."""


@dataclass(frozen=True, slots=True)
class Document:
    """A tool as the product embeds it: the first chunk of its text."""

    key: ToolKey
    split: str
    alone: str
    """In a catalog of one server."""
    among_others: str
    """In a catalog of several servers: with the server's name and the parameters."""


@dataclass(frozen=True, slots=True)
class Request:
    """A written request and the tools that serve it."""

    text: str
    right: tuple[ToolKey, ...]
    needs_all: bool
    """True if it needs each of the tools; otherwise any of them is enough."""
    writer: str
    batch: str


@dataclass(frozen=True, slots=True)
class WrittenDocument:
    """A written rule or reference, with the texts of it that the product embeds."""

    title: str
    split: str
    """``train`` or ``dev``."""
    chunks: tuple[str, ...]
    meant: tuple[str, ...]
    """Requests that mean it."""
    beside: tuple[str, ...]
    """Requests that speak of the same things and do not need it."""


@dataclass(frozen=True, slots=True)
class Unfitting:
    """A request that no tool of some servers can serve."""

    text: str
    servers: tuple[str, ...]


def normalised(text: str) -> str:
    """Lower-case letters and digits only, one space between words."""
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def read_tools(path: Path = TOOLS, splits: Path = SPLITS) -> dict[ToolKey, Document]:
    """The frozen tools; exits if they are not those of ``splits.json``."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    split_of = {}
    own = collections.defaultdict(list)
    for line in lines:
        tool = json.loads(line)
        split_of[tool["server"], tool["name"]] = tool["split"]
        own[tool["split"]].append(line)
    for split, facts in json.loads(splits.read_text("utf-8")).items():
        if hashlib.sha256("\n".join(own[split]).encode()).hexdigest() != facts["sha256"]:
            raise SystemExit(f"{path}: the tools of {split!r} are not those that {splits} froze")
    found = {}
    for source in read_corpus(path).sources:
        for item in source.items:
            assert isinstance(item, Tool)
            alone, among = (item_text(item, several)[1][0] for several in (False, True))
            found[item.key] = Document(item.key, split_of[item.key], alone, among)
    return found


def catalog(keys: Iterable[ToolKey], path: Path = TOOLS) -> Snapshot:
    """A catalog of only these tools."""
    wanted = set(keys)
    whole = read_corpus(path)
    sources = []
    for source in whole.sources:
        items = tuple(item for item in source.items if isinstance(item, Tool) and item.key in wanted)
        if items:
            sources.append(Source(source.key, items))
    tools = {name: tool for name, tool in whole.tools.items() if tool.key in wanted}
    return Snapshot(1, tuple(sources), tools)


def read_requests(
    tools: dict[ToolKey, Document], folder: Path = REQUESTS
) -> tuple[list[Request], list[Unfitting]]:
    """All written requests; exits at a line that cannot be read."""
    requests, unfitting = [], []
    for path in sorted(folder.glob("*.txt")):
        for name, lines in _batches(path):
            found, not_found = _read_batch(path, name, lines, tools)
            requests += found
            unfitting += not_found
    return requests, unfitting


def read_documents(folder: Path = DOCUMENTS) -> list[WrittenDocument]:
    """All written documents; exits at one that cannot be read."""
    found = []
    for path in sorted(folder.glob("*.txt")):
        for number, entry in enumerate(re.split(r"^=== ", path.read_text("utf-8"), flags=re.M)[1:], 1):
            parts = re.split(r"^---\n", entry, flags=re.M)
            kind, _, title = parts[0].strip().partition("\n")
            lines = [line.strip() for line in parts[-1].splitlines() if line.strip()]
            if (
                len(parts) < 3
                or kind not in ("rule", "reference")
                or {line[:2] for line in lines} - {"? ", "- "}
            ):
                raise SystemExit(
                    f"{path}: document {number} ({title!r}) is not in the form that pairs.py describes"
                )
            title = title.removeprefix("title:").strip()
            name = "-".join(normalised(title).split()[:5])
            text = "---\n".join(parts[1:-1]).strip()
            document = items.Document(Kind(kind), name, "", text, "")
            held_out = hashlib.sha256(title.encode()).digest()[0] % DEV_DOCUMENTS == 0
            meant, beside = (tuple(line[2:] for line in lines if line[0] == mark) for mark in "?-")
            chunks = item_text(document, True)[1]
            found.append(WrittenDocument(title, "dev" if held_out else "train", chunks, meant, beside))
    return found


def of_split(split: str, requests: Sequence[Request], tools: dict[ToolKey, Document]) -> list[Request]:
    """Requests whose tools all belong to a split."""
    return [request for request in requests if all(tools[key].split == split for key in request.right)]


def _batches(path: Path) -> list[tuple[str, list[tuple[int, str]]]]:
    batches: list[tuple[str, list[tuple[int, str]]]] = [(path.stem, [])]
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.startswith("## "):
            batches.append((line[3:].strip(), []))
        elif line.strip():
            batches[-1][1].append((number, line.strip()))
    return batches


def _read_batch(
    path: Path, name: str, lines: list[tuple[int, str]], tools: dict[ToolKey, Document]
) -> tuple[list[Request], list[Unfitting]]:
    servers = tuple(line[2:].strip() for _, line in lines if line.startswith("# "))
    serving: dict[str, list[ToolKey]] = {}
    several, nothing = [], []
    server = ""
    for number, line in lines:
        if line.startswith(("# ", "#+ ")):
            server = line.partition(" ")[2].strip()
            continue
        head, _, rest = line.partition(": ")
        if line.startswith("- "):
            nothing.append(Unfitting(line[2:], servers))
        elif line.startswith("+ "):
            keys = [(one.split("/", 1)[0], one.split("/", 1)[-1]) for one in head[2:].split(", ")]
            _known(path, number, keys, tools)
            several.append(Request(rest, tuple(keys), True, path.stem, name))
        else:
            _known(path, number, [(server, head)], tools)
            for text in filter(None, map(str.strip, rest.split("|"))):
                serving.setdefault(text, []).append((server, head))
    single = [
        Request(text, tuple(dict.fromkeys(keys)), False, path.stem, name) for text, keys in serving.items()
    ]
    return [*single, *several], nothing


def _known(path: Path, number: int, keys: list[ToolKey], tools: dict[ToolKey, Document]) -> None:
    for key in keys:
        if key not in tools:
            raise SystemExit(f"{path}:{number}: {'/'.join(key)} is no tool of {TOOLS.name}")


def overlaps(tools: dict[ToolKey, Document], requests: Sequence[Request], evaluation_sets: Path) -> list[str]:
    """Sentences about texts that are trained on and occur in an evaluation set or among held-out requests."""
    descriptions: dict[str, str] = {}
    queries: dict[str, str] = {}
    for folder in sorted(path for path in evaluation_sets.iterdir() if (path / "corpus.jsonl.gz").exists()):
        for tool in _lines(folder / "corpus.jsonl.gz"):
            descriptions.setdefault(normalised(tool["description"])[:120], folder.name)
        for query in _lines(folder / "queries.jsonl.gz"):
            queries.setdefault(normalised(query["query"]), folder.name)
    trained = of_split("train", requests, tools)
    held_out = {normalised(one.text) for split in ("dev", "test") for one in of_split(split, requests, tools)}
    found = []
    for tool in _lines(TOOLS):
        if tool["split"] == "train" and (known := descriptions.get(normalised(tool["description"])[:120])):
            found.append(f"the description of {tool['server']}/{tool['name']} occurs in {known}")
    for one in trained:
        if known := queries.get(normalised(one.text)):
            found.append(f"{one.text!r} ({one.writer}) is a query of {known}")
        if normalised(one.text) in held_out and len(one.text.split()) > 1:
            found.append(f"{one.text!r} ({one.writer}) is a held-out request, too")
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def main() -> None:
    """Print counts and overlaps."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--eval", type=Path, required=True, help="folder of evaluation sets")
    arguments = parser.parse_args()
    tools = read_tools()
    requests, unfitting = read_requests(tools)
    for split in ("train", "dev", "test"):
        own = of_split(split, requests, tools)
        keys = {key for one in own for key in one.right}
        by_writer = collections.Counter(one.writer for one in own)
        print(split, len(own), "requests for", len(keys), "tools;", dict(by_writer))
    print(len(unfitting), "requests that nothing fits")
    for split in ("train", "dev"):
        documents = [one for one in read_documents() if one.split == split]
        meant, beside = (
            sum(map(len, texts)) for texts in zip(*((d.meant, d.beside) for d in documents), strict=True)
        )
        print(
            split,
            len(documents),
            "documents with",
            meant,
            "requests that mean them and",
            beside,
            "beside them",
        )
    if found := overlaps(tools, requests, arguments.eval):
        raise SystemExit("\n".join([*found, f"{len(found)} overlaps"]))
    print("no overlap")


if __name__ == "__main__":
    main()
