"""A tiny issue tracker in SQLite: bugs and tasks with labels, assignees and comments."""

from typing import Annotated, Literal, TypedDict

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.storage import Table, words


class Issue(TypedDict):
    number: int
    title: str
    description: str
    state: str
    priority: str
    assignee: str
    labels: list[str]
    created: str
    updated: str


class Comment(TypedDict):
    id: int
    issue: int
    author: str
    text: str
    created: str


class Discussion(TypedDict):
    issue: Issue
    comments: list[Comment]


ISSUES = Table("issues", "issues", Issue)
COMMENTS = Table("issues", "comments", Comment)

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
    return ISSUES.add(
        title=title.strip(),
        description=description,
        state="open",
        priority=priority,
        assignee=assignee,
        labels=words(labels),
    )


@server.tool(read_only=True)
def get_issue(number: Number) -> Discussion:
    """Read one issue with its description and all its comments."""
    comments = COMMENTS.select("WHERE issue = ? ORDER BY id", number)
    return {"issue": ISSUES.get(number), "comments": comments}


@server.tool(read_only=True)
def list_issues(
    state: Annotated[Literal["open", "closed", "all"], "Which issues"] = "open",
    assignee: Annotated[str | None, "Only those this person works on"] = None,
    label: Annotated[str | None, "Only those with this label"] = None,
    limit: Annotated[int, "How many at most", Between(1, 200)] = 50,
) -> list[Issue]:
    """List issues by state, assignee or label, the newest first."""
    wanted = [
        issue
        for issue in ISSUES.select("ORDER BY number DESC")
        if state in (issue["state"], "all")
        and assignee in (None, issue["assignee"])
        and (label is None or label.lower() in issue["labels"])
    ]
    return wanted[:limit]


@server.tool(read_only=True)
def search_issues(
    query: Annotated[str, "Words that must all occur in the title, the description or the labels"],
    limit: Annotated[int, "How many at most", Between(1, 200)] = 20,
) -> list[Issue]:
    """Find issues, open or closed, that contain all the given words; for example to spot duplicates."""
    return ISSUES.search(query, "title, description, labels", "number DESC", limit)


@server.tool(destructive=True, idempotent=True)
def update_issue(
    number: Number,
    title: Annotated[str | None, "New title; left out: unchanged"] = None,
    description: Annotated[str | None, "New description, replaces the old one; left out: unchanged"] = None,
    priority: Annotated[Priority | None, "New priority; left out: unchanged"] = None,
) -> Issue:
    """Change the title, description or priority of an issue."""
    return ISSUES.change(number, title=title, description=description, priority=priority)


@server.tool(idempotent=True)
def assign_issue(number: Number, assignee: Annotated[str, "Person's name; empty: nobody"]) -> Issue:
    """Give an issue to a person to work on, or take it from everybody."""
    return ISSUES.change(number, assignee=assignee)


@server.tool(idempotent=True)
def label_issue(number: Number, labels: Annotated[list[str], "All labels it shall have afterwards"]) -> Issue:
    """Set the labels of an issue."""
    return ISSUES.change(number, labels=words(labels))


@server.tool()
def comment_on_issue(
    number: Number,
    text: Annotated[str, "The remark"],
    author: Annotated[str, "Who says it"] = "assistant",
) -> Comment:
    """Add a comment to the discussion of an issue."""
    ISSUES.change(number)
    return COMMENTS.add(issue=number, author=author, text=text)


@server.tool(idempotent=True)
def close_issue(
    number: Number,
    reason: Annotated[Literal["done", "duplicate", "will not do"], "Why it is closed"] = "done",
) -> Issue:
    """Close an issue because it is solved, a duplicate or not going to be done."""
    with ISSUES.edit(number) as issue:
        if issue["state"] == "closed":
            raise ToolError(f"issue {number} is closed already; reopen_issue opens it again")
        issue["state"] = "closed"
    comment_on_issue(number, f"closed: {reason}", "tracker")
    return issue


@server.tool(idempotent=True)
def reopen_issue(number: Number) -> Issue:
    """Open a closed issue again."""
    return ISSUES.change(number, state="open")


if __name__ == "__main__":
    server.run()
