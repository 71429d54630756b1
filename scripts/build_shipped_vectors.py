"""Embed the tools of well-known servers with the packaged model, for `embedding/__init__.py`.

    python scripts/build_shipped_vectors.py [--sketching]

With ``--sketching`` only the map is fitted anew by which the vectors of unknown tools are guessed
(`embedding.models.Sketcher`): on the tools of ``encoder/data`` that are not of the lists in
``tests/data/tools``, so that what is measured with these lists is measured with unknown tools.

To be run again when the packaged model, the texts that are embedded of a tool, or one of the lists changes;
`tests/embedding/test_shipped_vectors.py` fails until it is. It takes a minute on two cores.

Three kinds of lists, in the order in which they have a place:

- the lists of published servers in ``tests/data/tools``, each under the names by which people configure it,
  in a catalog of one server and of several, whose texts differ;
- the example servers of the package, likewise;
- the tools of ``encoder/data`` under the name of their server, in a catalog of several, as far as there is
  room.

All of them are under licences that `.ci/licences.py` allows, which reads the manifest. The vectors have no
text, but ``PROVENANCE.md`` beside them names each package.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mcp_context_proxy import examples
from mcp_context_proxy.catalog.definitions import parse_tools
from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.config.host_profiles import NAME_CHARACTERS
from mcp_context_proxy.embedding import (
    KEYS,
    MANIFEST,
    PACKAGED_MODEL,
    SHIPPED,
    SKETCHING,
    STORED,
    TOKENIZER,
    VECTORS,
    halves,
    word_vectors,
)
from mcp_context_proxy.embedding.embeddings import SKETCHED_CHARACTERS, load_model, open_tokenizer
from mcp_context_proxy.evaluation import read_corpus
from mcp_context_proxy.items import Item
from mcp_context_proxy.retrieval.item_metadata import item_text

ROOT = Path(__file__).parents[1]
LISTS = ROOT / "tests" / "data" / "tools"
TRAINING = ROOT / "encoder" / "data"

MOST_BYTES = 5_950_000
"""Size of keys and vectors, so that they have at most 6 MB together with the manifest."""

RIDGE = 0.3
"""Weight of the penalty of a large map, as a share of the variance of what is mapped: .03 and 1 are alike."""

NAMES = {
    "arxiv": ("arxiv-mcp-server",),
    "atlassian": ("mcp-atlassian",),
    "aws-docs": ("awslabs-aws-documentation-mcp-server",),
    "brave-search": ("brave",),
    "chrome-devtools": ("chrome-devtools-mcp",),
    "excel": ("excel-mcp-server",),
    "firecrawl": ("firecrawl-mcp", "mcp-server-firecrawl"),
    "git-cyanheads": ("git-mcp-server",),
    "hubspot": ("hubspot-mcp",),
    "kubernetes": ("mcp-server-kubernetes", "k8s"),
    "linear": ("mcp-linear",),
    "mongodb": ("MongoDB", "mongodb-mcp-server"),
    "notion": ("notionApi",),
    "salesforce": ("Salesforce-DX",),
    "sequential-thinking": ("sequentialthinking",),
    "tavily": ("tavily-mcp",),
    "word": ("word-document-server",),
    "zereight-gitlab": ("gitlab",),
}
"""Names beside that of the list: those in the instructions of the packages, as the proxy takes them."""

LICENCES = {
    "see repository LICENSE (Apache-2.0, older parts MIT)": ["Apache-2.0", "MIT"],
    "MIT per its source repository (from memory; the wheel metadata names none)": ["MIT"],
}
"""Licences of packages that do not name one alone."""


def main() -> None:
    """Write the files and print their sizes."""
    if sys.argv[1:] == ["--sketching"]:
        facts = json.loads((SHIPPED / MANIFEST).read_text(encoding="utf-8"))
        write_sketching()
        write_manifest({**facts, "sha256": hashes()})
        return
    texts, sources = dict[str, None](), list[dict[str, Any]]()
    for path in sorted(LISTS.glob("*.json.gz")):
        facts = json.loads(gzip.decompress(path.read_bytes()))
        name = path.name.split(".")[0]
        names = (name, *NAMES.get(name, ()))
        texts |= dict.fromkeys(texts_of(names, [json.dumps(tool).encode() for tool in facts["tools"]]))
        licences = LICENCES.get(facts["license"], [facts["license"]])
        package = f"{facts['registry']}:{facts['package']}@{facts['version']}"
        sources.append({"source": package, "licences": licences, "names": names})
    for name, command in examples.servers().items():
        texts |= dict.fromkeys(texts_of((name,), listed(command)))
    sources.append({"source": "mcp_context_proxy.examples", "licences": ["Apache-2.0"]})
    model = load_model()
    room = MOST_BYTES // (len(halves([b"\0" * 32]).tobytes()) + np.dtype(STORED).itemsize * model.dimensions)
    by_server = {s.key: s for s in read_corpus(TRAINING / "tools.jsonl.gz").sources}
    splits = json.loads((TRAINING / "splits.json").read_text(encoding="utf-8"))
    for server, facts in sorted(item for split in splits.values() for item in split["servers"].items()):
        more = dict.fromkeys(texts_of_items(by_server[server].items, (True,)))
        if len(texts | more) <= room:
            texts |= more
            sources.append({"source": facts["source"], "licences": [facts["licence"]], "names": [server]})
    write(list(texts), sources)


def texts_of(names: Iterable[str], definitions: list[bytes]) -> Iterator[str]:
    """Yield the texts that are embedded of a server's tools under each of its names, and without one."""
    limits = Limits()
    for name in names:
        parsed = parse_tools(ServerConfig(name=name), definitions, iter, (NAME_CHARACTERS,), limits)
        yield from texts_of_items(parsed.tools, (True, False))


def texts_of_items(items: Iterable[Item], several_servers: Iterable[bool]) -> Iterator[str]:
    """Yield the texts that are embedded of tools in a catalog of one server, or of several."""
    for several in several_servers:
        for item in items:
            yield from item_text(item, several)[1]


def listed(command: list[str]) -> list[bytes]:
    """Start an example server and return its tools."""
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "build", "version": "1"},
    }
    messages = (
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/list"},
    )
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdin.write("".join(json.dumps(message) + "\n" for message in messages))
        server.stdin.flush()
        answer = next(answer for answer in map(json.loads, server.stdout) if answer.get("id") == 2)
        server.stdin.close()
    return [json.dumps(tool).encode() for tool in answer["result"]["tools"]]


def write(texts: list[str], sources: list[dict[str, Any]]) -> None:
    """Embed texts, and write them with what is to be known of them."""
    model = load_model()
    digests = [hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest() for text in texts]
    keys = halves(digests)
    order = np.argsort(keys[0], kind="stable")
    if np.unique(keys[0]).size != len(texts):
        raise SystemExit("two keys begin alike: ShippedVectors.get must look at both")
    vectors = model.embed(texts)[order].astype(STORED)
    SHIPPED.mkdir(exist_ok=True)
    np.save(SHIPPED / KEYS, np.ascontiguousarray(keys[:, order]).astype("<u8"), allow_pickle=False)
    np.save(SHIPPED / VECTORS, vectors, allow_pickle=False)
    write_sketching()
    write_manifest(
        {"model_id": model.model_id, "vectors": len(texts), "sha256": hashes(), "sources": sources}
    )


def write_sketching() -> None:
    """Fit the map from the mean of a text's word pieces to its vector, and write it."""
    model, recorded = load_model(), {path.name.split(".")[0] for path in LISTS.glob("*.json.gz")}
    servers = [s for s in read_corpus(TRAINING / "tools.jsonl.gz").sources if s.key not in recorded]
    # The first text of each tool: what further ones say is not guessed.
    texts = list(
        dict.fromkeys(
            item_text(item, several)[1][0]
            for several in (True, False)
            for server in servers
            for item in server.items
        )
    )
    tokenizer = open_tokenizer(PACKAGED_MODEL / TOKENIZER, SKETCHED_CHARACTERS)
    pieces, scales = word_vectors(model.dimensions)
    read = [tokenizer.encode(text[:SKETCHED_CHARACTERS], add_special_tokens=False).ids for text in texts]
    means = np.array([(pieces[ids] * scales[ids, None]).mean(axis=0) for ids in read], np.float64)
    vectors = model.embed(texts).astype(np.float64)
    centred, middle = means - means.mean(axis=0), vectors.mean(axis=0)
    penalty = RIDGE * (centred**2).mean() * len(texts) * np.eye(centred.shape[1])
    linear = np.linalg.solve(centred.T @ centred + penalty, centred.T @ (vectors - middle))
    moved = middle - means.mean(axis=0) @ linear
    np.save(SHIPPED / SKETCHING, np.vstack([linear, moved]).astype(STORED), allow_pickle=False)
    guesses = means @ linear + moved
    cosines = (guesses * vectors).sum(axis=1) / np.linalg.norm(guesses, axis=1)
    print(f"{len(texts):,} texts, mean cosine of a guess {cosines.mean():.3f}")


def hashes() -> dict[str, str]:
    """Return the SHA-256 of each file."""
    names = (KEYS, VECTORS, SKETCHING)
    return {name: hashlib.sha256((SHIPPED / name).read_bytes()).hexdigest() for name in names}


def write_manifest(facts: dict[str, Any]) -> None:
    """Write what is to be known of the files, and print their sizes."""
    lines = json.dumps(facts, indent=1, ensure_ascii=False)
    (SHIPPED / MANIFEST).write_text(lines + "\n", encoding="utf-8")
    for path in sorted(SHIPPED.iterdir()):
        print(f"{path.stat().st_size:>9,}  {path.name}")


if __name__ == "__main__":
    main()
