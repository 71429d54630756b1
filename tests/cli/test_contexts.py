"""``context``, ``requests``, ``explain`` and ``tools --related`` show the choice and its reasons."""

import json
import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from support.servers import Workshop, tool

from mcp_context_proxy.context import RequestContext
from mcp_context_proxy.store.opening import open_store

from .conftest import Run

QUERY = "will it rain in Paris"


@pytest.fixture
def config(workshop: Workshop) -> Path:
    rules = workshop.folder / "rules"
    rules.mkdir()
    (rules / "tone.md").write_text("---\ninclude: always\npriority: 900\n---\nBe polite.\n", encoding="utf-8")
    (rules / "rain.md").write_text("---\npriority: 1\n---\nTell the chance of rain.\n", encoding="utf-8")
    workshop.server(
        "weather",
        tools=[
            tool("forecast", "Forecast of the weather for a city: rain, wind"),
            tool("warnings", "Warnings about bad weather for a city: storm, flood"),
            tool("reset", "Forget all forecasts of the weather"),
        ],
        settings={"tools": {"reset": {"include": "manual"}}},
    )
    workshop.server("music", tools=[tool("play", "Play a song"), tool("stop", "Stop the music")])
    store = {"path": str(workshop.folder / "store.sqlite3")}
    return workshop.config(store=store, documents=[{"kind": "rule", "path": str(rules)}])


def test_context_prints_text_for_a_conversation(run: Run, config: Path) -> None:
    done = run("context", QUERY, "--config", config)

    assert done.returncode == 0
    text = done.stdout
    assert text.index("Rule: rain\n\nTell the chance of rain.") < text.index("Rule: tone\n\nBe polite.")
    assert "- weather__forecast(text?: string): Forecast of the weather" in text


def test_a_long_handbook_is_given_as_an_outline_with_the_place_that_was_found(
    run: Run, config: Path, workshop: Workshop
) -> None:
    door = "In rain the garden door stays closed, so that no water comes into the hall. " * 6
    numbers = " ".join(map(str, range(1000, 8000)))
    handbook = f"# Handbook\n\n## Rain\n\n{door}\n\n## Numbers of rooms\n\n{numbers}"
    (workshop.folder / "rules" / "handbook.md").write_text(handbook, encoding="utf-8")
    run("index", "--config", config)
    done = run("context", "is the garden door open in rain", "--config", config)
    (request,) = json.loads(run("requests", "--json", "--config", config).stdout)["requests"]
    rendered = run("requests", "show", request["id"], "--render", "--config", config)

    assert "In rain the garden door stays closed" in done.stdout
    assert "tokens), outline:" in done.stdout
    assert "Read on with read_document" in done.stdout
    assert "7998 7999" not in done.stdout
    assert "Rule: tone\n\nBe polite." in done.stdout
    forms = {one["name"]: one["delivered"] for one in request["items"] if one["type"] == "rule"}
    assert (forms["handbook"], forms["tone"]) == ("outline", "whole")
    assert "tokens), outline:" in rendered.stdout


@pytest.mark.parametrize(
    ("piped", "query"),
    [
        (f"{QUERY}\n", QUERY),
        (json.dumps({"hook_event_name": "UserPromptSubmit", "prompt": QUERY, "cwd": "/"}), QUERY),
        ('{"note": "rain"}', '{"note": "rain"}'),
    ],
    ids=["text", "what a hook is given", "JSON of another kind"],
)
def test_context_reads_the_query_from_a_hooks_standard_input(
    run: Run, config: Path, piped: str, query: str
) -> None:
    done = run("context", "-", "--json", "--config", config, stdin=piped)

    context = json.loads(done.stdout)
    assert context["query"].strip() == query
    found = {item["name"]: item["include_mode"] for item in context["items"]}
    assert (found["tone"], found["weather__forecast"]) == ("always", "agent")
    assert context["tokens"] == sum(item["tokens"] for item in context["items"])


@pytest.mark.parametrize("piped", ["", "\n", json.dumps({"prompt": " ", "cwd": "/"})])
def test_context_says_nothing_to_a_hook_with_an_empty_prompt_and_succeeds(
    run: Run, config: Path, piped: str
) -> None:
    done = run("context", "-", "--config", config, stdin=piped)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_context_has_the_documents_of_the_folder_that_a_hook_names(run: Run, workshop: Workshop) -> None:
    documents = []
    for name in ("red", "blue"):
        (workshop.folder / name).mkdir()
        path = workshop.folder / name / "tone.md"
        path.write_text(f"---\ninclude: always\n---\nBe {name}.\n", encoding="utf-8")
        documents.append({"kind": "rule", "path": str(path), "roots": [str(path.parent)]})
    config = workshop.config(documents=documents, store={"path": str(workshop.folder / "store.sqlite3")})
    hook = {"prompt": QUERY, "cwd": str(workshop.folder / "red")}
    done = run("context", "-", "--config", config, stdin=json.dumps(hook))

    assert "Be red." in done.stdout
    assert "Be blue." not in done.stdout


def test_context_names_items_over_the_token_budget(run: Run, config: Path) -> None:
    done = run("context", QUERY, "--max-tokens", "5", "--config", config)

    assert "Be polite" in done.stdout
    assert "do not fit into 5 tokens, of which the session's own items take 3: " in done.stdout
    assert "weather__forecast (" in done.stdout


def test_an_empty_query_is_refused(run: Run, config: Path) -> None:
    assert run("context", "  ", "--config", config).returncode == 2
    assert run("explain", "", "weather__forecast", "--config", config).returncode == 2


def test_requests_lists_queries_and_explains_one(run: Run, config: Path) -> None:
    run("context", QUERY, "--config", config)
    run("context", "play a song", "--config", config)

    listed = run("requests", "--config", config, COLUMNS="200").stdout.splitlines()
    newest, oldest = json.loads(run("requests", "--json", "--config", config).stdout)["requests"]
    one = run("requests", oldest["id"], "--config", config, COLUMNS="200").stdout

    assert [line.split()[0] for line in listed[:3]] == ["ID", newest["id"], oldest["id"]]
    assert listed[0].split() == ["ID", "Time", "Items", "Tokens", "Query"]
    assert "Tokens: of the whole definitions" in listed[-1]
    assert (newest["query"], oldest["query"]) == ("play a song", QUERY)
    (forecast,) = [line for line in one.splitlines() if "weather__forecast" in line]
    assert forecast.split()[1:4] == ["agent", "tool", "weather__forecast"]
    assert "mentions" in forecast
    assert json.loads(run("requests", oldest["id"], "--json", "--config", config).stdout) == oldest


def test_a_list_of_requests_names_the_client_of_each_where_one_is_known(run: Run, config: Path) -> None:
    run("context", QUERY, "--config", config)
    with open_store(config.parent / "store.sqlite3") as store:
        (row,) = store.requests.latest(1)
        asked = replace(msgspec.json.decode(row.context, type=RequestContext), id="0" * 16, client="cursor")
        store.requests.put([replace(row, id=asked.id, context=msgspec.json.encode(asked))], 10, 0.0)

    listed = run("requests", "--config", config, COLUMNS="200").stdout.splitlines()
    assert listed[0].split() == ["ID", "Time", "Items", "Tokens", "Client", "Query"]
    assert sorted(line.split()[-len(QUERY.split()) - 1] for line in listed[1:3]) == ["-", "cursor"]


def test_the_reasons_of_a_request_are_told_whole_at_80_columns(run: Run, config: Path) -> None:
    run("context", QUERY, "--config", config)
    (recorded,) = json.loads(run("requests", "--json", "--config", config).stdout)["requests"]
    told = run("requests", "show", recorded["id"], "--config", config, COLUMNS="80").stdout

    assert max(map(len, told.splitlines())) <= 80
    assert all(item["why"] in " ".join(told.split()) for item in recorded["items"])


def test_an_unknown_request_is_an_error(run: Run, config: Path) -> None:
    done = run("requests", "0123", "--config", config)

    assert done.returncode == 1
    assert "'0123'" in done.stderr


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        pytest.param("weather__forecast", (), "is chosen: ", id="chosen"),
        pytest.param("reset", (), "is not chosen: it is manual", id="manual"),
        pytest.param("stop", (), "is not chosen: ", id="not near"),
        pytest.param("tone", ("--kind", "rule"), "is chosen: in every session", id="always"),
    ],
)
def test_explain_says_why_a_tool_is_chosen(
    run: Run, config: Path, name: str, options: tuple[str, ...], told: str
) -> None:
    with config.open("a", encoding="utf-8") as file:
        file.write("\n[search]\ntop_n = 1\n")
    done = run("explain", QUERY, name, *options, "--config", config)

    assert done.returncode == 0
    assert told in done.stdout


def test_explain_says_by_how_much_a_tool_was_not_chosen_and_how_it_is_found_next_time(
    run: Run, config: Path
) -> None:
    with config.open("a", encoding="utf-8") as file:
        file.write("\n[search]\ntop_n = 1\n")
    told = " ".join(run("explain", QUERY, "stop", "--config", config).stdout.split())
    chosen = run("explain", QUERY, "weather__forecast", "--config", config).stdout

    assert re.search(
        r"it is number \d with a score of 0\.\d\d, and the best 1, down to 0\.\d\d, are chosen", told
    )
    assert re.search(r"to have it found write .* into use_cases in \[servers\.\w+\.tools\.stop\]", told)
    assert "to have it found" not in chosen
    # Only rules and references have a text that is given or not.
    assert "not given to a model" not in told


def test_an_explanation_is_wrapped_in_a_narrow_terminal(run: Run, config: Path) -> None:
    told = run("explain", QUERY, "weather__forecast", "--config", config, COLUMNS="44").stdout

    assert "is chosen: " in told
    assert max(map(len, told.splitlines())) <= 44


def test_the_parts_of_a_score_that_explain_shows_add_up_to_it(run: Run, config: Path) -> None:
    told = run("explain", QUERY, "weather__forecast", "--config", config).stdout
    [score] = re.findall(r"^  score +(\d\.\d{3})$", told, re.MULTILINE)
    parts = re.findall(r"^    [a-z ]+?  +(-?\d\.\d{3})$", told, re.MULTILINE)

    assert sum(map(float, parts)) == pytest.approx(float(score), abs=0.003)
    assert len(parts) >= 2


def test_explain_says_why_a_tool_of_a_suspected_server_comes_later(run: Run, workshop: Workshop) -> None:
    asking = ["Show me the weather in Paris.", "I need rain.", "Send me the news."] * 4
    workshop.server("asking", tools=[tool(f"helper_{at}", text) for at, text in enumerate(asking)])
    workshop.server("weather", tools=[tool("forecast", "Forecast of the weather for a city: rain, wind")])
    done = run("explain", QUERY, "asking__helper_0", "--config", workshop.config(search={"top_n": 1}))

    told = " ".join(done.stdout.split())
    assert "is not chosen: " in told
    assert (
        "held back where tools of others fit, because the descriptions of its server read like requests"
        in told
    )


def test_explain_has_every_part_of_the_score_and_the_rank(run: Run, config: Path) -> None:
    done = run("explain", QUERY, "forecast", "--server", "weather", "--json", "--config", config)

    data = json.loads(done.stdout)
    assert (data["rank"], data["selected"], data["include"]) == (1, "agent", "agent")
    score = data["score"]
    assert score["total"] == pytest.approx(
        score["cosine"] + 0.02 * score["lexical"] + score["need"], abs=1e-4
    )
    assert {term["term"] for term in score["terms"]} == {"rain"}


def test_explain_finds_a_rule_by_its_name_and_suggests_it_for_a_misspelled_one(
    run: Run, config: Path
) -> None:
    for kind in ("--type", "--kind"):
        named = run("explain", QUERY, "tone", kind, "rule", "--config", config)
        assert "tone is chosen: in every session" in named.stdout
    found = run("explain", QUERY, "tone", "--config", config)
    misspelled = run("explain", QUERY, "tonne", "--config", config)

    assert found.stdout == named.stdout
    assert "include mode" in found.stdout
    assert "always: it is in every context" in found.stdout
    assert (misspelled.returncode, "did you mean rule://tone?" in misspelled.stderr) == (2, True)


def test_explain_refuses_an_unknown_tool_name(run: Run, config: Path) -> None:
    done = run("explain", QUERY, "weather__forcast", "--config", config)

    unlike = [
        run("explain", QUERY, "nope", "--config", config),
        run("tools", "--related", "nope", "--config", config),
    ]

    assert done.returncode == 2
    assert "weather__forecast" in done.stderr
    for one in unlike:
        assert one.returncode == 2
        assert "Unknown tool or document 'nope'; 'mcp-context-proxy tools' lists them" in one.stderr


def test_related_tools_come_nearest_first(run: Run, config: Path) -> None:
    done = run("tools", "--related", "forecast", "--json", "--config", config)

    related = json.loads(done.stdout)["related"]
    assert related[0]["name"] == "weather__warnings"
    assert [one["cosine"] for one in related] == sorted((one["cosine"] for one in related), reverse=True)
    assert "music__play" not in [one["name"] for one in related]


def test_what_is_similar_to_a_document_is_listed_by_its_uri(run: Run, config: Path) -> None:
    done = run("tools", "--related", "rule://rain", "--json", "--config", config)
    unknown = run("tools", "--related", "rule://snow", "--config", config)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["name"] == "rule://rain"
    assert (unknown.returncode, "'rule://snow'" in unknown.stderr) == (2, True)


def test_a_request_is_rendered_again_and_replayed_with_the_difference(run: Run, config: Path) -> None:
    run("context", QUERY, "--config", config)
    (newest,) = json.loads(run("requests", "--json", "--config", config).stdout)["requests"]
    rendered = run("requests", "show", newest["id"], "--render", "--config", config)
    replayed = run("requests", "replay", newest["id"], "--config", config, COLUMNS="200")
    data = json.loads(run("requests", "replay", newest["id"], "--json", "--config", config).stdout)

    assert rendered.returncode == replayed.returncode == 0, rendered.stderr + replayed.stderr
    assert all(item["name"] in rendered.stdout for item in newest["items"] if item["type"] == "tool")
    assert "Nothing has changed." in replayed.stdout
    compared = sum(item["tokens"] for item in newest["items"] if item["include_mode"] != "always")
    assert f"{compared:,} tokens then, {compared:,} now, for the items below" in replayed.stdout
    assert compared < newest["tokens"]
    assert data["then"]["id"] == newest["id"]
    assert {one["change"] for one in data["items"]} == {"same"}
