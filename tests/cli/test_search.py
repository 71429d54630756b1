import json
import re
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.chat import chat_service
from support.proxies import Host, inside
from support.servers import Workshop, tool

from .conftest import Run

TOOLS = [
    tool("create_note", "Write down a new note", annotations={"destructiveHint": False}),
    tool("delete_note", "Delete a note for good"),
    tool(
        "loan_payment",
        "Compute the monthly payment of a loan",
        annotations={"readOnlyHint": True, "openWorldHint": False},
    ),
]
SETTINGS = {
    "category": "office",
    "tools": {"create_note": {"tags": ["paper"]}, "loan_payment": {"category": "money"}},
}


@pytest.fixture
def config(workshop: Workshop) -> Path:
    workshop.server("desk", tools=TOOLS, settings=SETTINGS)
    rules = workshop.folder / "rules"
    rules.mkdir()
    (rules / "loans.md").write_text(
        "# Monthly payments\n\nRound the monthly payment of a loan to cents.\n", encoding="utf-8"
    )
    return workshop.config(documents=[{"kind": "rule", "path": str(rules)}])


def found(run: Run, *args: str | Path) -> dict[str, Any]:
    done = run("search", *args, "--json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_what_a_far_better_document_names_is_explained_before_what_was_found(
    run: Run, workshop: Workshop
) -> None:
    workshop.server("ops", tools=[tool("run_shell", "Run a command"), tool("list_nodes", "List the nodes")])
    rules = workshop.folder / "rules"
    rules.mkdir()
    text = "# A node has no space left on its disk\n\nFind what grows with `run_shell`."
    (rules / "disk-full.md").write_text(text, encoding="utf-8")
    config = workshop.config(documents=[{"kind": "rule", "path": str(rules)}])
    done = run("search", "the node db-3 has no space left on its disk", "--explain", "--config", config)

    places = [done.stdout.find(one) for one in ("far better document", "ops__run_shell", "ops__list_nodes")]
    assert places == sorted(places)
    assert places[0] > 0


def test_a_search_prints_the_answer_that_a_model_gets(run: Run, config: Path) -> None:
    query = "monthly payment of a loan"

    async def answer() -> str:
        async with inside(config) as proxy:
            result = await Host(proxy, "modern").call("search_available_tools", {"query": query})
        return str(result["content"][0]["text"])

    done = run("search", query, "--config", config)

    assert done.stdout == anyio.run(answer) + "\n"
    assert "desk__loan_payment(text?: string) [r]\n  Compute the monthly payment of a loan" in done.stdout
    assert "score" not in done.stdout


def test_a_query_for_everything_prints_the_overview_that_a_model_gets(run: Run, config: Path) -> None:
    done = run("search", "what tools do you have", "--config", config)

    assert "3 tools of 1 server:" in done.stdout
    assert "- desk (3): desk__create_note, delete_note, loan_payment" in done.stdout


def test_a_search_without_servers_says_so(run: Run, workshop: Workshop) -> None:
    assert "No server is configured" in run("search", "hello", "--config", workshop.config()).stdout


def test_explain_ranks_results_with_score_name_and_reason(run: Run, config: Path) -> None:
    done = run("search", "monthly payment of a loan", "--explain", "--config", config)

    assert done.returncode == 0
    lines = done.stdout.splitlines()
    best = lines.index("Tools") + 1
    assert lines[best].split()[0] == "1"
    assert lines[best].endswith("desk__loan_payment")
    assert lines[best + 1].strip() == "Compute the monthly payment of a loan"
    assert "why: " in lines[best + 2]
    assert "rule://loans" in done.stdout


def test_json_is_one_object_with_all_facts_and_nothing_beside_it(run: Run, config: Path) -> None:
    data = found(run, "monthly payment of a loan", "--config", config)

    assert data["fits"] is True
    assert data["method"] == "hybrid"
    assert data["known"] == 4
    assert data["note"] is None
    assert data["failed"] == []
    best = data["results"][0]
    assert (best["name"], best["server"], best["type"]) == ("desk__loan_payment", "desk", "tool")
    assert best["inputSchema"]["properties"] == {"text": {"type": "string"}}


def test_results_can_be_limited_by_number_kind_and_server(run: Run, config: Path) -> None:
    assert len(found(run, "note", "--top", "1", "--kind", "tool", "--config", config)["results"]) == 1
    rules = found(run, "promise a loan", "--kind", "rule", "--config", config)["results"]
    assert [one["uri"] for one in rules] == ["rule://loans"]
    assert found(run, "loan", "--server", "desk", "--config", config)["results"][0]["server"] == "desk"


def test_what_fits_and_is_over_the_budget_is_not_said_to_fit_nothing(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=TOOLS)
    rules = workshop.folder / "rules"
    rules.mkdir()
    (rules / "house.md").write_text("Say what a new room costs each month.\n", encoding="utf-8")
    documents = [{"kind": "rule", "path": str(rules)}]
    config = workshop.config(documents=documents, context={"max_tokens": 20})
    query = "compute the monthly payment of a loan"

    for done in (run("search", query, *more, "--config", config) for more in ((), ("--explain",))):
        assert "Left out, because they do not fit into 20 tokens: desk__loan_payment" in done.stdout
        assert not any(said in done.stdout for said in ("Nothing fits", "Nothing was found", "No tool fits"))


def test_an_unknown_server_is_answered_with_the_nearest(run: Run, config: Path) -> None:
    done = run("search", "loan", "--server", "desc", "--config", config)

    assert done.returncode == 2
    assert "Did you mean 'desk'? There are: desk" in done.stderr


def test_filters_narrow_a_search_down(run: Run, config: Path) -> None:
    query = ("note", "--kind", "tool", "--top", "5", "--config", config)

    def names(*options: str) -> set[str]:
        data = found(run, *query, *options)
        return {one["name"] for one in (*data["results"], *data["near_misses"])}

    assert names("--category", "office") == {"desk__create_note", "desk__delete_note"}
    assert names("--tag", "paper", "--tag", "create") == {"desk__create_note"}
    assert names("--any-tag", "delete", "--any-tag", "create") == {"desk__create_note", "desk__delete_note"}
    assert names("--exclude-destructive") == {"desk__create_note", "desk__loan_payment"}
    assert names("--closed-world", "--read-only") == {"desk__loan_payment"}


def test_json_names_the_applied_filters_and_the_source_of_category_and_tags(run: Run, config: Path) -> None:
    options = ("--tag", "paper", "--max-latency-ms", "5", "--config", config)
    data = found(run, "create a note", *options)

    assert data["filters"] == {"tags": ["paper"], "max_latency_ms": 5.0}
    best = data["results"][0]
    assert best["category"] == {"name": "office", "origin": "configured"}
    assert {"name": "paper", "origin": "configured"} in best["tags"]
    assert {"name": "create", "origin": "derived"} in best["tags"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--category", "ofice"), "There is no category 'ofice'. Did you mean 'office'"),
        (("--tag", "papier"), "There is no tag 'papier'. Did you mean 'paper'"),
        (("--any-tag", "creat"), "There is no tag 'creat'. Did you mean 'create'"),
        (("--language", "cobol"), "There is no language 'cobol'. There is none"),
        (("--min-success-rate", "90"), "90 is not a number from 0 to 1"),
    ],
)
def test_an_unknown_value_is_answered_with_the_nearest(
    run: Run, config: Path, options: tuple[str, ...], said: str
) -> None:
    done = run("search", "note", *options, "--config", config)

    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_if_filters_leave_nothing_the_best_excluded_results_are_named(run: Run, config: Path) -> None:
    done = run("search", "delete a note for good", "--strict", "--max-latency-ms", "1", "--config", config)

    assert done.returncode == 0
    said = " ".join(done.stdout.split())
    assert said.startswith("No item meets the filters (max_latency_ms 1.0, strict true).")
    assert "desk__delete_note (by max_latency_ms)" in said


def test_if_nothing_fits_the_nearest_tools_are_shown_as_such(run: Run, config: Path) -> None:
    done = run("search", "zyxgh qwvut", "--config", config)
    data = found(run, "zyxgh qwvut", "--config", config)

    assert done.returncode == 0
    assert done.stdout.startswith("None of 4 tools and documents fits. Nearest:\n- ")
    assert (data["fits"], data["results"]) == (False, [])
    assert {one.get("server") for one in data["near_misses"]} == {"desk", None}
    assert "rule://loans" in {one.get("uri") for one in data["near_misses"]}


def test_if_only_a_rule_fits_the_nearest_tools_are_shown_as_such(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=TOOLS)
    rules = workshop.folder / "rules"
    rules.mkdir()
    (rules / "style.md").write_text("# Style\n\nCommit messages are in the imperative.\n", encoding="utf-8")
    config = workshop.config(documents=[{"kind": "rule", "path": str(rules)}])
    done = run("search", "language of commits", "--config", config)
    data = found(run, "language of commits", "--config", config)

    assert [one["uri"] for one in data["results"]] == ["rule://style"]
    assert data["near_misses"][0]["server"] == "desk"
    assert done.stdout.startswith("No tool fits. Nearest: desk__")
    assert "But one document fits:\n\nrule://style (rule):\n  # Style\n" in done.stdout


def test_a_lexical_search_says_so_and_why(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=TOOLS)
    config = workshop.config(embedding={"model": str(workshop.folder / "no-model")})
    done = run("search", "loan", "--config", config)
    data = found(run, "loan", "--config", config)

    assert done.stdout.startswith("Note: Searched by words only: embedding model")
    assert data["method"] == "lexical"
    assert "there is no such folder" in data["note"]


def test_a_failed_server_is_named_on_stderr_and_in_the_data(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=TOOLS)
    workshop.server("broken", at_start=[{"exit": 3}])
    done = run("search", "loan", "--config", workshop.config(), "--json")

    assert "Server broken has failed, and its items are unknown: it exited (code 3)" in done.stderr
    assert json.loads(done.stdout)["failed"] == [{"server": "broken", "cause": "it exited (code 3)"}]


def test_explain_shows_which_words_in_which_field_added_how_much(run: Run, config: Path) -> None:
    done = run("search", "monthly loan", "--explain", "--config", config)
    data = found(run, "monthly loan", "--explain", "--config", config)

    assert "text: loan payment: Compute the monthly payment of a loan" in done.stdout
    terms = data["results"][0]["terms"]
    assert {term["field"] for term in terms} >= {"name", "description"}
    assert sum(term["added"] for term in terms) == pytest.approx(data["results"][0]["lexical"])


def test_the_parts_that_explain_shows_add_up_to_the_score(run: Run, config: Path) -> None:
    for query in ("monthly loan", "delete the note that I wrote", "write down a new note"):
        done = run("search", query, "--explain", "--config", config)
        scores = [float(score) for score in re.findall(r"^ +\d+  (-?\d\.\d\d)  ", done.stdout, re.MULTILINE)]
        parts = re.findall(r"^ +(similarity -?\d.*(?:\n +[^:]*)*?)\n +\d\.\d{3}  ", done.stdout, re.MULTILINE)

        sums = [sum(map(float, re.findall(r"-?\d\.\d{3}", part))) for part in parts]
        assert sums == pytest.approx(scores, abs=0.01)
        assert sums


def test_explain_shows_which_sentence_of_the_query_a_result_serves(run: Run, config: Path) -> None:
    query = "Write down a new note. Compute the monthly payment of a loan."
    done = run("search", query, "--explain", "--config", config)
    by_name = {one["name"]: one for one in found(run, query, "--explain", "--config", config)["results"]}

    served = [by_name[name]["serves"] for name in ("desk__create_note", "desk__loan_payment")]
    sentences = ["Write down a new note.", "Compute the monthly payment of a loan."]
    assert [a or b for a, b in zip(served, sentences, strict=True)] == sentences
    assert any(served)
    assert [by_name[name]["matched"] for name in ("desk__create_note", "desk__loan_payment")] == sentences
    assert f"serves: {next(filter(None, served))}" in done.stdout


def test_texts_of_servers_are_printed_without_escape_sequences(run: Run, workshop: Workshop) -> None:
    tools = [tool("paint", "Paint a [bold]wall[/bold]\nred"), tool("erase", "Erase \x1b[2J a wall")]
    workshop.server("desk", tools=tools)
    done = run("search", "paint a wall", "--config", workshop.config())

    assert "\x1b" not in done.stdout
    assert "Paint a [bold]wall[/bold] red" in done.stdout
    assert "1 tool of desk is withheld: it hides characters" in done.stdout


def test_results_can_be_reranked_by_another_model(run: Run, workshop: Workshop, config: Path) -> None:
    def desk(*args: str) -> dict[str, Any]:
        return found(run, "note", "--kind", "tool", "--config", config, *args)

    with chat_service() as service:
        service.reply = lambda asked: asked.say("2, 1")
        endpoint = {"endpoint": service.url, "model": "small"}
        config = workshop.config(rerank=endpoint)
        before, after = desk(), desk("--rerank")
        shown = run("search", "note", "--kind", "tool", "--rerank", "--explain", "--config", config)

    names = [[one["name"] for one in data["results"]] for data in (before, after)]
    assert names[1][:2] == names[0][1::-1]
    assert before["rerank"] is None
    assert after["rerank"]["used"]
    assert f"ordered by small at {service.url}" in " ".join(shown.stdout.split())


def test_reranking_without_a_model_is_reported(run: Run, config: Path) -> None:
    done = run("search", "note", "--rerank", "--config", config)

    assert done.returncode == 0
    assert "Rerank: skipped: there is no model to ask" in done.stderr


def test_statistics_of_another_process_can_filter_a_search(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=TOOLS[:1], calls={"create_note": [{"result": {"content": []}}]})
    config = workshop.config(store={"path": str(workshop.folder / "store.sqlite3")})

    async def call() -> None:
        async with inside(config) as proxy:
            await Host(proxy, "modern").request("tools/call", {"name": "desk__create_note", "arguments": {}})

    anyio.run(call)
    fast = found(run, "note", "--max-latency-ms", "0.000001", "--config", config)
    slow = found(run, "note", "--max-latency-ms", "3600000", "--strict", "--config", config)

    assert (fast["results"], fast["note"]) == (
        [],
        "No item meets the filters (max_latency_ms 1e-06). Left out by them: "
        "desk__create_note (by max_latency_ms).",
    )
    assert [one["name"] for one in slow["results"]] == ["desk__create_note"]


def test_a_search_says_beside_its_answer_how_the_query_was_read(run: Run, config: Path) -> None:
    done = run("search", "mnothly paymnet of a loan", "--config", config)
    explained = run("search", "mnothly paymnet of a loan", "--explain", "--config", config)

    assert done.stderr.startswith("Read as: monthly payment of a loan\n")
    assert "Read as" not in done.stdout
    assert explained.stdout.startswith("Read as: monthly payment of a loan\n")
    assert found(run, "mnothly paymnet", "--config", config)["read_as"] == "monthly payment"
    assert found(run, "monthly payment", "--config", config)["read_as"] is None


def test_if_nothing_fits_the_answer_says_how_the_query_was_read(run: Run, config: Path) -> None:
    done = run("search", "astronomcal telescpe orbits", "--config", config)

    assert "Read as: astronomical telescope orbits\nNone of 4 tools and documents fits." in done.stdout


def test_explain_says_how_the_query_was_read(run: Run, config: Path) -> None:
    done = run("explain", "mnothly paymnet of a loan", "desk__loan_payment", "--config", config)

    assert "as it was read" in done.stdout
    assert "monthly payment of a loan" in " ".join(done.stdout.split())
