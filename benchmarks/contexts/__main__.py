"""Measures what documents bring, which documents are meant, and which tools fit after a result.

    python -m benchmarks.contexts [--part all|held-out|others] [--catalogs 8]

The catalog is all of the real tools of tests/data/tools, and then catalogs of seven servers drawn at random.
Everything runs with the shipped defaults, through the library.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio
import numpy as np

from benchmarks.contexts import sets
from mcp_context_proxy.catalog.document_reading import headings as headings_of
from mcp_context_proxy.catalog.documents import load_documents
from mcp_context_proxy.config import Config, DocumentsConfig, Limits
from mcp_context_proxy.context import Mode, RequestContext
from mcp_context_proxy.context.delivery import section_meant
from mcp_context_proxy.context.session import ResultReading
from mcp_context_proxy.embedding import Matrix
from mcp_context_proxy.embedding.embeddings import TokenCounter
from mcp_context_proxy.items import DOCUMENT_KINDS, Document, Kind, Tool
from mcp_context_proxy.library import Catalog, ContextEngine, Session, reference, rule, tool
from mcp_context_proxy.retrieval.next_steps import Embed, KnownSteps

LISTS = Path(__file__).parents[2] / "tests" / "data" / "tools"
DOCS = Path(__file__).parents[2] / "docs"
SERVERS_OF_A_PART = 7
DOCUMENTS_PRESENT = 50
TOPICS_OF_A_FILE = 5


def real_tools() -> dict[str, list[Tool]]:
    found = {}
    for path in sorted(LISTS.glob("*.json.gz")):
        server = path.name.split(".")[0]
        entries = json.loads(gzip.decompress(path.read_bytes()))["tools"]
        made = (
            tool(one["name"], one.get("description") or "", one.get("inputSchema"), server=server)
            for one in entries
        )
        found[server] = list(made)
    return found


def made(document: sets.Written) -> Document:
    return (rule if document.kind == "rule" else reference)(document.name, document.text)


@dataclass
class Rates:
    """Counts of needs, of those met, of tools brought, of those needed."""

    needs: int = 0
    met: int = 0
    brought: int = 0
    right: int = 0
    lines: list[str] = field(default_factory=list)

    def add(
        self, needs: Sequence[sets.Need], brought: Iterable[tuple[str, str]], held: Iterable[tuple[str, str]]
    ) -> None:
        """Count the tools brought for some needs, which those held beside may meet as well."""
        brought, held = set(brought), set(held)
        self.needs += len(needs)
        self.met += sum(bool(need & (brought | held)) for need in needs)
        self.brought += len(brought)
        self.right += sum(any(key in need for need in needs) for key in brought)

    def __str__(self) -> str:
        recall, precision = self.met / max(1, self.needs), self.right / max(1, self.brought)
        met, right = f"{self.met}/{self.needs}", f"{self.right}/{self.brought}"
        return f"recall {recall:.3f} ({met}), precision {precision:.3f} ({right})"


def keys(
    engine: ContextEngine, context: RequestContext, modes: Set[Mode] | None = None
) -> set[tuple[str, str]]:
    """Tools of a context by server and own name; exposed names may be shortened."""
    tools = engine._catalog.snapshot.tools
    return {
        tools[one.name].key for one in context.of(Kind.TOOL) if modes is None or one.include_mode in modes
    }


def brought_by(engine: ContextEngine, context: RequestContext, document: str) -> set[tuple[str, str]]:
    """Tools that a document brought; others that were found beside it may bring their own."""
    why = {f"named in {document}", f"described in {document}"}
    tools = engine._catalog.snapshot.tools
    return {
        tools[item.name].key
        for item in context.of(Kind.TOOL)
        if item.include_mode is Mode.EXPANSION and item.why.split(":")[0] in why
    }


async def expansion(
    engine: ContextEngine, documents: Sequence[sets.Written], have: set[str], title: str
) -> None:
    """The tools that each document brings when its request finds it, and when it is in the session."""
    by_request, alone = Rates(), Rates()
    shown = 0
    for one in documents:
        needs = [need for need in one.needs if any(server in have for server, _ in need)]
        context = await engine.build(one.request, remember=False)
        if any(item.name == one.name for item in context.of(*DOCUMENT_KINDS)):
            shown += 1
            by_request.add(needs, brought_by(engine, context, one.name), keys(engine, context))
        session = Session()
        engine.add(session, Kind(one.kind), one.name)
        context = await engine.build("go", session, remember=False)
        alone.add(needs, brought_by(engine, context, one.name), ())
    print(f"{title}: brought by the document alone: {alone}")
    print(f"{title}: found by its request {shown}/{len(documents)}; in context then: {by_request}")


async def meant(
    engine: ContextEngine,
    documents: Sequence[sets.Written],
    requests: Mapping[str, Set[str]],
    title: str,
) -> None:
    """Documents shown for requests that mean none, and for those that mean one."""
    found, present, extra = [0, 0], [0, 0], 0
    for one in documents:
        if one.name not in {item.name for item in engine._catalog.snapshot.documents.values()}:
            continue
        present[one.later] += 1
        context = await engine.build(one.request, remember=False)
        names = {item.name for item in context.of(*DOCUMENT_KINDS)}
        found[one.later] += one.name in names
        extra += len(names - {one.name})
    shown = irrelevant = more = 0
    for request, applying in requests.items():
        context = await engine.build(request, remember=False)
        names = {item.name for item in context.of(*DOCUMENT_KINDS)}
        shown += len(names)
        irrelevant += len(names - applying)
        more += len(keys(engine, context, {Mode.EXPANSION}))
    count, all_found, all_present = max(1, len(requests)), sum(found), sum(present)
    of_each = ", ".join(f"{own}/{of}" for own, of in zip(found, present, strict=True))
    print(
        f"{title}: meant documents found {all_found}/{all_present} ({all_found / all_present:.3f}; "
        f"earlier and later ones {of_each}), others beside {extra / all_present:.2f}; "
        f"{count} plain requests: {shown / count:.3f} documents each, "
        f"{irrelevant / count:.3f} that do not apply, "
        f"{more / count:.3f} tools brought"
    )


async def repeated(engine: ContextEngine, documents: Sequence[sets.Written], title: str) -> None:
    """Documents about a tool, shown for a request that repeats what its description says word by word."""
    tools = {one.key: one for one in engine._catalog.snapshot.tools.values()}
    present = {item.name for item in engine._catalog.snapshot.documents.values()}
    asked = shown = 0
    for one in (document for document in documents if document.name in present):
        for key in (min(need) for need in one.needs if min(need) in tools):
            request = tools[key].description.strip().split(". ")[0][:200]
            context = await engine.build(request, remember=False)
            asked += 1
            shown += any(item.name == one.name for item in context.of(*DOCUMENT_KINDS))
    print(f"{title}: documents shown for a request that repeats a tool's description: {shown}/{asked}")


LIKE_A_KNOWN_STEP = 0.85
"""Cosine of two names of tools that are much the same, such as ``list issues`` and ``search issues``."""


class Without(KnownSteps):
    """Known steps without those whose first name is like the called tool's, as for a server never seen."""

    def __init__(self, embed: Embed, alike: float) -> None:
        super().__init__(embed)
        self._alike = alike

    def cosines(self, called: str, names: Sequence[str]) -> tuple[Matrix, Matrix] | None:
        """Return the cosines, 0 for a known step that is alike."""
        if (cosines := super().cosines(called, names)) is None:
            return None
        before, after = cosines
        return np.where(before < self._alike, before, 0), after


async def after_results(engine: ContextEngine, results: Sequence[sets.Recorded], title: str) -> None:
    rates = Rates()
    tools = {(one.server, one.name): one for one in engine._catalog.snapshot.tools.values()}
    for one in results:
        if one.tool not in tools:
            continue
        session = Session()
        said = json.dumps({"content": [{"type": "text", "text": one.text}]}).encode()
        session.called(tools[one.tool], said, ResultReading(enabled=True))
        context = await engine.build("go on", session, remember=False)
        brought = keys(engine, context, {Mode.EXPANSION})
        rates.add(one.needs, brought, ())
    print(f"{title}: tools after a result: {rates}")


async def handbooks(tools: Sequence[Tool], documents: Sequence[sets.Written], title: str) -> None:
    """Files of five topics each, which a request about one of them should find, headed or as they are."""
    order = [documents[int(at)] for at in np.random.default_rng(5).permutation(len(documents))]
    files = [order[at : at + TOPICS_OF_A_FILE] for at in range(0, len(order), TOPICS_OF_A_FILE)]
    for way in ("each with a heading", "as they are, one below the other"):
        texts = {one.name: one.text for one in documents}
        if way.endswith("heading"):
            texts = {
                name: text if text.startswith("#") else f"# {name}\n\n{text}" for name, text in texts.items()
            }
        written = [
            reference(f"handbook-{number}", "\n\n".join(texts[one.name] for one in own))
            for number, own in enumerate(files)
        ]
        found = first = brought = needed = 0
        with ContextEngine(Catalog([*tools, *written]), store=STORE) as engine:
            for number, own in enumerate(files):
                for one in own:
                    context = await engine.build(one.request, remember=False)
                    names = [item.name for item in context.of(*DOCUMENT_KINDS)]
                    found += f"handbook-{number}" in names
                    first += names[:1] == [f"handbook-{number}"]
                    if f"handbook-{number}" in names:
                        needed += len(one.needs)
                        brought += sum(bool(need & keys(engine, context)) for need in one.needs)
        count = len(documents)
        print(
            f"{title}: {len(files)} files of five topics, {way}: found {found}/{count}, "
            f"first {first}/{count}; tools in context then {brought}/{needed}"
        )


def team_documents() -> tuple[Document, ...]:
    """Documents as a team has them, read from files, because they have front matter."""
    with tempfile.TemporaryDirectory() as name:
        rules = DocumentsConfig(path=Path(name, "rule"), kind="rule")
        references = DocumentsConfig(path=Path(name, "reference"), kind="reference")
        for folder in (rules, references):
            folder.path.mkdir()
        for one in sets.teams():
            Path(name, one.kind, f"{one.name}.md").write_text(one.text, encoding="utf-8")
        return load_documents([rules, references], Limits()).documents


async def long_documents(tools: Sequence[Tool], requests: Iterable[str], title: str) -> None:
    """The documentation of this project: pages shown for questions about it, and for requests for tools."""
    pages = [reference(path.stem, path.read_text(encoding="utf-8")) for path in sorted(DOCS.glob("*.md"))]
    questions, counts = sets.questions(), dict[str, int]()
    found = 0
    with ContextEngine(Catalog([*tools, *pages]), store=STORE) as engine:
        for asked in (*questions, *requests):
            context = await engine.build(asked, remember=False)
            names = {item.name for item in context.of(*DOCUMENT_KINDS)}
            counts[asked] = len(names)
            found += bool(names & questions.get(asked, frozenset()))
    plain = [number for asked, number in counts.items() if asked not in questions]
    print(
        f"{title}: {len(pages)} long documents: questions answered {found}/{len(questions)} with "
        f"{sum(counts[asked] for asked in questions) / len(questions):.2f} documents each; "
        f"{len(plain)} plain requests: {sum(plain) / len(plain):.3f} documents each, "
        f"with any {sum(map(bool, plain)) / len(plain):.3f}"
    )


async def sections(tools: Sequence[Tool]) -> None:
    """Questions that one section of a long page answers: how often it is what an answer gives first."""
    pages = {path.stem: path.read_text(encoding="utf-8") for path in sorted(DOCS.glob("*.md"))}
    asked, shown, right, first, tokens, whole = sets.sections(), 0, 0, 0, 0, 0
    count = TokenCounter().count
    made = [reference(name, text) for name, text in pages.items()]
    with ContextEngine(Catalog([*tools, *made]), store=STORE) as engine:
        for question, page, headings in asked:
            answer = await engine.select(question, remember=False, deliver="answer")
            told = {one.document.name: one.text for one in answer.told}
            if page not in told:
                continue
            shown += 1
            chunk = next(one.chunk or "" for one in answer.found.results if one.item.name == page)
            section = section_meant(pages[page], chunk, question)
            at = pages[page].find(section) if section else -1
            # A part of the right section is right, too.
            path = next((one.name.split("/") for one in headings_of(pages[page]) if one.start == at), [])
            is_right = not headings.isdisjoint(path)
            right += is_right
            first += is_right and next(iter(told)) == page
            tokens, whole = tokens + count(told[page]), whole + count(pages[page])
    print(
        f"{len(asked)} questions that one section of {len(pages)} pages answers: page shown {shown}, "
        f"its right section {right}, page and section first {first}; "
        f"{tokens / shown:.0f} tokens instead of {whole / shown:.0f}"
    )


async def speed(
    lists: Mapping[str, Sequence[Tool]], documents: Sequence[sets.Written], requests: Iterable[str]
) -> None:
    """Processor time of a request with and without expansion, in turn, on the same catalog."""
    items: list[Tool | Document] = [
        *(one for own in lists.values() for one in own),
        *map(made, documents[:DOCUMENTS_PRESENT]),
    ]
    took: dict[int, list[float]] = {0: [], 1: []}
    engines = {
        depth: ContextEngine(Catalog(items), Config.of({"context": {"expansion_depth": depth}}), STORE)
        for depth in took
    }
    asked = [*(one.request for one in documents[:DOCUMENTS_PRESENT]), *requests]
    for round_ in range(4):
        for request in asked:
            for depth in (0, 1) if round_ % 2 else (1, 0):
                start = time.process_time()
                await engines[depth].build(f"{request} {'!' * round_}", remember=False)
                if round_:
                    took[depth].append(time.process_time() - start)
    for depth, times in took.items():
        p50, p95 = 1e3 * np.percentile(times, (50, 95))
        print(f"depth {depth}: p50 {p50:.2f} ms, p95 {p95:.2f} ms")
    gain = np.array(took[1]) - np.array(took[0])
    p50, p95 = 1e3 * np.percentile(gain, (50, 95))
    print(f"added by expansion, paired: p50 {p50:.2f} ms, p95 {p95:.2f} ms")


async def main(part: str, catalogs: int, with_speed: bool) -> None:
    print("sets", sets.digest()[:16])
    wanted = {"all": (True, False), "held-out": (True,), "others": (False,)}[part]
    lists = real_tools()
    documents = [one for one in sets.documents() if one.held_out in wanted]
    results = {file: [one for one in sets.results(file) if one.held_out in wanted] for file in sets.RESULTS}
    requests = {asked: names for asked, names in sets.requests().items() if sets.held_out(asked) in wanted}
    config = Config.of({"context": {"expand_results": True}})
    chance = np.random.default_rng(11)
    for number in range(1 + catalogs):
        drawn = (
            sorted(lists)
            if not number
            else sorted(chance.choice(sorted(lists), SERVERS_OF_A_PART, replace=False))
        )
        have, tools = set(drawn), [one for server in drawn for one in lists[server]]
        title = "all 33 servers" if not number else f"{','.join(drawn)}"
        fitting = (
            documents
            if not number
            else [d for d in documents if not d.needs or any(s in have for n in d.needs for s, _ in n)]
        )
        with ContextEngine(Catalog([*tools, *map(made, documents)]), store=STORE) as engine:
            await expansion(engine, fitting, have, title)
        # As many documents as a person may have, drawn so that each is meant once.
        order = [documents[int(at)] for at in np.random.default_rng(3).permutation(len(documents))]
        for start in range(0, len(order), DOCUMENTS_PRESENT):
            present = order[start : start + DOCUMENTS_PRESENT]
            if len(present) < DOCUMENTS_PRESENT // 2:
                continue
            catalog = Catalog([*tools, *map(made, present)])
            served = requests
            if number:
                served = {asked: names for asked, names in requests.items() if SERVER_OF.get(asked) in have}
            with ContextEngine(catalog, store=STORE) as engine:
                if not number:
                    for asked in served:
                        best = (await engine.build(asked, remember=False)).of(Kind.TOOL)
                        if best:
                            SERVER_OF.setdefault(asked, best[0].server or "")
                await meant(engine, [d for d in present if d in fitting], served, title)
                if not number:
                    await repeated(engine, present, title)
        if not number:
            with ContextEngine(Catalog([*tools, *team_documents()]), store=STORE) as engine:
                await meant(engine, sets.teams(), sets.teams_requests(), f"{title}, documents of a team")
            await handbooks(tools, documents, title)
            await long_documents(tools, requests, title)
            await sections(tools)
            with ContextEngine(Catalog(tools), config, store=STORE) as engine:
                for file, own in results.items():
                    await after_results(engine, own, f"{title}, {file}")
                every = [one for own in results.values() for one in own]
                await after_results(engine, every, title)
                expander = engine._selector._expander._expander
                expander._known_steps = Without(expander._embed_parts, LIKE_A_KNOWN_STEP)
                await after_results(engine, every, f"{title}, without known steps that are alike")
    if with_speed:
        await speed(lists, documents, requests)


STORE = Path(tempfile.gettempdir()) / "contexts-benchmark.sqlite"
"""Vectors, kept between runs."""

SERVER_OF: dict[str, str] = {}
"""Server of the best tool for each plain request."""

if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("all", "held-out", "others"), default="held-out")
    parser.add_argument("--catalogs", type=int, default=0)
    parser.add_argument("--speed", action="store_true")
    arguments = parser.parse_args()
    anyio.run(partial(main, arguments.part, arguments.catalogs, arguments.speed))
