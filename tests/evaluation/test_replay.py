"""A log that is replayed: the pairs that use would have taught by then."""

import json
import subprocess
from pathlib import Path

import pytest
from support.commands import forked_command
from support.words import Words

from mcp_context_proxy.evaluation import (
    REVEALED,
    EvalQuery,
    in_random_order,
    read_corpus,
    read_queries,
    replay,
)
from mcp_context_proxy.items import Snapshot
from mcp_context_proxy.retrieval import FITTING

ANIMALS = [
    "zebra",
    "quagga",
    "okapi",
    "kudu",
    "gnu",
    "eland",
    "oryx",
    "nyala",
    "impala",
    "dikdik",
    "sable",
    "bongo",
]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Twelve tools with names of their own, asked for in words that only use can teach."""
    corpus, queries = tmp_path / "corpus.jsonl", tmp_path / "queries.jsonl"
    lines = [{"server": "s", "name": f"tool_{name}", "description": f"Calls {name}"} for name in ANIMALS]
    corpus.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    log = [
        {"query": f"please do job{at} and task{at} number{n % 3} now", "relevant": [["s", f"tool_{name}"]]}
        for n in range(10)
        for at, name in enumerate(ANIMALS)
    ]
    queries.write_text("\n".join(map(json.dumps, log)), encoding="utf-8")
    return corpus, queries


@pytest.fixture
def catalog(files: tuple[Path, Path]) -> Snapshot:
    return read_corpus(files[0])


@pytest.fixture
def log(files: tuple[Path, Path]) -> list[EvalQuery]:
    return read_queries(files[1])


def test_repeated_intents_are_found_better_the_more_was_learned(
    catalog: Snapshot, log: list[EvalQuery]
) -> None:
    stages = replay(Words(), Words(), catalog, log, FITTING, 10)
    gains = [stage.measures["recall@5"].difference for stage in stages]

    assert [stage.revealed for stage in stages] == list(REVEALED)
    assert [stage.used for stage in stages] == [0, 12, 36]
    assert (gains[0].low, gains[0].high) == (0.0, 0.0), "with nothing learned nothing differs"
    assert gains[1].mean > 0
    assert gains[2].low > 0
    assert gains[1].mean <= gains[2].mean
    assert {gain.queries for gain in gains} == {84}, (
        "the same queries each time, all from after the log's start"
    )


def test_the_random_order_of_a_log_is_always_the_same(log: list[EvalQuery]) -> None:
    shuffled = in_random_order(log)

    assert shuffled != log
    assert sorted(shuffled, key=str) == sorted(log, key=str)
    assert in_random_order(log) == shuffled


def test_the_command_shows_each_stage(files: tuple[Path, Path]) -> None:
    command = forked_command("eval", "--learning", *files)
    shown = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=120, check=True)
    data = subprocess.run(
        [*command, "--json"], capture_output=True, encoding="utf-8", timeout=120, check=True
    )

    assert "84 queries measured" in shown.stdout
    assert "30%" in shown.stdout
    stages = json.loads(data.stdout)["stages"]
    assert [stage["used"] for stage in stages] == [0, 12, 36]
    assert stages[0]["measures"]["ndcg@10"]["difference"]["mean"] == 0.0


@pytest.mark.parametrize(
    ("options", "told"),
    [(["--shuffle"], "--shuffle is for --learning"), (["--learning"], "a log of 1 queries is too short")],
)
def test_invalid_options_are_refused(files: tuple[Path, Path], options: list[str], told: str) -> None:
    files[1].write_text('{"query": "a", "relevant": [["s", "t"]]}', encoding="utf-8")
    command = forked_command("eval", *options, *files)
    done = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=60, check=False)

    assert done.returncode == 2
    assert told in done.stderr
