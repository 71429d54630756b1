"""A calendar and an address book in SQLite: events on local time, people with birthdays."""

from datetime import datetime, timedelta
from typing import Annotated, TypedDict

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.storage import Table


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
    return EVENTS.add(
        title=title, starts=_text(begin), ends=_text(end), location=location, description=description
    )


@server.tool(read_only=True)
def list_events(
    first_day: Day, days: Annotated[int, "How many days from there", Between(1, 366)] = 7
) -> list[CalendarEvent]:
    """List the appointments of a day, a week or any stretch of days, in order of time."""
    begin = _moment(first_day)
    end = begin + timedelta(days=days)
    return EVENTS.select("WHERE starts < ? AND ends > ? ORDER BY starts, id", _text(end), _text(begin))


@server.tool(read_only=True)
def search_events(
    query: Annotated[str, "Words that must all occur in the title, the place or the description"],
    limit: Annotated[int, "How many at most", Between(1, 200)] = 20,
) -> list[CalendarEvent]:
    """Find appointments, past and future, that contain all the given words."""
    return EVENTS.search(query, "title, location, description", "starts DESC", limit)


@server.tool(destructive=True, idempotent=True)
def reschedule_event(event_id: EventId, starts: When) -> CalendarEvent:
    """Move an appointment to another time; it stays as long as it was."""
    begin = _moment(starts)
    with EVENTS.edit(event_id) as event:
        length = _moment(event["ends"]) - _moment(event["starts"])
        event["starts"], event["ends"] = _text(begin), _text(begin + length)
    return event


@server.tool(destructive=True, idempotent=True)
def cancel_event(event_id: EventId) -> str:
    """Take an appointment out of the calendar."""
    event = EVENTS.remove(event_id)
    return f"Cancelled {event['title']} on {event['starts']}"


@server.tool(read_only=True)
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
        _moment(birthday)
    return CONTACTS.add(name=name, email=email, phone=phone, company=company, birthday=birthday)


@server.tool(read_only=True)
def find_contacts(
    query: Annotated[str, "Words of the name, company, e-mail or telephone; empty: everybody"] = "",
    limit: Annotated[int, "How many at most", Between(1, 500)] = 50,
) -> list[Contact]:
    """Look up people in the address book: their e-mail address, telephone number and company."""
    return CONTACTS.search(query, "name, email, phone, company", "name", limit)


@server.tool(destructive=True, idempotent=True)
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


if __name__ == "__main__":
    server.run()
