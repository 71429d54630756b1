"""Dates, times and time zones, from the system's clock and zone data. Stores nothing."""

from calendar import isleap, monthrange
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Annotated, Literal, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from mcp_context_proxy.examples.functions import Between, Server, ToolError

EXAMPLES = "'2026-03-29T14:30' or '2026-03-29'"
"""Two ways to write a moment, for descriptions and errors."""

MAX_DAYS = 366 * 200
"""Longest span that is walked day by day."""


class Moment(TypedDict):
    time: str
    zone: str
    utc_offset: str
    weekday: str


class Span(TypedDict):
    days: int
    hours: int
    minutes: int
    total_seconds: float
    in_words: str


class DayFacts(TypedDict):
    date: str
    weekday: str
    iso_week: int
    day_of_year: int
    quarter: int
    leap_year: bool
    days_in_month: int


class Epoch(TypedDict):
    timestamp: float
    utc: str


server = Server("clock", "Dates, times, time zones and durations. Times are ISO 8601, zones IANA names.")

When = Annotated[str, f"Date and time in ISO 8601, such as {EXAMPLES}"]
Day = Annotated[str, "Date in ISO 8601, such as '2026-03-29'"]
Zone = Annotated[str, "IANA name of the time zone, such as 'Europe/Berlin'"]


@server.tool(read_only=True)
def current_time(zone: Zone = "UTC") -> Moment:
    """Tell the current date and time in a time zone: what time is it now in Tokyo?"""
    return _moment(datetime.now(_zone(zone)))


@server.tool(read_only=True)
def convert_time_zone(
    time: When, from_zone: Zone, to_zones: Annotated[list[str], "IANA names of the wanted zones"]
) -> list[Moment]:
    """Convert a time from one time zone to others, for example to agree on a call across offices."""
    moment = _parse(time, _zone(from_zone))
    return [_moment(moment.astimezone(_zone(name))) for name in to_zones]


@server.tool(read_only=True)
def list_time_zones(
    query: Annotated[str, "Part of the name, such as a city or continent"] = "",
    limit: Annotated[int, "How many at most", Between(1, 700)] = 50,
) -> list[str]:
    """List the names of time zones that contain a text."""
    wanted = query.strip().lower().replace(" ", "_")
    return sorted(name for name in available_timezones() if wanted in name.lower())[:limit]


@server.tool(read_only=True)
def time_between(start: When, end: When, zone: Zone = "UTC") -> Span:
    """Measure the time from one moment to another: how many days, hours and minutes lie between them."""
    first, last = _parse(start, _zone(zone)), _parse(end, _zone(zone))
    seconds = (last.astimezone(UTC) - first.astimezone(UTC)).total_seconds()
    days, rest = divmod(abs(round(seconds)), 86_400)
    hours, minutes = rest // 3600, rest % 3600 // 60
    words = f"{days} days, {hours} hours, {minutes} minutes{' earlier' if seconds < 0 else ''}"
    return {"days": days, "hours": hours, "minutes": minutes, "total_seconds": seconds, "in_words": words}


@server.tool(read_only=True)
def add_to_date(
    time: When,
    years: Annotated[int, "May be negative", Between(-1000, 1000)] = 0,
    months: Annotated[int, "May be negative", Between(-12_000, 12_000)] = 0,
    days: Annotated[int, "May be negative", Between(-400_000, 400_000)] = 0,
    hours: Annotated[float, "May be negative", Between(-10_000_000, 10_000_000)] = 0.0,
    zone: Zone = "UTC",
) -> Moment:
    """Add or subtract years, months, days or hours; the 31st becomes the last day of a shorter month."""
    moment = _parse(time, _zone(zone))
    index = (moment.year + years) * 12 + moment.month - 1 + months
    year, month = divmod(index, 12)
    try:
        last_day = monthrange(year, month + 1)[1]
        shifted = moment.replace(year=year, month=month + 1, day=min(moment.day, last_day))
        shifted += timedelta(days=days)
        # Hours are elapsed time, so they are added where no clock is put forward or back.
        return _moment((shifted.astimezone(UTC) + timedelta(hours=hours)).astimezone(moment.tzinfo))
    except (ValueError, OverflowError) as e:
        raise ToolError("the result is outside the years 1 to 9999") from e


@server.tool(read_only=True)
def working_days_between(
    start: Day,
    end: Day,
    holidays: Annotated[list[str] | None, "Dates that do not count as working days"] = None,
) -> int:
    """Count the working days, Monday to Friday, from one date to another, both included."""
    first, last = _day(start), _day(end)
    if last < first or (last - first).days > MAX_DAYS:
        raise ToolError(f"end must be on or after start, and at most {MAX_DAYS} days after it")
    closed = {_day(holiday) for holiday in holidays or []}
    span = (first + timedelta(days=offset) for offset in range((last - first).days + 1))
    return sum(1 for day in span if day.weekday() < 5 and day not in closed)


@server.tool(read_only=True)
def describe_date(day: Day) -> DayFacts:
    """Tell the weekday, ISO week, day of the year, quarter and leap year of a date."""
    moment = _day(day)
    return {
        "date": moment.isoformat(),
        "weekday": f"{moment:%A}",
        "iso_week": moment.isocalendar().week,
        "day_of_year": moment.timetuple().tm_yday,
        "quarter": (moment.month + 2) // 3,
        "leap_year": isleap(moment.year),
        "days_in_month": monthrange(moment.year, moment.month)[1],
    }


@server.tool(read_only=True)
def format_date(
    time: When,
    style: Annotated[Literal["long", "short", "us", "rfc 2822", "iso week"], "The wanted form"] = "long",
) -> str:
    """Write a date or time in another form, such as 'Sunday, 29 March 2026'."""
    moment = _parse(time, UTC)
    forms = {
        "long": f"{moment:%A}, {moment.day} {moment:%B} {moment.year}",
        "short": f"{moment.day} {moment:%b} {moment.year}",
        "us": f"{moment:%m/%d/%Y}",
        "rfc 2822": f"{moment:%a, %d %b %Y %H:%M:%S %z}",
        "iso week": f"{moment:%G-W%V-%u}",
    }
    return forms[style]


@server.tool(read_only=True)
def from_timestamp(
    seconds: Annotated[float, "Seconds since 1970-01-01 UTC", Between(-62_135_596_800, 253_402_300_799)],
) -> Epoch:
    """Turn a Unix timestamp (epoch seconds) into a date and time."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return {"timestamp": seconds, "utc": moment.isoformat()}


@server.tool(read_only=True)
def to_timestamp(time: When, zone: Zone = "UTC") -> Epoch:
    """Turn a date and time into a Unix timestamp (epoch seconds)."""
    moment = _parse(time, _zone(zone)).astimezone(UTC)
    return {"timestamp": moment.timestamp(), "utc": moment.isoformat()}


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as e:
        hint = "list_time_zones finds the name; it looks like 'Europe/Berlin'"
        raise ToolError(f"there is no time zone {name!r}; {hint}") from e


def _parse(text: str, zone: tzinfo) -> datetime:
    """The moment in ``text``; it is in ``zone`` unless it carries an offset of its own."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as e:
        raise ToolError(f"{text!r} is not a date or time; write it as {EXAMPLES}") from e
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)


def _day(text: str) -> date:
    return _parse(text, UTC).date()


def _moment(moment: datetime) -> Moment:
    offset = f"{moment:%z}" or "+0000"
    return {
        "time": moment.isoformat(timespec="seconds"),
        "zone": str(moment.tzinfo),
        "utc_offset": f"{offset[:3]}:{offset[3:5]}",
        "weekday": f"{moment:%A}",
    }


if __name__ == "__main__":
    server.run()
