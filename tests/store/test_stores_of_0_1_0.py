"""A store, a token and a login that were written by version 0.1.0 open with everything in them.

``data/v0.1.0`` has the files, the answers of that version's commands, and the script that made all of it.
Commands may answer in other words now, and with more members; values have to be the same.
"""

import gzip
import json
import os
import runpy
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.proxies import command, http_proxy
from support.wires import stdio

from mcp_context_proxy.learning import MOST_ADDED_IN_DOUBT, Signal, first_confidence

OLD = Path(__file__).parent / "data" / "v0.1.0"
THEN = json.loads((OLD / "expected.json").read_text(encoding="utf-8"))
LOCKED = runpy.run_path(str(OLD / "locked.py"))

HOUR = 3600
PASSED = int((time.time() - THEN["made"]) // HOUR) * HOUR
"""Seconds since the store was made: whole hours, because usage is counted by the hour."""

TIMES = {
    "requests": ["time"],
    "listings": ["time"],
    "learned": ["first", "last"],
    "tool_usage": ["start", "last"],
    "search_usage": ["start"],
    "searches": ["time"],
    "definitions": ["first"],
    "tool_sessions": ["time"],
    "interactions": ["time", "recorded"],
}
"""Columns by which rows are forgotten after some time, by table."""

CONFIG = """\
[store]
path = "store.sqlite3"
[limits]
indexing_wait_seconds = 60.0
[expose]
mode = "{mode}"
[interactions]
enabled = true
[learning]
working_set_tokens = 300
[servers.desk]
command = "desk-of-the-old-store"
start = "{start}"
cwd = "launch"
"""

SAME_MODEL = '[embedding]\nmodel = "all-MiniLM-L6-v2"\n'
"""The model of that version, not the default any more. Its file is another one now, so its id is, too."""

IN_WORDS = {"why", "note", "reason", "chunk"}

PATIENCE = 60

RECALL = ("recall", "when do we ship", "--decay", "1", "--json")

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
xdg_only = pytest.mark.skipif(sys.platform != "linux", reason="XDG_DATA_HOME is a convention of Linux")

pytestmark = posix_only


@dataclass(frozen=True)
class Place:
    """A home folder with the old files, as if they had been written within the last hour."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store.sqlite3"

    @property
    def env(self) -> dict[str, str]:
        home, path = str(self.folder / "home"), f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
        own = {"HOME": home, "XDG_CONFIG_HOME": home, "XDG_DATA_HOME": f"{home}/data"}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("MCP_")}
        return {**inherited, **own, "PATH": path, "NO_PROXY": "*", "PYTHONIOENCODING": "utf-8"}

    def config(self, mode: str = "search", start: str = "eager", more: str = "") -> Path:
        path = self.folder / "config.toml"
        path.write_text(CONFIG.format(mode=mode, start=start) + more, encoding="utf-8")
        return path

    def run(self, *words: str, config: Path | None = None) -> str:
        done = subprocess.run(
            command(config or self.config(), *words),
            env=self.env,
            capture_output=True,
            encoding="utf-8",
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rows(self) -> dict[str, set[tuple[Any, ...]]]:
        """Identify every row of the tables that hold something."""
        identity = {
            "vectors": "model_id, hex(key), hex(vector)",
            "requests": "id",
            "learned": "hex(key), server, tool",
            "searches": "id",
            "tool_sessions": "server, tool, session",
            "interactions": "id, content",
            "interaction_vectors": "interaction",  # a new model's vector takes the place of the old one's
        }
        with closing(sqlite3.connect(self.store)) as database, database:
            return {
                name: set(database.execute(f"SELECT {what} FROM {name}")) for name, what in identity.items()
            }


def unpacked(folder: Path) -> Place:
    place = Place(folder)
    place.store.write_bytes(gzip.decompress((OLD / "store.sqlite3.gz").read_bytes()))
    with closing(sqlite3.connect(place.store)) as database, database:
        for table, columns in TIMES.items():
            changes = ", ".join(f"{column} = {column} + {PASSED}" for column in columns)
            database.execute(f"UPDATE {table} SET {changes}")
    program = folder / "bin" / "desk-of-the-old-store"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "{OLD / "desk.py"}"\n', encoding="utf-8")
    program.chmod(0o755)
    kept = shutil.copytree(OLD / "user", folder / "home" / "data" / "mcp-context-proxy")
    for path in [kept, *kept.rglob("*")]:
        path.chmod(0o700 if path.is_dir() else 0o600)
    return place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return unpacked(tmp_path)


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """Shared by the tests of commands that only read."""
    return unpacked(tmp_path_factory.mktemp("old"))


def lost(then: Any, now: Any, at: str = "") -> Iterator[str]:
    """Name everything in an old answer that the new one lacks."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key, value in then.items():
            if key not in IN_WORDS:
                yield from lost(value, now[key], f"{at}.{key}") if key in now else [f"{at}.{key} is missing"]
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, (one, other) in enumerate(zip(then, now, strict=True)):
            yield from lost(one, other, f"{at}[{number}]")
    elif isinstance(then, float) and isinstance(now, int | float):
        # Confidence fades by the hour. Moments were moved, but for those inside of a context.
        expected = [then, then + PASSED] if then > 1e9 else [pytest.approx(then, rel=5e-3, abs=1e-3)]
        if now not in expected:
            yield f"{at} was {then} and is {now}"
    elif then != now:
        yield f"{at} was {then} and is {now}"


def assert_nothing_is_lost(name: str, now: Any) -> None:
    assert list(lost(THEN[name], now)) == []


def test_pairs_that_were_learned_are_all_there(unchanged: Place) -> None:
    pairs = [json.loads(line) for line in unchanged.run("learning", "export").splitlines()]

    assert len(pairs) == 4
    assert_nothing_is_lost("pairs", pairs)
    assert_nothing_is_lost("learning", json.loads(unchanged.run("learning", "stats", "--json")))


def test_statistics_are_all_there(unchanged: Place) -> None:
    shown = json.loads(unchanged.run("stats", "--json"))

    assert sum(tool["calls"] for tool in shown["tools"]) == 7
    # Since then, a tool counts as unused after 30 days, whether it was called before or not.
    assert len(shown["unused"]) + shown["unused_newer"] >= 1
    then = {key: value for key, value in THEN["statistics"].items() if key != "unused"}
    assert list(lost(then, shown)) == []


def test_requests_and_what_was_chosen_for_them_are_all_there(unchanged: Place) -> None:
    shown = json.loads(unchanged.run("requests", "--json"))

    assert len(shown["requests"]) == 7
    assert_nothing_is_lost("requests", shown)
    latest = shown["requests"][0]
    assert json.loads(unchanged.run("requests", latest["id"], "--json"))["query"] == latest["query"]


def test_interactions_are_all_there_and_a_recall_says_what_finds_them_again(unchanged: Place) -> None:
    assert_nothing_is_lost("interactions", json.loads(unchanged.run("interactions", "stats", "--json")))
    found = json.loads(unchanged.run(*RECALL))

    assert (found["known"], found["without_embedding"]) == (16, 16)
    assert [(one["content"], one["cosine"]) for one in found["results"]] == [("We ship on Friday.", None)]
    assert "mcp-context-proxy backfill embeds them" in found["note"]


@pytest.mark.parametrize("model", ["", SAME_MODEL], ids=["default model", "same model"])
def test_interactions_are_found_by_their_meaning_after_a_backfill(place: Place, model: str) -> None:
    config = place.config(more=model)
    done = json.loads(place.run("backfill", "--json", config=config))
    found = json.loads(place.run(*RECALL, config=config))

    assert (done["embedded"], done["failed"], done["left"]) == (16, 0, 0)
    assert found["results"][0]["content"] == "We ship on Friday."
    assert found["without_embedding"] == 0
    if model:
        then = {one["id"]: one for one in THEN["recall"]["results"]}
        for one in found["results"]:
            cosine = then[one["id"]]["cosine"]
            assert one["cosine"] == pytest.approx(cosine, abs=1e-3)
            assert one["content"] == then[one["id"]]["content"]


def test_what_was_used_in_three_sessions_is_the_working_set(unchanged: Place) -> None:
    shown = json.loads(unchanged.run("tools", "--json"))["tools"]

    chosen = {tool["tool"]: bool(tool["working_set"]) for tool in shown}
    assert chosen == {tool["tool"]: bool(tool["working_set"]) for tool in THEN["tools"]["tools"]}
    assert [name for name, is_chosen in chosen.items() if is_chosen] == ["post_message"]


def test_a_search_goes_by_what_was_learned_then(place: Place) -> None:
    config = place.config(more=SAME_MODEL)
    found = json.loads(place.run("search", THEN["search"]["query"], "--explain", "--json", config=config))

    first, then = found["results"][0], THEN["search"]["results"][0]
    assert first["name"] == then["name"] == "desk__post_message"
    # What a past use adds is what the tool's own text lacks, and that depends on how a query is understood.
    assert first["cosine"] + first["learned"] >= then["cosine"] + then["learned"] - 1e-2
    assert first["learned"] > 0


@pytest.mark.parametrize("pair", THEN["pairs"], ids=lambda pair: str(pair["tool"]))
def test_a_search_with_the_default_model_goes_by_what_was_learned_with_another(
    unchanged: Place, pair: dict[str, Any]
) -> None:
    found = json.loads(unchanged.run("search", pair["query"], "--explain", "--json"))

    if pair["uses"] == 1 and pair["confidence"] <= first_confidence(Signal.UNLISTED):
        # One call that nothing had shown: it counts in full once it is confirmed.
        assert all(one["learned"] <= MOST_ADDED_IN_DOUBT * one["cosine"] for one in found["results"])
        return
    first = found["results"][0]
    assert first["name"] == f"desk__{pair['tool']}"
    assert first["learned"] > 0.1


async def test_a_lazy_server_is_listed_from_memory_without_its_program(place: Place) -> None:
    (place.folder / "bin" / "desk-of-the-old-store").unlink()
    async with stdio(command(place.config("all", "lazy")), env=place.env) as client:
        names = set(await client.names())

    assert {f"desk__{tool}" for tool in ("post_message", "create_ticket", "find_file", "report")} <= names


@pytest.mark.parametrize("model", ["", SAME_MODEL], ids=["default model", "same model"])
async def test_a_proxy_that_uses_the_store_keeps_all_of_it_and_embeds_each_tool_once_more(
    place: Place, model: str
) -> None:
    config = place.config(more=model)
    before = place.rows()
    assert {name: len(rows) for name, rows in before.items()} == {
        "vectors": 6,
        "requests": 7,
        "learned": 4,
        "searches": 7,
        "tool_sessions": 6,
        "interactions": 16,
        "interaction_vectors": 16,
    }

    place.run("index", config=config)
    indexed = place.rows()["vectors"]
    async with stdio(command(config), env=place.env) as client:
        await client.call("search_available_tools", {"query": "reserve a room for tomorrow"})
        answer = await client.call("call_tool", {"name": "desk__book_room", "arguments": {"day": "tomorrow"}})
        assert answer["content"][0]["text"] == "book_room: done"
    after = place.rows()

    assert {name: rows - after[name] for name, rows in before.items()} == {name: set() for name in before}
    keys = {key for _, key, _ in before["vectors"]}
    added = [(model_id, key) for model_id, key, _ in indexed - before["vectors"]]
    assert len(added) == len(keys)
    assert {key for _, key in added} == keys
    assert len({model_id for model_id, _ in added}) == 1
    assert after["vectors"] == indexed
    assert len(after["learned"]) == 5


@xdg_only
def test_the_api_takes_the_token_that_was_made_then_and_shows_the_same(place: Place) -> None:
    token = (OLD / "user" / "token").read_text(encoding="utf-8").strip()
    with http_proxy(place.config(), auth=True, env=place.env) as proxy:
        url = f"{proxy.base}/api/v1"
        refused = httpx2.get(f"{url}/requests", headers={"authorization": "Bearer another"})
        with httpx2.Client(headers={"authorization": f"Bearer {token}"}, timeout=PATIENCE) as client:
            requests = client.get(f"{url}/requests").json()["requests"]
            tools = client.get(f"{url}/statistics/tools").json()["tools"]
            interactions = client.get(f"{url}/interactions", params={"top_k": 50}).json()["results"]

    assert refused.status_code == 401
    assert [one["id"] for one in requests] == [one["id"] for one in THEN["requests"]["requests"]]
    calls = {(one["tool"], one["calls"], one["errors"]) for one in THEN["statistics"]["tools"]}
    assert {(one["name"], one["calls"], one["errors"]) for one in tools} == calls
    assert len(interactions) == 16


@xdg_only
def test_a_login_is_still_good_until_it_is_given_up(place: Place) -> None:
    config = place.folder / "locked.toml"
    config.write_text(f'[store]\npath = "memory"\n[servers.locked]\nurl = "{LOCKED["URL"]}"\n')
    with LOCKED["locked"]() as server:
        listed = json.loads(place.run("tools", "--json", config=config))["tools"]
        place.run("logout", "locked", config=config)
        after = json.loads(place.run("servers", "--json", config=config))["servers"]

        assert [tool["name"] for tool in listed] == ["locked__whoami"]
        assert server.granted == []
        assert server.renewal in server.revoked
        assert [one["state"] for one in after] != ["ready"]
