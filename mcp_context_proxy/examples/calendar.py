"""A calendar and an address book in SQLite: events on local time, people with birthdays."""

from datetime import date, datetime, time, timedelta
from typing import Annotated, TypedDict, TypeVar

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.storage import Database, SqlTable

Parsed = TypeVar("Parsed", date, time, datetime)


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


class Birthday(TypedDict):
    name: str
    date: str
    days_left: int
    turns: int


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

EVENTS = SqlTable[CalendarEvent](
    DATABASE,
    "events",
    "id, title, starts, ends, location, description",
    "there is no event {}; list_events and search_events show those there are",
)
CONTACTS = SqlTable[Contact](
    DATABASE,
    "contacts",
    "id, name, email, phone, company, birthday",
    "there is no contact {}; find_contacts shows those there are",
)

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
) -> CalendarEvent:
    """Put an appointment or meeting into the calendar."""
    begin = _moment(starts)
    end = begin + timedelta(minutes=minutes)
    with EVENTS.open() as events:
        return events.add(
            title=title, starts=_text(begin), ends=_text(end), location=location, description=description
        )


@server.tool(read_only=True)
def list_events(
    first_day: Day, days: Annotated[int, "How many days from there", Between(1, 366)] = 7
) -> list[CalendarEvent]:
    """List the appointments of a day, a week or any stretch of days, in order of time."""
    begin = datetime.combine(_day(first_day), time.min)
    return _events_between(begin, begin + timedelta(days=days))


@server.tool(read_only=True)
def search_events(
    query: Annotated[str, "Words that must all occur in the title, the place or the description"],
    limit: Annotated[int, "How many at most", Between(1, 200)] = 20,
) -> list[CalendarEvent]:
    """Find appointments, past and future, that contain all the given words."""
    with EVENTS.open() as events:
        return events.search(query, "title, location, description", "starts DESC", limit)


@server.tool(destructive=True, idempotent=True)
def reschedule_event(
    event_id: EventId,
    starts: When,
    minutes: Annotated[
        int | None, "New length; left out: as long as before", Between(1, 60 * 24 * 31)
    ] = None,
) -> CalendarEvent:
    """Move an appointment to another time."""
    begin = _moment(starts)
    with EVENTS.open() as events:
        event = events.get(event_id)
        length = _moment(event["ends"]) - _moment(event["starts"])
        end = begin + (length if minutes is None else timedelta(minutes=minutes))
        return events.change(event_id, starts=_text(begin), ends=_text(end))


@server.tool(destructive=True, idempotent=True)
def cancel_event(event_id: EventId) -> str:
    """Take an appointment out of the calendar."""
    with EVENTS.open() as events:
        event = events.remove(event_id)
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
    with CONTACTS.open() as contacts:
        return contacts.add(name=name, email=email, phone=phone, company=company, birthday=birthday)


@server.tool(read_only=True)
def find_contacts(
    query: Annotated[str, "Words of the name, company, e-mail or telephone; empty: everybody"] = "",
    limit: Annotated[int, "How many at most", Between(1, 500)] = 50,
) -> list[Contact]:
    """Look up people in the address book: their e-mail address, telephone number and company."""
    with CONTACTS.open() as contacts:
        return contacts.search(query, "name, email, phone, company", "name", limit)


@server.tool(destructive=True, idempotent=True)
def update_contact(
    contact_id: ContactId,
    name: Annotated[str | None, "New name; left out: unchanged"] = None,
    email: Annotated[str | None, "New e-mail address; left out: unchanged"] = None,
    phone: Annotated[str | None, "New telephone number; left out: unchanged"] = None,
    company: Annotated[str | None, "New company; left out: unchanged"] = None,
) -> Contact:
    """Change the name, e-mail address, telephone number or company of a person."""
    with CONTACTS.open() as contacts:
        return contacts.change(contact_id, name=name, email=email, phone=phone, company=company)


@server.tool(destructive=True, idempotent=True)
def delete_contact(contact_id: ContactId) -> str:
    """Remove a person from the address book."""
    with CONTACTS.open() as contacts:
        contact = contacts.remove(contact_id)
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


def _events_between(begin: datetime, end: datetime) -> list[CalendarEvent]:
    with EVENTS.open() as events:
        return events.select("WHERE starts < ? AND ends > ? ORDER BY starts, id", _text(end), _text(begin))


def _moment(text: str) -> datetime:
    moment = _parsed(datetime, text, "a date and time", "2026-05-04T14:30")
    if moment.tzinfo is not None:
        raise ToolError(f"{text!r} has a time zone; this calendar keeps local time, so leave it out")
    return moment


def _day(text: str) -> date:
    return _parsed(date, text, "a date", "2026-05-04")


def _time(text: str) -> time:
    return _parsed(time, text, "a time of day", "09:00")


def _parsed(kind: type[Parsed], text: str, name: str, example: str) -> Parsed:
    try:
        return kind.fromisoformat(text.strip())
    except ValueError as e:
        raise ToolError(f"{text!r} is not {name}; write it as '{example}'") from e


def _text(moment: datetime) -> str:
    return moment.isoformat(timespec="minutes")


if __name__ == "__main__":
    server.run()
