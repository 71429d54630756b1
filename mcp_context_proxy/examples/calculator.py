"""Numbers: arithmetic, statistics, money over time, primes, units of measure. Stores nothing."""

import ast
import math
import operator
import statistics
from collections.abc import Callable, Iterable
from typing import Annotated, TypeAlias

from mcp_context_proxy.examples.functions import Between, Server, ToolError
from mcp_context_proxy.examples.kit import Request

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


server = Server("calculator", "Arithmetic, statistics, loans and interest, primes, and units of measure.")


@server.tool(read_only=True)
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


@server.tool(read_only=True)
def describe_numbers(numbers: Annotated[list[float], "The numbers"]) -> dict[str, float]:
    """Compute mean, median, standard deviation, minimum, maximum and sum of a list of numbers."""
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


@server.tool(read_only=True)
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


@server.tool(read_only=True)
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


@server.tool(read_only=True)
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


if __name__ == "__main__":
    server.run()
