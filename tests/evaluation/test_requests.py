"""The written requests of the benchmarks name tools that the lists beside them have."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECORDED = Path(__file__).parents[1] / "data" / "tools"


def lists_in(folder: Path) -> list[dict[str, Any]]:
    """Return the lists of tools in a folder."""
    return [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(folder.glob("*.gz"))]


def requests_in(name: str) -> list[dict[str, Any]]:
    """Return the requests of a file."""
    return [json.loads(line) for line in (BENCHMARKS / name).read_text(encoding="utf-8").splitlines()]


LISTS, REQUESTS = lists_in(BENCHMARKS / "unseen"), requests_in("unseen.jsonl")


@pytest.mark.parametrize(
    ("folder", "requests"), [(BENCHMARKS / "unseen", "unseen.jsonl"), (RECORDED, "least_asked.jsonl")]
)
def test_every_tool_that_serves_a_request_is_listed(folder: Path, requests: str) -> None:
    listed = {f"{one['server']}/{tool['name']}" for one in lists_in(folder) for tool in one["tools"]}
    asked = requests_in(requests)

    assert asked
    assert listed.issuperset(tool for one in asked for need in one["needs"] for tool in need)


def test_a_hash_of_a_seldom_request_decides_to_which_half_it_belongs() -> None:
    for one in requests_in("least_asked.jsonl"):
        is_even = hashlib.sha256(one["query"].encode()).digest()[0] % 2 == 0
        assert one["half"] == ("looked at" if is_even else "held out")


def test_no_server_has_english_requests_in_both_halves() -> None:
    halves = dict[str, set[str]]()
    for one in REQUESTS:
        if len(one["needs"]) == 1 and one["persona"] != "language":
            halves.setdefault(one["needs"][0][0].partition("/")[0], set()).add(one["half"])

    assert set(halves) == {one["server"] for one in LISTS}
    assert all(len(of_server) == 1 for of_server in halves.values())


def test_the_page_of_the_unseen_lists_names_each_with_its_licence() -> None:
    page = (BENCHMARKS / "unseen" / "README.md").read_text(encoding="utf-8")

    for one in LISTS:
        of = f"`{one['package']}` ({one['registry']}) | {one['version']} | {one['license']}"
        assert f"| {one['server']} | {of} |" in page
