"""Notes in SQLite: tools to write and find them, each note as a resource, and two prompts."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.storage import Table, words


class Note(TypedDict):
    id: int
    title: str
    body: str
    tags: list[str]
    created: str
    updated: str


NOTES = Table("notes", "notes", Note)

LATEST_FIRST = "updated DESC, id DESC"

SCHEME = "note://"
"""Start of the address that a note has as a resource, such as ``note://12``."""

server = Server("notes", "Free-text notes with tags. Each note can also be read as the resource note://ID.")

NoteId = Annotated[int, "Number of the note, as create_note and search_notes return it"]
Limit = Annotated[int, "How many at most", Between(1, 200)]


@server.tool()
def create_note(
    title: Annotated[str, "Short headline"],
    body: Annotated[str, "Text of the note, markdown allowed"] = "",
    tags: Annotated[list[str] | None, "Short keywords such as 'meeting' or 'idea'"] = None,
) -> Note:
    """Write down a new note: a thought, a summary, minutes of a meeting. Returns it with its number."""
    if not title.strip():
        raise ToolError("title must not be empty")
    return NOTES.add(title=title.strip(), body=body, tags=words(tags))


@server.tool(read_only=True)
def get_note(note_id: NoteId) -> Note:
    """Read one note in full."""
    return NOTES.get(note_id)


@server.tool(read_only=True)
def list_notes(
    tag: Annotated[str | None, "Only notes with this tag"] = None, limit: Limit = 20
) -> list[Note]:
    """List the notes changed last. Use search_notes to look for words."""
    notes = NOTES.select(f"ORDER BY {LATEST_FIRST}")
    return [note for note in notes if tag is None or tag.lower() in note["tags"]][:limit]


@server.tool(read_only=True)
def search_notes(
    query: Annotated[str, "Words that must all occur in the title, the text or the tags"], limit: Limit = 20
) -> list[Note]:
    """Find notes that contain all the given words."""
    return NOTES.search(query, "title, body, tags", LATEST_FIRST, limit)


@server.tool(destructive=True, idempotent=True)
def update_note(
    note_id: NoteId,
    title: Annotated[str | None, "New headline; left out: unchanged"] = None,
    body: Annotated[str | None, "New text, replaces the old one; left out: unchanged"] = None,
) -> Note:
    """Replace the title or the text of a note. To add to the end of the text use append_to_note."""
    return NOTES.change(note_id, title=title, body=body)


@server.tool()
def append_to_note(note_id: NoteId, text: Annotated[str, "Text for a new line at the end"]) -> Note:
    """Add a line to the end of a note and keep what is there, for running logs and journals."""
    with NOTES.edit(note_id) as note:
        note["body"] = f"{note['body']}\n{text}" if note["body"] else text
    return note


@server.tool(idempotent=True)
def tag_note(note_id: NoteId, tags: Annotated[list[str], "Keywords to put on the note"]) -> Note:
    """Put tags on a note, beside those it has."""
    with NOTES.edit(note_id) as note:
        note["tags"] = words([*note["tags"], *tags])
    return note


@server.tool(idempotent=True)
def untag_note(note_id: NoteId, tags: Annotated[list[str], "Keywords to take off the note"]) -> Note:
    """Take tags off a note."""
    with NOTES.edit(note_id) as note:
        note["tags"] = sorted(set(note["tags"]).difference(words(tags)))
    return note


@server.tool(read_only=True)
def list_note_tags() -> dict[str, int]:
    """Count the notes that have each tag, the most frequent tag first."""
    return dict(Counter(tag for note in NOTES.select("") for tag in note["tags"]).most_common())


@server.tool(destructive=True, idempotent=True)
def delete_note(note_id: NoteId) -> str:
    """Delete a note for good."""
    return f"Deleted note {note_id}: {NOTES.remove(note_id)['title']}"


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
    notes = NOTES.select("WHERE updated >= ? ORDER BY id", since)
    texts = "\n\n".join(f"## {note['title']}\n\n{note['body']}" for note in notes) or "(no notes)"
    return f"Review my notes of this week. Name the themes, open ends, and three next steps.\n\n{texts}"


def resources() -> list[dict[str, Any]]:
    """Every note as a resource, without its text."""
    return [
        {
            "uri": f"{SCHEME}{note['id']}",
            "name": f"note-{note['id']}",
            "title": note["title"],
            "mimeType": "text/markdown",
        }
        for note in NOTES.select(f"ORDER BY {LATEST_FIRST}")
    ]


def read(uri: str) -> dict[str, Any] | None:
    """The text of the note with this address, if there is one."""
    for note in NOTES.select("WHERE ? || id = ?", SCHEME, uri):
        text = f"# {note['title']}\n\n{note['body']}\n"
        return {"uri": uri, "mimeType": "text/markdown", "text": text}
    return None


TEMPLATE = {
    "uriTemplate": f"{SCHEME}{{id}}",
    "name": "note",
    "title": "Note",
    "description": "The note with this number, as markdown.",
    "mimeType": "text/markdown",
}

server.offer_resources(resources, [TEMPLATE], read)


if __name__ == "__main__":
    server.run()
