"""Measures search with a corpus and queries, and replays a log of queries with the learned tier off and on.

A run is a file with the answer to each query, which any other tool can score. Two runs over the same queries
are compared query by query.

A need is met at a depth if any of its tools is among that many first results. A tool that belongs to several
needs meets all of them. ``relevant`` makes a need of each of its tools, ``any_of`` one of each group; a
second member of a met group neither helps nor counts. The measures follow the field's definitions.

Intervals of means come from the percentile bootstrap (Efron and Tibshirani, "An introduction to the
bootstrap", 1993, chapter 13): seeded, and the same whatever the order of the queries.

The measured queries are the same each time, all from after the log's first part: they are measured before
anything is learned, and after more and more of the first part. Nothing is learned from them.
"""

from __future__ import annotations

import gzip
import math
import random
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final, TypeAlias, TypeVar

import msgspec
from msgspec import Meta, Raw, Struct
from msgspec.structs import replace

from mcp_context_proxy.catalog.definitions import class_of, fingerprint
from mcp_context_proxy.catalog.names import exposed_name
from mcp_context_proxy.config.host_profiles import NAME_CHARACTERS
from mcp_context_proxy.embedding import Embedder
from mcp_context_proxy.embedding.embeddings import QueryEmbedder
from mcp_context_proxy.errors import DataFileError
from mcp_context_proxy.items import Kind, Snapshot, Source, Tool, ToolKey
from mcp_context_proxy.learning import Signal, Use
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.protocol.strangers import in_words
from mcp_context_proxy.retrieval import Ranking, SearchOptions
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.statistics import DAY
from mcp_context_proxy.system import LONGEST_LINE
from mcp_context_proxy.system.later import np

T = TypeVar("T")

GZIP_MAGIC = b"\x1f\x8b"

Need: TypeAlias = frozenset[ToolKey]
"""Tools any one of which is enough."""

Name = Annotated[str, Meta(min_length=1)]


class CorpusLine(msgspec.Struct):
    """One tool: a line of a corpus."""

    server: Name
    name: Name
    description: str | None = None
    input_schema: Raw = Raw(b"{}")
    title: str | None = None
    annotations: Raw = Raw(b"{}")
    use_cases: tuple[str, ...] = ()


class QueryLine(msgspec.Struct):
    """One query: a line of a file of queries."""

    query: Annotated[str, Meta(min_length=1)]
    relevant: list[ToolKey]
    any_of: list[Annotated[list[ToolKey], Meta(min_length=1)]] = []


class EvalQuery(Struct, frozen=True):
    """A query and its distinct needs: each tool of ``relevant``, then the groups of ``any_of``."""

    text: str
    needs: tuple[Need, ...]
    """Empty if no tool at all can answer the query."""


def read_corpus(path: Path) -> Snapshot:
    """Make a catalog of a file of tools, as if all their servers were connected; in any order of lines."""
    lines: dict[ToolKey, int] = {}
    by_server: dict[str, list[Tool]] = {}
    for number, line in read_lines(path, CorpusLine):
        key = line.server, line.name
        if (first := lines.setdefault(key, number)) != number:
            raise DataFileError(
                path, number, f"tool {line.name!r} of {line.server!r} is on line {first} already"
            )
        if not bytes(line.input_schema).startswith((b"{", b"null")):
            raise DataFileError(path, number, "input_schema must be an object or null")
        by_server.setdefault(line.server, []).append(_tool(line))
    if not lines:
        raise DataFileError(path, None, "it has no tools")
    sources = tuple(Source(server, tuple(tools)) for server, tools in sorted(by_server.items()))
    tools = {tool.exposed_name: tool for group in by_server.values() for tool in group}
    return Snapshot(1, sources, dict(sorted(tools.items())))


def _tool(line: CorpusLine) -> Tool:
    schema = line.input_schema if bytes(line.input_schema).startswith(b"{") else Raw(b"{}")
    members: dict[str, str | Raw] = {
        "name": line.name,
        "description": line.description or "",
        "inputSchema": schema,
    }
    if line.title is not None:
        members["title"] = line.title
    if bytes(line.annotations) != b"{}":
        members["annotations"] = line.annotations
    definition = msgspec.json.encode(members)
    return Tool(
        server=line.server,
        name=line.name,
        exposed_name=exposed_name(line.server, line.name, NAME_CHARACTERS),
        written=definition,
        fingerprint=fingerprint(line.server, definition),
        use_cases=line.use_cases,
        tool_class=class_of(line.name, definition),
    )


def read_queries(path: Path) -> list[EvalQuery]:
    queries = []
    for _, line in read_lines(path, QueryLine):
        needs = [frozenset({key}) for key in line.relevant] + [frozenset(group) for group in line.any_of]
        queries.append(EvalQuery(line.query, tuple(dict.fromkeys(needs))))
    if not queries:
        raise DataFileError(path, None, "it has no queries")
    return queries


def read_lines(path: Path, kind: type[T]) -> Iterator[tuple[int, T]]:
    """Yield each line that is not blank, decoded, with its number from 1."""
    decode = msgspec.json.Decoder(kind).decode
    number = 0
    try:
        # A gzipped file is recognised by its first bytes, whatever its name.
        with path.open("rb") as file:
            packed = file.read(len(GZIP_MAGIC)) == GZIP_MAGIC
        with gzip.open(path, "rb") if packed else path.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, LONGEST_LINE), b""), 1):
                if line.strip():
                    yield number, decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise DataFileError(path, number, in_words(e, kind, "the line")) from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as e:
        raise DataFileError(path, None, f"it is damaged: not a complete gzip file ({e})") from None
    except OSError as e:
        raise DataFileError(path, None, f"it cannot be read ({e.strerror or e})") from None


TOOLS = Filters(kinds=frozenset({Kind.TOOL}))
"""Searches consider tools only: the proxy searches documents apart."""

SCORE_DECIMALS = 6
"""As the engine rounds: written scores are free of the tail that a float32 grows in JSON."""

FITS = "fits"


class Answer(msgspec.Struct, frozen=True):
    """The answer to one query: one line of a run."""

    query: str
    ranking: list[tuple[str, str, float]]
    """Server, name and score, best first: to the requested depth, and at least the selected ones."""
    selected: Annotated[int, Meta(ge=0)]
    """Results that the selection rule returns, whether or not anything fits."""
    fits: bool
    """True if the answer is that something fits."""

    @property
    def keys(self) -> list[ToolKey]:
        return [(server, name) for server, name, _ in self.ranking]


def write_run(path: Path, answers: Iterable[Answer]) -> None:
    try:
        path.write_bytes(b"".join(msgspec.json.encode(answer) + b"\n" for answer in answers))
    except OSError as e:
        raise DataFileError(path, None, f"it cannot be written ({e.strerror or e})") from None


def read_run(path: Path) -> list[Answer]:
    return [answer for _, answer in read_lines(path, Answer)]


class QueryLatency(Struct, frozen=True):
    """Milliseconds of searches one by one, the query's embedding included; index and model are ready."""

    p50: float
    p95: float


class Report(Struct, frozen=True):
    """Measures of the answers to all queries."""

    tools: int
    servers: int
    queries: int
    unmeetable: int
    """Queries with a need that no tool of the catalog meets; such a need counts as missed."""
    method: str
    """The method used: by words if there is no model."""
    note: str | None
    """The reason for searching by words, or another remark for a person."""
    measures: dict[str, Estimate]
    """Each over the queries that have it."""
    latency_ms: QueryLatency


class Evaluation(Struct, frozen=True):
    """All answers, and the report on them."""

    answers: list[Answer]
    report: Report


def evaluate(
    engine: Engine,
    snapshot: Snapshot,
    queries: Sequence[EvalQuery],
    options: SearchOptions,
    depth: int,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Evaluation:
    """Index a snapshot, answer all queries, measure the answers. Blocks.

    Only tools are searched, ranked to ``depth``; each query is answered alone.
    """
    options = replace(options, depth=depth)
    engine.index(snapshot)
    last = engine.search(queries[0].text, snapshot, TOOLS, options)
    answers, seconds = [], []
    for done, query in enumerate(queries, 1):
        last = engine.search(query.text, snapshot, TOOLS, options)
        answers.append(answer_of(last))
        seconds.append(last.seconds)
        on_progress(done, len(queries))
    tools = tools_of(snapshot)
    p50, p95 = np.quantile(np.array(seconds) * 1e3, [0.5, 0.95])
    return Evaluation(
        answers,
        Report(
            tools=len(tools),
            servers=len({server for server, _ in tools}),
            queries=len(queries),
            unmeetable=sum(any(need.isdisjoint(tools) for need in query.needs) for query in queries),
            method=last.method,
            note=last.note,
            measures=estimates(measured(queries, answers, tools, depth)),
            latency_ms=QueryLatency(float(p50), float(p95)),
        ),
    )


def measured(
    queries: Iterable[EvalQuery], answers: Iterable[Answer], tools: frozenset[ToolKey] | None, depth: int
) -> list[dict[str, float]]:
    """Measure each answer.

    A query is answerable if some tool can meet one of its needs (without ``tools``: if it has needs); for
    the others, only the answer "nothing fits" is measured.
    """
    rows = []
    for query, answer in zip(queries, answers, strict=True):
        answerable = any(tools is None or not need.isdisjoint(tools) for need in query.needs)
        rows.append(measure(query.needs, answer.keys, depth, answer.selected, answer.fits, answerable))
    return rows


def tools_of(snapshot: Snapshot) -> frozenset[ToolKey]:
    items = (item for source in snapshot.sources for item in source.items)
    return frozenset(item.key for item in items if isinstance(item, Tool))


def answer_of(ranking: Ranking) -> Answer:
    """Return the answer that a run keeps of a search for tools."""
    selected = ranking.results or ranking.near_misses
    ranked = [
        (result.item.server, result.item.name, round(result.score, SCORE_DECIMALS))
        for result in (*selected, *ranking.others)
        if isinstance(result.item, Tool)
    ]
    return Answer(ranking.query, ranked, len(selected), ranking.fits)


class MeasureDifference(Struct, frozen=True):
    """One measure in two runs, over the queries that have it."""

    first: float
    second: float
    difference: Estimate
    """Second less first, paired by query."""


def compare_files(
    first: Path, second: Path, queries: Sequence[EvalQuery] | None
) -> dict[str, MeasureDifference]:
    """Compare two runs; their quality only if the queries name the tools that are needed.

    A result missing in a run counts as not found, so runs that end before rank 10 lose by it. Raises
    `DataFileError` if a file cannot be used, or the two do not answer the same queries.
    """
    texts = [query.text for query in queries] if queries else [answer.query for answer in read_run(first)]
    rows = []
    for answers in (_in_order(first, texts), _in_order(second, texts)):
        if queries is None:
            rows.append([{SELECTED: answer.selected, FITS: float(answer.fits)} for answer in answers])
        else:
            rows.append(measured(queries, answers, None, DEEPEST))
    return differences(*rows)


def differences(
    first: Sequence[Mapping[str, float]], second: Sequence[Mapping[str, float]]
) -> dict[str, MeasureDifference]:
    """Compare two measurements of the same queries in the same order."""
    names = dict.fromkeys(name for row in first for name in row)
    found = {}
    for name in names:
        pairs = [(a[name], b[name]) for a, b in zip(first, second, strict=True) if name in a]
        found[name] = MeasureDifference(
            first=fmean(a for a, _ in pairs),
            second=fmean(b for _, b in pairs),
            difference=estimate(b - a for a, b in pairs),
        )
    return found


def _in_order(path: Path, texts: Sequence[str]) -> list[Answer]:
    """Return the answers of a run in the order of the queries; equal queries in their own order."""
    run = read_run(path)
    answers = dict(zip(_numbers([answer.query for answer in run]), run, strict=True))
    wanted = _numbers(texts)
    if missing := next((text for text, number in wanted if (text, number) not in answers), None):
        raise DataFileError(path, None, f"it does not answer the query {missing!r}")
    if len(answers) > len(wanted):
        raise DataFileError(path, None, f"it answers {len(answers)} queries where {len(wanted)} are compared")
    return [answers[key] for key in wanted]


def _numbers(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Pair each text with the number of its earlier occurrences."""
    seen: Counter[str] = Counter()
    numbered = []
    for text in texts:
        numbered.append((text, seen[text]))
        seen[text] += 1
    return numbered


RECALL_DEPTHS = (1, 3, 5, 10)
COMPLETE_DEPTHS = (5, 10)
NDCG_DEPTHS = (5, 10)
DEEPEST = max(*RECALL_DEPTHS, *COMPLETE_DEPTHS, *NDCG_DEPTHS)

SELECTED = "selected"
SELECTED_RECALL = "selected_recall"
SELECTED_PRECISION = "selected_precision"
KEPT = "kept"
REFUSED = "refused"

RESAMPLES = 2_000
"""Fifty of them lie beyond each end of a 95 % interval, which fixes it to about a tenth of its width."""

SEED = 20260728
"""Any number would do, as long as it stays."""

CONFIDENCE = 0.95


def measure(
    needs: Sequence[Need], ranking: Sequence[ToolKey], depth: int, selected: int, fits: bool, answerable: bool
) -> dict[str, float]:
    """Return each measure that a ranking of ``depth`` results allows, by name.

    Without needs nothing can be found: only the answer that something fits, or nothing, is measured.
    """
    found: dict[str, float] = {}
    if needs:
        top = ranking[:depth]
        found |= {f"recall@{at}": recall(needs, top[:at]) for at in RECALL_DEPTHS if at <= depth}
        found |= {f"complete@{at}": float(complete(needs, top[:at])) for at in COMPLETE_DEPTHS if at <= depth}
        found["mrr"] = reciprocal_rank(needs, top)
        found |= {f"ndcg@{at}": ndcg(needs, top, at) for at in NDCG_DEPTHS if at <= depth}
        shown = ranking[:selected]
        found |= {SELECTED: float(selected), SELECTED_RECALL: recall(needs, shown)}
        if shown:
            found[SELECTED_PRECISION] = precision(needs, shown)
    return found | ({KEPT: float(fits)} if answerable else {REFUSED: float(not fits)})


def recall(needs: Sequence[Need], found: Sequence[ToolKey]) -> float:
    return sum(not need.isdisjoint(found) for need in needs) / len(needs)


def precision(needs: Sequence[Need], found: Sequence[ToolKey]) -> float:
    """Return the share of results that meet a need; there must be one."""
    wanted: Need = frozenset().union(*needs)
    return sum(key in wanted for key in found) / len(found)


def complete(needs: Sequence[Need], found: Sequence[ToolKey]) -> bool:
    return all(not need.isdisjoint(found) for need in needs)


def reciprocal_rank(needs: Sequence[Need], ranking: Sequence[ToolKey]) -> float:
    """Return one over the rank of the first result that meets a need; 0 if none does."""
    wanted: Need = frozenset().union(*needs)
    return next((1 / rank for rank, key in enumerate(ranking, 1) if key in wanted), 0.0)


def ndcg(needs: Sequence[Need], ranking: Sequence[ToolKey], depth: int) -> float:
    """Return the discounted gain, as a share of that of a ranking with one met need at each first rank.

    A result gains 1 when it meets a need that no result above it meets (Järvelin and Kekäläinen, "Cumulated
    gain-based evaluation of IR techniques", TOIS 2002; binary gains, discount log2(rank + 1)).
    """
    unmet, gain = list(needs), 0.0
    for rank, key in enumerate(ranking[:depth], 1):
        left = [need for need in unmet if key not in need]
        if len(left) < len(unmet):
            gain += _discount(rank)
        unmet = left
    return gain / sum(_discount(rank) for rank in range(1, min(len(needs), depth) + 1))


def _discount(rank: int) -> float:
    return 1 / math.log2(rank + 1)


class Estimate(Struct, frozen=True):
    """A mean over queries, with the interval that other queries of their kind would give."""

    mean: float
    low: float
    high: float
    queries: int
    """Queries that have the measure."""


def estimates(rows: Sequence[Mapping[str, float]]) -> dict[str, Estimate]:
    """Estimate each measure over the queries that have it, in the order of first appearance."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: estimate([row[name] for row in rows if name in row]) for name in names}


def estimate(values: Iterable[float]) -> Estimate:
    """Estimate the mean of one value per query; there must be a value."""
    return macro_estimate([np.fromiter(values, np.float64)])


def macro_estimate(groups: Sequence[Iterable[float]]) -> Estimate:
    """Estimate the mean of the means of several sets of queries, each of which is resampled by itself."""
    random = np.random.default_rng(SEED)
    # Sorted, so that the order of the queries decides nothing.
    ordered = [np.sort(np.fromiter(group, np.float64)) for group in groups]
    resampled = np.mean(
        [
            [values[random.integers(values.size, size=values.size)].mean() for _ in range(RESAMPLES)]
            for values in ordered
        ],
        axis=0,
    )
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail])
    mean = float(np.mean([values.mean() for values in ordered]))
    return Estimate(mean, float(low), float(high), sum(values.size for values in ordered))


REVEALED: Final = (0.0, 0.1, 0.3)
"""Shares of the log that were used before each measurement."""

MOST_MEASURED: Final = 2_000
"""Queries, evenly from the rest of the log: more would narrow the intervals little and take long."""

LOG_DAYS: Final = 30.0
"""Length of the log, for the decay of learned pairs."""

SHUFFLED: Final = 20260728
"""Seed for a log without an order of its own."""

MEASURES: Final = ("recall@5", "ndcg@10", SELECTED_PRECISION)


class ReplayStage(Struct, frozen=True):
    """A measurement after a share of the log was used."""

    revealed: float
    used: int
    """Queries used until then."""
    pairs: int
    """Pairs learned from them, and not forgotten since."""
    measures: dict[str, MeasureDifference]
    """With the learned tier off, on, and the difference, query by query."""


def in_random_order(queries: Sequence[EvalQuery]) -> list[EvalQuery]:
    """Make a log of queries that have no order; always the same one."""
    return random.Random(SHUFFLED).sample(list(queries), len(queries))


def replay(
    catalog: Embedder,
    queries: QueryEmbedder,
    snapshot: Snapshot,
    log: Sequence[EvalQuery],
    options: SearchOptions,
    depth: int,
    on_progress: Callable[[int, int], None] = lambda _done, _total: None,
    asides: int = 0,
    repeated: bool = False,
) -> list[ReplayStage]:
    """Measure the effect of learning, by share of the log that was used. Blocks.

    Each query is embedded several times, so ``queries`` should remember all of them. The log is in order of
    time; each of its queries is a session of its own. Only tools are searched, ranked to ``depth``. In each
    session, ``asides`` further tools are called that have nothing to do with the query, a few tools most of
    the time, as agents read files and list folders on the way. With ``repeated``, the queries that were used
    are measured instead of later ones.
    """
    options = replace(options, depth=depth)
    start = math.ceil(max(REVEALED) * len(log))
    rest = log[:start] if repeated else log[start:]
    tests = rest[:: math.ceil(len(rest) / MOST_MEASURED)]
    total, done = start + (1 + len(REVEALED)) * len(tests), 0
    tools = tools_of(snapshot)
    now, chance, known = 0.0, random.Random(SHUFFLED), sorted(tools)
    chance.shuffle(known)

    def step() -> None:
        nonlocal done
        done += 1
        on_progress(done, total)

    def rows(engine: Engine) -> list[dict[str, float]]:
        answers = []
        for query in tests:
            answers.append(answer_of(engine.search(query.text, snapshot, TOOLS, options)))
            step()
        return [
            {name: row[name] for name in MEASURES if name in row}
            for row in measured(tests, answers, tools, depth)
        ]

    def use(query: EvalQuery, session: str) -> None:
        """Search as a model would, then use a tool for each need, whether it was found or not."""
        answer = answer_of(learning.search(query.text, snapshot, TOOLS, options))
        shown = answer.keys[: answer.selected]
        for need in query.needs:
            used = next((tool for tool in shown if tool in need), None) or min(need & tools, default=None)
            if used is not None:
                signal = Signal.FOUND if used in shown else Signal.UNLISTED
                tier.learn(Use(query.text, used, signal, session, tuple(shown)))
        for _ in range(asides):
            aside = known[min(int(chance.paretovariate(1.0)) - 1, len(known) - 1)]
            if aside not in shown and not any(aside in need for need in query.needs):
                tier.learn(Use(query.text, aside, Signal.UNLISTED, session, tuple(shown)))

    with open_store("memory") as store:
        tier = LearnedTier(queries, store.learned, clock=lambda: now)
        static, learning = Engine(catalog, queries), Engine(catalog, queries, learned=tier)
        static.index(snapshot)
        learning.index(snapshot)
        off, stages, used = rows(static), [], 0
        for share in REVEALED:
            until = math.ceil(share * len(log))
            for at in range(used, until):
                now = at / len(log) * LOG_DAYS * DAY
                use(log[at], f"session {at}")
                step()
            used = until
            stages.append(ReplayStage(share, used, len(tier.pairs), differences(off, rows(learning))))
    return stages
