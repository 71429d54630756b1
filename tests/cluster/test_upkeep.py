"""One replica at a time deletes old rows and sums up statistics; another takes that over if it is lost."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.postgres import PostgresServer
from support.proxies import command
from support.stores import vector

from mcp_context_proxy.config import StoreConfig
from mcp_context_proxy.store.memory import Interaction, Pair, UseRow
from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.store.statistics import DAY, SearchUsage, ToolUsage, UsageSlot
from mcp_context_proxy.store.tables import UPKEEP_SECONDS, RequestRow, Upkeep

pytest.importorskip("psycopg")
pytestmark = pytest.mark.cluster

NOW = 1.7e9


def opened(server: PostgresServer, name: str) -> Store:
    return open_store(StoreConfig(url=server.url, namespace=name, timeout_seconds=0.5))


def test_one_replica_at_a_time_deletes_old_rows(postgres: PostgresServer) -> None:
    def rows(store: Store, number: int) -> int:
        store.requests.put([RequestRow(f"{number}", NOW + number, None, b"")], 2, NOW)
        return len(store.requests.latest(9))

    with opened(postgres, "upkeep") as other, opened(postgres, "upkeep") as further:
        with opened(postgres, "upkeep") as first:
            assert [rows(first, number) for number in range(3)] == [1, 2, 2]
            assert rows(other, 3) == 3
            assert rows(other, 4) == 4
            assert rows(first, 5) == 2
        # The one that did it has ended: another one does.
        assert rows(further, 6) == 2
        assert not other.database.does_upkeep()


def test_a_replica_that_was_paused_deletes_nothing_once_another_has_taken_over(
    postgres: PostgresServer,
) -> None:
    with opened(postgres, "paused") as paused, opened(postgres, "paused") as other:
        assert paused.database.does_upkeep()
        with other.database.transaction() as transaction:
            # As long as it was paused.
            transaction.execute("UPDATE leases SET until = until - ?", (UPKEEP_SECONDS,))
        assert other.database.does_upkeep()
        assert paused.database.does_upkeep()  # as far as it knows
        for number in range(3):
            paused.requests.put([RequestRow(f"{number}", NOW + number, None, b"")], 1, NOW)
        assert len(other.requests.latest(9)) == 3
        other.requests.put([RequestRow("3", NOW + 3, None, b"")], 1, NOW)
        assert len(other.requests.latest(9)) == 1


OLD_LEADER = """
import sys
from mcp_context_proxy.config import StoreConfig
from mcp_context_proxy.store.opening import open_store
url, namespace, until = sys.argv[1], sys.argv[2], float(sys.argv[3])
with open_store(StoreConfig(url=url, namespace=namespace, timeout_seconds=20)) as store:
    pairs, revision = store.learned.all(), store.learned.revision()
    print(store.database.does_upkeep(), flush=True)
    sys.stdin.readline()
    print(store.database.does_upkeep(), flush=True)  # as far as it knows
    store.statistics.roll_up(until, until)
    store.statistics.forget(0, 0, until)
    store.learned.prune(pairs, revision)
    store.learned.forget_uses()
    store.requests.forget_old(0, until)
    store.interactions.forget_old(0, until)
    print("tidied", flush=True)
    sys.stdin.readline()
"""


def test_a_leader_that_was_stopped_and_wakes_up_deletes_and_sums_up_nothing(postgres: PostgresServer) -> None:
    def written(store: Store) -> dict[str, int]:
        names = ("tool_usage", "learned", "uses", "requests", "interactions")
        return {name: store.database.number(f"SELECT COUNT(*) FROM {name}") for name in names}

    def tidy(store: Store) -> None:
        store.statistics.roll_up(until, until)
        store.learned.prune(store.learned.all(), store.learned.revision())
        store.learned.forget_uses()
        store.requests.forget_old(0, until)
        store.interactions.forget_old(0, until)

    until = NOW + 9 * DAY
    with opened(postgres, "stopped") as filling:
        usage = ToolUsage("s", "find", 1, 0, 1, 2.0, 3, NOW, {7: 1})
        slot = UsageSlot.of(NOW)
        filling.statistics.add([(slot, usage)], {slot: SearchUsage(1)}, [])
        filling.learned.put([Pair(b"k", ("s", "t"), "q", vector(1), "m", 0.5, 1, NOW, NOW)])
        filling.learned.teach(UseRow("1", NOW, "", "a", ("s", "t")), 0, lambda *_: ([], None))
        filling.requests.put([RequestRow("1", NOW, None, b"")], 9, 0.0)
        filling.interactions.put([Interaction("a", "message", "said", NOW)], NOW, 9, 0.0)
        before = written(filling)
    words = [sys.executable, "-c", OLD_LEADER, postgres.url, "stopped", str(until)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as leader:
        assert leader.stdin is not None
        assert leader.stdout is not None
        assert leader.stdout.readline() == "True\n"
        leader.send_signal(signal.SIGSTOP)
        with opened(postgres, "stopped") as other:
            assert not other.database.does_upkeep()
            with other.database.transaction() as transaction:
                # As long as it was stopped.
                transaction.execute("UPDATE leases SET until = until - ?", (UPKEEP_SECONDS,))
        with opened(postgres, "stopped") as other:
            assert other.database.does_upkeep()
            leader.stdin.write("\n")
            leader.stdin.flush()
            leader.send_signal(signal.SIGCONT)
            assert [leader.stdout.readline() for _ in range(2)] == ["True\n", "tidied\n"]
            assert written(other) == before
            tidy(other)
            assert written(other) == dict.fromkeys(before, 0)
        leader.stdin.write("\n")
        leader.stdin.flush()


def test_pruning_by_a_command_takes_the_upkeep_over_and_gives_it_back(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(f'[store]\nurl = "{postgres.url}"\nnamespace = "pruned"\n[limits]\nrequests_kept = 1\n')
    with opened(postgres, "pruned") as running, opened(postgres, "pruned") as late:
        assert running.database.does_upkeep()
        # In one that does no upkeep, nothing old goes.
        late.requests.put([RequestRow(f"{n}", time.time(), None, b"") for n in range(3)], 1, 0.0)
        assert len(late.requests.latest(9)) == 3
        done = subprocess.run(command(config, "store", "prune"), capture_output=True, text=True, check=True)
        assert "Deleted 2 rows" in done.stdout
        assert running.database.does_upkeep()  # as far as it knows
        running.requests.put([RequestRow(f"{n}", time.time(), None, b"") for n in range(3, 5)], 1, 0.0)
        assert len(late.requests.latest(9)) == 3
        assert late.leases.held() == []


def test_the_upkeep_of_a_lost_replica_is_taken_over(postgres: PostgresServer) -> None:
    now = 0.0
    with opened(postgres, "lost") as lost, opened(postgres, "lost") as other:
        lost_one = Upkeep(lost.leases, lambda: now)
        taking_over = Upkeep(other.leases, lambda: now)
        assert [lost_one.is_ours(), taking_over.is_ours()] == [True, False]
        with other.database.transaction() as transaction:
            # As much later.
            transaction.execute("UPDATE leases SET until = until - ?", (UPKEEP_SECONDS,))
        assert not taking_over.is_ours()
        now = UPKEEP_SECONDS / 2
        assert [taking_over.is_ours(), lost_one.is_ours()] == [True, False]
