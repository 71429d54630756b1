"""``mcp-context-proxy eval``: from files, from running servers, and two runs side by side."""

import gzip
import json
from pathlib import Path

import pytest
from support.servers import Workshop, tool

GOLDEN = Path(__file__).parents[1] / "retrieval" / "data" / "mcpproxy_golden"
CORPUS, QUERIES = GOLDEN / "corpus.jsonl", GOLDEN / "queries.jsonl"


@pytest.mark.slow
def test_a_public_set_is_measured_and_its_rankings_written(run, tmp_path):
    done = run("eval", CORPUS, QUERIES, "--json", "--run", tmp_path / "a.run")

    report = json.loads(done.stdout)
    assert report["tools"] == 45
    assert report["queries"] == 47
    assert report["measures"]["recall@5"]["mean"] >= 0.95
    assert report["measures"]["recall@5"]["low"] <= report["measures"]["recall@5"]["mean"]
    lines = [json.loads(line) for line in (tmp_path / "a.run").read_text(encoding="utf-8").splitlines()]
    assert [line["query"] for line in lines] == [
        json.loads(line)["query"] for line in QUERIES.read_text(encoding="utf-8").splitlines()
    ]
    assert all(len(line["ranking"]) >= 10 for line in lines)
    assert list(lines[0]) == ["query", "ranking", "selected", "fits"]


def test_gzipped_files_can_be_searched_lexically_without_a_model(run, tmp_path):
    packed = tmp_path / "corpus.jsonl.gz"
    packed.write_bytes(gzip.compress(CORPUS.read_bytes()))

    done = run("eval", packed, QUERIES, "--method", "lexical", "--top-k", "5")

    assert done.stdout.startswith("47 queries to 45 tools of 7 servers; method: lexical\n")
    assert "recall@5" in done.stdout
    assert "recall@10" not in done.stdout
    assert "search p50" in done.stdout


def test_the_configured_servers_are_searched_instead_of_a_corpus(run, workshop: Workshop, tmp_path):
    workshop.server("mail", tools=[tool("send_mail", "Sends a message to a person"), tool("delete")])
    queries = tmp_path / "queries.jsonl"
    queries.write_text(
        json.dumps({"query": "send a message", "relevant": [["mail", "send_mail"]]}), encoding="utf-8"
    )

    done = run("eval", "--servers", queries, "--json", "--config", workshop.config())

    report = json.loads(done.stdout)
    assert (report["tools"], report["servers"], report["queries"]) == (2, 1, 1)
    assert report["measures"]["mrr"]["mean"] == 1


def test_two_runs_are_compared_with_intervals(run, tmp_path):
    for name, method in (("a", "lexical"), ("b", "lexical")):
        run("eval", CORPUS, QUERIES, "--method", method, "--run", tmp_path / f"{name}.run")

    shown = run("eval", "--compare", tmp_path / "a.run", tmp_path / "b.run", QUERIES)
    data = json.loads(run("eval", "--compare", tmp_path / "a.run", tmp_path / "b.run", "--json").stdout)

    assert "95 % interval" in shown.stdout
    assert "+0.000  [+0.000, +0.000]" in shown.stdout
    assert data["selected"]["difference"]["mean"] == 0


def test_a_bad_line_is_reported_with_file_and_line(run, tmp_path):
    bad = tmp_path / "queries.jsonl"
    bad.write_text('{"query": "q", "relevant": []}\n{"query": 1}\n', encoding="utf-8")

    done = run("eval", CORPUS, bad)

    assert done.returncode == 1
    assert f"{bad}:2: query must be text, not a whole number" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param([CORPUS], "or --servers and QUERIES; 1 file given", id="one file"),
        pytest.param(["--servers", CORPUS, QUERIES], "--servers takes one file: QUERIES", id="servers"),
        pytest.param(["--compare", CORPUS], "--compare takes two runs", id="compare"),
    ],
)
def test_the_wrong_number_of_files_is_refused(run, arguments, told):
    done = run("eval", *arguments)

    assert done.returncode == 2
    assert told in done.stderr
