"""Two runs side by side."""

from pathlib import Path

import pytest

from mcp_context_proxy.errors import DataFileError
from mcp_context_proxy.evaluation import Answer, EvalQuery, compare_files, write_run


def answer(query: str, names: str, selected: int = 1, fits: bool = True) -> Answer:
    return Answer(query, [("s", name, 1 / place) for place, name in enumerate(names, 1)], selected, fits)


def needing(text: str, name: str) -> EvalQuery:
    return EvalQuery(text, (frozenset({("s", name)}),))


@pytest.fixture
def runs(tmp_path: Path):
    def write(*runs: list[Answer]) -> list[Path]:
        paths = [tmp_path / f"{number}.run" for number in range(len(runs))]
        for path, answers in zip(paths, runs, strict=True):
            write_run(path, answers)
        return paths

    return write


def test_differences_are_second_less_first_by_query_whatever_the_order(runs) -> None:
    first, second = runs(
        [answer("one", "ab"), answer("two", "ab"), answer("three", "ab")],
        [answer("three", "ba"), answer("one", "ba"), answer("two", "ab")],
    )
    queries = [needing("one", "b"), needing("two", "b"), needing("three", "b")]

    found = compare_files(first, second, queries)

    assert (found["recall@1"].first, found["recall@1"].second) == (0, pytest.approx(2 / 3))
    assert found["recall@1"].difference.mean == pytest.approx(2 / 3)
    assert 0 <= found["recall@1"].difference.low < 2 / 3 < found["recall@1"].difference.high <= 1
    assert found["recall@5"].difference.high == 0


def test_a_run_does_not_differ_from_itself(runs) -> None:
    (only,) = runs([answer("one", "ab"), answer("two", "cd")])

    found = compare_files(only, only, [needing("one", "b"), needing("two", "c")])

    assert {one.difference.low for one in found.values()} == {0}
    assert {one.difference.high for one in found.values()} == {0}


def test_without_queries_only_the_selections_are_compared(runs) -> None:
    first, second = runs([answer("q", "ab", 2)], [answer("q", "ab", 1, fits=False)])

    found = compare_files(first, second, None)

    assert {name: one.difference.mean for name, one in found.items()} == {"selected": -1, "fits": -1}


def test_queries_with_one_text_are_paired_in_their_order(runs) -> None:
    first, second = runs([answer("q", "ab"), answer("q", "cd")], [answer("q", "ab"), answer("q", "dc")])

    found = compare_files(first, second, [needing("q", "a"), needing("q", "c")])

    assert (found["recall@1"].first, found["recall@1"].second) == (1, 0.5)


def test_runs_over_different_queries_are_not_compared(runs) -> None:
    first, second = runs([answer("one", "a"), answer("two", "a")], [answer("one", "a")])

    with pytest.raises(DataFileError, match=r"1.run: it does not answer the query 'two'"):
        compare_files(first, second, None)
    with pytest.raises(DataFileError, match=r"1.run: it answers 2 queries where 1 are compared"):
        compare_files(*runs([answer("one", "a")], [answer("one", "a"), answer("two", "a")]), None)
