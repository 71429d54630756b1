"""Decisions on definitions, kept in a store that may fail and that several proxies use."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

from support.listings import Run, approve, tool
from support.stores import NOW, add

from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.store.tables import Additions, ApprovalStore, VersionRow
from mcp_context_proxy.trust.decisions import decide
from mcp_context_proxy.trust.fingerprints import Event, State

ADD = tool("add")


def test_two_proxies_on_one_store_never_approve_two_first_definitions(store: Store) -> None:
    one, other = Run(store), Run(store)
    one.clients, other.clients = {}, {}
    one.list("calc", ADD)
    other.list("calc", ADD | {"description": "Adds otherwise."})

    assert one.served() == ["calc__add"]
    assert not other.served()


def test_proxies_whose_servers_list_different_definitions_do_not_outvote_each_other(store: Store) -> None:
    old, new = Run(store), Run(store)
    old.list("calc", ADD)
    new.list("calc", ADD)
    new.list("calc", ADD | {"description": "Adds otherwise."})
    decided = store.approvals.revision()

    for run in (old, new) * 3:
        run.approvals.refresh()
        run.catalog.refresh()
    assert store.approvals.revision() == decided
    assert (old.served(), new.served()) == (["calc__add"], [])

    # One that starts with the former definition does not hide that another has one that waits.
    Run(store).list("calc", ADD)
    for run in (old, new) * 2:
        run.approvals.refresh()
        run.catalog.refresh()
    approve(store, "calc", "add")
    new.approvals.refresh()
    new.catalog.refresh()
    assert new.served() == ["calc__add"]


class Failing(ApprovalStore):
    """A store that fails until it is repaired."""

    def __init__(self, store: Store) -> None:
        super().__init__(store.database)
        self.broken = True

    def record(self, server: str) -> Any:
        self._fail()
        return super().record(server)

    def decide(self, server: str, decide: Any) -> Any:
        self._fail()
        return super().decide(server, decide)

    def revision(self) -> int:
        self._fail()
        return super().revision()

    def _fail(self) -> None:
        if self.broken:
            raise StoreError("store", "it is locked")  # type: ignore[arg-type]


def test_a_store_that_fails_costs_no_tool_and_takes_no_change(store: Store) -> None:
    store.approvals = failing = Failing(store)
    run = Run(store)
    run.list("calc", ADD)
    assert run.served() == ["calc__add"]
    assert any("cannot be read" in finding for finding in run.catalog.snapshot.findings)
    run.list("calc", ADD | {"description": "Adds otherwise."})
    assert not run.served()

    failing.broken = False
    run.approvals.refresh()
    run.catalog.refresh()
    assert not run.served()
    run.list("calc", ADD)
    assert run.served() == ["calc__add"]


def test_a_store_that_works_again_outweighs_what_was_decided_without_it(store: Store) -> None:
    Run(store).list("calc", ADD)
    store.approvals = failing = Failing(store)
    run = Run(store)
    run.list("calc", ADD | {"description": "Adds otherwise."})
    failing.broken = False
    run.approvals.refresh()
    run.catalog.refresh()

    assert not run.served()


def test_what_a_store_that_works_again_has_already_is_not_held_and_not_written_twice(store: Store) -> None:
    Run(store).list("calc", ADD)
    before = store.approvals.record("calc").rows
    store.approvals = failing = Failing(store)
    run = Run(store)
    run.list("calc", ADD)
    failing.broken = False
    run.approvals.refresh()
    run.catalog.refresh()

    assert run.served() == ["calc__add"]
    assert store.approvals.record("calc").rows == before


def test_a_damaged_record_counts_as_missing_and_says_so(store: Store) -> None:
    Run(store).list("calc", ADD)
    with store.database.transaction() as connection:
        connection.execute("UPDATE approvals SET state = 'approvex'")
    run = Run(store)
    run.list("calc", ADD, tool("sub"))

    assert run.served() == ["calc__add", "calc__sub"]
    assert any("seen for the first time" in finding for finding in run.catalog.snapshot.findings)


def test_a_list_that_was_approved_is_known_without_its_record_until_somebody_decides(store: Store) -> None:
    Run(store).list("calc", ADD)
    run = Run(store)
    store.approvals.record = None  # type: ignore[assignment,method-assign]  # it is not read
    run.list("calc", ADD)
    assert run.served() == ["calc__add"]
    del store.approvals.record
    decide(store, "calc", ["add"], State.REJECTED, by="test")
    again = Run(store)
    again.list("calc", ADD)
    assert not again.served()


def test_observers_get_each_decision_once(store: Store) -> None:
    run = Run(store)
    run.list("calc", ADD)
    run.list("calc", ADD)
    run.list("calc", ADD | {"description": "Adds otherwise."})

    decisions = [(event.name, event.event, event.state) for event in run.events]
    assert decisions == [("add", Event.FIRST, State.APPROVED), ("add", Event.CHANGED, State.HELD)]


def test_observers_get_the_decisions_of_other_processes_once_and_as_theirs(store: Store) -> None:
    run = Run(store)
    run.list("calc", ADD)
    run.list("calc", ADD | {"description": "Adds otherwise."})
    run.approvals.refresh()
    before = len(run.events)
    approve(store, "calc")
    run.approvals.refresh()
    run.approvals.refresh()

    told = [(event.name, event.state, event.decided, event.elsewhere) for event in run.events[before:]]
    assert told == [("add", State.APPROVED, "test", True)]
    assert run.events[before].approved_tool == ("calc", "add")
    assert not any(event.elsewhere or event.approved_tool for event in run.events[:before])


def test_the_first_sight_of_a_server_and_of_a_tool_outlasts_new_versions(store: Store) -> None:
    """By it a search tells copies from what they repeat."""
    run = Run(store)
    before = run.list("calc", ADD, version="calc 1").first_seen
    after = run.list("calc", ADD | {"description": "Adds."}, tool("sub"), version="calc 2").first_seen
    many = tuple(VersionRow("old", "tool", "", str(number), NOW + number) for number in range(300))
    store.approvals.decide("old", lambda _: Additions(versions=many))

    assert before.keys() == {("calc", ""), ("calc", "add")}
    assert after.items() >= before.items()
    assert after["calc", "sub"] > after["calc", "add"]
    assert store.approvals.first_seen()["old", ""] == NOW


def test_another_process_knows_who_was_there_first(store: Store) -> None:
    one, other = Run(store), Run(store)
    other.list("calc", ADD)
    seen = one.list("calc", ADD).first_seen | one.list("maths", ADD, tool("sub")).first_seen
    other.list("maths", ADD, tool("sub"))
    assert other.approvals.refresh()

    assert other.catalog.refresh().first_seen == seen


def test_a_tool_that_often_changes_was_there_first_all_the_same(store: Store) -> None:
    run = Run(store)
    first = run.list("calc", ADD).first_seen
    for number in range(30):
        run.list("calc", ADD | {"description": f"Adds {number}."}, version=f"calc {number}")

    assert run.served() == ["calc__add"]
    assert run.catalog.snapshot.first_seen == first


def test_what_was_rejected_is_not_served_again_after_other_pages_of_the_store_were_damaged(
    tmp_path: Path,
) -> None:
    path = tmp_path / "store.sqlite3"
    with open_store(path) as store:
        add(store, range(300))
        Run(store).list("calc", ADD)
        decide(store, "calc", ["add"], State.REJECTED, by="test")
        pairs = {pair.key for pair in store.learned.all()}
    with contextlib.closing(sqlite3.connect(path)) as database:
        (page,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = 'requests'").fetchone()
        (size,) = database.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * size)

    with open_store(path) as store:
        run = Run(store)
        run.list("calc", ADD, tool("subtract"))

        assert store.warning is not None
        assert (
            "with its decisions (1), definitions (1), versions of servers (1), learned pairs (300)"
            in store.warning
        )
        assert run.served() == ["calc__subtract"]
        assert {pair.key for pair in store.learned.all()} == pairs
