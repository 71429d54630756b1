"""Counts that wait for the store are added up and stay small, however long they wait."""

from mcp_context_proxy.statistics import ROWS, Batch
from mcp_context_proxy.store.statistics import SearchRow, SearchUsage, UsageSlot

NOW = 1_700_000_000.0


def row(number: int, chosen: str | None = None) -> SearchRow:
    return SearchRow(f"{number}", NOW, b"", None, "search", 1, "s__a", chosen, None, 1.0, False)


def batch(calls: int = 1) -> Batch:
    made = Batch()
    for _ in range(calls):
        made.add_calls([(("s", "t"), 5.0, False, 10, "")], NOW)
    made.add_tokens(NOW, shown=1, behind=2)
    return made


def test_batches_that_could_not_be_written_are_added_up() -> None:
    waiting = Batch()
    for _ in range(50):
        waiting.take(batch(calls=2))
    ((slot, usage),) = waiting.tools

    assert (slot, usage.calls, usage.ms) == (UsageSlot.of(NOW), 100, 500.0)
    assert waiting.searches == {UsageSlot.of(NOW): SearchUsage(shown=50, behind=100)}


def test_a_batch_keeps_the_latest_searches_in_their_latest_state() -> None:
    waiting = Batch()
    for number in range(ROWS + 5):
        waiting.add_search(row(number))
    waiting.add_use(row(10, chosen="s__b"))

    assert len(waiting.rows) == ROWS
    assert next(iter(waiting.rows)) == "5"
    assert waiting.rows["10"].chosen == "s__b"


def test_an_empty_batch_is_not_written() -> None:
    assert not Batch()
    assert batch()
