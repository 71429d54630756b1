"""Runs the rows of a table in one test, where a test for each would take longer to begin than to run."""

import functools
import inspect
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from _pytest.mark import ParameterSet


def each(
    names: str | Sequence[str], rows: Iterable[Any]
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Call a test with each row, as ``pytest.mark.parametrize`` names them, and tell of all that fail.

    The rows share what fixtures give. A row may have a name of its own, by ``pytest.param``.
    """
    keys = names.replace(" ", "").split(",") if isinstance(names, str) else names
    table = [_row(keys, row, isinstance(names, str) and len(keys) == 1) for row in rows]
    assert table, "a table without rows proves nothing"

    def decorate(test: Callable[..., Any]) -> Callable[..., Any]:
        if inspect.iscoroutinefunction(test):

            @functools.wraps(test)
            async def run(**given: Any) -> None:
                failures: list[Exception] = []
                for name, values in table:
                    with _noted(name, failures):
                        await test(**given, **values)
                _tell(failures)

        else:

            @functools.wraps(test)
            def run(**given: Any) -> None:
                failures: list[Exception] = []
                for name, values in table:
                    with _noted(name, failures):
                        test(**given, **values)
                _tell(failures)

        asked = inspect.signature(test)
        rest = [one for name, one in asked.parameters.items() if name not in keys]
        vars(run)["__signature__"] = asked.replace(parameters=rest)
        return run

    return decorate


def _row(keys: Sequence[str], row: Any, alone: bool) -> tuple[str, dict[str, Any]]:
    name = reprlib.repr(row)
    if isinstance(row, ParameterSet):
        assert not row.marks, "a table has no marks"
        name, row, alone = str(row.id or row.values), row.values, False
    return name, dict(zip(keys, [row] if alone else row, strict=True))


@contextmanager
def _noted(name: str, failures: list[Exception]) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"row: {name}")
        failures.append(error)


def _tell(failures: list[Exception]) -> None:
    if len(failures) == 1:
        raise failures[0]
    if failures:
        raise ExceptionGroup(f"{len(failures)} rows", failures)
