"""Notes in SQLite: tools to write and find them, each note as a resource, and two prompts."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.storage import Database, SqlTable, now, words


class Note(TypedDict):
    id: int
    title: str
    body: str
    tags: list[str]
    created: str
    updated: str


class NoteLine(TypedDict):
    id: int
    title: str
    tags: list[str]
    updated: str


class TagCount(TypedDict):
    tag: str
    notes: int


DATABASE = Database(
    "notes",
    """
    CREATE TABLE IF NOT EXISTS notes (
        id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, body TEXT NOT NULL,
        tags TEXT NOT NULL, created TEXT NOT NULL, updated TEXT NOT NULL
    );
    """,
)

LINE = 'id, title, tags AS "tags [words]", updated'
MISSING = "there is no note {}; list_notes and search_notes show those there are"
NOTES = SqlTable[Note](DATABASE, "notes", f"{LINE}, body, created", MISSING)
LINES = SqlTable[NoteLine](DATABASE, "notes", LINE)

LATEST_FIRST = "updated DESC, id DESC"

SCHEME = "note://"
"""Start of the address that a note has as a resource, such as ``note://12``."""

MARKDOWN = {"mimeType": "text/markdown"}

server = Server("notes", "Free-text notes with tags. Each note can also be read as the resource note://ID.")

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
    with NOTES.open() as notes:
        return notes.add(title=title.strip(), body=body, tags=words(tags), created=now(), updated=now())


@server.tool(read_only=True)
def get_note(note_id: NoteId) -> Note:
    """Read one note in full."""
    with NOTES.open() as notes:
        return notes.get(note_id)


@server.tool(read_only=True)
def list_notes(
    tag: Annotated[str | None, "Only notes with this tag"] = None,
    limit: Annotated[int, "How many at most", Between(1, 200)] = 20,
) -> list[NoteLine]:
    """List the notes changed last, without their text. Use search_notes to look for words."""
    with LINES.open() as lines:
        found = lines.select(f"ORDER BY {LATEST_FIRST}")
    return [line for line in found if tag is None or tag.lower() in line["tags"]][:limit]


@server.tool(read_only=True)
def search_notes(
    query: Annotated[str, "Words that must all occur in the title, the text or the tags"],
    limit: Annotated[int, "How many at most", Between(1, 200)] = 20,
) -> list[NoteLine]:
    """Find notes that contain all the given words."""
    with LINES.open() as lines:
        return lines.search(query, "title, body, tags", LATEST_FIRST, limit)


@server.tool(destructive=True, idempotent=True)
def update_note(
    note_id: NoteId,
    title: Annotated[str | None, "New headline; left out: unchanged"] = None,
    body: Annotated[str | None, "New text, replaces the old one; left out: unchanged"] = None,
) -> Note:
    """Replace the title or the text of a note. To add to the end of the text use append_to_note."""
    with NOTES.open() as notes:
        return notes.change(note_id, title=title, body=body, updated=now())


@server.tool()
def append_to_note(note_id: NoteId, text: Annotated[str, "Text for a new line at the end"]) -> Note:
    """Add a line to the end of a note and keep what is there, for running logs and journals."""
    with NOTES.open() as notes:
        body = notes.get(note_id)["body"]
        return notes.change(note_id, body=f"{body}\n{text}" if body else text, updated=now())


@server.tool(idempotent=True)
def tag_note(note_id: NoteId, tags: Annotated[list[str], "Keywords to put on the note"]) -> Note:
    """Put tags on a note, beside those it has."""
    with NOTES.open() as notes:
        kept = notes.get(note_id)["tags"]
        return notes.change(note_id, tags=words([*kept, *tags]), updated=now())


@server.tool(idempotent=True)
def untag_note(note_id: NoteId, tags: Annotated[list[str], "Keywords to take off the note"]) -> Note:
    """Take tags off a note."""
    with NOTES.open() as notes:
        kept = set(notes.get(note_id)["tags"]).difference(words(tags))
        return notes.change(note_id, tags=words([*kept]), updated=now())


@server.tool(read_only=True)
def list_note_tags() -> list[TagCount]:
    """List the tags in use on notes, the most frequent first."""
    with LINES.open() as lines:
        counts = Counter(tag for line in lines.select("") for tag in line["tags"])
    return [{"tag": tag, "notes": counts[tag]} for tag in sorted(counts, key=lambda tag: (-counts[tag], tag))]


@server.tool(destructive=True, idempotent=True)
def delete_note(note_id: NoteId) -> str:
    """Delete a note for good."""
    with NOTES.open() as notes:
        return f"Deleted note {note_id}: {notes.remove(note_id)['title']}"


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
    with NOTES.open() as notes:
        changed = notes.select("WHERE updated >= ? ORDER BY id", since)
    texts = "\n\n".join(f"## {note['title']}\n\n{note['body']}" for note in changed) or "(no notes)"
    return (
        f"Review my notes of the last week. Name the themes, what is open, and three next steps.\n\n{texts}"
    )


def _resources() -> list[dict[str, Any]]:
    with LINES.open() as lines:
        found = lines.select(f"ORDER BY {LATEST_FIRST}")
    return [
        {"uri": f"{SCHEME}{line['id']}", "name": f"note-{line['id']}", "title": line["title"]} | MARKDOWN
        for line in found
    ]


def _read(uri: str) -> dict[str, Any] | None:
    number = uri.removeprefix(SCHEME)
    if not uri.startswith(SCHEME) or not (number.isascii() and number.isdecimal()):
        return None
    try:
        note = get_note(int(number))
    except (ToolError, OverflowError):
        return None
    return {"uri": uri} | MARKDOWN | {"text": f"# {note['title']}\n\n{note['body']}\n"}


TEMPLATE = {"uriTemplate": f"{SCHEME}{{id}}", "name": "note", "title": "Note"}
DESCRIPTION = {"description": "The note with this number, as markdown."}

server.offer_resources(_resources, [TEMPLATE | DESCRIPTION | MARKDOWN], _read)


if __name__ == "__main__":
    server.run()
