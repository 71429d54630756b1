"""A desk: a calendar with an address book, notes, and an issue tracker, each in tables of SQLite."""

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Generic, Literal, TypedDict, TypeVar, cast

from mcp_context_proxy.examples.functions import Between, Server, ToolError, data_folder

BUSY_SECONDS = 10
"""Time that a call waits for another process that is writing."""

Row = TypeVar("Row", bound=Any)

for kind in (list, dict):
    sqlite3.register_adapter(kind, lambda value: json.dumps(value, ensure_ascii=False))


class Table(Generic[Row]):
    """A table in a SQLite file of the data folder, with a column for each key of a typed dictionary.

    The first key is the number of a row. The table sets ``created`` and ``updated``, and stores lists of
    words as JSON. Each call opens the file anew, so that threads and processes may share it.
    """

    def __init__(self, file: str, name: str, row: type[Row]) -> None:
        self._file, self._name = file, name
        self._key, *self._columns = row.__annotations__
        self._lists = [column for column, kind in row.__annotations__.items() if kind == list[str]]

    def select(self, condition: str, *values: object) -> list[Row]:
        """The rows that meet the rest of a ``SELECT`` statement, such as ``WHERE title = ? ORDER BY id``."""
        with self._open() as connection:
            cursor = connection.execute(f"SELECT * FROM {self._name} {condition}", values)
            names = [column[0] for column in cursor.description]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        for row in rows:
            row.update({name: json.loads(row[name]) for name in self._lists})
        return cast("list[Row]", rows)

    def search(self, query: str, columns: str, order: str, limit: int) -> list[Row]:
        """The rows that have every word of ``query`` in one of the columns."""
        text, words = columns.replace(",", " || ' ' ||"), query.split()
        condition = " AND ".join(f"instr(lower({text}), lower(?))" for _ in words) or "1"
        return self.select(f"WHERE {condition} ORDER BY {order} LIMIT ?", *words, limit)

    def get(self, number: int) -> Row:
        found = self.select(f"WHERE {self._key} = ?", number)
        if not found:
            raise ToolError(f"the {self._name} have no number {number}; list or search them to find it")
        return found[0]

    def add(self, **values: object) -> Row:
        values |= {column: _now() for column in ("created", "updated") if column in self._columns}
        marks = ", ".join("?" for _ in values)
        sql = f"INSERT INTO {self._name} ({', '.join(values)}) VALUES ({marks})"
        with self._open() as connection:
            number = connection.execute(sql, (*values.values(),)).lastrowid or 0
        return self.get(number)

    @contextmanager
    def edit(self, number: int) -> Iterator[Row]:
        """A row to change: its new values are stored when the block ends, and dropped when it raises."""
        assignments = ", ".join(f"{column} = ?" for column in self._columns)
        with self._open() as connection:
            # The lock comes first, so that the row is still the same when it is written.
            connection.execute("BEGIN IMMEDIATE")
            row = self.get(number)
            yield row
            if "updated" in self._columns:
                row["updated"] = _now()
            values = [row[column] for column in self._columns]
            sql = f"UPDATE {self._name} SET {assignments} WHERE {self._key} = ?"
            connection.execute(sql, (*values, number))

    def change(self, number: int, **values: object) -> Row:
        """Set columns of a row, those with a value of None excepted, and return it."""
        with self.edit(number) as row:
            row.update({column: value for column, value in values.items() if value is not None})
        return row

    def remove(self, number: int) -> Row:
        row = self.get(number)
        with self._open() as connection:
            connection.execute(f"DELETE FROM {self._name} WHERE {self._key} = ?", (number,))
        return row

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection whose changes are committed when the block ends, and undone when it raises."""
        path = data_folder() / f"{self._file}.sqlite"
        columns = f"{self._key} INTEGER PRIMARY KEY AUTOINCREMENT, {', '.join(self._columns)}"
        with closing(sqlite3.connect(path, timeout=BUSY_SECONDS)) as connection, connection:
            connection.execute(f"CREATE TABLE IF NOT EXISTS {self._name} ({columns})")
            yield connection


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def words(texts: Sequence[str] | None) -> list[str]:
    """Tags and labels as they are stored: lower case, each once, sorted."""
    return sorted({text.strip().lower() for text in texts or () if text.strip()})


class CalendarEvent(TypedDict):
    id: int
    title: str
    starts: str
    ends: str
    location: str
    description: str


class Slot(TypedDict):
    starts: str
    ends: str
    minutes: int


class Contact(TypedDict):
    id: int
    name: str
    email: str
    phone: str
    company: str
    birthday: str


EVENTS = Table("calendar", "events", CalendarEvent)
CONTACTS = Table("calendar", "contacts", Contact)

calendar = Server("calendar", "Appointments in a calendar and people in an address book. Times are local.")

EventId = Annotated[int, "Number of the event, as list_events and search_events return it"]
ContactId = Annotated[int, "Number of the contact, as find_contacts returns it"]
When = Annotated[str, "Local date and time, such as '2026-05-04T14:30'"]
Day = Annotated[str, "Date, such as '2026-05-04'"]


@calendar.tool()
def create_event(
    title: Annotated[str, "What it is"],
    starts: When,
    minutes: Annotated[int, "How long it takes", Between(1, 60 * 24 * 31)] = 60,
    location: Annotated[str, "Room, address or link"] = "",
    description: Annotated[str, "Agenda, participants, anything else"] = "",
) -> CalendarEvent:
    """Put an appointment or meeting into the calendar."""
    begin = _moment(starts)
    end = begin + timedelta(minutes=minutes)
    return EVENTS.add(
        title=title, starts=_text(begin), ends=_text(end), location=location, description=description
    )


@calendar.tool(read_only=True)
def list_events(
    first_day: Day, days: Annotated[int, "How many days from there", Between(1, 366)] = 7
) -> list[CalendarEvent]:
    """List the appointments of a day, a week or any stretch of days, in order of time."""
    begin = _moment(first_day)
    end = begin + timedelta(days=days)
    return EVENTS.select("WHERE starts < ? AND ends > ? ORDER BY starts, id", _text(end), _text(begin))


@calendar.tool(read_only=True)
def search_events(
    query: Annotated[str, "Words that must all occur in the title, the place or the description"],
    limit: Annotated[int, "How many at most", Between(1, 200)] = 20,
) -> list[CalendarEvent]:
    """Find appointments, past and future, that contain all the given words."""
    return EVENTS.search(query, "title, location, description", "starts DESC", limit)


@calendar.tool(destructive=True, idempotent=True)
def reschedule_event(event_id: EventId, starts: When) -> CalendarEvent:
    """Move an appointment to another time; it stays as long as it was."""
    begin = _moment(starts)
    with EVENTS.edit(event_id) as event:
        length = _moment(event["ends"]) - _moment(event["starts"])
        event["starts"], event["ends"] = _text(begin), _text(begin + length)
    return event


@calendar.tool(destructive=True, idempotent=True)
def cancel_event(event_id: EventId) -> str:
    """Take an appointment out of the calendar."""
    event = EVENTS.remove(event_id)
    return f"Cancelled {event['title']} on {event['starts']}"


@calendar.tool(read_only=True)
def find_free_time(
    day: Day,
    minutes: Annotated[int, "Shortest stretch wanted", Between(1, 24 * 60)] = 30,
    first_hour: Annotated[int, "Not before this hour of the day", Between(0, 24)] = 9,
    last_hour: Annotated[int, "Not after this hour of the day", Between(0, 24)] = 17,
) -> list[Slot]:
    """Find the free stretches of a day, to see when a meeting fits in."""
    begin = _moment(day) + timedelta(hours=first_hour)
    close = _moment(day) + timedelta(hours=last_hour)
    taken = [(_moment(event["starts"]), _moment(event["ends"])) for event in list_events(day, 1)]
    slots: list[Slot] = []
    for starts, ends in [*taken, (close, close)]:
        until = min(starts, close)
        free = (until - begin) // timedelta(minutes=1)
        if free >= minutes:
            slots.append({"starts": _text(begin), "ends": _text(until), "minutes": free})
        begin = max(begin, ends)
    return slots


@calendar.tool()
def add_contact(
    name: Annotated[str, "First and last name"],
    email: Annotated[str, "E-mail address"] = "",
    phone: Annotated[str, "Telephone number"] = "",
    company: Annotated[str, "Where the person works"] = "",
    birthday: Annotated[str, "Date of birth, such as '1990-05-04'"] = "",
) -> Contact:
    """Add a person to the address book."""
    if birthday:
        _moment(birthday)
    return CONTACTS.add(name=name, email=email, phone=phone, company=company, birthday=birthday)


@calendar.tool(read_only=True)
def find_contacts(
    query: Annotated[str, "Words of the name, company, e-mail or telephone; empty: everybody"] = "",
    limit: Annotated[int, "How many at most", Between(1, 500)] = 50,
) -> list[Contact]:
    """Look up people in the address book: their e-mail address, telephone number and company."""
    return CONTACTS.search(query, "name, email, phone, company", "name", limit)


@calendar.tool(destructive=True, idempotent=True)
def delete_contact(contact_id: ContactId) -> str:
    """Remove a person from the address book."""
    return f"Removed {CONTACTS.remove(contact_id)['name']}"


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as e:
        example = "'2026-05-04T14:30' or '2026-05-04'"
        raise ToolError(f"{text!r} is not a date or a time; write it as {example}") from e
    if moment.tzinfo is not None:
        raise ToolError(f"{text!r} has a time zone; this calendar keeps local time, so leave it out")
    return moment


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="minutes")


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

notes = Server("notes", "Free-text notes with tags. Each note can also be read as the resource note://ID.")

NoteId = Annotated[int, "Number of the note, as create_note and search_notes return it"]
Limit = Annotated[int, "How many at most", Between(1, 200)]


@notes.tool()
def create_note(
    title: Annotated[str, "Short headline"],
    body: Annotated[str, "Text of the note, markdown allowed"] = "",
    tags: Annotated[list[str] | None, "Short keywords such as 'meeting' or 'idea'"] = None,
) -> Note:
    """Write down a new note: a thought, a summary, minutes of a meeting. Returns it with its number."""
    if not title.strip():
        raise ToolError("title must not be empty")
    return NOTES.add(title=title.strip(), body=body, tags=words(tags))


@notes.tool(read_only=True)
def get_note(note_id: NoteId) -> Note:
    """Read one note in full."""
    return NOTES.get(note_id)


@notes.tool(read_only=True)
def list_notes(
    tag: Annotated[str | None, "Only notes with this tag"] = None, limit: Limit = 20
) -> list[Note]:
    """List the notes changed last. Use search_notes to look for words."""
    notes = NOTES.select(f"ORDER BY {LATEST_FIRST}")
    return [note for note in notes if tag is None or tag.lower() in note["tags"]][:limit]


@notes.tool(read_only=True)
def search_notes(
    query: Annotated[str, "Words that must all occur in the title, the text or the tags"], limit: Limit = 20
) -> list[Note]:
    """Find notes that contain all the given words."""
    return NOTES.search(query, "title, body, tags", LATEST_FIRST, limit)


@notes.tool(destructive=True, idempotent=True)
def update_note(
    note_id: NoteId,
    title: Annotated[str | None, "New headline; left out: unchanged"] = None,
    body: Annotated[str | None, "New text, replaces the old one; left out: unchanged"] = None,
) -> Note:
    """Replace the title or the text of a note. To add to the end of the text use append_to_note."""
    return NOTES.change(note_id, title=title, body=body)


@notes.tool()
def append_to_note(note_id: NoteId, text: Annotated[str, "Text for a new line at the end"]) -> Note:
    """Add a line to the end of a note and keep what is there, for running logs and journals."""
    with NOTES.edit(note_id) as note:
        note["body"] = f"{note['body']}\n{text}" if note["body"] else text
    return note


@notes.tool(idempotent=True)
def tag_note(note_id: NoteId, tags: Annotated[list[str], "Keywords to put on the note"]) -> Note:
    """Put tags on a note, beside those it has."""
    with NOTES.edit(note_id) as note:
        note["tags"] = words([*note["tags"], *tags])
    return note


@notes.tool(idempotent=True)
def untag_note(note_id: NoteId, tags: Annotated[list[str], "Keywords to take off the note"]) -> Note:
    """Take tags off a note."""
    with NOTES.edit(note_id) as note:
        note["tags"] = sorted(set(note["tags"]).difference(words(tags)))
    return note


@notes.tool(read_only=True)
def list_note_tags() -> dict[str, int]:
    """Count the notes that have each tag, the most frequent tag first."""
    return dict(Counter(tag for note in NOTES.select("") for tag in note["tags"]).most_common())


@notes.tool(destructive=True, idempotent=True)
def delete_note(note_id: NoteId) -> str:
    """Delete a note for good."""
    return f"Deleted note {note_id}: {NOTES.remove(note_id)['title']}"


@notes.prompt
def summarize_note(
    note_id: Annotated[str, "Number of the note"],
    length: Annotated[str, "How long the summary may be"] = "three sentences",
) -> str:
    """Ask for a summary of one note."""
    if not note_id.isdecimal():
        raise ToolError(f"note_id must be a number; got {note_id!r}")
    note = get_note(int(note_id))
    return f"Summarize this note in {length}.\n\n# {note['title']}\n\n{note['body']}"


@notes.prompt
def weekly_review() -> str:
    """Ask for a review of the notes changed in the last seven days: themes, open ends, next steps."""
    since = (datetime.now(UTC) - timedelta(days=7)).isoformat(timespec="seconds")
    notes = NOTES.select("WHERE updated >= ? ORDER BY id", since)
    texts = "\n\n".join(f"## {note['title']}\n\n{note['body']}" for note in notes) or "(no notes)"
    return f"Review my notes of this week. Name the themes, open ends, and three next steps.\n\n{texts}"


def note_resources() -> list[dict[str, Any]]:
    return [
        {
            "uri": f"{SCHEME}{note['id']}",
            "name": f"note-{note['id']}",
            "title": note["title"],
            "mimeType": "text/markdown",
        }
        for note in NOTES.select(f"ORDER BY {LATEST_FIRST}")
    ]


def read_note(uri: str) -> dict[str, Any] | None:
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

notes.offer_resources(note_resources, [TEMPLATE], read_note)


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

issues = Server("issues", "An issue tracker: bugs, tasks and feature requests with a state and an assignee.")

Number = Annotated[int, "Number of the issue"]
Priority = Literal["low", "normal", "high", "urgent"]


@issues.tool()
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


@issues.tool(read_only=True)
def get_issue(number: Number) -> Discussion:
    """Read one issue with its description and all its comments."""
    comments = COMMENTS.select("WHERE issue = ? ORDER BY id", number)
    return {"issue": ISSUES.get(number), "comments": comments}


@issues.tool(read_only=True)
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


@issues.tool(read_only=True)
def search_issues(
    query: Annotated[str, "Words that must all occur in the title, the description or the labels"],
    limit: Annotated[int, "How many at most", Between(1, 200)] = 20,
) -> list[Issue]:
    """Find issues, open or closed, that contain all the given words; for example to spot duplicates."""
    return ISSUES.search(query, "title, description, labels", "number DESC", limit)


@issues.tool(destructive=True, idempotent=True)
def update_issue(
    number: Number,
    title: Annotated[str | None, "New title; left out: unchanged"] = None,
    description: Annotated[str | None, "New description, replaces the old one; left out: unchanged"] = None,
    priority: Annotated[Priority | None, "New priority; left out: unchanged"] = None,
) -> Issue:
    """Change the title, description or priority of an issue."""
    return ISSUES.change(number, title=title, description=description, priority=priority)


@issues.tool(idempotent=True)
def assign_issue(number: Number, assignee: Annotated[str, "Person's name; empty: nobody"]) -> Issue:
    """Give an issue to a person to work on, or take it from everybody."""
    return ISSUES.change(number, assignee=assignee)


@issues.tool(idempotent=True)
def label_issue(number: Number, labels: Annotated[list[str], "All labels it shall have afterwards"]) -> Issue:
    """Set the labels of an issue."""
    return ISSUES.change(number, labels=words(labels))


@issues.tool()
def comment_on_issue(
    number: Number,
    text: Annotated[str, "The remark"],
    author: Annotated[str, "Who says it"] = "assistant",
) -> Comment:
    """Add a comment to the discussion of an issue."""
    ISSUES.change(number)
    return COMMENTS.add(issue=number, author=author, text=text)


@issues.tool(idempotent=True)
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


@issues.tool(idempotent=True)
def reopen_issue(number: Number) -> Issue:
    """Open a closed issue again."""
    return ISSUES.change(number, state="open")
