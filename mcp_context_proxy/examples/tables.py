"""CSV and JSON tables of the shared folder: look at them, filter, sum up, join, query with SQL."""

import csv
import io
import json
import operator
import re
import sqlite3
import statistics
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Annotated, Any, Literal, TypeAlias, TypedDict

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.storage import existing_file, locate, relative, shared_folder

Row: TypeAlias = dict[str, object]

MAX_BYTES = 8 << 20
"""Largest table file; it is read whole into memory."""

SQL_STEPS = 100_000_000
"""Steps of SQLite's virtual machine that one query may take: some seconds."""

SQL_CHECK_EVERY = 100_000
"""Steps between two checks of the limit."""

READING = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
"""Actions that a query may take; everything else, such as attaching another file, is denied."""

NUMBER = re.compile(r"-?(?:0|[1-9][0-9]{0,14})(?:\.[0-9]+)?")
"""Fields that count as numbers; '007' and 'nan' are text."""

COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

AGGREGATES: dict[str, Callable[[Sequence[float]], float]] = {
    "sum": sum,
    "mean": statistics.fmean,
    "median": statistics.median,
    "min": min,
    "max": max,
}


class Rows(TypedDict):
    rows: list[Row]
    total: int


class Column(TypedDict):
    name: str
    kind: str
    filled: int
    distinct: int
    examples: list[object]


class Description(TypedDict):
    rows: int
    columns: list[Column]


class Condition(TypedDict):
    column: Annotated[str, "Name of the column"]
    operator: Annotated[Literal["=", "!=", "<", "<=", ">", ">=", "contains"], "How to compare"]
    value: Annotated[str, "What to compare with; numbers are compared as numbers"]


server = Server("tables", "Tables in CSV and JSON files of the shared folder: filter, sum up, join, SQL.")

TablePath = Annotated[str, "Path of a .csv file, or of a .json file with a list of objects"]
Limit = Annotated[int, "How many rows at most", Between(1, 1000)]


@server.tool(read_only=True)
def list_tables() -> list[str]:
    """List the CSV and JSON files that can be used as tables."""
    files = sorted(file for file in shared_folder().rglob("*") if file.suffix.lower() in (".csv", ".json"))
    return [relative(file) for file in files if not file.is_symlink() and file.is_file()]


@server.tool(read_only=True)
def describe_table(path: TablePath) -> Description:
    """Tell the columns of a table: name, kind of values, how many are filled, distinct values, examples."""
    rows = _load(path)
    return {"rows": len(rows), "columns": [_column(name, rows) for name in _columns(rows)]}


@server.tool(read_only=True)
def query_table(
    path: TablePath,
    where: Annotated[list[Condition] | None, "Conditions that must all hold"] = None,
    columns: Annotated[list[str] | None, "Columns to return; left out: all"] = None,
    order_by: Annotated[str | None, "Column to sort by"] = None,
    descending: Annotated[bool, "Largest first"] = False,
    limit: Limit = 50,
) -> Rows:
    """Filter and sort the rows of a table and choose its columns."""
    rows = _load(path)
    for condition in where or []:
        _need(rows, condition["column"])
        rows = [row for row in rows if _holds(row, condition)]
    if order_by is not None:
        _need(rows, order_by)
        rows = sorted(rows, key=lambda row: _order(row.get(order_by)), reverse=descending)
    for name in columns or []:
        _need(rows, name)
    chosen = [{name: row.get(name) for name in columns} if columns else row for row in rows[:limit]]
    return {"rows": chosen, "total": len(rows)}


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
        if column is None:
            raise ToolError(f"{function} needs a column with numbers")
        _need(rows, column)
    groups: dict[object, list[Row]] = {}
    for row in rows:
        groups.setdefault(row.get(group_by), []).append(row)
    ordered = sorted(groups.items(), key=lambda pair: _order(pair[0]))
    return [{group_by: key, function: _aggregate(function, members, column)} for key, members in ordered]


@server.tool(read_only=True)
def join_tables(
    left: TablePath,
    right: TablePath,
    column: Annotated[str, "Column that both tables have and that links their rows"],
    limit: Limit = 50,
) -> Rows:
    """Combine the rows of two tables that have the same value in a column."""
    first, second = _load(left), _load(right)
    _need(first, column)
    _need(second, column)
    partners: dict[object, list[Row]] = {}
    for row in second:
        partners.setdefault(row.get(column), []).append(row)
    joined = [row | partner for row in first for partner in partners.get(row.get(column), [])]
    return {"rows": joined[:limit], "total": len(joined)}


@server.tool(read_only=True)
def query_table_with_sql(
    path: TablePath,
    sql: Annotated[str, "One SELECT statement; the table is called 'data'"],
    limit: Limit = 50,
) -> list[Row]:
    """Run a SQL SELECT over a table, for anything query_table and aggregate_table cannot express."""
    rows = _load(path)
    with closing(sqlite3.connect(":memory:")) as connection:
        _fill(connection, rows)
        checks = iter(range(SQL_STEPS // SQL_CHECK_EVERY))
        connection.set_progress_handler(lambda: next(checks, None) is None, SQL_CHECK_EVERY)
        connection.set_authorizer(lambda action, *_rest: int(action not in READING))
        try:
            cursor = connection.execute(sql)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, values, strict=True)) for values in cursor.fetchmany(limit)]
        except (sqlite3.Error, sqlite3.Warning) as e:
            raise ToolError(f"the query failed: {e}; columns: {', '.join(_columns(rows))}") from e


@server.tool()
def add_table_row(path: TablePath, row: Annotated[dict[str, str], "Value for each column"]) -> Rows:
    """Add a row to the end of a CSV table."""
    place = existing_file(path)
    if place.suffix.lower() != ".csv":
        raise ToolError("rows can be added to .csv files only")
    columns = _header(place.read_text("utf-8-sig"))
    if unknown := [name for name in row if name not in columns]:
        raise ToolError(f"no column {', '.join(unknown)}; columns: {', '.join(columns)}")
    ends_in_line = place.read_bytes().endswith(b"\n")
    with place.open("a", encoding="utf-8", newline="") as stream:
        stream.write("" if ends_in_line else "\n")
        csv.writer(stream, lineterminator="\n").writerow([row.get(name, "") for name in columns])
    rows = _load(path)
    return {"rows": rows[-1:], "total": len(rows)}


@server.tool()
def create_table(
    path: Annotated[str, "Path of the new .csv file"],
    rows: Annotated[list[dict[str, object]], "Rows as objects; their keys are the columns"],
) -> Description:
    """Write rows into a new CSV file."""
    place = locate(path)
    if place.suffix.lower() != ".csv" or place.exists():
        raise ToolError(f"{path!r} must end in .csv and must not exist yet")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(_csv(rows), "utf-8", newline="")
    return describe_table(path)


@server.tool(read_only=True)
def csv_to_json(text: Annotated[str, "CSV with a header line"]) -> list[Row]:
    """Turn CSV text into JSON: one object per row."""
    return _from_csv(text)


@server.tool(read_only=True)
def json_to_csv(rows: Annotated[list[dict[str, object]], "Objects; their keys are the columns"]) -> str:
    """Turn a JSON list of objects into CSV text."""
    return _csv(rows)


@server.tool(read_only=True)
def query_json(
    text: Annotated[str, "A JSON document"],
    path: Annotated[str, "Dotted path such as 'orders.0.customer.name'; * stands for every element"],
) -> list[object]:
    """Pick values out of a JSON document by a path."""
    try:
        found: list[Any] = [json.loads(text)]
    except ValueError as e:
        raise ToolError(f"text is not JSON: {e}") from e
    for part in filter(None, path.removeprefix("$").split(".")):
        found = [child for value in found for child in _children(value, part)]
    return list(found)


def _load(path: str) -> list[Row]:
    place = existing_file(path)
    if place.stat().st_size > MAX_BYTES:
        raise ToolError(f"{path!r} is larger than {MAX_BYTES} bytes")
    is_json = place.suffix.lower() == ".json"
    try:
        text = place.read_bytes().decode("utf-8-sig")
        rows = json.loads(text) if is_json else _from_csv(text)
    except UnicodeDecodeError as e:
        raise ToolError(f"{path!r} is not UTF-8 text") from e
    except ValueError as e:
        raise ToolError(f"{path!r} is not JSON: {e}") from e
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ToolError(f"{path!r} is JSON, but not a list of objects")
    return rows


def _header(text: str) -> list[str]:
    columns = next(csv.reader(io.StringIO(text, newline="")), [])
    if not columns or len(set(columns)) != len(columns):
        raise ToolError("the first line must name the columns, each once")
    return columns


def _from_csv(text: str) -> list[Row]:
    columns = _header(text)
    lines = list(csv.reader(io.StringIO(text, newline="")))[1:]
    padding = [""] * len(columns)
    return [dict(zip(columns, map(_scalar, line + padding), strict=False)) for line in lines if line]


def _csv(rows: Sequence[dict[str, object]]) -> str:
    if not rows:
        raise ToolError("rows must not be empty: the columns are taken from them")
    stream = io.StringIO(newline="")
    writer = csv.DictWriter(stream, _columns(rows), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _scalar(text: str) -> object:
    if NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text or None


def _columns(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _column(name: str, rows: Sequence[Row]) -> Column:
    values = [row[name] for row in rows if row.get(name) is not None]
    distinct = list(dict.fromkeys(json.dumps(value) for value in values))
    numeric = bool(values) and all(_is_number(value) for value in values)
    return {
        "name": name,
        "kind": "number" if numeric else "text",
        "filled": len(values),
        "distinct": len(distinct),
        "examples": [json.loads(value) for value in distinct[:3]],
    }


def _need(rows: Sequence[Row], column: str) -> None:
    known = _columns(rows)
    if rows and column not in known:
        raise ToolError(f"there is no column {column!r}; columns: {', '.join(known)}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _order(value: object) -> tuple[int, float, str]:
    """Empty values first, then numbers, then text."""
    if value is None:
        return (0, 0.0, "")
    return (1, value, "") if isinstance(value, int | float) else (2, 0.0, str(value).casefold())


def _holds(row: Row, condition: Condition) -> bool:
    value, wanted = row.get(condition["column"]), _scalar(condition["value"])
    if condition["operator"] == "contains":
        return str(wanted).casefold() in str(value).casefold()
    comparable = value is not None and _is_number(value) == _is_number(wanted)
    if condition["operator"] not in ("=", "!=") and not comparable:
        return False
    return COMPARISONS[condition["operator"]](_order(value), _order(wanted))


def _aggregate(function: str, rows: Sequence[Row], column: str | None) -> float | None:
    if function == "count" or column is None:
        return len(rows)
    numbers = [value for row in rows if isinstance(value := row.get(column), int | float)]
    return AGGREGATES[function](numbers) if numbers else None


def _fill(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    columns = _columns(rows)
    if not columns:
        raise ToolError("the table has no rows")
    quoted = ", ".join('"' + name.replace('"', '""') + '"' for name in columns)
    connection.execute(f"CREATE TABLE data ({quoted})")
    marks = ", ".join("?" * len(columns))
    values = [[_storable(row.get(name)) for name in columns] for row in rows]
    connection.executemany(f"INSERT INTO data VALUES ({marks})", values)


def _storable(value: object) -> object:
    too_large = isinstance(value, int) and abs(value) >= 1 << 63
    return json.dumps(value) if too_large or isinstance(value, list | dict) else value


def _children(value: Any, part: str) -> list[Any]:
    if part == "*" and isinstance(value, list | dict):
        return list(value.values()) if isinstance(value, dict) else value
    if isinstance(value, dict):
        return [value[part]] if part in value else []
    if isinstance(value, list) and part.isdecimal() and int(part) < len(value):
        return [value[int(part)]]
    return []


if __name__ == "__main__":
    server.run()
