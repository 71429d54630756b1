"""A tiny issue tracker in SQLite: bugs and tasks with labels, assignees and comments."""

from typing import Annotated, Literal, TypedDict

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.storage import Database, Rows, SqlTable, now, words


class Comment(TypedDict):
    author: str
    text: str
    created: str


class IssueLine(TypedDict):
    number: int
    title: str
    state: str
    priority: str
    assignee: str
    labels: list[str]


class IssueRow(IssueLine):
    description: str
    created: str
    updated: str


class Issue(IssueRow):
    comments: list[Comment]


class Statistics(TypedDict):
    open: int
    closed: int
    open_by_priority: dict[str, int]
    open_by_assignee: dict[str, int]


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

LINE = 'number, title, state, priority, assignee, labels AS "labels [words]"'
MISSING = "there is no issue {}; list_issues and search_issues show those there are"
ISSUES = SqlTable[IssueRow](DATABASE, "issues", f"{LINE}, description, created, updated", MISSING, "number")
LINES = SqlTable[IssueLine](DATABASE, "issues", LINE)
COMMENTS = SqlTable[Comment](DATABASE, "comments", "author, text, created")

server = Server("issues", "An issue tracker: bugs, tasks and feature requests with a state and an assignee.")

Number = Annotated[int, "Number of the issue"]
Priority = Literal["low", "normal", "high", "urgent"]


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
    with ISSUES.open() as issues:
        row = issues.add(
            title=title.strip(),
            description=description,
            state="open",
            priority=priority,
            assignee=assignee,
            labels=words(labels),
            created=now(),
            updated=now(),
        )
        return _with_comments(issues, row)


@server.tool(read_only=True)
def get_issue(number: Number) -> Issue:
    """Read one issue with its description and all its comments."""
    with ISSUES.open() as issues:
        return _with_comments(issues, issues.get(number))


@server.tool(read_only=True)
def list_issues(
    state: Annotated[Literal["open", "closed", "all"], "Which issues"] = "open",
    assignee: Annotated[str | None, "Only those this person works on"] = None,
    label: Annotated[str | None, "Only those with this label"] = None,
    priority: Annotated[Priority | None, "Only those of this priority"] = None,
    limit: Annotated[int, "How many at most", Between(1, 200)] = 50,
) -> list[IssueLine]:
    """List issues by state, assignee, label or priority, the newest first."""
    with LINES.open() as lines:
        found = lines.select("ORDER BY number DESC")
    wanted = [
        line
        for line in found
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
    with LINES.open() as lines:
        return lines.search(query, "title, description, labels", "number DESC", limit)


@server.tool(destructive=True, idempotent=True)
def update_issue(
    number: Number,
    title: Annotated[str | None, "New title; left out: unchanged"] = None,
    description: Annotated[str | None, "New description, replaces the old one; left out: unchanged"] = None,
    priority: Annotated[Priority | None, "New priority; left out: unchanged"] = None,
) -> Issue:
    """Change the title, description or priority of an issue."""
    return _change(number, title=title, description=description, priority=priority)


@server.tool(idempotent=True)
def assign_issue(number: Number, assignee: Annotated[str, "Person's name; empty: nobody"]) -> Issue:
    """Give an issue to a person to work on, or take it from everybody."""
    return _change(number, assignee=assignee)


@server.tool(idempotent=True)
def label_issue(number: Number, labels: Annotated[list[str], "All labels it shall have afterwards"]) -> Issue:
    """Set the labels of an issue."""
    return _change(number, labels=words(labels))


@server.tool()
def comment_on_issue(
    number: Number,
    text: Annotated[str, "The remark"],
    author: Annotated[str, "Who says it"] = "assistant",
) -> Issue:
    """Add a comment to the discussion of an issue."""
    with ISSUES.open() as issues:
        row = issues.get(number)
        _add_comment(issues, number, author, text)
        return _with_comments(issues, row)


@server.tool(idempotent=True)
def close_issue(
    number: Number,
    reason: Annotated[Literal["done", "duplicate", "will not do"], "Why it is closed"] = "done",
) -> Issue:
    """Close an issue because it is solved, a duplicate or not going to be done."""
    with ISSUES.open() as issues:
        if issues.get(number)["state"] == "closed":
            raise ToolError(f"issue {number} is closed already; reopen_issue opens it again")
        _add_comment(issues, number, "tracker", f"closed: {reason}")
        return _with_comments(issues, issues.change(number, state="closed", updated=now()))


@server.tool(idempotent=True)
def reopen_issue(number: Number) -> Issue:
    """Open a closed issue again."""
    with ISSUES.open() as issues:
        if issues.get(number)["state"] == "open":
            raise ToolError(f"issue {number} is open already")
        return _with_comments(issues, issues.change(number, state="open", updated=now()))


@server.tool(read_only=True)
def issue_statistics() -> Statistics:
    """Count open and closed issues, and the open ones by priority and by assignee."""
    with LINES.open() as lines:
        found = lines.select("")
    still_open = [line for line in found if line["state"] == "open"]
    return {
        "open": len(still_open),
        "closed": len(found) - len(still_open),
        "open_by_priority": _counts([line["priority"] for line in still_open]),
        "open_by_assignee": _counts([line["assignee"] or "nobody" for line in still_open]),
    }


def _with_comments(issues: Rows[IssueRow], row: IssueRow) -> Issue:
    comments = Rows(COMMENTS, issues.connection).select("WHERE issue = ? ORDER BY id", row["number"])
    return {**row, "comments": comments}


def _change(number: int, **values: object) -> Issue:
    with ISSUES.open() as issues:
        return _with_comments(issues, issues.change(number, **values, updated=now()))


def _add_comment(issues: Rows[IssueRow], number: int, author: str, text: str) -> None:
    sql = "INSERT INTO comments (issue, author, text, created) VALUES (?, ?, ?, ?)"
    issues.connection.execute(sql, (number, author, text, now()))


def _counts(values: list[str]) -> dict[str, int]:
    return {value: values.count(value) for value in sorted(set(values))}


if __name__ == "__main__":
    server.run()
