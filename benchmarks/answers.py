"""The size of search answers as a model reads them, over lists of real tools and 200 written requests.

    python benchmarks/answers.py FOLDER [--store FILE]

FOLDER has a ``tools/list`` result for each server, as ``NAME.json`` or ``NAME.json.gz``; without it, the
lists of the tests are taken. The requests are in ``requests.jsonl``, each for one list or for all of them.
A token is four characters or a token of the packaged tokenizer, whichever gives more. No answer has
structured content: a host that passes on only that, only the text, or both, shows a model the same.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import anyio
import anyio.to_thread
from catalogs import LISTS, lists_in
from figures import percentile

from mcp_context_proxy.catalog.definitions import exposed_name
from mcp_context_proxy.config import Config
from mcp_context_proxy.context.background_indexing import OnWait
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.options import configured
from mcp_context_proxy.context.records import RequestRecords
from mcp_context_proxy.context.search import Searcher
from mcp_context_proxy.context.selection import ContextExpander, Costs, SearchAnswer
from mcp_context_proxy.context.session import Sessions
from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, QueryEmbedder, TokenCounter
from mcp_context_proxy.items import Snapshot, Source, Tool
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.server.search_answers import CHARACTERS_PER_TOKEN, SIGNED, search_text
from mcp_context_proxy.store import open_store

REQUESTS = Path(__file__).with_name("requests.jsonl")
ALL = "all"
"""Name of all lists together."""

MEAN, MOST, NOTHING_FITS = 400, 700, 80
"""Bars, in tokens."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The answer to one request."""

    request: str
    text: str
    tokens: int
    shown: int
    """Tools that it names."""
    needed: int
    """Required parameters of the first three."""
    visible: int
    """Those that the answer has with their types."""
    whole: int
    """Tokens of the same tools with their whole descriptions and schemas."""


class Lists:
    """A catalog of some lists, and its search."""

    def __init__(
        self, lists: Mapping[str, Sequence[Mapping[str, Any]]], model: LazyModel, vectors: Any
    ) -> None:
        sources = tuple(_source(server, tools) for server, tools in lists.items())
        tools = {item.exposed_name: item for one in sources for item in one.items if isinstance(item, Tool)}
        self.snapshot = Snapshot(1, sources, dict(sorted(tools.items())))
        config, queries, self.counter = Config(), QueryEmbedder(model), TokenCounter()
        self._engine = Engine(CachedEmbedder(model, vectors), queries, calibration=packaged_background())
        self._contexts = ContextEngine(
            catalog=self,
            searcher=Searcher(self._engine, config, self._nothing_starts, model.get),
            sessions=Sessions(),
            records=RequestRecords(config.limits),
            options=configured(config),
            costs=Costs(self.counter),
            expander=ContextExpander(Expander(self._engine.index_of, queries), {}),
        )

    async def _nothing_starts(self, seconds: float, on_wait: OnWait | None = None) -> None:
        del seconds, on_wait

    async def answer(self, request: str) -> Measured:
        """Search as the proxy's own tool does."""
        await anyio.to_thread.run_sync(self._engine.index, self.snapshot)
        answer = await self._contexts.select(request, origin="search", remember=False)
        text = search_text(answer, (), self.counter.count)
        needed = list(_required(answer))
        lines = text.splitlines()
        return Measured(
            request,
            text,
            self.tokens(text),
            len(answer.found.results),
            len(needed),
            sum(any(line.startswith(name) and one in line for line in lines) for name, one in needed),
            self.tokens(search_text(answer, (), self.counter.count, whole=True)),
        )

    def tokens(self, text: str) -> int:
        """By the tokenizer or by characters, whichever are more."""
        return max(self.counter.count(text), -(-len(text) // CHARACTERS_PER_TOKEN))


def _source(server: str, tools: Sequence[Mapping[str, Any]]) -> Source:
    made = []
    for tool in tools:
        definition, told = json.dumps(tool).encode(), tool.get("description", "")
        name = exposed_name(server, tool["name"], 50)
        made.append(Tool(server, tool["name"], name, told, definition, f"{server} {tool['name']}"))
    return Source(server, tuple(sorted(made, key=lambda tool: tool.exposed_name)), {})


def _required(answer: SearchAnswer) -> Iterator[tuple[str, str]]:
    """Beginnings of the tools' lines, and the text that each must have about a required parameter."""
    for result in answer.found.results[:SIGNED]:
        assert isinstance(result.item, Tool)
        schema, line = json.loads(result.item.definition)["inputSchema"], f"{result.item.exposed_name}("
        for name in schema.get("required", ()):
            described = schema["properties"].get(name, {})
            values, kind = described.get("enum"), described.get("type")
            if values:
                yield line, f"{name}: {' | '.join(json.dumps(value) for value in values)}"
            elif kind in ("object", "array") or not isinstance(kind, str):
                yield line, f"{name}: "
            else:
                yield line, f"{name}: {kind}"


async def measure(folder: Path, store: str) -> dict[str, list[Measured]]:
    lists, model = lists_in(folder), LazyModel()
    requests = [json.loads(line) for line in REQUESTS.read_text(encoding="utf-8").splitlines()]
    found: dict[str, list[Measured]] = {}
    with open_store(store) as opened:
        for name in (*lists, ALL):
            subject = Lists(lists if name == ALL else {name: lists[name]}, model, opened.vectors)
            for one in requests:
                if one["list"] == name:
                    measured = await subject.answer(one["request"])
                    form = "one list" if name != ALL else f"all {len(subject.snapshot.tools):,} tools"
                    found.setdefault(form if measured.shown else "nothing fits", []).append(measured)
    return found


def page(found: Mapping[str, Sequence[Measured]]) -> Iterator[str]:
    head = ("answers", "number", "tools", "mean", "p95", "most", "bars", "required visible", "whole, mean")
    yield f"| {' | '.join(head)} |"
    yield "|---|---:|---:|---:|---:|---:|---|---:|---:|"
    fitting = [one for form, some in found.items() if form != "nothing fits" for one in some]
    for form, some in {"every answer that fits": fitting, **found}.items():
        tokens = [one.tokens for one in some]
        bars = (NOTHING_FITS, NOTHING_FITS) if form == "nothing fits" else (MEAN, MOST)
        holds = fmean(tokens) <= bars[0] and max(tokens) <= bars[1]
        needed, visible = sum(one.needed for one in some), sum(one.visible for one in some)
        yield (
            f"| {form} | {len(some)} | {fmean(one.shown for one in some):.1f} | {fmean(tokens):.0f} | "
            f"{percentile([float(one) for one in tokens], 0.95):.0f} | {max(tokens)} | "
            f"≤ {bars[0]}, ≤ {bars[1]}: {'holds' if holds else 'broken'} | "
            f"{f'{visible} of {needed}' if needed else ''} | {fmean(one.whole for one in some):,.0f} |"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=LISTS)
    parser.add_argument("--store", default="memory", help="keeps vectors between runs; not a proxy's store")
    parser.add_argument("--show", action="store_true", help="print every answer, too")
    arguments = parser.parse_args()
    found = anyio.run(measure, arguments.folder, arguments.store)
    if arguments.show:
        for one in sorted((one for some in found.values() for one in some), key=lambda one: one.tokens):
            sys.stdout.write(f"==== {one.request} ({one.tokens} tokens)\n{one.text}\n\n")
    sys.stdout.write("\n".join(page(found)) + "\n")


if __name__ == "__main__":
    main()
