"""Numbers: arithmetic, statistics, money over time, primes, units of measure. Stores nothing."""

import ast
import math
import operator
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Annotated, TypeAlias, TypedDict

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.kit import Request

Number: TypeAlias = int | float

MAX_BITS = 10_000
"""Bits of a whole number; beyond them an innocent-looking expression could run for hours."""

SEGMENT = 1 << 20
"""Numbers sieved between two progress reports: some hundredths of a second."""


def _round(value: Number, digits: Number = 0) -> Number:
    """On floats only: rounding an integer to minus a million digits would take for ever."""
    return round(float(value), int(digits))


OPERATORS: dict[type[ast.AST], Callable[..., Number]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
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


class Converted(TypedDict):
    value: float
    unit: str


class Summary(TypedDict):
    count: int
    mean: float
    median: float
    standard_deviation: float
    minimum: float
    maximum: float
    first_quartile: float
    third_quartile: float
    sum: float


class Line(TypedDict):
    slope: float
    intercept: float
    correlation: float


class Loan(TypedDict):
    monthly_payment: float
    total_paid: float
    total_interest: float


class Growth(TypedDict):
    final_amount: float
    paid_in: float
    interest_earned: float


class Primes(TypedDict):
    limit: int
    count: int
    largest: int | None


server = Server("calculator", "Arithmetic, statistics, loans and interest, primes, and units of measure.")


@server.tool(read_only=True)
def calculate(expression: Annotated[str, "Such as '2 * (3 + 4) ** 2' or 'sqrt(2) * sin(pi / 4)'"]) -> float:
    """Evaluate an arithmetic expression with + - * / // % **, functions such as sqrt and log, pi and e."""
    try:
        result = _value(ast.parse(expression.strip(), mode="eval").body)
    except SyntaxError as e:
        raise ToolError(f"{expression!r} is not an arithmetic expression") from e
    except (ArithmeticError, ValueError, TypeError) as e:
        raise ToolError(f"{expression!r} has no value: {e}") from e
    except (RecursionError, MemoryError) as e:
        raise ToolError("the expression is nested too deeply") from e
    if isinstance(result, int) and result.bit_length() > MAX_BITS:
        raise ToolError("the result is too large; use decimals, such as 2.0, for an approximation")
    if not math.isfinite(result):
        raise ToolError(f"{expression!r} has no finite value")
    return result


@server.tool(read_only=True)
def describe_numbers(numbers: Annotated[list[float], "The numbers"]) -> Summary:
    """Compute mean, median, standard deviation, quartiles, minimum, maximum and sum of a list of numbers."""
    if len(numbers) < 2:
        raise ToolError("statistics need at least two numbers")
    quartiles = statistics.quantiles(numbers, n=4, method="inclusive")
    return {
        "count": len(numbers),
        "mean": statistics.fmean(numbers),
        "median": statistics.median(numbers),
        "standard_deviation": statistics.stdev(numbers),
        "minimum": min(numbers),
        "maximum": max(numbers),
        "first_quartile": quartiles[0],
        "third_quartile": quartiles[2],
        "sum": math.fsum(numbers),
    }


@server.tool(read_only=True)
def fit_line(
    x: Annotated[list[float], "Horizontal positions"], y: Annotated[list[float], "A value for each position"]
) -> Line:
    """Fit a straight line to points by least squares (linear regression) and give the correlation."""
    try:
        fit = statistics.linear_regression(x, y)
        correlation = statistics.correlation(x, y)
    except statistics.StatisticsError as e:
        raise ToolError(f"no line fits: {e}") from e
    return {"slope": fit.slope, "intercept": fit.intercept, "correlation": correlation}


@server.tool(read_only=True)
def percentage_change(old: Annotated[float, "Before"], new: Annotated[float, "After"]) -> float:
    """Compute by how many per cent a value grew or shrank."""
    if old == 0:
        raise ToolError("old must not be zero: no percentage describes a change from nothing")
    return (new - old) / abs(old) * 100


@server.tool(read_only=True)
def loan_payment(
    amount: Annotated[float, "What is borrowed", Between(0, 1e15)],
    annual_rate: Annotated[float, "Interest per year in per cent", Between(0, 1000)],
    years: Annotated[float, "Until it is paid back", Between(0.1, 100)],
) -> Loan:
    """Compute the monthly payment and the total interest of a loan or mortgage with equal payments."""
    months, rate = max(round(years * 12), 1), annual_rate / 1200
    payment = amount / months if rate == 0 else amount * rate / -math.expm1(-months * math.log1p(rate))
    total = payment * months
    return {
        "monthly_payment": round(payment, 2),
        "total_paid": round(total, 2),
        "total_interest": round(total - amount, 2),
    }


@server.tool(read_only=True)
def compound_interest(
    amount: Annotated[float, "What is put in at the start", Between(0, 1e15)],
    annual_rate: Annotated[float, "Interest per year in per cent", Between(0, 1000)],
    years: Annotated[int, "How long it grows", Between(1, 100)],
    monthly_deposit: Annotated[float, "What is added at the end of each month", Between(0, 1e12)] = 0.0,
) -> Growth:
    """Compute what savings grow to with compound interest and a monthly deposit."""
    months, rate = years * 12, annual_rate / 1200
    factor = math.exp(months * math.log1p(rate))
    deposits = monthly_deposit * (months if rate == 0 else (factor - 1) / rate)
    final, paid_in = amount * factor + deposits, amount + monthly_deposit * months
    return {
        "final_amount": round(final, 2),
        "paid_in": round(paid_in, 2),
        "interest_earned": round(final - paid_in, 2),
    }


@server.tool(read_only=True)
def factorize(number: Annotated[int, "A whole number", Between(2, 10**12)]) -> list[int]:
    """Split a whole number into its prime factors."""
    factors: list[int] = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1 if divisor == 2 else 2
    return [*factors, number] if number > 1 else factors


@server.tool(read_only=True)
def count_primes(
    limit: Annotated[int, "Count up to this number", Between(1, 10**12)], request: Request
) -> Primes:
    """Count the prime numbers up to a limit. A large one takes long (minutes beyond 10**10)."""
    count, largest = 0, None
    base = _primes(math.isqrt(limit))
    for start in range(0, limit + 1, SEGMENT):
        request.step(start, limit, f"{count} primes below {start}")
        sieve = _sieve(start, min(SEGMENT, limit + 1 - start), base)
        count += sieve.count(1)
        if (last := sieve.rfind(1)) >= 0:
            largest = start + last
    request.step(limit, limit, f"{count} primes")
    return {"limit": limit, "count": count, "largest": largest}


@server.tool()
def random_numbers(
    count: Annotated[int, "How many", Between(1, 1000)],
    low: Annotated[int, "Smallest possible number"] = 1,
    high: Annotated[int, "Largest possible number"] = 100,
    seed: Annotated[int | None, "Same seed, same numbers"] = None,
) -> list[int]:
    """Draw random whole numbers, for dice, samples and lotteries. Not for passwords."""
    if high < low:
        raise ToolError(f"high ({high}) must not be below low ({low})")
    source = random.Random(seed)
    return [source.randint(low, high) for _ in range(count)]


@server.tool(read_only=True)
def convert_units(
    value: Annotated[float, "How much"],
    from_unit: Annotated[str, "Unit it is in, such as 'mi', 'lb', 'GiB', 'km/h'"],
    to_unit: Annotated[str, "Unit wanted, of the same kind"],
) -> Converted:
    """Convert a quantity between units of length, mass, volume, area, speed, time, data, energy, pressure."""
    kind = next((kind for kind, units in UNITS.items() if from_unit in units), None)
    if kind is None:
        raise ToolError(f"unknown unit {from_unit!r}; list_units shows the known ones, case matters")
    if to_unit not in UNITS[kind]:
        raise ToolError(f"{to_unit!r} is not a unit of {kind}; use one of {', '.join(UNITS[kind])}")
    result = value * UNITS[kind][from_unit] / UNITS[kind][to_unit]
    return {"value": float(f"{result:.12g}"), "unit": to_unit}


@server.tool(read_only=True)
def convert_temperature(
    value: Annotated[float, "Degrees"],
    from_scale: Annotated[str, "C, F or K"],
    to_scale: Annotated[str, "C, F or K"],
) -> Converted:
    """Convert a temperature between Celsius, Fahrenheit and Kelvin."""
    to_kelvin = {"C": (1.0, 273.15), "F": (5 / 9, 459.67 * 5 / 9), "K": (1.0, 0.0)}
    source, target = from_scale.strip()[:1].upper(), to_scale.strip()[:1].upper()
    if source not in to_kelvin or target not in to_kelvin:
        raise ToolError(f"scales are C, F and K; got {from_scale!r} and {to_scale!r}")
    kelvin = value * to_kelvin[source][0] + to_kelvin[source][1]
    if kelvin < -1e-9:
        raise ToolError(f"{value} {source} is below absolute zero")
    return {"value": round((kelvin - to_kelvin[target][1]) / to_kelvin[target][0], 6), "unit": target}


@server.tool(read_only=True)
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
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            return _power(_value(left), _value(right))
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
            return OPERATORS[type(sign)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return FUNCTIONS[name](*(_value(argument) for argument in arguments))
    known = ", ".join([*FUNCTIONS, *CONSTANTS])
    raise ToolError(f"{ast.unparse(node)!r} is not allowed here; numbers, + - * / // % **, {known} are")


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and abs(exponent) * base.bit_length() > MAX_BITS:
        raise ToolError("the power is too large; use decimals, such as 2.0, for an approximation")
    power: Number | complex = base**exponent
    if isinstance(power, complex):
        raise ToolError("a root of a negative number is not real")
    return power


def _primes(limit: int) -> Sequence[int]:
    if limit < 2:
        return []
    sieve = _sieve(0, limit + 1, _primes(math.isqrt(limit)))
    return [number for number, prime in enumerate(sieve) if prime]


def _sieve(start: int, size: int, primes: Sequence[int]) -> bytearray:
    """One segment of the sieve of Eratosthenes: one byte per number from ``start``, 1 for a prime.

    ``primes`` holds every prime up to the square root of the segment's last number.
    """
    sieve = bytearray([1]) * size
    if start == 0:
        sieve[:2] = bytes(min(2, size))
    for prime in primes:
        first = max(prime * prime, -(-start // prime) * prime) - start
        if prime * prime >= start + size:
            break
        sieve[first::prime] = bytes(len(range(first, size, prime)))
    return sieve


if __name__ == "__main__":
    server.run()
