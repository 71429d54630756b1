"""Corpora, queries and runs as files: their meaning, and the error about a line that cannot be used."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from mcp_context_proxy.errors import DataFileError
from mcp_context_proxy.evaluation import Answer, read_corpus, read_queries, read_run, write_run
from mcp_context_proxy.retrieval.item_metadata import read_parameters


@pytest.fixture
def written(tmp_path: Path):
    def write(*lines: object) -> Path:
        path = tmp_path / "file.jsonl"
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path.write_text("\n".join(texts) + "\n", encoding="utf-8")
        return path

    return write


MAIL = {"server": "mail", "name": "send", "description": "Sends a message."}


def test_a_corpus_is_a_catalog_with_all_its_servers(written):
    schema = {"type": "object", "properties": {"to": {"type": "string"}}}
    path = written({"server": "web", "name": "fetch"}, "", MAIL | {"input_schema": schema})

    snapshot = read_corpus(path)

    assert [source.key for source in snapshot.sources] == ["mail", "web"]
    assert list(snapshot.tools) == ["mail__send", "web__fetch"]
    assert snapshot.tools["mail__send"].description == "Sends a message."
    assert read_parameters(snapshot.tools["mail__send"].definition).top == ["to"]
    assert snapshot.tools["web__fetch"].description == ""


def test_a_gzipped_file_is_read_whatever_its_name(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(gzip.compress(json.dumps(MAIL).encode()))

    assert list(read_corpus(path).tools) == ["mail__send"]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        pytest.param([MAIL, "{"], r":2: the line: not valid JSON", id="half a line"),
        pytest.param([MAIL, "", "[]"], r":3: the line must be an object, not a list", id="no object"),
        pytest.param([{"name": "x"}], r":1: server is missing", id="no server"),
        pytest.param([MAIL | {"name": ""}], r":1: name must not be empty", id="empty name"),
        pytest.param(
            [MAIL | {"input_schema": []}], r":1: input_schema must be an object or null", id="schema"
        ),
        pytest.param([MAIL, MAIL], r":2: tool 'send' of 'mail' is on line 1 already", id="twice"),
        pytest.param([""], r"file.jsonl: it has no tools", id="empty"),
    ],
)
def test_a_bad_line_of_a_corpus_is_reported_with_its_number(written, lines, told):
    with pytest.raises(DataFileError, match=told):
        read_corpus(written(*lines))


def test_a_query_needs_every_relevant_tool_and_one_of_each_group(written):
    path = written(
        {
            "query": "q",
            "relevant": [["s", "a"], ["s", "a"], ["s", "b"]],
            "any_of": [[["s", "c"], ["t", "c"]], [["t", "c"], ["s", "c"]]],
        },
        {"query": "impossible", "relevant": []},
    )

    needing, impossible = read_queries(path)

    assert needing.needs == (
        frozenset({("s", "a")}),
        frozenset({("s", "b")}),
        frozenset({("s", "c"), ("t", "c")}),
    )
    assert impossible.needs == ()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        pytest.param({"query": "q"}, r":1: relevant is missing", id="no needs"),
        pytest.param({"query": "", "relevant": []}, r":1: query must not be empty", id="empty query"),
        pytest.param({"query": "q", "relevant": [["a"]]}, r":1: relevant\[0\]", id="no pair"),
        pytest.param({"query": "q", "relevant": [], "any_of": [[]]}, r":1: .*any_of", id="empty group"),
    ],
)
def test_a_bad_line_of_queries_is_reported_with_its_number(written, line, told):
    with pytest.raises(DataFileError, match=told):
        read_queries(written(line))


def test_a_missing_or_truncated_file_is_named(tmp_path):
    with pytest.raises(DataFileError, match=r"none.jsonl: it cannot be read \(No such file"):
        read_corpus(tmp_path / "none.jsonl")
    cut = tmp_path / "cut.gz"
    cut.write_bytes(gzip.compress(json.dumps(MAIL).encode() * 1000)[:-20])
    with pytest.raises(DataFileError, match=r"cut.gz: it is damaged: not a complete gzip file"):
        read_corpus(cut)


def test_a_line_that_hardly_ends_is_refused_before_it_fills_memory(tmp_path):
    packed = tmp_path / "zeros.gz"
    packed.write_bytes(gzip.compress(bytes(80 * 1024 * 1024), 1))
    tracemalloc.start()
    try:
        with pytest.raises(DataFileError, match=r"zeros.gz:1: "):
            read_corpus(packed)
        assert tracemalloc.get_traced_memory()[1] < 60 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_a_run_is_read_as_it_was_written(tmp_path):
    answers = [Answer("q", [("s", "a", 0.5), ("t", "ü", 0.25)], 1, fits=False)]
    write_run(tmp_path / "a.run", answers)

    assert read_run(tmp_path / "a.run") == answers
    assert json.loads((tmp_path / "a.run").read_text(encoding="utf-8")) == {
        "query": "q",
        "ranking": [["s", "a", 0.5], ["t", "ü", 0.25]],
        "selected": 1,
        "fits": False,
    }
