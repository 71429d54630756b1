"""CSV and JSON tables of the shared folder: look at them, filter, sum up, query with SQL."""

import csv
import io
import json
import re
import sqlite3
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Annotated, Literal, TypeAlias, TypedDict

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.storage import locate, read_text, relative, shared_files

Row: TypeAlias = dict[str, object]

SQL_STEPS = 100_000_000
"""Steps of SQLite's virtual machine that one query may take: some seconds."""

SQL_CHECK_EVERY = 100_000
"""Steps between two checks of the limit."""

READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
"""Actions that a query may take; everything else, such as attaching another file, is denied."""

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]+)?")
"""Fields that count as numbers; '007' and 'nan' are text."""

AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "count": len,
    "sum": sum,
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
}


class Selection(TypedDict):
    rows: list[Row]
    total: int


class Column(TypedDict):
    name: str
    filled: int
    examples: list[object]


server = Server("tables", "Tables in CSV and JSON files of the shared folder: filter, sum up, SQL.")

TablePath = Annotated[str, "Path of a .csv file, or of a .json file with a list of objects"]
Limit = Annotated[int, "How many rows at most", Between(1, 1000)]


@server.tool(read_only=True)
def list_tables() -> list[str]:
    """List the CSV and JSON files that can be used as tables."""
    return [relative(file) for file in shared_files() if file.suffix.lower() in (".csv", ".json")]


@server.tool(read_only=True)
def describe_table(path: TablePath) -> list[Column]:
    """Tell the columns of a table: name, how many values are filled, examples of them."""
    rows = _load(path)
    columns: list[Column] = []
    for name in _columns(rows):
        values = [row[name] for row in rows if row.get(name) is not None]
        columns.append({"name": name, "filled": len(values), "examples": values[:3]})
    return columns


@server.tool(read_only=True)
def query_table(
    path: TablePath,
    where: Annotated[dict[str, str] | None, "Columns, and the value that each must have"] = None,
    limit: Limit = 50,
) -> Selection:
    """Find the rows of a table that have certain values."""
    rows = _load(path)
    for column, value in (where or {}).items():
        _need(rows, column)
        rows = [row for row in rows if row.get(column) == _scalar(value)]
    return {"rows": rows[:limit], "total": len(rows)}


@server.tool(read_only=True)
def aggregate_table(
    path: TablePath,
    group_by: Annotated[str, "Column whose values make the groups"],
    function: Annotated[Literal["count", "sum", "mean", "median", "min", "max"], "What to compute"],
    column: Annotated[str | None, "Column with the numbers; not needed for count"] = None,
) -> list[Row]:
    """Group the rows of a table by a column and count, add up or average each group, like a pivot table."""
    rows = _load(path)
    _need(rows, group_by)
    if function != "count":
        _need(rows, column)
    groups: dict[object, list[float]] = {}
    for row in rows:
        value = 1 if function == "count" else row.get(str(column))
        if isinstance(value, int | float):
            groups.setdefault(row.get(group_by), []).append(value)
    return [{group_by: key, function: AGGREGATES[function](numbers)} for key, numbers in groups.items()]


@server.tool(read_only=True)
def query_table_with_sql(
    path: TablePath,
    sql: Annotated[str, "One SELECT statement; the table is called 'data'"],
    limit: Limit = 50,
) -> list[Row]:
    """Run a SQL SELECT over a table: to sort, compare or compute, where query_table is not enough."""
    rows = _load(path)
    columns = _columns(rows)
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
    marks = ", ".join("?" for _ in columns)
    checks = iter(range(SQL_STEPS // SQL_CHECK_EVERY))
    with closing(sqlite3.connect(":memory:")) as connection:
        try:
            connection.execute(f"CREATE TABLE data ({quoted})")
            values = [[row.get(name) for name in columns] for row in rows]
            connection.executemany(f"INSERT INTO data VALUES ({marks})", values)
            connection.set_progress_handler(lambda: next(checks, None) is None, SQL_CHECK_EVERY)
            connection.set_authorizer(lambda action, *_rest: int(action not in READING))
            cursor = connection.execute(sql)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, values, strict=True)) for values in cursor.fetchmany(limit)]
        except (sqlite3.Error, sqlite3.Warning) as e:
            raise ToolError(f"the query failed: {e}; columns: {', '.join(columns)}") from e


@server.tool()
def create_table(
    path: Annotated[str, "Path of the new .csv file"],
    rows: Annotated[list[dict[str, object]], "Rows as objects; their keys are the columns"],
) -> list[Column]:
    """Write rows into a new CSV file."""
    if not path.lower().endswith(".csv"):
        raise ToolError(f"{path!r} must end in .csv")
    text = json_to_csv(rows)
    locate(path, new=True).write_text(text, "utf-8", newline="")
    return describe_table(path)


@server.tool(read_only=True)
def csv_to_json(text: Annotated[str, "CSV with a header line"]) -> list[Row]:
    """Turn CSV text into JSON: one object per row."""
    lines = list(csv.reader(io.StringIO(text, newline="")))
    columns = lines[0] if lines else []
    if not columns or len(set(columns)) != len(columns):
        raise ToolError("the first line must name the columns, each once")
    padding = [""] * len(columns)
    return [dict(zip(columns, map(_scalar, line + padding), strict=False)) for line in lines[1:] if line]


@server.tool(read_only=True)
def json_to_csv(rows: Annotated[list[dict[str, object]], "Objects; their keys are the columns"]) -> str:
    """Turn a JSON list of objects into CSV text."""
    if not rows:
        raise ToolError("rows must not be empty: the columns are taken from them")
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _load(path: str) -> list[Row]:
    text = read_text(path).removeprefix("\ufeff")
    if not path.lower().endswith(".json"):
        return csv_to_json(text)
    try:
        rows = json.loads(text)
    except ValueError as e:
        raise ToolError(f"{path!r} is not JSON: {e}") from e
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ToolError(f"{path!r} is JSON, but not a list of objects")
    return rows


def _scalar(text: str) -> object:
    if NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text or None


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _need(rows: Sequence[Row], column: str | None) -> None:
    known = _columns(rows)
    if rows and column not in known:
        raise ToolError(f"there is no column {column!r}; columns: {', '.join(known)}")


if __name__ == "__main__":
    server.run()
