"""From a corpus and queries to a report, through the engine that the proxy uses."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from mcp_context_proxy.embedding.embeddings import CachedEmbedder, LazyModel, QueryEmbedder
from mcp_context_proxy.evaluation import (
    EvalQuery,
    Evaluation,
    answer_of,
    evaluate,
    read_corpus,
    read_queries,
)
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.retrieval import FITTING, METHODS
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.scoring import packaged_background
from mcp_context_proxy.store.opening import open_store

GOLDEN = Path(__file__).parents[1] / "retrieval" / "data" / "mcpproxy_golden"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    model = LazyModel()
    with open_store("memory") as store:
        yield Engine(
            CachedEmbedder(model, store.vectors), QueryEmbedder(model), calibration=packaged_background()
        )


@pytest.fixture(scope="module")
def golden() -> Snapshot:
    return read_corpus(GOLDEN / "corpus.jsonl")


@pytest.fixture(scope="module")
def questions() -> list[EvalQuery]:
    return read_queries(GOLDEN / "queries.jsonl")[:20]


@pytest.fixture(scope="module")
def measured(engine: Engine, golden: Snapshot, questions: list[EvalQuery]) -> Evaluation:
    return evaluate(engine, golden, questions, FITTING, 10)


def needing(text: str, *tools: tuple[str, str]) -> EvalQuery:
    return EvalQuery(text, tuple(frozenset({tool}) for tool in tools))


def test_a_report_has_counts_measures_and_latency(measured: Evaluation) -> None:
    report = measured.report

    assert (report.tools, report.servers, report.queries, report.unmeetable) == (45, 7, 20, 0)
    assert report.method == "hybrid"
    assert report.measures["recall@5"].mean >= 0.9
    assert report.measures["recall@5"].queries == 20
    assert 1 <= report.measures["selected"].mean <= 10
    assert 0 < report.latency_ms.p50 <= report.latency_ms.p95


def test_the_answers_are_those_the_engine_gives(
    measured: Evaluation, engine: Engine, golden: Snapshot, questions: list[EvalQuery]
) -> None:
    assert questions
    for query, answer in zip(questions, measured.answers, strict=True):
        shown = engine.search(query.text, golden, options=FITTING)

        assert answer.query == query.text
        assert answer.fits == shown.fits
        assert answer.selected == len(shown.results or shown.near_misses)
        assert answer.ranking[: answer.selected] == answer_of(shown).ranking
        assert len(answer.ranking) == max(10, answer.selected)


def test_scores_never_rise_down_the_ranking(measured: Evaluation) -> None:
    assert any(len(answer.ranking) > 1 for answer in measured.answers)
    for answer in measured.answers:
        scores = [score for *_, score in answer.ranking]

        assert scores == sorted(scores, reverse=True)


def test_the_order_of_tools_and_queries_changes_no_answer(
    measured: Evaluation, engine: Engine, questions: list[EvalQuery], tmp_path: Path
) -> None:
    lines = (GOLDEN / "corpus.jsonl").read_text(encoding="utf-8").splitlines()
    (tmp_path / "reversed.jsonl").write_text("\n".join(reversed(lines)), encoding="utf-8")

    again = evaluate(engine, read_corpus(tmp_path / "reversed.jsonl"), questions[::-1], FITTING, 10)

    assert again.answers[::-1] == measured.answers
    assert again.report.measures == measured.report.measures


def test_the_selection_does_not_depend_on_the_depth_of_the_ranking(
    measured: Evaluation, engine: Engine, golden: Snapshot, questions: list[EvalQuery]
) -> None:
    shallow = evaluate(engine, golden, questions, FITTING, 1).answers

    assert shallow
    for short, long in zip(shallow, measured.answers, strict=True):
        assert short.selected == long.selected
        assert short.ranking == long.ranking[: len(short.ranking)]


@pytest.mark.parametrize("method", METHODS)
def test_every_method_ranks_in_its_own_way(
    method: str, measured: Evaluation, engine: Engine, golden: Snapshot, questions: list[EvalQuery]
) -> None:
    found = evaluate(engine, golden, questions, replace(FITTING, method=method), 10)

    assert found.report.method == method
    assert found.report.measures["recall@10"].mean > 0.7
    assert (found.answers == measured.answers) == (method == "hybrid")


def test_without_a_model_the_report_explains_the_search_by_words(
    golden: Snapshot, questions: list[EvalQuery]
) -> None:
    report = evaluate(Engine(None), golden, questions, FITTING, 10).report

    assert report.method == "lexical"
    assert report.note is not None


def test_unanswerable_queries_are_measured_by_their_refusal(engine: Engine, golden: Snapshot) -> None:
    queries = [
        needing("Show me the full text of a file", ("filesystem", "read_text_file")),
        needing("Recommend a red wine for grilled lamb"),
        needing("Translate a poem into Finnish", ("translator", "translate_text")),
    ]

    report = evaluate(engine, golden, queries, FITTING, 10).report

    assert (report.measures["kept"].mean, report.measures["kept"].queries) == (1, 1)
    assert (report.measures["refused"].mean, report.measures["refused"].queries) == (1, 2)
    assert report.measures["recall@10"].queries == 2
    assert report.unmeetable == 1


def test_a_query_that_fits_nothing_still_has_a_ranking(engine: Engine, golden: Snapshot) -> None:
    (answer,) = evaluate(
        engine, golden, [needing("Recommend a red wine for grilled lamb")], FITTING, 10
    ).answers

    assert not answer.fits
    assert answer.selected >= 2
    assert len(answer.ranking) >= 10


def test_progress_is_reported_to_the_end(golden: Snapshot, questions: list[EvalQuery]) -> None:
    told: list[tuple[int, int]] = []
    evaluate(Engine(None), golden, questions[:3], FITTING, 10, lambda done, total: told.append((done, total)))

    assert told == [(1, 3), (2, 3), (3, 3)]
