"""The size of search answers as a model reads them, over lists of real tools and 200 written requests.

    python benchmarks/answers.py FOLDER [--store FILE]

FOLDER has a ``tools/list`` result for each server, as ``NAME.json`` or ``NAME.json.gz``; without it, the
lists of the tests are taken. The requests are in ``requests.jsonl``, each for one list or for all of them.
A token is four characters or a token of the packaged tokenizer, whichever gives more. No answer has
structured content: a host that passes on only that, only the text, or both, shows a model the same. Hosts
differ in the length of the names that they get, so the second table has each of them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeAlias

import anyio
import anyio.to_thread
from catalogs import LISTS, lists_in
from figures import percentile

from mcp_context_proxy.catalog.definitions import tool_definition
from mcp_context_proxy.catalog.names import name_within, names_within
from mcp_context_proxy.config import Config
from mcp_context_proxy.config.host_profiles import HOSTS, NAME_LENGTHS, room_given
from mcp_context_proxy.context import RequestRecords, configured
from mcp_context_proxy.context.engine import ContextEngine
from mcp_context_proxy.context.search import Searcher
from mcp_context_proxy.context.selection import ContextExpander, SearchAnswer
from mcp_context_proxy.context.session import Sessions
from mcp_context_proxy.embedding.embeddings import (
    CachedEmbedder,
    Costs,
    LazyModel,
    QueryEmbedder,
    TokenCounter,
)
from mcp_context_proxy.items import NameOf, Snapshot, Source, Tool
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.expansion import Expander
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.server.search_answers import CHARACTERS_PER_TOKEN, SIGNED, search_text
from mcp_context_proxy.store.opening import open_store

REQUESTS = Path(__file__).with_name("requests.jsonl")
ALL = "all"
"""Name of all lists together."""
NOTHING = "nothing fits"

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
            searcher=Searcher(
                engine=self._engine,
                config=config,
                wait_for_starting_servers=self._nothing_starts,
                open_model=model.get,
            ),
            sessions=Sessions(),
            records=RequestRecords(config.limits),
            options=configured(config),
            costs=Costs(self.counter, tool_definition),
            expander=ContextExpander(Expander(self._engine.index_of, queries), {}),
            redact=str,
        )

    @property
    def whole(self) -> Lists:
        """The same, as nobody has limits here."""
        return self

    async def _nothing_starts(self, *_: object) -> None:
        """Return at once."""

    async def answers(self, request: str) -> dict[int, Measured]:
        """Search as the proxy's own tool does; return the answer for each length of names."""
        await anyio.to_thread.run_sync(self._engine.index, self.snapshot)
        answer = await self._contexts.select(request, origin="search", remember=False)
        assert answer.context.failure is None, answer.context.failure
        return {room: self._measured(request, answer, room) for room in NAME_LENGTHS}

    def _measured(self, request: str, answer: SearchAnswer, room: int) -> Measured:
        def name_of(tool: Tool) -> str:
            return name_within(tool, room)

        text = search_text(answer, count=self.counter.count, name_of=name_of)
        needed = list(_required(answer, name_of))
        lines = text.splitlines()
        return Measured(
            request,
            text,
            self.tokens(text),
            len(answer.found.results),
            len(needed),
            sum(any(line.startswith(name) and one in line for line in lines) for name, one in needed),
            self.tokens(search_text(answer, count=self.counter.count, whole=True, name_of=name_of)),
        )

    def tokens(self, text: str) -> int:
        """By the tokenizer or by characters, whichever are more."""
        return max(self.counter.count(text), -(-len(text) // CHARACTERS_PER_TOKEN))


def _source(server: str, tools: Sequence[Mapping[str, Any]]) -> Source:
    made = []
    for tool in tools:
        definition = json.dumps(tool).encode()
        name, *wider = names_within(server, tool["name"], NAME_LENGTHS)
        fingerprint = f"{server} {tool['name']}"
        made.append(Tool(server, tool["name"], name, definition, fingerprint, wider_names=tuple(wider)))
    made.sort(key=lambda tool: tool.exposed_name)
    return Source(server, tuple(made))


def _required(answer: SearchAnswer, name_of: NameOf) -> Iterator[tuple[str, str]]:
    """Beginnings of the tools' lines, and the text that each must have about a required parameter."""
    for result in answer.found.results[:SIGNED]:
        assert isinstance(result.item, Tool)
        schema, line = json.loads(result.item.definition)["inputSchema"], f"{name_of(result.item)}("
        for name in schema.get("required", ()):
            described = schema["properties"].get(name, {})
            values, kind = described.get("enum"), described.get("type")
            if values:
                yield line, f"{name}: {' | '.join(json.dumps(value) for value in values)}"
            elif kind in ("object", "array") or not isinstance(kind, str):
                yield line, f"{name}: "
            else:
                yield line, f"{name}: {kind}"


Found: TypeAlias = dict[str, list[Measured]]
"""Answers by the kind of catalog, or that nothing fits."""


async def measure(folder: Path, store: Path | Literal["memory"]) -> dict[int, Found]:
    """Return all answers for each length of names."""
    lists, model = lists_in(folder), LazyModel()
    requests = [json.loads(line) for line in REQUESTS.read_text(encoding="utf-8").splitlines()]
    found: dict[int, Found] = {room: {} for room in NAME_LENGTHS}
    with open_store(store) as opened:
        for name in (*lists, ALL):
            subject = Lists(lists if name == ALL else {name: lists[name]}, model, opened.vectors)
            for one in requests:
                if one["list"] == name:
                    form = "one list" if name != ALL else f"all {len(subject.snapshot.tools):,} tools"
                    for room, measured in (await subject.answers(one["request"])).items():
                        kind = form if measured.shown else NOTHING
                        found[room].setdefault(kind, []).append(measured)
    return found


def page(found: Found) -> Iterator[str]:
    head = ("answers", "number", "tools", "mean", "p95", "most", "bars", "required visible", "whole, mean")
    yield f"| {' | '.join(head)} |"
    yield "|---|---:|---:|---:|---:|---:|---|---:|---:|"
    for form, some in {"every answer that fits": _fitting(found), **found}.items():
        tokens = [one.tokens for one in some]
        bars = (NOTHING_FITS, NOTHING_FITS) if form == NOTHING else (MEAN, MOST)
        holds = fmean(tokens) <= bars[0] and max(tokens) <= bars[1]
        needed, visible = sum(one.needed for one in some), sum(one.visible for one in some)
        yield (
            f"| {form} | {len(some)} | {fmean(one.shown for one in some):.1f} | {fmean(tokens):.0f} | "
            f"{percentile([float(one) for one in tokens], 0.95):.0f} | {max(tokens)} | "
            f"≤ {bars[0]}, ≤ {bars[1]}: {'holds' if holds else 'broken'} | "
            f"{f'{visible} of {needed}' if needed else ''} | {fmean(one.whole for one in some):,.0f} |"
        )


def _fitting(found: Found) -> list[Measured]:
    return [one for form, some in found.items() if form != NOTHING for one in some]


def by_host(found: Mapping[int, Found]) -> Iterator[str]:
    yield "| host | longest name | mean | most | nothing fits, most | required visible | bars |"
    yield "|---|---:|---:|---:|---:|---:|---|"
    for host in HOSTS.values():
        some, nothing = _fitting(found[room_given(host)]), found[room_given(host)].get(NOTHING, [])
        tokens, least = [one.tokens for one in some], max((one.tokens for one in nothing), default=0)
        needed, visible = sum(one.needed for one in some), sum(one.visible for one in some)
        holds = fmean(tokens) <= MEAN and max(tokens) <= MOST and least <= NOTHING_FITS and needed == visible
        yield (
            f"| {host.title} | {room_given(host)} | {fmean(tokens):.0f} | {max(tokens)} | {least} | "
            f"{visible} of {needed} | {'hold' if holds else '**broken**'} |"
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
        strictest = [one for some in found[NAME_LENGTHS[0]].values() for one in some]
        for one in sorted(strictest, key=lambda one: one.tokens):
            sys.stdout.write(f"==== {one.request} ({one.tokens} tokens)\n{one.text}\n\n")
    sys.stdout.write("\n".join([*page(found[NAME_LENGTHS[0]]), "", *by_host(found)]) + "\n")


if __name__ == "__main__":
    main()
