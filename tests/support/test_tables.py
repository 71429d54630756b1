"""The rows of a table, in one test."""

import pytest

from support.tables import each


def test_every_row_runs_and_all_that_fail_are_told() -> None:
    seen = []

    @each("b", "xy")
    @each(("a", "more"), [(1, None), pytest.param(2, None, id="two"), (3, None)])
    def test(a: int, more: None, b: str, fixture: str) -> None:
        seen.append((a, b, fixture, more))
        assert a == 1

    with pytest.raises(ExceptionGroup) as failed:
        test(fixture="given")

    assert seen == [(a, b, "given", None) for b in "xy" for a in (1, 2, 3)]
    first = failed.value.exceptions[0]
    assert isinstance(first, ExceptionGroup)
    assert first.__notes__ == ["row: 'x'"]
    assert [error.__notes__ for error in first.exceptions] == [["row: two"], ["row: (3, None)"]]


async def awaited(number: int) -> None:
    assert number != 2


async def test_a_single_failure_is_raised_as_it_is() -> None:
    with pytest.raises(AssertionError) as failed:
        await each("number", [1, 2, 3])(awaited)()

    assert failed.value.__notes__ == ["row: 2"]


def test_an_empty_table_is_a_mistake() -> None:
    with pytest.raises(AssertionError, match="proves nothing"):
        each("number", [])
