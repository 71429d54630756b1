"""Servers that store nothing: a calculator, a clock, and work on texts."""

import ast
import difflib
import hashlib
import math
import operator
import re
import unicodedata
from calendar import monthrange
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Annotated, Literal, TypeAlias, TypedDict
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from mcp_context_proxy.examples import Request
from mcp_context_proxy.examples.functions import Between, Server, ToolError

Number: TypeAlias = int | float

SEGMENT = 1 << 20
"""Numbers sieved between two progress reports: some hundredths of a second."""

EXACT_BITS = 10_000
"""Bits of the largest exact power; beyond them an innocent-looking expression could run for hours."""


def _power(base: Number, exponent: Number) -> Number:
    is_exact = isinstance(base, int) and isinstance(exponent, int) and exponent >= 0
    if is_exact and int(base).bit_length() * exponent <= EXACT_BITS:
        return int(base**exponent)
    return math.pow(base, exponent)


def _round(value: Number, digits: Number = 0) -> Number:
    # A float, because rounding an integer to minus a million digits would take for ever.
    return round(float(value), int(digits))


OPERATORS: dict[type[ast.AST], Callable[..., Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}

FUNCTIONS: dict[str, Callable[..., Number]] = {
    name: getattr(math, name)
    for name in ("sqrt", "sin", "cos", "tan", "asin", "acos", "atan", "log", "log2", "log10", "exp", "floor")
} | {"ceil": math.ceil, "abs": abs, "round": _round, "min": min, "max": max, "hypot": math.hypot}

CONSTANTS = {"pi": math.pi, "e": math.e, "tau": math.tau}

UNITS: dict[str, dict[str, float]] = {
    "length": {"m": 1, "km": 1e3, "cm": 1e-2, "mm": 1e-3, "in": 0.0254, "ft": 0.3048, "yd": 0.9144}
    | {"mi": 1609.344, "nmi": 1852},
    "mass": {"kg": 1, "g": 1e-3, "mg": 1e-6, "t": 1e3, "lb": 0.45359237, "oz": 0.028349523125}
    | {"st": 6.35029318},
    "volume": {"l": 1, "ml": 1e-3, "m3": 1e3, "gal": 3.785411784, "qt": 0.946352946, "cup": 0.2365882365}
    | {"floz": 0.0295735295625, "tbsp": 0.01478676478125, "tsp": 0.00492892159375},
    "area": {"m2": 1, "km2": 1e6, "ha": 1e4, "acre": 4046.8564224, "ft2": 0.09290304},
    "speed": {"m/s": 1, "km/h": 1 / 3.6, "mph": 0.44704, "kn": 1852 / 3600},
    "duration": {"s": 1, "min": 60, "h": 3600, "d": 86_400, "week": 604_800},
    "data": {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "KiB": 2**10, "MiB": 2**20}
    | {"GiB": 2**30, "TiB": 2**40, "bit": 1 / 8},
    "energy": {"J": 1, "kJ": 1e3, "kWh": 3.6e6, "cal": 4.184, "kcal": 4184},
    "pressure": {"Pa": 1, "kPa": 1e3, "bar": 1e5, "psi": 6894.757293168, "atm": 101_325},
}
"""Factor of each unit to the base unit of its kind. The definitions are exact (NIST SP 811), US customary."""

calculator = Server("calculator", "Arithmetic, statistics, loans and interest, primes, and units of measure.")


@calculator.tool(read_only=True)
def calculate(expression: Annotated[str, "Such as '2 * (3 + 4) ** 2' or 'sqrt(2) * sin(pi / 4)'"]) -> float:
    """Evaluate an arithmetic expression with + - * / // % **, functions such as sqrt and log, pi and e."""
    try:
        result = _value(ast.parse(expression.strip(), mode="eval").body)
        finite = math.isfinite(result)
    except (SyntaxError, ArithmeticError, ValueError, TypeError, RecursionError, MemoryError) as e:
        raise ToolError(f"{expression!r} has no value: {e}") from e
    if not finite:
        raise ToolError(f"{expression!r} has no finite value")
    return result


@calculator.tool(read_only=True)
def describe_numbers(numbers: Annotated[list[float], "The numbers"]) -> dict[str, float]:
    """Compute mean, median, standard deviation, minimum, maximum and sum of a list of numbers."""
    import statistics  # noqa: PLC0415 - takes as long as all the others

    if len(numbers) < 2:
        raise ToolError("statistics need at least two numbers")
    return {
        "count": len(numbers),
        "mean": statistics.fmean(numbers),
        "median": statistics.median(numbers),
        "standard_deviation": statistics.stdev(numbers),
        "minimum": min(numbers),
        "maximum": max(numbers),
        "sum": math.fsum(numbers),
    }


@calculator.tool(read_only=True)
def loan_payment(
    amount: Annotated[float, "What is borrowed", Between(0, 1e15)],
    annual_rate: Annotated[float, "Interest per year in per cent", Between(0, 1000)],
    years: Annotated[float, "Until it is paid back", Between(0.1, 100)],
) -> dict[str, float]:
    """Compute the monthly payment and the total interest of a loan or mortgage with equal payments."""
    months, rate = max(round(years * 12), 1), annual_rate / 1200
    payment = amount / months if rate == 0 else amount * rate / -math.expm1(-months * math.log1p(rate))
    total = payment * months
    return {
        "monthly_payment": round(payment, 2),
        "total_paid": round(total, 2),
        "total_interest": round(total - amount, 2),
    }


@calculator.tool(read_only=True)
def count_primes(
    limit: Annotated[int, "Count up to this number", Between(1, 10**12)], request: Request
) -> int:
    """Count the prime numbers up to a limit. A large one takes long (minutes beyond 10**10)."""
    count = 0
    root = math.isqrt(limit)
    base = [number for number, prime in enumerate(_sieve(0, root + 1, range(2, root + 1))) if prime]
    for start in range(0, limit + 1, SEGMENT):
        request.step(start, limit, f"{count} primes below {start}")
        count += _sieve(start, min(SEGMENT, limit + 1 - start), base).count(1)
    request.step(limit, limit, f"{count} primes")
    return count


@calculator.tool(read_only=True)
def convert_units(
    value: Annotated[float, "How much"],
    from_unit: Annotated[str, "Unit it is in, such as 'mi', 'lb', 'GiB', 'km/h'"],
    to_unit: Annotated[str, "Unit wanted, of the same kind"],
) -> float:
    """Convert a quantity between units of length, mass, volume, area, speed, time, data, energy, pressure."""
    for units in UNITS.values():
        if from_unit in units and to_unit in units:
            return float(f"{value * units[from_unit] / units[to_unit]:.12g}")
    raise ToolError(f"{from_unit!r} and {to_unit!r} are not units of one kind; list_units shows them all")


@calculator.tool(read_only=True)
def list_units() -> dict[str, list[str]]:
    """List the units that convert_units knows, by kind of quantity."""
    return {kind: list(units) for kind, units in UNITS.items()}


def _value(node: ast.AST) -> Number:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_value(operand))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(argument) for argument in arguments))
    known = ", ".join([*FUNCTIONS, *CONSTANTS])
    raise ToolError(f"{ast.unparse(node)!r} is not allowed here; numbers, + - * / // % **, {known} are")


def _sieve(start: int, size: int, divisors: Iterable[int]) -> bytearray:
    """One segment of the sieve of Eratosthenes: one byte per number from ``start``, 1 for a prime.

    ``divisors`` begins at 2 and has, in order, every prime up to the root of the segment's last number.
    """
    sieve = bytearray([1]) * size
    if start == 0:
        sieve[:2] = bytes(min(2, size))
    for divisor in divisors:
        if divisor * divisor >= start + size:
            break
        first = max(divisor * divisor, -(-start // divisor) * divisor) - start
        sieve[first::divisor] = bytes(len(range(first, size, divisor)))
    return sieve


EXAMPLES = "'2026-03-29T14:30' or '2026-03-29'"
"""Two ways to write a moment, for descriptions and errors."""


class Moment(TypedDict):
    time: str
    zone: str
    weekday: str


clock = Server("clock", "Dates, times, time zones and durations. Times are ISO 8601, zones IANA names.")

When = Annotated[str, f"Date and time in ISO 8601, such as {EXAMPLES}"]
Day = Annotated[str, "Date in ISO 8601, such as '2026-03-29'"]
Zone = Annotated[str, "IANA name of the time zone, such as 'Europe/Berlin'"]


@clock.tool(read_only=True)
def current_time(zone: Zone = "UTC") -> Moment:
    """Tell the current date and time in a time zone: what time is it now in Tokyo?"""
    return _answer(datetime.now(_zone(zone)))


@clock.tool(read_only=True)
def convert_time_zone(
    time: When, from_zone: Zone, to_zones: Annotated[list[str], "IANA names of the wanted zones"]
) -> list[Moment]:
    """Convert a time from one time zone to others, for example to agree on a call across offices."""
    moment = _moment(time, _zone(from_zone))
    return [_answer(moment.astimezone(_zone(name))) for name in to_zones]


@clock.tool(read_only=True)
def list_time_zones(
    query: Annotated[str, "Part of the name, such as a city or continent"] = "",
    limit: Annotated[int, "How many at most", Between(1, 700)] = 50,
) -> list[str]:
    """List the names of time zones that contain a text."""
    wanted = query.strip().lower().replace(" ", "_")
    return sorted(name for name in available_timezones() if wanted in name.lower())[:limit]


@clock.tool(read_only=True)
def time_between(start: When, end: When, zone: Zone = "UTC") -> dict[str, float]:
    """Measure the time from one moment to another: how many days, hours and minutes lie between them."""
    first, last = _moment(start, _zone(zone)), _moment(end, _zone(zone))
    seconds = (last.astimezone(UTC) - first.astimezone(UTC)).total_seconds()
    days, rest = divmod(abs(round(seconds)), 86_400)
    return {"days": days, "hours": rest // 3600, "minutes": rest % 3600 // 60, "total_seconds": seconds}


@clock.tool(read_only=True)
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


@clock.tool(read_only=True)
def from_timestamp(
    seconds: Annotated[float, "Seconds since 1970-01-01 UTC", Between(-62_135_596_800, 253_402_300_799)],
) -> Moment:
    """Turn a Unix timestamp (epoch seconds) into a date and time."""
    return _answer(datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds))


@clock.tool(read_only=True)
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


EMAIL = re.compile(r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}")
LINK = re.compile(r"https?://[^\s<>\"'`\])}]+")
WORD = re.compile(r"\w+(?:['’-]\w+)*")

text = Server("text", "Works on text given in the call: compare, search, count, reshape, hash.")

Text = Annotated[str, "The text to work on"]
Pattern = Annotated[str, "Regular expression in Python syntax; (?i) at its start ignores case"]


@text.tool(read_only=True)
def compare_texts(old: Annotated[str, "The earlier text"], new: Annotated[str, "The later text"]) -> str:
    """Show the differences between two texts line by line as a unified diff."""
    lines = difflib.unified_diff(old.splitlines(), new.splitlines(), "old", "new", lineterm="")
    return "\n".join(lines) or "The texts have the same lines."


@text.tool(read_only=True)
def text_similarity(first: Annotated[str, "One text"], second: Annotated[str, "The other text"]) -> float:
    """Measure how alike two short texts are, from 0 (nothing in common) to 1 (equal)."""
    if len(first) + len(second) > 20_000:
        raise ToolError("both texts together may have 20000 characters")
    return round(difflib.SequenceMatcher(None, first, second, autojunk=False).ratio(), 4)


@text.tool(read_only=True)
def find_pattern(text: Text, pattern: Pattern) -> list[str]:
    """Find all matches of a regular expression in a text."""
    return [match[0] for match in _compiled(pattern).finditer(text)]


@text.tool(read_only=True)
def replace_pattern(
    text: Text,
    pattern: Pattern,
    replacement: Annotated[str, "What to put instead; \\1 stands for the first group"],
) -> str:
    """Replace every match of a regular expression in a text."""
    try:
        return _compiled(pattern).sub(replacement, text)
    except (re.error, IndexError) as e:
        raise ToolError(f"replacement does not fit the pattern: {e}") from e


@text.tool(read_only=True)
def frequent_words(
    text: Text, limit: Annotated[int, "How many words", Between(1, 500)] = 10
) -> dict[str, int]:
    """Count how often each word occurs in a text, and list the words that occur most often."""
    return dict(Counter(WORD.findall(text.lower())).most_common(limit))


@text.tool(read_only=True)
def make_slug(text: Annotated[str, "A title or name"]) -> str:
    """Turn a title into a slug for web addresses and file names: lower case, words joined by hyphens."""
    plain = unicodedata.normalize("NFKD", text).encode("ascii", "ignore").decode("ascii")
    slug = re.sub(r"[^a-z0-9]+", "-", plain.lower()).strip("-")
    if not slug:
        raise ToolError("nothing is left of this text as a slug; it needs some Latin letters or digits")
    return slug


@text.tool(read_only=True)
def change_case(
    text: Text,
    style: Annotated[Literal["upper", "lower", "title", "snake", "kebab", "camel"], "The wanted form"],
) -> str:
    """Change upper and lower case of a text, or turn words into a snake_case or camelCase identifier."""
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_]+", text)]
    camel = "".join(word.capitalize() for word in words)
    forms = {
        "upper": text.upper(),
        "lower": text.lower(),
        "title": re.sub(r"\S+", lambda match: match[0].capitalize(), text),
        "snake": "_".join(words),
        "kebab": "-".join(words),
        "camel": camel[:1].lower() + camel[1:],
    }
    return forms[style]


@text.tool(read_only=True)
def extract_links(text: Text) -> list[str]:
    """Collect the web addresses (URLs) in a text, each once, in order."""
    return list(dict.fromkeys(link.rstrip(".,;:!?") for link in LINK.findall(text)))


@text.tool(read_only=True)
def extract_email_addresses(text: Text) -> list[str]:
    """Collect the e-mail addresses in a text, each once, in order."""
    return list(dict.fromkeys(EMAIL.findall(text)))


@text.tool(read_only=True)
def hash_text(
    text: Text, algorithm: Annotated[Literal["sha256", "sha512", "blake2b", "md5"], "Which one"] = "sha256"
) -> str:
    """Compute the checksum (hash, digest) of a text in hexadecimal."""
    return hashlib.new(algorithm, text.encode(), usedforsecurity=False).hexdigest()


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as e:
        raise ToolError(f"pattern is not a regular expression: {e}") from e
