"""A tiny issue tracker in SQLite: bugs and tasks with labels, assignees and comments."""

import json
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Literal, TypedDict

from mcp_context_proxy.examples.database import Database, matching
from mcp_context_proxy.examples.kit import Between, Server, ToolError

DATABASE = Database(
    "issues",
    """
    CREATE TABLE IF NOT EXISTS issues (
        number INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, description TEXT NOT NULL,
        state TEXT NOT NULL, priority TEXT NOT NULL, assignee TEXT NOT NULL, labels TEXT NOT NULL,
        created TEXT NOT NULL, updated TEXT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS comments (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        issue INTEGER NOT NULL REFERENCES issues (number), author TEXT NOT NULL, text TEXT NOT NULL,
        created TEXT NOT NULL
    );
    """,
)

Priority = Literal["low", "normal", "high", "urgent"]


class Comment(TypedDict):
    """One remark on an issue."""

    author: str
    text: str
    created: str


class IssueLine(TypedDict):
    """An issue as a list shows it."""

    number: int
    title: str
    state: str
    priority: str
    assignee: str
    labels: list[str]


class Issue(IssueLine):
    """A whole issue."""

    description: str
    created: str
    updated: str
    comments: list[Comment]


class Statistics(TypedDict):
    """Counts over all issues."""

    open: int
    closed: int
    open_by_priority: dict[str, int]
    open_by_assignee: dict[str, int]


server = Server("issues", "An issue tracker: bugs, tasks and feature requests with a state and an assignee.")

Number = Annotated[int, "Number of the issue"]


@server.tool()
def create_issue(
    title: Annotated[str, "What is wrong or wanted, in one line"],
    description: Annotated[str, "Details: steps to reproduce, expected and actual behaviour"] = "",
    priority: Annotated[Priority, "How soon it matters"] = "normal",
    assignee: Annotated[str, "Who works on it; empty: nobody yet"] = "",
    labels: Annotated[list[str] | None, "Labels such as 'bug' or 'docs'"] = None,
) -> Issue:
    """File a new issue: report a bug, request a feature or open a task for somebody."""
    if not title.strip():
        raise ToolError("title must not be empty")
    with DATABASE.open() as connection:
        cursor = connection.execute(
            "INSERT INTO issues (title, description, state, priority, assignee, labels, created, updated)"
            " VALUES (?, ?, 'open', ?, ?, ?, ?, ?)",
            (title.strip(), description, priority, assignee, _packed(labels or []), _now(), _now()),
        )
        return _fetch(connection, int(cursor.lastrowid or 0))


@server.tool(read_only=True)
def get_issue(number: Number) -> Issue:
    """Read one issue with its description and all its comments."""
    with DATABASE.open() as connection:
        return _fetch(connection, number)


@server.tool(read_only=True)
def list_issues(
    state: Annotated[Literal["open", "closed", "all"], "Which issues"] = "open",
    assignee: Annotated[str | None, "Only those this person works on"] = None,
    label: Annotated[str | None, "Only those with this label"] = None,
    priority: Annotated[Priority | None, "Only those of this priority"] = None,
    limit: Annotated[int, "How many at most", Between(1, 200)] = 50,
) -> list[IssueLine]:
    """List issues by state, assignee, label or priority, the newest first."""
    wanted = [
        line
        for line in _lines()
        if state in (line["state"], "all")
        and assignee in (None, line["assignee"])
        and priority in (None, line["priority"])
        and (label is None or label.lower() in line["labels"])
    ]
    return wanted[:limit]


@server.tool(read_only=True)
def search_issues(
    query: Annotated[str, "Words that must all occur in the title, the description or the labels"],
    limit: Annotated[int, "How many at most", Between(1, 200)] = 20,
) -> list[IssueLine]:
    """Find issues, open or closed, that contain all the given words; for example to spot duplicates."""
    condition, values = matching(("title", "description", "labels"), query)
    with DATABASE.open() as connection:
        sql = f"SELECT * FROM issues WHERE {condition} ORDER BY number DESC LIMIT ?"
        return [_line(row) for row in connection.execute(sql, (*values, limit))]


@server.tool(destructive=True, idempotent=True)
def update_issue(
    number: Number,
    title: Annotated[str | None, "New title; left out: unchanged"] = None,
    description: Annotated[str | None, "New description, replaces the old one; left out: unchanged"] = None,
    priority: Annotated[Priority | None, "New priority; left out: unchanged"] = None,
) -> Issue:
    """Change the title, description or priority of an issue."""
    changes = {"title": title, "description": description, "priority": priority}
    return _change(number, {name: value for name, value in changes.items() if value is not None})


@server.tool(idempotent=True)
def assign_issue(number: Number, assignee: Annotated[str, "Person's name; empty: nobody"]) -> Issue:
    """Give an issue to a person to work on, or take it from everybody."""
    return _change(number, {"assignee": assignee})


@server.tool(idempotent=True)
def label_issue(number: Number, labels: Annotated[list[str], "All labels it shall have afterwards"]) -> Issue:
    """Set the labels of an issue."""
    return _change(number, {"labels": _packed(labels)})


@server.tool()
def comment_on_issue(
    number: Number,
    text: Annotated[str, "The remark"],
    author: Annotated[str, "Who says it"] = "assistant",
) -> Issue:
    """Add a comment to the discussion of an issue."""
    with DATABASE.open() as connection:
        _fetch(connection, number)
        _add_comment(connection, number, author, text)
        return _fetch(connection, number)


@server.tool(idempotent=True)
def close_issue(
    number: Number,
    reason: Annotated[Literal["done", "duplicate", "will not do"], "Why it is closed"] = "done",
) -> Issue:
    """Close an issue because it is solved, a duplicate or not going to be done."""
    if get_issue(number)["state"] == "closed":
        raise ToolError(f"issue {number} is closed already; reopen_issue opens it again")
    with DATABASE.open() as connection:
        _add_comment(connection, number, "tracker", f"closed: {reason}")
    return _change(number, {"state": "closed"})


@server.tool(idempotent=True)
def reopen_issue(number: Number) -> Issue:
    """Open a closed issue again."""
    if get_issue(number)["state"] == "open":
        raise ToolError(f"issue {number} is open already")
    return _change(number, {"state": "open"})


@server.tool(read_only=True)
def issue_statistics() -> Statistics:
    """Count open and closed issues, and the open ones by priority and by assignee."""
    lines = _lines()
    still_open = [line for line in lines if line["state"] == "open"]
    return {
        "open": len(still_open),
        "closed": len(lines) - len(still_open),
        "open_by_priority": _counts([line["priority"] for line in still_open]),
        "open_by_assignee": _counts([line["assignee"] or "nobody" for line in still_open]),
    }


def _fetch(connection: sqlite3.Connection, number: int) -> Issue:
    row = connection.execute("SELECT * FROM issues WHERE number = ?", (number,)).fetchone()
    if row is None:
        raise ToolError(f"there is no issue {number}; list_issues and search_issues show those there are")
    sql = "SELECT author, text, created FROM comments WHERE issue = ? ORDER BY id"
    comments: list[Comment] = [
        {"author": comment["author"], "text": comment["text"], "created": comment["created"]}
        for comment in connection.execute(sql, (number,))
    ]
    return {
        **_line(row),
        "description": row["description"],
        "created": row["created"],
        "updated": row["updated"],
        "comments": comments,
    }


def _lines() -> list[IssueLine]:
    with DATABASE.open() as connection:
        rows = connection.execute("SELECT * FROM issues ORDER BY number DESC").fetchall()
    return [_line(row) for row in rows]


def _line(row: sqlite3.Row) -> IssueLine:
    return {
        "number": row["number"],
        "title": row["title"],
        "state": row["state"],
        "priority": row["priority"],
        "assignee": row["assignee"],
        "labels": json.loads(row["labels"]),
    }


def _change(number: int, changes: dict[str, str]) -> Issue:
    """Set columns; their names come from this module, never from a caller."""
    assignments = ", ".join(f"{column} = ?" for column in [*changes, "updated"])
    with DATABASE.open() as connection:
        _fetch(connection, number)
        sql = f"UPDATE issues SET {assignments} WHERE number = ?"
        connection.execute(sql, (*changes.values(), _now(), number))
        return _fetch(connection, number)


def _add_comment(connection: sqlite3.Connection, number: int, author: str, text: str) -> None:
    sql = "INSERT INTO comments (issue, author, text, created) VALUES (?, ?, ?, ?)"
    connection.execute(sql, (number, author, text, _now()))


def _counts(values: Sequence[str]) -> dict[str, int]:
    return {value: values.count(value) for value in sorted(set(values))}


def _packed(labels: Sequence[str]) -> str:
    clean = sorted({label.strip().lower() for label in labels if label.strip()})
    return json.dumps(clean, ensure_ascii=False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    server.run()
