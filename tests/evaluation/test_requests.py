"""The written requests of the benchmarks name tools that the lists beside them have."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
LISTS = [
    json.loads(gzip.decompress(path.read_bytes())) for path in sorted((BENCHMARKS / "unseen").glob("*.gz"))
]
REQUESTS = [
    json.loads(line) for line in (BENCHMARKS / "unseen.jsonl").read_text(encoding="utf-8").splitlines()
]


def test_every_tool_that_serves_an_unseen_request_is_listed() -> None:
    listed = {f"{one['server']}/{tool['name']}" for one in LISTS for tool in one["tools"]}

    assert REQUESTS
    assert listed.issuperset(tool for one in REQUESTS for need in one["needs"] for tool in need)


def test_no_server_has_requests_in_both_halves() -> None:
    halves = dict[str, set[str]]()
    for one in REQUESTS:
        if len(one["needs"]) == 1:
            halves.setdefault(one["needs"][0][0].partition("/")[0], set()).add(one["half"])

    assert set(halves) == {one["server"] for one in LISTS}
    assert all(len(of_server) == 1 for of_server in halves.values())


def test_the_page_of_the_unseen_lists_names_each_with_its_licence() -> None:
    page = (BENCHMARKS / "unseen" / "README.md").read_text(encoding="utf-8")

    for one in LISTS:
        of = f"`{one['package']}` ({one['registry']}) | {one['version']} | {one['license']}"
        assert f"| {one['server']} | {of} |" in page
