"""A proxy that is killed at any moment has lost nothing that it acknowledged, and its store is sound."""

import random
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import httpx2
import pytest
from support.proxies import http_proxy
from support.servers import Workshop, tool

from mcp_context_proxy import Interactions

pytestmark = pytest.mark.slow

PATH = "/api/v1/interactions"
KILLS = 4


def posted_until_it_dies(base: str, name: str, acknowledged: dict[int, str], enough: threading.Event) -> None:
    """Post as fast as answers come, until there are none any more."""
    with httpx2.Client(base_url=base, timeout=30) as client:
        for number in range(100_000):
            content = f"{name} said {number}"
            try:
                answer = client.post(PATH, json={"content": content, "agent_name": name})
            except httpx2.HTTPError:
                return
            assert answer.status_code == 200, answer.text
            acknowledged[answer.json()["id"]] = content
            enough.set()


def integrity(store: Path) -> list[str]:
    with closing(sqlite3.connect(store)) as connection, connection:
        return [row[0] for row in connection.execute("PRAGMA integrity_check")]


def test_acknowledged_interactions_survive_kills_at_random_moments(
    workshop: Workshop,
) -> None:
    moments = random.Random(20_261_121)
    workshop.server("work", tools=[tool("echo")])
    store = workshop.folder / "store.sqlite3"
    config = workshop.config(store={"path": str(store)}, interactions={"enabled": True})
    acknowledged: dict[int, str] = {}
    for kill in range(KILLS):
        with http_proxy(config) as running:
            begun = threading.Event()
            clients = [
                threading.Thread(
                    target=posted_until_it_dies, args=(running.base, f"agent {kill}-{n}", acknowledged, begun)
                )
                for n in range(3)
            ]
            for client in clients:
                client.start()
            assert begun.wait(60)
            # The moment itself is what is tried, so it is no wait for anything.
            threading.Event().wait(moments.uniform(0, 0.4))
            running.process.kill()
            for client in clients:
                client.join(60)

        assert integrity(store) == ["ok"]
        with Interactions(store) as interactions:
            found = interactions.recent(limit=10_000)
            kept = {one.interaction.id: one.interaction.content for one in found.results}
            assert acknowledged.items() <= kept.items()
            assert len(kept) == found.known

    assert len(acknowledged) > KILLS
    with Interactions(store) as interactions:
        recall = interactions.semantic_search_interactions("agent 0-0 said 0", top_k=1000)
    assert recall.known >= len(acknowledged)
    assert not list(workshop.folder.glob("*corrupt*"))
