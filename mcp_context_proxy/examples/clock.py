"""Dates, times and time zones, from the system's clock and zone data. Stores nothing."""

from calendar import monthrange
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from mcp_context_proxy.examples.functions import Between, Server, ToolError

EXAMPLES = "'2026-03-29T14:30' or '2026-03-29'"
"""Two ways to write a moment, for descriptions and errors."""


class Moment(TypedDict):
    time: str
    zone: str
    weekday: str


server = Server("clock", "Dates, times, time zones and durations. Times are ISO 8601, zones IANA names.")

When = Annotated[str, f"Date and time in ISO 8601, such as {EXAMPLES}"]
Day = Annotated[str, "Date in ISO 8601, such as '2026-03-29'"]
Zone = Annotated[str, "IANA name of the time zone, such as 'Europe/Berlin'"]


@server.tool(read_only=True)
def current_time(zone: Zone = "UTC") -> Moment:
    """Tell the current date and time in a time zone: what time is it now in Tokyo?"""
    return _answer(datetime.now(_zone(zone)))


@server.tool(read_only=True)
def convert_time_zone(
    time: When, from_zone: Zone, to_zones: Annotated[list[str], "IANA names of the wanted zones"]
) -> list[Moment]:
    """Convert a time from one time zone to others, for example to agree on a call across offices."""
    moment = _moment(time, _zone(from_zone))
    return [_answer(moment.astimezone(_zone(name))) for name in to_zones]


@server.tool(read_only=True)
def list_time_zones(
    query: Annotated[str, "Part of the name, such as a city or continent"] = "",
    limit: Annotated[int, "How many at most", Between(1, 700)] = 50,
) -> list[str]:
    """List the names of time zones that contain a text."""
    wanted = query.strip().lower().replace(" ", "_")
    return sorted(name for name in available_timezones() if wanted in name.lower())[:limit]


@server.tool(read_only=True)
def time_between(start: When, end: When, zone: Zone = "UTC") -> dict[str, float]:
    """Measure the time from one moment to another: how many days, hours and minutes lie between them."""
    first, last = _moment(start, _zone(zone)), _moment(end, _zone(zone))
    seconds = (last.astimezone(UTC) - first.astimezone(UTC)).total_seconds()
    days, rest = divmod(abs(round(seconds)), 86_400)
    return {"days": days, "hours": rest // 3600, "minutes": rest % 3600 // 60, "total_seconds": seconds}


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
    moment = _moment(time, _zone(zone))
    year, month = divmod((moment.year + years) * 12 + moment.month - 1 + months, 12)
    try:
        last_day = monthrange(year, month + 1)[1]
        shifted = moment.replace(year=year, month=month + 1, day=min(moment.day, last_day))
        shifted += timedelta(days=days)
        # Hours are elapsed time, so they are added where no clock is put forward or back.
        return _answer((shifted.astimezone(UTC) + timedelta(hours=hours)).astimezone(moment.tzinfo))
    except (ValueError, OverflowError) as e:
        raise ToolError("the result is outside the years 1 to 9999") from e


@server.tool(read_only=True)
def from_timestamp(
    seconds: Annotated[float, "Seconds since 1970-01-01 UTC", Between(-62_135_596_800, 253_402_300_799)],
) -> Moment:
    """Turn a Unix timestamp (epoch seconds) into a date and time."""
    return _answer(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))


@server.tool(read_only=True)
def to_timestamp(time: When, zone: Zone = "UTC") -> float:
    """Turn a date and time into a Unix timestamp (epoch seconds)."""
    return _moment(time, _zone(zone)).timestamp()


def _zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as e:
        hint = "list_time_zones finds the name; it looks like 'Europe/Berlin'"
        raise ToolError(f"there is no time zone {name!r}; {hint}") from e


def _moment(text: str, zone: tzinfo) -> datetime:
    """The moment in ``text``; it is in ``zone`` unless it carries an offset of its own."""
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError as e:
        raise ToolError(f"{text!r} is not a date or time; write it as {EXAMPLES}") from e
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=zone)


def _answer(moment: datetime) -> Moment:
    return {
        "time": moment.isoformat(timespec="seconds"),
        "zone": str(moment.tzinfo),
        "weekday": f"{moment:%A}",
    }


if __name__ == "__main__":
    server.run()
