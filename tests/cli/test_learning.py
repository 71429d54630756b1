import json
import time
from pathlib import Path

import numpy as np
import pytest
from support.servers import Workshop, tool

from mcp_context_proxy.embedding.embeddings import LazyModel, QueryEmbedder
from mcp_context_proxy.learning import Signal, Use
from mcp_context_proxy.learning.tier import LearnedTier
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.statistics import DefinitionRow
from mcp_context_proxy.store.tables import ToolSession

from .conftest import Run

LATE, SALES = "let the others know that I shall be late", "figures of the last quarter"


@pytest.fixture(scope="module")
def model() -> QueryEmbedder:
    return QueryEmbedder(LazyModel())


def learned(path: Path, model: QueryEmbedder, store_queries: bool = True) -> None:
    with open_store(path) as store:
        tier = LearnedTier(model, store.learned, store_queries)
        tier.learn(Use(LATE, ("desk", "post_message"), Signal.FOUND, "a"))
        tier.learn(Use(LATE, ("desk", "post_message"), Signal.FOUND, "b"))
        tier.learn(Use(SALES, ("desk", "report"), Signal.UNLISTED, "a"))


@pytest.fixture
def config(workshop: Workshop, model: QueryEmbedder) -> Path:
    path = workshop.folder / "store.sqlite3"
    learned(path, model)
    workshop.server("desk", tools=[tool("post_message"), tool("report")])
    return workshop.config(store={"path": str(path)})


def another(workshop: Workshop, name: str) -> Path:
    """The configuration of a proxy that has learned nothing."""
    folder = workshop.folder / name
    folder.mkdir()
    other = Workshop(folder)
    return other.config(store={"path": str(folder / "store.sqlite3")})


def stats(run: Run, config: Path) -> dict[str, object]:
    done = run("learning", "--config", config, "stats", "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_stats_count_pairs_and_show_the_most_certain_first(run: Run, config: Path) -> None:
    done = run("learning", "stats", "--config", config)

    assert done.returncode == 0
    assert "2 pairs of queries and tools, for 2 tools." in done.stdout
    assert done.stdout.index("desk__post_message") < done.stdout.index("desk__report")
    data = stats(run, config)
    assert (data["pairs"], data["tools"], data["uses"], data["enabled"]) == (2, 2, 3, True)


def test_stats_say_if_nothing_was_learned(run: Run, workshop: Workshop) -> None:
    done = run("learning", "--config", workshop.config())

    assert done.stdout.startswith("Nothing was learned yet: ")


def test_exported_pairs_can_be_imported_elsewhere(run: Run, config: Path, workshop: Workshop) -> None:
    file = workshop.folder / "pairs.jsonl"
    assert f"Wrote 2 pairs to {file}" in run("learning", "export", file, "--config", config).stdout
    other = another(workshop, "other")
    done = run("learning", "import", file, "--config", other)

    assert "Read 2 pairs. There were 0 before; now 2." in done.stdout
    assert stats(run, other)["best"] == stats(run, config)["best"]
    assert "vector" not in file.read_text(encoding="utf-8")


def test_pairs_without_text_are_exported_with_their_vectors(
    run: Run, workshop: Workshop, model: QueryEmbedder
) -> None:
    path = workshop.folder / "store.sqlite3"
    learned(path, model, store_queries=False)
    config = workshop.config(store={"path": str(path)})
    file = workshop.folder / "pairs.jsonl"
    run("learning", "export", file, "--config", config)
    other = another(workshop, "other")
    run("learning", "import", file, "--config", other)

    assert LATE not in file.read_text(encoding="utf-8")
    with open_store(path) as first, open_store(other.parent / "store.sqlite3") as second:
        pairs = zip(first.learned.all(), second.learned.all(), strict=True)
        assert all(one.key == two.key and np.array_equal(one.vector, two.vector) for one, two in pairs)


def test_pairs_of_a_profile_stay_its_own_and_are_listed_exported_and_forgotten_as_such(
    run: Run, workshop: Workshop, config: Path, model: QueryEmbedder
) -> None:
    with open_store(workshop.folder / "store.sqlite3") as store:
        tier = LearnedTier(model, store.learned, True)
        tier.learn(Use("water the plants", ("desk", "report"), Signal.FOUND, "c", owner="profile:garden"))
    file = workshop.folder / "pairs.jsonl"
    run("learning", "export", file, "--config", config)
    other = another(workshop, "other")
    run("learning", "import", file, "--config", other)

    for path in (config, other):
        listed = run("learning", "stats", "--config", path).stdout.splitlines()
        assert any("profile:garden  desk__report" in line and "water the plants" in line for line in listed)
        assert sum("everyone" in line for line in listed) == 2
    assert run("learning", "forget", "--owner", "profile:garden", "--config", other).returncode == 0
    left = json.loads(run("learning", "stats", "--json", "--config", other).stdout)["best"]
    assert [one["owner"] for one in left] == ["", ""]


def test_without_a_file_pairs_are_exported_to_stdout(run: Run, config: Path) -> None:
    lines = run("learning", "export", "--config", config).stdout.splitlines()

    assert {json.loads(line)["query"] for line in lines} == {LATE, SALES}


@pytest.mark.parametrize(
    ("what", "left"),
    [
        (["--tool", "desk__report"], 1),
        (["--tool", "report"], 1),
        (["--tool", "nothing"], 2),
        (["--query", "Let the others know that I shall be late!"], 1),
        (["--query", "resize an image"], 2),
        (["--all"], 0),
    ],
)
def test_forget_removes_the_matching_pairs(run: Run, config: Path, what: list[str], left: int) -> None:
    done = run("learning", "forget", *what, "--config", config)

    assert done.returncode == 0
    assert done.stdout.startswith(f"Forgot {2 - left} pair")
    assert stats(run, config)["pairs"] == left


def test_forget_needs_exactly_one_choice(run: Run, config: Path) -> None:
    done = run("learning", "forget", "--config", config)

    assert done.returncode == 2
    assert "give exactly one of --tool, --query, --owner and --all" in done.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "pairs.jsonl:1: "),
        ('{"server": "s"}', "pairs.jsonl:1: tool is missing"),
        (
            '{"server":"s","tool":"t","confidence":1,"uses":1,"first":0,"last":0,"key":"zz","vector":"A",'
            '"model":"MODEL"}',
            "it has a damaged key or vector",
        ),
    ],
)
def test_an_invalid_import_is_refused_and_nothing_is_lost(
    run: Run, config: Path, model: QueryEmbedder, line: str, told: str
) -> None:
    file = config.parent / "pairs.jsonl"
    file.write_text(line.replace("MODEL", model.vectors([])[0]), encoding="utf-8")
    done = run("learning", "import", file, "--config", config)

    assert done.returncode == 1
    assert told in done.stderr
    assert stats(run, config)["pairs"] == 2


def test_tools_used_in_several_sessions_are_the_working_set_until_forgotten(
    run: Run, workshop: Workshop, config: Path
) -> None:
    store, now = workshop.folder / "store.sqlite3", time.time()
    with open_store(store) as opened:
        used = [ToolSession("desk", "report", session, now) for session in "abc"]
        opened.tool_sessions.add(used, 0.0, 100)
        opened.statistics.put_definitions("desk", [DefinitionRow("desk", "report", "f", 50, now)])
    config = workshop.config(store={"path": str(store)}, learning={"working_set_tokens": 200})

    shown = run("tools", "--config", config).stdout
    data = json.loads(run("tools", "--json", "--config", config).stdout)
    forgot = run("learning", "forget", "--tool", "report", "--config", config)
    after = run("tools", "--config", config).stdout

    assert "Working set" in shown
    assert "used in 3 sessions of the last 30 days" in " ".join(shown.split())
    assert {one["tool"]: bool(one["working_set"]) for one in data["tools"]} == {
        "post_message": False,
        "report": True,
    }
    assert forgot.returncode == 0
    assert "Working set" not in after
