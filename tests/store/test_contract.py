"""Every database keeps the same promises: a file, memory, two versions of PostgreSQL."""

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.stores import MODEL, NOW, add, key, reads, vector

from mcp_context_proxy.config import StoreConfig
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.credentials import CredentialStore, SealedRow
from mcp_context_proxy.store.memory import Interaction, InteractionScope, Pair, PairChanges, UseRow
from mcp_context_proxy.store.migrations import PAIRS
from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.store.statistics import DAY, HOUR, SearchUsage, ToolUsage, UsageSlot
from mcp_context_proxy.store.tables import Additions, ApprovalRow, RequestRow, ToolSession, VersionRow

SLOT = UsageSlot.of(NOW)
_names = (f"contract{number}" for number in itertools.count())

Open = Callable[[], Store]


@pytest.fixture(
    params=[
        "file",
        "memory",
        *(pytest.param(name, marks=pytest.mark.cluster) for name in ("postgres", "other_postgres")),
    ],
)
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens the same store once more, as another process would; of one in memory there is only one."""
    opened: list[Store] = []
    place: Any
    if request.param == "file":
        place = StoreConfig(path=str(tmp_path / "store.sqlite3"))
    elif request.param == "memory":
        place = "memory"
    else:
        place = StoreConfig(url=request.getfixturevalue(request.param).url, namespace=next(_names))

    def open_again() -> Store:
        if place == "memory" and opened:
            return opened[0]
        opened.append(open_store(place))
        assert opened[-1].warning is None
        return opened[-1]

    yield open_again
    for store in opened:
        store.close()


@pytest.fixture
def store(again: Open) -> Store:
    return again()


def used(tool: str = "find", owner: str = "", calls: int = 1) -> tuple[UsageSlot, ToolUsage]:
    return UsageSlot.of(NOW, owner=owner), ToolUsage("s", tool, calls, 0, calls, 2.0, 3, NOW, {7: calls})


def said(content: str, number: float = 0) -> Interaction:
    return Interaction("agent", "message", content, NOW + number)


def pair(number: int = 0, owner: str = "", uses: int = 1) -> Pair:
    return Pair(key(number), ("s", "t"), f"q{number}", vector(number), MODEL, 0.5, uses, NOW, NOW, owner)


def use(id_: str, session: str = "a", owner: str = "") -> UseRow:
    return UseRow(id_, time.time(), owner, session, ("s", "t"))


def as_told(answer: Any) -> str:
    return repr(sorted(answer.items()) if isinstance(answer, dict) else answer)


def ids(pairs: Any) -> list[tuple[str, bytes, int]]:
    return [(each.owner, each.key, each.uses) for each in pairs]


def test_everything_is_read_as_it_was_written(again: Open) -> None:
    with open_store("memory") as reference:
        for store in (again(), reference):
            add(store, range(20))
            add(store, range(15, 25))
        expected = [read() for read in reads(reference, range(3, 22))]
    found = [read() for read in reads(again(), range(3, 22))]

    assert [as_told(one) for one in found] == [as_told(one) for one in expected]


def test_a_transaction_is_all_or_nothing(store: Store) -> None:
    with pytest.raises(ValueError, match="stop"), store.database.transaction() as transaction:
        transaction.put("vectors", ("model_id", "key", "vector"), ("model_id", "key"), [("m", b"k", b"")])
        raise ValueError("stop")

    assert store.database.number("SELECT COUNT(*) FROM vectors") == 0
    with pytest.raises(StoreError):
        store.vectors.put(MODEL, {key(1): vector(1), None: vector(2)})  # type: ignore[dict-item]
    assert store.vectors.get(MODEL, [key(1)]) == {}


def test_any_text_of_a_stranger_can_be_kept(store: Store) -> None:
    odd = "a\0b 'c' \"d\" % %s ? \\ \N{GRINNING FACE} \u202e"
    store.requests.put([RequestRow("odd", NOW, odd, b"\0\xff", odd)], 10, 0.0)
    (kept,) = store.interactions.put([said(odd)], NOW, 10, 0.0)

    row = store.requests.get("odd")
    assert row is not None
    assert row.context == b"\0\xff"
    assert store.requests.latest(1, odd) == store.requests.latest_of(odd, 1) == [row]
    assert store.interactions.get([kept.id])[0].content.replace("\ufffd", "\0") == odd


def test_counts_of_owners_are_apart_and_summed_for_all(store: Store) -> None:
    searches = {SLOT: SearchUsage(1, 1), UsageSlot.of(NOW, owner="ann"): SearchUsage(2)}
    store.statistics.add([used(), used(owner="ann", calls=3)], searches, [])
    by_owner = store.statistics.tools_by_owner()

    assert {owner: tools["s", "find"].calls for owner, tools in by_owner.items()} == {"": 1, "ann": 3}
    (tool,) = store.statistics.tools()
    assert (tool.calls, tool.latency) == (4, {7: 4})
    assert [usage.searches for usage in store.statistics.searched().values()] == [3]
    assert store.statistics.calls() == {SLOT: (4, 0)}


def test_a_batch_of_counts_that_is_sent_twice_counts_once(again: Open) -> None:
    one, other = again(), again()
    number = one.statistics.next_batch()
    for _ in range(2):
        one.statistics.add([used()], {SLOT: SearchUsage(1)}, [], number)
    other.statistics.add([used()], {SLOT: SearchUsage(1)}, [])

    assert [tool.calls for tool in one.statistics.tools()] == [2]
    assert [usage.searches for usage in other.statistics.searched().values()] == [2]


def test_counts_of_all_who_share_the_store_become_days_together(again: Open) -> None:
    for store in (again(), again()):
        store.statistics.add([used(), used(owner="ann")], {SLOT: SearchUsage(1, latency={3: 1})}, [])
    store.statistics.roll_up(NOW + 3 * DAY, NOW - 9 * DAY)
    store.statistics.roll_up(NOW + 3 * DAY, NOW - 9 * DAY)

    assert store.statistics.calls() == {UsageSlot.of(NOW, DAY): (4, 0)}
    assert store.statistics.tools()[0].latency == {7: 4}
    assert store.database.number("SELECT COUNT(*) FROM tool_usage") == 2
    store.statistics.forget(1, 0, NOW + HOUR)
    assert store.database.number("SELECT COUNT(*) FROM tool_usage") == 1


def test_counting_is_noticed_by_others_but_not_by_who_counts(again: Open) -> None:
    one, other = again(), again()
    before = one.statistics.version(), other.statistics.version()
    one.statistics.add([used()], {}, [])

    assert one.statistics.version() == before[0]
    if other is not one:
        assert other.statistics.version() != before[1]


def test_a_use_is_learned_once_with_what_its_session_has_learned_before(store: Store) -> None:
    lessons = list[Any]()

    def decide(changes: PairChanges, taught: Any) -> Any:
        lessons.append(taught)
        return ([pair()], key(0)) if not taught else ([], None)

    first = store.learned.teach(use("1"), 0, decide)
    store.learned.teach(use("1"), first.revision, decide)
    store.learned.teach(use("2"), first.revision, decide)
    store.learned.teach(use("3", session="b"), first.revision, decide)
    store.learned.teach(use("4", owner="ann"), first.revision, decide)

    assert lessons == [set(), {(key(0), ("s", "t"))}, set(), set()]
    assert ids(store.learned.all()) == [("", key(0), 1)]


def test_whoever_follows_pairs_by_revision_hears_of_new_and_deleted_ones(again: Open) -> None:
    one, other = again(), again()
    one.learned.put([pair(1), pair(2, owner="ann")])
    seen = other.learned.changes(0)
    one.learned.put([pair(1, uses=2)])
    one.learned.remove([pair(2, owner="ann")])
    changes = other.learned.changes(seen.revision)

    assert ids(seen.pairs) == [("", key(1), 1), ("ann", key(2), 1)]
    assert ids(changes.pairs) == [("", key(1), 2)]
    assert changes.gone == {("ann", (key(2), ("s", "t")))}
    assert other.learned.changes(changes.revision) == PairChanges(changes.revision)
    one.learned.put([pair(2, owner="ann")])
    assert other.learned.changes(changes.revision).gone == frozenset()


def test_a_pair_that_was_renewed_meanwhile_is_not_forgotten(again: Open) -> None:
    one, other = again(), again()
    one.learned.put([pair(1), pair(2)])
    seen = other.learned.revision()
    one.learned.put([pair(1, uses=2)])
    other.learned.remove([pair(1), pair(2)], seen)

    assert ids(one.learned.all()) == [("", key(1), 2)]


def test_writers_of_one_area_skip_nothing_for_a_reader(again: Open) -> None:
    """A reader that goes on after the last row it has seen finds all, whoever commits first."""
    writers = [again() for _ in range(3)]
    reader, read, done = again(), list[str](), threading.Event()

    def write(store: Store, name: str) -> None:
        for number in range(20):
            store.interactions.put([said(f"{name} {number}", number)], NOW, 1_000, 0.0)

    def follow() -> None:
        latest = 0
        while True:
            ended = done.is_set()
            found = reader.interactions.after(latest, 1_000)
            read.extend(one.content for one in found)
            latest = found[-1].id if found else latest
            if ended and not found:
                return

    following = threading.Thread(target=follow)
    following.start()
    writing = [threading.Thread(target=write, args=(store, f"w{at}")) for at, store in enumerate(writers)]
    for thread in writing:
        thread.start()
    for thread in writing:
        thread.join(60)
    done.set()
    following.join(60)

    assert len(read) == len(set(read)) == 60


def test_an_interaction_that_is_sent_twice_is_kept_once_and_stays_forgotten(store: Store) -> None:
    rows, origins = [said("one"), said("two")], ["o1", "o2"]
    kept = store.interactions.put(rows, NOW, 10, 0.0, origins)
    again = store.interactions.put([*rows, said("three")], NOW, 10, 0.0, [*origins, "o3"])

    assert [one.id for one in again[:2]] == [one.id for one in kept]
    assert store.interactions.count(InteractionScope()) == 3
    assert store.interactions.forget_one(kept[0].id)
    assert not store.interactions.forget_one(kept[0].id)
    assert [one.id for one in store.interactions.put(rows[:1], NOW, 10, 0.0, origins[:1])] == [0]
    assert store.interactions.count(InteractionScope()) == 2


def test_a_forgotten_interaction_leaves_no_vector(store: Store) -> None:
    kept = store.interactions.put([said(f"{n}", n) for n in range(5)], NOW, 10, 0.0)
    store.interactions.put_vectors(MODEL, {one.id: vector(one.id) for one in kept} | {999: vector(9)})
    (second,) = [one for one in store.interactions.vectors(MODEL, 0, 9) if one.interaction == kept[1].id]
    store.interactions.put_vectors(MODEL, {kept[1].id: vector(7)})
    store.interactions.forget_one(kept[0].id)

    found = store.interactions.vectors(MODEL, 0, 99)
    assert [one.interaction for one in found] == [*(one.id for one in kept[2:]), kept[1].id]
    assert found[-1].seq > second.seq
    assert store.interactions.vector_count(MODEL) == 4


def test_the_latest_rows_are_kept(store: Store) -> None:
    store.requests.put([RequestRow(f"r{n}", NOW + n, None, b"") for n in range(9)], 3, NOW)
    store.tool_sessions.add([ToolSession("s", f"t{n}", "x", NOW + n) for n in range(9)], NOW + 8, 9)
    kept = store.interactions.put([said(f"{n}", n) for n in range(9)], NOW, 2, 0.0)

    assert [row.id for row in store.requests.latest(9)] == ["r8", "r7", "r6"]
    assert store.tool_sessions.tools() == [("s", "t8")]
    assert [one.id for one in store.interactions.after(0, 9)] == [one.id for one in kept[-2:]]


def test_decisions_about_a_server_are_made_one_after_the_other(again: Open) -> None:
    def row(name: str) -> ApprovalRow:
        return ApprovalRow("s", "tool", name, b"1", b"2", "approved", "new", "", "", "1", "mode", NOW)

    def decide(name: str) -> Any:
        return lambda _: Additions(
            (row(name),), {row(name).key: b"{}"}, (VersionRow("s", "tool", "c", name, NOW),)
        )

    stores = [again() for _ in range(3)]
    names = [f"n{n}" for n in range(9)]
    deciding = [
        threading.Thread(target=stores[at % 3].approvals.decide, args=("s", decide(name)))
        for at, name in enumerate(names)
    ]
    for thread in deciding:
        thread.start()
    for thread in deciding:
        thread.join(60)
    record = stores[0].approvals.record("s")

    assert sorted(one.name for one in record.rows) == names
    assert sorted(one.revision for one in record.rows) == [*range(1, 10)]
    assert record.damaged == 0
    assert {one.version for one in record.versions} == set(names)


def test_one_process_has_a_lease_until_it_ends_and_a_late_one_is_told(again: Open) -> None:
    one, other = again(), again()
    lease = one.leases.take("job", 60)
    assert lease is not None
    renewed = one.leases.take("job", 60)
    assert renewed is not None
    assert renewed.token == lease.token
    if other is one:
        return
    assert other.leases.take("job", 60) is None
    one.leases.give_back(renewed)
    taken = other.leases.take("job", 60)

    assert taken is not None
    assert taken.token > lease.token
    with one.database.transaction() as transaction:
        assert not transaction.holds("job", lease.token)
        assert transaction.holds("job", taken.token)
    assert [(job, holder) for job, holder, _ in one.leases.held()] == [("job", other.database.writer)]


def test_a_lease_from_a_time_when_the_clock_was_years_ahead_keeps_nobody_from_the_job(again: Open) -> None:
    one, other = again(), again()
    assert one.leases.take("job", 60) is not None
    with one.database.transaction() as transaction:
        transaction.execute("UPDATE leases SET until = until + ?", (365 * DAY,))

    assert other.leases.take("job", 60) is not None


def test_the_first_choice_of_a_day_counts(again: Open) -> None:
    one, other = again(), again()
    assert one.working_sets.get("2026-01-01", 500) is None
    assert one.working_sets.choose("2026-01-01", 500, {("s", "a"): "often"}) == {("s", "a"): "often"}

    assert other.working_sets.choose("2026-01-01", 500, {("s", "b"): "more often"}) == {("s", "a"): "often"}
    assert other.working_sets.get("2026-01-01", 500) == {("s", "a"): "often"}
    assert other.working_sets.get("2026-01-02", 500) is None


def test_a_credential_is_replaced_only_as_it_was_read(again: Open) -> None:
    one, other = (CredentialStore(store.database) for store in (again(), again()))
    first = one.put(SealedRow("login", "s", b"1", "mark", 0))
    assert first is not None
    second = other.put(replace(first, sealed=b"2"))

    assert second is not None
    assert one.put(replace(first, sealed=b"3")) is None
    assert one.put(replace(first, revision=0)) is None
    assert one.get("login", "s") == second
    assert one.get("token", "s") is None
    assert other.all() == [second]
    assert one.revision() == second.revision > first.revision


def test_each_area_has_a_revision_that_grows_with_its_changes(store: Store) -> None:
    before = store.database.changes()
    store.learned.put([pair()])
    after = store.database.changes()

    assert after[PAIRS] == before[PAIRS] + 1
    assert {area for area in after if after[area] != before[area]} == {PAIRS}


def test_a_closed_store_says_so(again: Open) -> None:
    store = again()
    store.close()

    with pytest.raises(StoreError, match="closed"):
        store.learned.count()
