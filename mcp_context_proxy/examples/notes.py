"""Notes in SQLite: tools to write and find them, each note as a resource, two prompts over them."""

import json
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypedDict

from mcp_context_proxy.examples.database import Database, matching
from mcp_context_proxy.examples.kit import JSON, Between, Server, ToolError

SCHEME = "note://"
"""Of the address a note has as a resource: ``note://12``."""

DATABASE = Database(
    "notes",
    """
    CREATE TABLE IF NOT EXISTS notes (
        id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, body TEXT NOT NULL,
        tags TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL
    );
    """,
)


class Note(TypedDict):
    """A whole note."""

    id: int
    title: str
    body: str
    tags: list[str]
    created: str
    updated: str


class NoteLine(TypedDict):
    """A note as a list shows it."""

    id: int
    title: str
    tags: list[str]
    updated: str


class TagCount(TypedDict):
    """How many notes carry a tag."""

    tag: str
    notes: int


class NoteResources:
    """Every note for reading, without a tool call."""

    def list(self) -> Sequence[JSON]:
        """One resource per note, the latest first."""
        with DATABASE.open() as connection:
            rows = connection.execute("SELECT * FROM notes ORDER BY updated DESC, id DESC").fetchall()
        return [
            {"uri": f"{SCHEME}{row['id']}", "name": f"note-{row['id']}", "title": row["title"]}
            | {"mimeType": "text/markdown"}
            for row in rows
        ]

    def templates(self) -> Sequence[JSON]:
        """The form of a note's address."""
        description = "The note with this number, as markdown."
        template = {"uriTemplate": f"{SCHEME}{{id}}", "name": "note", "title": "Note"}
        return [template | {"description": description, "mimeType": "text/markdown"}]

    def read(self, uri: str) -> JSON | None:
        """The note as markdown."""
        number = uri.removeprefix(SCHEME)
        if not uri.startswith(SCHEME) or not (number.isascii() and number.isdecimal()):
            return None
        try:
            note = get_note(int(number))
        except (ToolError, OverflowError):
            return None
        return {"uri": uri, "mimeType": "text/markdown", "text": f"# {note['title']}\n\n{note['body']}\n"}


server = Server(
    "notes",
    "Free-text notes with tags. Each note can also be read as the resource note://ID.",
    NoteResources(),
)

NoteId = Annotated[int, "Number of the note, as create_note and search_notes return it"]
Tags = Annotated[list[str] | None, "Short keywords such as 'meeting' or 'idea'"]


@server.tool()
def create_note(
    title: Annotated[str, "Short headline"],
    body: Annotated[str, "Text of the note, markdown allowed"] = "",
    tags: Tags = None,
) -> Note:
    """Write down a new note: a thought, a summary, minutes of a meeting. Returns it with its number."""
    if not title.strip():
        raise ToolError("title must not be empty")
    with DATABASE.open() as connection:
        cursor = connection.execute(
            "INSERT INTO notes (title, body, tags, created, updated) VALUES (?, ?, ?, ?, ?)",
            (title.strip(), body, _packed(tags or []), _now(), _now()),
        )
        return _fetch(connection, int(cursor.lastrowid or 0))


@server.tool(read_only=True)
def get_note(note_id: NoteId) -> Note:
    """Read one note in full."""
    with DATABASE.open() as connection:
        return _fetch(connection, note_id)


@server.tool(read_only=True)
def list_notes(
    tag: Annotated[str | None, "Only notes with this tag"] = None,
    limit: Annotated[int, "How many at most", Between(1, 200)] = 20,
) -> list[NoteLine]:
    """List the notes changed last, without their text. Use search_notes to look for words."""
    return [line for line in _lines() if tag is None or tag.lower() in line["tags"]][:limit]


@server.tool(read_only=True)
def search_notes(
    query: Annotated[str, "Words that must all occur in the title, the text or the tags"],
    limit: Annotated[int, "How many at most", Between(1, 200)] = 20,
) -> list[NoteLine]:
    """Find notes that contain all the given words."""
    condition, values = matching(("title", "body", "tags"), query)
    with DATABASE.open() as connection:
        sql = f"SELECT * FROM notes WHERE {condition} ORDER BY updated DESC, id DESC LIMIT ?"
        return [_line(row) for row in connection.execute(sql, (*values, limit))]


@server.tool(destructive=True, idempotent=True)
def update_note(
    note_id: NoteId,
    title: Annotated[str | None, "New headline; left out: unchanged"] = None,
    body: Annotated[str | None, "New text, replaces the old one; left out: unchanged"] = None,
) -> Note:
    """Replace the title or the text of a note. To add to the end of the text use append_to_note."""
    with DATABASE.open() as connection:
        note = _fetch(connection, note_id)
        changed = (note["title"] if title is None else title, note["body"] if body is None else body)
        _write(connection, note_id, "title = ?, body = ?", *changed)
        return _fetch(connection, note_id)


@server.tool()
def append_to_note(note_id: NoteId, text: Annotated[str, "Text for a new line at the end"]) -> Note:
    """Add a line to the end of a note and keep what is there, for running logs and journals."""
    with DATABASE.open() as connection:
        body = _fetch(connection, note_id)["body"]
        _write(connection, note_id, "body = ?", f"{body}\n{text}" if body else text)
        return _fetch(connection, note_id)


@server.tool(idempotent=True)
def tag_note(note_id: NoteId, tags: Annotated[list[str], "Keywords to put on the note"]) -> Note:
    """Put tags on a note, beside those it has."""
    with DATABASE.open() as connection:
        kept = _fetch(connection, note_id)["tags"]
        _write(connection, note_id, "tags = ?", _packed([*kept, *tags]))
        return _fetch(connection, note_id)


@server.tool(idempotent=True)
def untag_note(note_id: NoteId, tags: Annotated[list[str], "Keywords to take off the note"]) -> Note:
    """Take tags off a note."""
    removed = {tag.strip().lower() for tag in tags}
    with DATABASE.open() as connection:
        kept = [tag for tag in _fetch(connection, note_id)["tags"] if tag not in removed]
        _write(connection, note_id, "tags = ?", _packed(kept))
        return _fetch(connection, note_id)


@server.tool(read_only=True)
def list_note_tags() -> list[TagCount]:
    """List the tags in use on notes, the most frequent first."""
    counts: dict[str, int] = {}
    for line in _lines():
        for tag in line["tags"]:
            counts[tag] = counts.get(tag, 0) + 1
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return [{"tag": tag, "notes": count} for tag, count in ordered]


@server.tool(destructive=True, idempotent=True)
def delete_note(note_id: NoteId) -> str:
    """Delete a note for good."""
    with DATABASE.open() as connection:
        note = _fetch(connection, note_id)
        connection.execute("DELETE FROM notes WHERE id = ?", (note_id,))
    return f"Deleted note {note_id}: {note['title']}"


@server.prompt
def summarize_note(
    note_id: Annotated[str, "Number of the note"],
    length: Annotated[str, "How long the summary may be"] = "three sentences",
) -> str:
    """Ask for a summary of one note."""
    if not note_id.isdecimal():
        raise ToolError(f"note_id must be a number; got {note_id!r}")
    note = get_note(int(note_id))
    return f"Summarize this note in {length}.\n\n# {note['title']}\n\n{note['body']}"


@server.prompt
def weekly_review() -> str:
    """Ask for a review of the notes changed in the last seven days: themes, open ends, next steps."""
    since = (datetime.now(UTC) - timedelta(days=7)).isoformat(timespec="seconds")
    with DATABASE.open() as connection:
        rows = connection.execute("SELECT * FROM notes WHERE updated >= ? ORDER BY id", (since,)).fetchall()
    notes = "\n\n".join(f"## {row['title']}\n\n{row['body']}" for row in rows) or "(no notes)"
    return (
        f"Review my notes of the last week. Name the themes, what is open, and three next steps.\n\n{notes}"
    )


def _fetch(connection: sqlite3.Connection, note_id: int) -> Note:
    row = connection.execute("SELECT * FROM notes WHERE id = ?", (note_id,)).fetchone()
    if row is None:
        raise ToolError(f"there is no note {note_id}; list_notes and search_notes show those there are")
    return {**_line(row), "body": row["body"], "created": row["created"]}


def _lines() -> list[NoteLine]:
    with DATABASE.open() as connection:
        rows = connection.execute("SELECT * FROM notes ORDER BY updated DESC, id DESC").fetchall()
    return [_line(row) for row in rows]


def _line(row: sqlite3.Row) -> NoteLine:
    return {
        "id": row["id"],
        "title": row["title"],
        "tags": json.loads(row["tags"]),
        "updated": row["updated"],
    }


def _write(connection: sqlite3.Connection, note_id: int, assignments: str, *values: str) -> None:
    sql = f"UPDATE notes SET {assignments}, updated = ? WHERE id = ?"
    connection.execute(sql, (*values, _now(), note_id))


def _packed(tags: Sequence[str]) -> str:
    clean = sorted({tag.strip().lower() for tag in tags if tag.strip()})
    return json.dumps(clean, ensure_ascii=False)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


if __name__ == "__main__":
    server.run()
