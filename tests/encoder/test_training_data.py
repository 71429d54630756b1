"""The data that the encoder is trained on: held-out parts stay out, and readers decide on the rest."""

import gzip
import importlib
import json
import shutil
from pathlib import Path
from types import ModuleType

import pytest

FOLDER = Path(__file__).parents[2] / "encoder"


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("pairs")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("judge")


def test_no_server_is_in_two_splits_and_each_states_a_permissive_licence(pairs: ModuleType) -> None:
    splits = json.loads(pairs.SPLITS.read_text("utf-8"))
    servers = [set(facts["servers"]) for facts in splits.values()]
    assert not servers[0] & servers[1] | servers[0] & servers[2] | servers[1] & servers[2]
    assert {key[0] for key in pairs.read_tools()} == set().union(*servers)
    licences = {one["licence"] for facts in splits.values() for one in facts["servers"].values()}
    assert licences <= {"MIT", "Apache-2.0", "ISC", "BSD-3-Clause", "BSD-2-Clause"}


def test_the_splits_are_as_large_as_planned(pairs: ModuleType) -> None:
    splits = json.loads(pairs.SPLITS.read_text("utf-8"))
    assert splits["train"]["tools"] >= 2_400
    assert len(splits["train"]["servers"]) >= 120
    assert len(splits["dev"]["servers"]) == 10
    assert len(splits["test"]["servers"]) == 12


def test_other_tools_than_the_frozen_ones_are_refused(pairs: ModuleType, tmp_path: Path) -> None:
    with gzip.open(pairs.TOOLS, "rt", encoding="utf-8") as file:
        lines = file.read().splitlines()
    changed = tmp_path / "tools.jsonl.gz"
    with gzip.open(changed, "wt", encoding="utf-8") as file:
        file.write("\n".join(lines[:-1]) + "\n")
    with pytest.raises(SystemExit, match="are not those that"):
        pairs.read_tools(changed)


def test_no_request_of_training_is_a_held_out_request(pairs: ModuleType, tmp_path: Path) -> None:
    tools = pairs.read_tools()
    requests, _ = pairs.read_requests(tools)
    assert pairs.overlaps(tools, requests, tmp_path) == []


def test_the_writer_of_held_out_requests_wrote_nothing_for_training(pairs: ModuleType) -> None:
    tools = pairs.read_tools()
    requests, _ = pairs.read_requests(tools)
    training = {one.writer for one in pairs.of_split("train", requests, tools)}
    test = {one.writer for one in pairs.of_split("test", requests, tools)}
    assert test
    assert not training & test


def test_a_training_request_that_an_evaluation_set_asks_is_named(pairs: ModuleType, tmp_path: Path) -> None:
    tools = pairs.read_tools()
    requests, _ = pairs.read_requests(tools)
    asked = pairs.of_split("train", requests, tools)[0]
    with gzip.open(pairs.TOOLS, "rt", encoding="utf-8") as file:
        known = next(json.loads(line) for line in file if '"train"' in line)
    folder = tmp_path / "some_set"
    folder.mkdir()
    with gzip.open(folder / "corpus.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps({"server": "x", "name": "y", "description": known["description"]}))
    with gzip.open(folder / "queries.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write(json.dumps({"query": asked.text.upper() + "!", "relevant": [["x", "y"]]}))
    found = "\n".join(pairs.overlaps(tools, requests, tmp_path))
    assert f"{known['server']}/{known['name']} occurs in some_set" in found
    assert f"{asked.text!r} ({asked.writer}) is a query of some_set" in found


def test_an_unknown_tool_is_refused_with_its_line(pairs: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "writer.txt").write_text("## b\n# github\nno_such_tool: do it\n", "utf-8")
    with pytest.raises(SystemExit, match=r"writer\.txt:3: github/no_such_tool"):
        pairs.read_requests(pairs.read_tools(), tmp_path)


BATCH = """\
# github: repositories
create_issue(owner, title) - Create an issue.
list_issues(owner) - List issues.
"""
WRITTEN = """\
# github
create_issue: file a bug | ambiguous words
list_issues: what is still open?

+ create_issue, list_issues: see what is open and add one
- bake a cake
- open the third one
"""


@pytest.fixture
def work(tmp_path: Path) -> Path:
    for name, text in (("batches", BATCH), ("written", WRITTEN)):
        (tmp_path / name / "W9").mkdir(parents=True)
        (tmp_path / name / "W9" / "b01.txt").write_text(text, "utf-8")
    (tmp_path / "judge" / "answers").mkdir(parents=True)
    return tmp_path


def answer(work: Path, judge: ModuleType, answers: dict[str, str]) -> None:
    """Write the answers of a reader, by the text of the request, and the key."""
    keys = judge.read_batch(work / "batches" / "W9" / "b01.txt")
    choices = {"1": keys[0], "2": keys[1]}
    lines, entries = [], []
    for one in judge.read_written(work / "written" / "W9" / "b01.txt", keys):
        if one.text in answers:
            lines.append(f"{one.id}: {answers[one.text]}")
            right = [place for place, key in choices.items() if key in one.right]
            entry = {"id": one.id, "sheet": "W9-b01", "text": one.text, "right": right, "choices": choices}
            entries.append(json.dumps(entry))
    (work / "judge" / "answers" / "W9-b01.txt").write_text("\n".join(lines), "utf-8")
    (work / "judge" / "key.jsonl").write_text("\n".join(entries) + "\n", "utf-8")


def collected(work: Path, judge: ModuleType) -> str:
    out = work / "requests"
    shutil.rmtree(out, ignore_errors=True)
    judge.collect(work / "written", work / "batches", work / "judge", out)
    return (out / "writer-9.txt").read_text("utf-8")


def test_what_nobody_read_is_kept_as_it_was_written(work: Path, judge: ModuleType) -> None:
    assert collected(work, judge).splitlines() == [
        "## b01",
        "# github",
        "create_issue: file a bug | ambiguous words",
        "list_issues: what is still open?",
        "+ github/create_issue, github/list_issues: see what is open and add one",
        "- bake a cake",
        "- open the third one",
    ]


def test_a_request_that_is_read_as_another_tool_is_dropped(work: Path, judge: ModuleType) -> None:
    answer(work, judge, {"file a bug": "2", "what is still open?": "2"})
    text = collected(work, judge)
    assert "file a bug" not in text
    assert "list_issues: what is still open?" in text


def test_a_request_that_two_tools_serve_stands_at_both(
    work: Path, judge: ModuleType, pairs: ModuleType
) -> None:
    answer(work, judge, {"ambiguous words": "1,2"})
    assert collected(work, judge).count("ambiguous words") == 2
    requests, _ = pairs.read_requests(pairs.read_tools(), work / "requests")
    either = next(one for one in requests if one.text == "ambiguous words")
    assert set(either.right) == {("github", "create_issue"), ("github", "list_issues")}
    assert not either.needs_all


def test_a_request_that_some_tool_fits_after_all_is_no_longer_unfitting(
    work: Path, judge: ModuleType
) -> None:
    answer(work, judge, {"bake a cake": "0", "open the third one": "2"})
    text = collected(work, judge)
    assert "- bake a cake" in text
    assert "open the third one" not in text
