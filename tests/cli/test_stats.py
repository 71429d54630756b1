import json
import time
from pathlib import Path

import pytest
from support.servers import Workshop, tool

from mcp_context_proxy.statistics import count_call
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.statistics import (
    DAY,
    DefinitionRow,
    DocumentUsage,
    SearchRow,
    SearchUsage,
    ToolUsage,
    UsageSlot,
)

from .conftest import Run

LONG = "add_an_issue_comment_with_all_attachments_and_labels_of_the_template"


@pytest.fixture
def config(workshop: Workshop) -> Path:
    """A store in which tools and searches of today and of two weeks ago are counted; no server can start."""
    path, now = workshop.folder / "store.sqlite3", time.time()
    with open_store(path) as store:
        for name, calls, failed, ms, at in (
            ("post", 4, 1, 12.0, now),
            (LONG, 2, 0, 2500.0, now),
            ("old", 9, 0, 5.0, now - 14 * DAY),
        ):
            usage = ToolUsage("desk", name)
            for number in range(calls):
                count_call(usage, ms, number < failed, 2048, at)
            store.statistics.add([(UsageSlot.of(at), usage)], {}, [])
        searched = SearchUsage(10, 9, 8, 7, 0, 100.0, 1_000, 50_000, {115: 10})
        store.statistics.add([], {UsageSlot.of(now): searched}, [])
        for server, names in (
            ("desk", ["post", LONG, "never", "hidden", "off", "denied"]),
            ("gone", ["other"]),
        ):
            rows = [DefinitionRow(server, name, name, 321, now - 40 * DAY) for name in names]
            rows.append(DefinitionRow(server, "new", "new", 321, now - 3 * DAY))
            store.statistics.put_definitions(server, rows)
    settings = {"tools": {"hidden": {"include": "manual"}, "off": {"enabled": False}}, "deny": ["deni*"]}
    gone = {"command": "no-such-program", "args": []}
    workshop.server("desk", tools=[tool("post")], settings=gone | settings)
    return workshop.config(store={"path": str(path)})


def test_tools_and_searches_are_shown_as_tables(run: Run, config: Path) -> None:
    done = run("stats", "--config", config)

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "In the last 30 days"
    assert any(line.startswith("Searches  10; ") for line in lines)
    assert "Used      A found tool was called after 80 % of the searches" in lines
    assert "Accepted  The first tool was called after 70 % of the searches" in lines
    assert "Tokens    1,000 of 50,000 shown, 98 % saved (estimate)" in lines
    (post,) = [line for line in lines if line.endswith("desk__post")]
    assert post.split()[:3] == ["4", "25", "%"]
    tables = done.stdout.split("Tools\n")[1]
    assert tables.index("desk__old") < tables.index("desk__post")


def test_tools_that_were_not_called_in_30_days_are_listed_with_their_cost(run: Run, config: Path) -> None:
    """Not those that are new, hidden or turned off already, nor those of servers that are not configured."""
    before, never = run("stats", "--config", config).stdout.split("Not called in 30 days\n")

    assert "1 tool that is known for less than 30 days." in before

    assert "1 tool, the oldest known for 40 days. Without them, the catalog has about 321 tokens" in " ".join(
        never.split()
    )
    assert "enabled = false turns off a tool under [servers.NAME.tools.TOOL]" in " ".join(never.split())
    assert "manual" not in never
    assert [line.split()[-1] for line in never.splitlines()[-1:]] == ["desk__never"]


def test_a_narrow_terminal_shows_the_figures_whole(run: Run, config: Path) -> None:
    overview = run("stats", "--config", config, COLUMNS="44").stdout.partition("Tools")[0]

    assert "percentile" in overview
    assert "\u2026" not in overview


@pytest.mark.parametrize("width", [80, 100])
def test_no_line_is_wider_than_the_terminal_and_a_long_name_keeps_its_ends(
    run: Run, config: Path, width: int
) -> None:
    lines = run("stats", "--config", config, COLUMNS=str(width)).stdout.splitlines()

    assert max(map(len, lines)) <= width
    (long,) = [line for line in lines if "desk__add" in line]
    assert long.endswith("template")
    assert ("Result" in "\n".join(lines)) == (width == 100)


def test_a_period_leaves_out_older_calls(run: Run, config: Path) -> None:
    shown = run("stats", "--period", "7d", "--config", config).stdout

    assert "desk__post" in shown
    assert "desk__old" not in shown


def test_json_has_all_figures(run: Run, config: Path) -> None:
    data = json.loads(run("stats", "--json", "--limit", "1", "--config", config).stdout)

    assert [one["tool"] for one in data["tools"]] == ["old", "post", LONG]
    assert data["tools"][1]["success_rate"] == 0.75
    assert data["tools"][1]["p50_ms"] == pytest.approx(12.0, rel=0.02)
    assert (data["searches"]["acceptance_rate"], data["searches"]["tokens_behind"]) == (0.7, 50_000)
    assert [(one["tool"], one["tokens"]) for one in data["unused"]] == [("never", 321)]
    assert data["unused_newer"] == 1


def test_an_invalid_period_is_refused(run: Run, config: Path) -> None:
    done = run("stats", "--period", "1w", "--config", config)

    assert done.returncode == 2
    assert "'1w' is no period; write hours or days, such as 24h or 30d" in done.stderr


def test_an_empty_store_is_reported(run: Run, workshop: Workshop) -> None:
    done = run("stats", "--config", workshop.config())

    assert done.stdout == "Nothing was called or searched in the last 30 days.\n"


def test_switched_off_counting_is_reported(run: Run, workshop: Workshop) -> None:
    done = run("stats", "--config", workshop.config(statistics={"enabled": False}))

    assert done.stdout.startswith("Counting is switched off")


@pytest.fixture
def compared(workshop: Workshop) -> Path:
    """A store with documents, used and not, and with requests of both arms of a comparison."""
    path, now = workshop.folder / "store.sqlite3", time.time()
    rows = []
    for number in range(80):
        arm, rank = ("plain", 2) if number % 4 == 0 else ("learned", 1)
        row = SearchRow(
            f"r{number}", now - (number % 3) * DAY, b"k", None, "search", 3, "a", "a", rank, 1.0, False, arm,
            f"s{number}", 1,
        )  # fmt: skip
        rows.append(row)
    with open_store(path) as store:
        usage = DocumentUsage("rule", "commits", found=3, delivered=2, reads=1, last=now)
        store.statistics.add([], {}, rows, documents=[(UsageSlot.of(now), usage)])
        known = [DefinitionRow("", f"rule/{name}", name, 321, now - 40 * DAY) for name in ("commits", "moon")]
        store.statistics.put_definitions("", known)
    return workshop.config(store={"path": str(path)})


def test_use_of_documents_is_shown_with_those_that_could_go(run: Run, compared: Path) -> None:
    shown = run("stats", "--config", compared).stdout
    data = json.loads(run("stats", "--json", "--config", compared).stdout)

    (commits,) = [line for line in shown.splitlines() if line.endswith("rule commits")]
    assert commits.split()[:3] == ["3", "2", "1"]
    assert shown.splitlines()[-1].split() == ["321", "rule", "moon"]
    assert "1 document, about 321 tokens: found by no request, and not read." in " ".join(shown.split())
    assert [one["name"] for one in data["unused_documents"]] == ["moon"]


def test_requests_with_and_without_learned_pairs_are_compared_over_time_with_intervals(
    run: Run, compared: Path
) -> None:
    shown = run("stats", "--period", "7d", "--config", compared).stdout
    data = json.loads(run("stats", "--json", "--config", compared).stdout)["learning"]

    (accepted,) = [line for line in shown.splitlines() if line.startswith("First tool called")]
    assert "100 %" in accepted
    assert "+100 points (" in accepted
    assert max(map(len, shown.splitlines())) <= 80
    days = [line for line in shown.splitlines() if line.startswith("20") and " %" in line]
    assert len(days) == 3
    assert (data["learned"]["requests"], data["plain"]["requests"]) == (60, 20)
    assert data["difference"]["rank"]["value"] == -1.0
    assert data["difference"]["acceptance"]["low"] > 0.5
