"""A calendar and an address book in SQLite: events on local time, people with birthdays."""

import sqlite3
from datetime import date, datetime, time, timedelta
from typing import Annotated, TypedDict

from mcp_context_proxy.examples.database import Database, matching
from mcp_context_proxy.examples.kit import Between, Server, ToolError

DATABASE = Database(
    "calendar",
    """
    CREATE TABLE IF NOT EXISTS events (
        id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, starts TEXT NOT NULL,
        ends TEXT NOT NULL, location TEXT NOT NULL, description TEXT NOT NULL
    );
    CREATE TABLE IF NOT EXISTS contacts (
        id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, email TEXT NOT NULL,
        phone TEXT NOT NULL, company TEXT NOT NULL, birthday TEXT NOT NULL
    );
    """,
)


class Event(TypedDict):
    """One appointment."""

    id: int
    title: str
    starts: str
    ends: str
    location: str
    description: str


class Slot(TypedDict):
    """A stretch of free time."""

    starts: str
    ends: str
    minutes: int


class Contact(TypedDict):
    """One person."""

    id: int
    name: str
    email: str
    phone: str
    company: str
    birthday: str


class Birthday(TypedDict):
    """The next birthday of a person."""

    name: str
    date: str
    days_left: int
    turns: int


server = Server("calendar", "Appointments in a calendar and people in an address book. Times are local.")

EventId = Annotated[int, "Number of the event, as list_events and search_events return it"]
ContactId = Annotated[int, "Number of the contact, as find_contacts returns it"]
When = Annotated[str, "Local date and time, such as '2026-05-04T14:30'"]
Day = Annotated[str, "Date, such as '2026-05-04'"]


@server.tool()
def create_event(
    title: Annotated[str, "What it is"],
    starts: When,
    minutes: Annotated[int, "How long it takes", Between(1, 60 * 24 * 31)] = 60,
    location: Annotated[str, "Room, address or link"] = "",
    description: Annotated[str, "Agenda, participants, anything else"] = "",
) -> Event:
    """Put an appointment or meeting into the calendar."""
    begin = _moment(starts)
    with DATABASE.open() as connection:
        cursor = connection.execute(
            "INSERT INTO events (title, starts, ends, location, description) VALUES (?, ?, ?, ?, ?)",
            (title, _text(begin), _text(begin + timedelta(minutes=minutes)), location, description),
        )
        return _event(connection, int(cursor.lastrowid or 0))


@server.tool(read_only=True)
def list_events(
    first_day: Day, days: Annotated[int, "How many days from there", Between(1, 366)] = 7
) -> list[Event]:
    """List the appointments of a day, a week or any stretch of days, in order of time."""
    begin = datetime.combine(_day(first_day), time.min)
    return _events_between(begin, begin + timedelta(days=days))


@server.tool(read_only=True)
def search_events(
    query: Annotated[str, "Words that must all occur in the title, the place or the description"],
    limit: Annotated[int, "How many at most", Between(1, 200)] = 20,
) -> list[Event]:
    """Find appointments, past and future, that contain all the given words."""
    condition, values = matching(("title", "location", "description"), query)
    with DATABASE.open() as connection:
        sql = f"SELECT * FROM events WHERE {condition} ORDER BY starts DESC LIMIT ?"
        return [_event_of(row) for row in connection.execute(sql, (*values, limit))]


@server.tool(destructive=True, idempotent=True)
def reschedule_event(
    event_id: EventId,
    starts: When,
    minutes: Annotated[
        int | None, "New length; left out: as long as before", Between(1, 60 * 24 * 31)
    ] = None,
) -> Event:
    """Move an appointment to another time."""
    begin = _moment(starts)
    with DATABASE.open() as connection:
        event = _event(connection, event_id)
        length = _moment(event["ends"]) - _moment(event["starts"])
        end = begin + (length if minutes is None else timedelta(minutes=minutes))
        sql = "UPDATE events SET starts = ?, ends = ? WHERE id = ?"
        connection.execute(sql, (_text(begin), _text(end), event_id))
        return _event(connection, event_id)


@server.tool(destructive=True, idempotent=True)
def cancel_event(event_id: EventId) -> str:
    """Take an appointment out of the calendar."""
    with DATABASE.open() as connection:
        event = _event(connection, event_id)
        connection.execute("DELETE FROM events WHERE id = ?", (event_id,))
    return f"Cancelled {event['title']} on {event['starts']}"


@server.tool(read_only=True)
def find_free_time(
    day: Day,
    minutes: Annotated[int, "Shortest stretch wanted", Between(1, 24 * 60)] = 30,
    day_starts: Annotated[str, "Not before this time of day"] = "09:00",
    day_ends: Annotated[str, "Not after this time of day"] = "17:00",
) -> list[Slot]:
    """Find the free stretches of a day, to see when a meeting fits in."""
    begin = datetime.combine(_day(day), _time(day_starts))
    close = datetime.combine(_day(day), _time(day_ends))
    slots: list[Slot] = []
    for event in _events_between(begin, close):
        slots += _slot(begin, min(_moment(event["starts"]), close), minutes)
        begin = max(begin, _moment(event["ends"]))
    return slots + _slot(begin, close, minutes)


@server.tool()
def add_contact(
    name: Annotated[str, "First and last name"],
    email: Annotated[str, "E-mail address"] = "",
    phone: Annotated[str, "Telephone number"] = "",
    company: Annotated[str, "Where the person works"] = "",
    birthday: Annotated[str, "Date of birth, such as '1990-05-04'"] = "",
) -> Contact:
    """Add a person to the address book."""
    if birthday:
        _day(birthday)
    with DATABASE.open() as connection:
        cursor = connection.execute(
            "INSERT INTO contacts (name, email, phone, company, birthday) VALUES (?, ?, ?, ?, ?)",
            (name, email, phone, company, birthday),
        )
        return _contact(connection, int(cursor.lastrowid or 0))


@server.tool(read_only=True)
def find_contacts(
    query: Annotated[str, "Words of the name, company, e-mail or telephone; empty: everybody"] = "",
    limit: Annotated[int, "How many at most", Between(1, 500)] = 50,
) -> list[Contact]:
    """Look up people in the address book: their e-mail address, telephone number and company."""
    condition, values = matching(("name", "email", "phone", "company"), query)
    with DATABASE.open() as connection:
        sql = f"SELECT * FROM contacts WHERE {condition} ORDER BY name LIMIT ?"
        return [_contact_of(row) for row in connection.execute(sql, (*values, limit))]


@server.tool(destructive=True, idempotent=True)
def update_contact(
    contact_id: ContactId,
    name: Annotated[str | None, "New name; left out: unchanged"] = None,
    email: Annotated[str | None, "New e-mail address; left out: unchanged"] = None,
    phone: Annotated[str | None, "New telephone number; left out: unchanged"] = None,
    company: Annotated[str | None, "New company; left out: unchanged"] = None,
) -> Contact:
    """Change the name, e-mail address, telephone number or company of a person."""
    with DATABASE.open() as connection:
        old = _contact(connection, contact_id)
        values = (name, email, phone, company)
        kept = (old["name"], old["email"], old["phone"], old["company"])
        changed = [before if value is None else value for before, value in zip(kept, values, strict=True)]
        sql = "UPDATE contacts SET name = ?, email = ?, phone = ?, company = ? WHERE id = ?"
        connection.execute(sql, (*changed, contact_id))
        return _contact(connection, contact_id)


@server.tool(destructive=True, idempotent=True)
def delete_contact(contact_id: ContactId) -> str:
    """Remove a person from the address book."""
    with DATABASE.open() as connection:
        contact = _contact(connection, contact_id)
        connection.execute("DELETE FROM contacts WHERE id = ?", (contact_id,))
    return f"Removed {contact['name']}"


@server.tool(read_only=True)
def upcoming_birthdays(
    days: Annotated[int, "How many days ahead", Between(1, 366)] = 30,
    today: Annotated[str | None, "Date to count from; left out: today"] = None,
) -> list[Birthday]:
    """List whose birthday is next, with the age they turn."""
    start = date.today() if today is None else _day(today)
    found = [_birthday(contact, start) for contact in find_contacts(limit=-1) if contact["birthday"]]
    return sorted((item for item in found if item["days_left"] <= days), key=lambda item: item["days_left"])


def _birthday(contact: Contact, today: date) -> Birthday:
    born = _day(contact["birthday"])
    coming = _anniversary(born, today.year)
    if coming < today:
        coming = _anniversary(born, today.year + 1)
    left = (coming - today).days
    turns = coming.year - born.year
    return {"name": contact["name"], "date": coming.isoformat(), "days_left": left, "turns": turns}


def _anniversary(born: date, year: int) -> date:
    """The birthday in ``year``; those born on 29 February have it on 1 March in a common year."""
    try:
        return born.replace(year=year)
    except ValueError:
        return date(year, 3, 1)


def _slot(begin: datetime, end: datetime, minutes: int) -> list[Slot]:
    length = int((end - begin).total_seconds() // 60)
    return [{"starts": _text(begin), "ends": _text(end), "minutes": length}] if length >= minutes else []


def _events_between(begin: datetime, end: datetime) -> list[Event]:
    with DATABASE.open() as connection:
        sql = "SELECT * FROM events WHERE starts < ? AND ends > ? ORDER BY starts, id"
        return [_event_of(row) for row in connection.execute(sql, (_text(end), _text(begin)))]


def _event(connection: sqlite3.Connection, event_id: int) -> Event:
    row = connection.execute("SELECT * FROM events WHERE id = ?", (event_id,)).fetchone()
    if row is None:
        raise ToolError(f"there is no event {event_id}; list_events and search_events show those there are")
    return _event_of(row)


def _event_of(row: sqlite3.Row) -> Event:
    return {
        "id": row["id"],
        "title": row["title"],
        "starts": row["starts"],
        "ends": row["ends"],
        "location": row["location"],
        "description": row["description"],
    }


def _contact(connection: sqlite3.Connection, contact_id: int) -> Contact:
    row = connection.execute("SELECT * FROM contacts WHERE id = ?", (contact_id,)).fetchone()
    if row is None:
        raise ToolError(f"there is no contact {contact_id}; find_contacts shows those there are")
    return _contact_of(row)


def _contact_of(row: sqlite3.Row) -> Contact:
    return {
        "id": row["id"],
        "name": row["name"],
        "email": row["email"],
        "phone": row["phone"],
        "company": row["company"],
        "birthday": row["birthday"],
    }


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as e:
        raise ToolError(f"{text!r} is not a date and time; write it as '2026-05-04T14:30'") from e
    if moment.tzinfo is not None:
        raise ToolError(f"{text!r} has a time zone; this calendar keeps local time, so leave it out")
    return moment


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError as e:
        raise ToolError(f"{text!r} is not a date; write it as '2026-05-04'") from e


def _time(text: str) -> time:
    try:
        return time.fromisoformat(text.strip())
    except ValueError as e:
        raise ToolError(f"{text!r} is not a time of day; write it as '09:00'") from e


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="minutes")


if __name__ == "__main__":
    server.run()
