"""``recall``, ``backfill`` and ``interactions``, over a store that a proxy could have left."""

import json
import stat
import time
from pathlib import Path

import pytest
from support.embeddings import Asked, Service, embedding_service
from support.servers import Workshop, tool

from mcp_context_proxy import Interactions
from mcp_context_proxy.store.memory import Interaction

from .conftest import Run

DAY = 86_400.0

LATE = "let the others know that I shall be late"
SAID = [
    ("planner", "message", "the deployment is on friday", 0),
    ("planner", "search", LATE, 3),
    ("coder", "call", 'ci__run_tests {"suite":"parser"}', 40),
]


@pytest.fixture
def store(workshop: Workshop) -> Path:
    return workshop.folder / "store.sqlite3"


@pytest.fixture
def config(workshop: Workshop, store: Path) -> Path:
    with Interactions(store) as interactions:
        for agent, kind, content, days in SAID:
            interactions.record(agent, kind, content, time.time() - days * DAY)
    workshop.server("desk", tools=[tool("post_message")])
    return workshop.config(store={"path": str(store)}, interactions={"enabled": True})


def add(store: Path, *contents: str) -> None:
    """Add interactions of an hour ago without embeddings."""
    with Interactions(store) as interactions:
        an_hour_ago = time.time() - 3600
        interactions.add([Interaction("planner", "message", content, an_hour_ago) for content in contents])


def recalled(run: Run, config: Path, *arguments: str) -> dict[str, object]:
    done = run("recall", *arguments, "--json", "--config", config)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def contents(data: dict[str, object]) -> list[str]:
    return [result["content"] for result in data["results"]]


def test_recall_finds_similar_interactions_and_names_their_agents(run: Run, config: Path) -> None:
    done = run("recall", "when do we ship the new version", "--config", config)

    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()[:2]
    assert "message of planner" in first
    assert second.strip() == "the deployment is on friday"


def test_recall_can_be_limited_by_agent_type_and_number(run: Run, config: Path) -> None:
    everything = recalled(run, config, "deployment tests")

    assert everything["known"] == 3
    assert len(contents(everything)) == 2, "what is not half as near is not shown"
    assert contents(recalled(run, config, "run the tests", "--agent", "coder")) == [SAID[2][2]]
    assert contents(recalled(run, config, "tell them I am late", "--type", "search")) == [LATE]
    assert contents(recalled(run, config, "deployment", "--agent", "coder")) == []
    assert len(contents(recalled(run, config, "deployment", "--top-k", "1"))) == 1


def test_recall_scores_decay_by_the_given_factor(run: Run, config: Path) -> None:
    usual = recalled(run, config, SAID[2][2], "--agent", "coder")["results"]
    never = recalled(run, config, SAID[2][2], "--agent", "coder", "--decay", "1")["results"]

    assert never[0]["score"] > never[0]["cosine"] > 0.99
    assert usual[0]["score"] == pytest.approx(0.95**40 * never[0]["score"], abs=1e-3)


@pytest.mark.parametrize(
    "wrong",
    [["--decay", "0"], ["--decay", "1.1"], ["--top-k", "0"], [" "]],
    ids=" ".join,
)
def test_recall_refuses_invalid_arguments(run: Run, config: Path, wrong: list[str]) -> None:
    query = [] if wrong == [" "] else ["query"]

    assert run("recall", *query, *wrong, "--config", config).returncode == 2


def test_recall_counts_interactions_without_an_embedding(run: Run, config: Path, store: Path) -> None:
    add(store, "the party is on friday")
    done = run("recall", "friday", "--config", config)

    assert "1 interaction has no embedding" in " ".join(done.stdout.split())
    assert "mcp-context-proxy backfill" in " ".join(done.stdout.split())
    assert recalled(run, config, "friday")["without_embedding"] == 1


def test_recall_without_a_model_lists_the_latest_and_says_so(
    run: Run, workshop: Workshop, store: Path
) -> None:
    add(store, "the first", "the second")
    nowhere = workshop.config(
        store={"path": str(store)}, embedding={"endpoint": "http://127.0.0.1:9/v1", "model": "m"}
    )
    data = recalled(run, nowhere, "anything")

    assert (data["method"], contents(data)) == ("recent", ["the second", "the first"])
    assert "no embedding, so these are the latest" in data["note"]


def test_recall_says_if_interactions_are_not_recorded(run: Run, workshop: Workshop) -> None:
    done = run("recall", "anything", "--config", workshop.config())

    assert 'Nothing fits "anything" among 0 interactions.' in done.stdout
    assert "enabled = true under [interactions]" in " ".join(done.stdout.split())


def test_recall_without_a_match_names_the_agents_and_types_that_there_are(
    run: Run, config: Path, store: Path
) -> None:
    add(store, "the first")
    told = " ".join(run("recall", "first", "--agent", "plannr", "--config", config).stdout.split())

    assert "among 0 interactions. None is of that agent and type; there are agents " in told
    assert "planner" in told
    assert "message" in told


def test_control_characters_are_not_shown(run: Run, config: Path, store: Path) -> None:
    with Interactions(store) as interactions:
        interactions.record("pla\x1b[31mnner", "message", "party\x1b]0;taken\x07 on friday")

    assert "\x1b" not in run("recall", "party on friday", "--config", config).stdout


def test_backfill_embeds_each_interaction_once(run: Run, config: Path, store: Path) -> None:
    add(store, "the party is on friday", "bring a cake")
    first = run("backfill", "--batch-size", "1", "--config", config)
    second = run("backfill", "--json", "--config", config)

    assert (first.returncode, first.stdout) == (0, "Embedded 2 interactions.\n")
    assert json.loads(second.stdout) == {"embedded": 0, "failed": 0, "left": 0, "error": None}
    assert contents(recalled(run, config, "bring a cake"))[0] == "bring a cake"


def refuses(word: str):
    def answer(asked: Asked) -> None:
        if any(word in text for text in asked.texts):
            asked.answer(400, {"error": "it is too long"})
        else:
            asked.well()

    return answer


def test_backfill_counts_failures_and_embeds_the_rest(run: Run, workshop: Workshop, store: Path) -> None:
    add(store, "one", "two", "a bad one", "three")
    with embedding_service() as service:
        service.always = refuses("bad")
        config = workshop.config(store={"path": str(store)}, embedding=service_table(service))
        done = run("backfill", "--config", config)
        data = recalled(run, config, "two")

    assert done.returncode == 1
    assert "Embedded 3 interactions." in done.stdout
    assert "1 error; the last one:" in done.stdout
    assert "it is too long" in " ".join(done.stdout.split())
    assert (contents(data)[0], data["without_embedding"]) == ("two", 1)


def service_table(service: Service) -> dict[str, str]:
    return {"endpoint": service.url, "model": "m"}


def test_stats_count_interactions_by_agent(run: Run, config: Path) -> None:
    done = run("interactions", "--config", config)
    data = json.loads(run("interactions", "stats", "--json", "--config", config).stdout)

    assert done.stdout.startswith("3 interactions.\n")
    assert {(one["agent_name"], one["interaction_type"], one["count"]) for one in data["kinds"]} == {
        (agent, kind, 1) for agent, kind, *_ in SAID
    }
    assert (data["interactions"], data["enabled"]) == (3, True)


@pytest.mark.parametrize(
    ("what", "left"),
    [
        (["--agent", "planner"], 1),
        (["--agent", "planner", "--type", "search"], 2),
        (["--type", "call"], 2),
        (["--older-than", "30"], 2),
        (["--older-than", "2"], 1),
        (["--id", "1"], 2),
        (["--id", "99"], 3),
        (["--agent", "nobody"], 3),
        (["--all"], 0),
    ],
    ids=lambda what: " ".join(what) if isinstance(what, list) else None,
)
def test_forget_removes_the_matching_interactions(run: Run, config: Path, what: list[str], left: int) -> None:
    done = run("interactions", "forget", *what, "--config", config)

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"Forgot {3 - left} interaction")
    data = json.loads(run("interactions", "stats", "--json", "--config", config).stdout)
    assert data["interactions"] == left


@pytest.mark.parametrize("what", [[], ["--all", "--agent", "a"], ["--id", "1", "--type", "call"]])
def test_forget_needs_exactly_one_choice(run: Run, config: Path, what: list[str]) -> None:
    done = run("interactions", "forget", *what, "--config", config)

    assert done.returncode == 2
    assert "give --id alone, or --all alone, or any of --agent, --type and --older-than" in done.stderr


def test_interactions_can_be_exported_and_imported_into_another_store(
    run: Run, config: Path, workshop: Workshop
) -> None:
    file = workshop.folder / "kept.jsonl"
    done = run("interactions", "export", str(file), "--config", config)
    assert done.stdout == f"Wrote 3 interactions to {file}.\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600, "what agents said is for its owner"

    other = workshop.config(store={"path": str(workshop.folder / "other.sqlite3")})
    done = run("interactions", "import", str(file), "--config", other)
    assert "Imported 3 interactions of 3." in done.stdout
    assert "mcp-context-proxy backfill" in " ".join(done.stdout.split())
    again = run("interactions", "import", str(file), "--json", "--config", other)
    assert (json.loads(again.stdout)["kept"], json.loads(again.stdout)["known"]) == (0, 3)


def test_recall_can_be_compared_with_the_latest(run: Run, config: Path) -> None:
    done = run("recall", "deployment", "--compare", "recent", "--config", config)

    assert "found by the query" in done.stdout
    assert "1 of 1 found are among the latest 3." in done.stdout
    first = next(line for line in done.stdout.splitlines() if line.startswith("1"))
    assert first.count("#1, just now: the deployment is on") == 2, "they stand side by side"
