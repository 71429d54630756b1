"""Values in queries are recognised, also arithmetic; numbers that only look alike are not."""

from collections.abc import Callable, Sequence
from typing import Final

import pytest
from support.catalogs import read, snapshot, tool
from support.tables import each

from mcp_context_proxy.examples.functions import server
from mcp_context_proxy.retrieval.engine import Engine
from mcp_context_proxy.retrieval.forms import value_kind
from mcp_context_proxy.retrieval.index import Filters
from mcp_context_proxy.retrieval.text import stem


def read_as(query: str) -> str | None:
    return read(query).read_as


def test_an_object_of_json_stands_for_itself_unless_it_is_nearly_all() -> None:
    order = 'send {"order": 881, "state": {"paid": true}} to the orders topic'

    assert read_as(order) == "send JSON value to the orders topic"
    assert read_as('insert {"order": 881}') is None


@each(
    ("token", "kind"),
    [
        ("https://example.org/a?b=c", "URL"),
        ("anna.b+c@mail.example.org", "email address"),
        ("github.com/a/b", "website URL"),
        ("report.pdf", "file"),
        ("src/app/main.py", "file"),
        ("/etc/hosts", "path"),
        ("~/notes", "path"),
        ("../up", "path"),
        ("C:\\Users\\x", "path"),
        ("2024-05-01", "date"),
        ("2024-05-01T10:30:00Z", "date"),
        ("1.2.2024", "date"),
        ("10:30", "time"),
        ("5pm", "time"),
        ("ABC-12", "issue key"),
        ("CVE-2024-12345", "CVE id of a vulnerability"),
        ("#42", "issue number"),
        ("!231", "merge request number"),
        ("#cafe", "channel"),
        ("#dev-ops", "channel"),
        ("@anna.b", "user"),
        ("A1:H200", "spreadsheet cell range"),
        ("$B$2:$B$9", "spreadsheet cell range"),
        ("v2.3.1", "version"),
        ("git@example.org:acme/api.git", "repository URL"),
        ("postgres://u@h/db", "connection string of a database"),
        ("localhost:3000/admin", "URL"),
        (".env", "file"),
        ("services/api/Dockerfile", "file"),
        ("2401.01234v2", "arXiv paper id"),
        ("$1,200.50", "amount of money"),
        ("30€", "amount of money"),
        ("10.0.0.1:80", "IP address"),
        ("10.0.0.0/24", "IP address"),
        ("fe80::1", "IP address"),
        ("00:1a:2b:3c:4d:5e", "MAC address"),
        ("USD", "currency"),
        ("250EUR", "amount of money"),
        ("PST", "time zone"),
        ("UTC+2", "time zone"),
        ("Europe/Berlin", "time zone"),
        ("52.520,13.405", "coordinates"),
        ("+4915112345678", "phone number"),
        ("555-123-4567", "phone number"),
        ("978-3-16-148410-0", "book ISBN"),
        ("10.1000/xyz123", "DOI of a paper"),
        ("#ff8800", "color"),
        ("#fff", "color"),
        ("21.5°C", "temperature"),
        ("123e4567-e89b-12d3-a456-426614174000", "id"),
        ("3f2a9bc", "commit hash"),
    ],
)
def test_values_are_said_to_be_what_they_are(token: str, kind: str) -> None:
    assert value_kind(token) == kind
    assert f"{token} (" in (read_as(f"show {token}, please") or "")
    assert kind in (read_as(f"show {token}, please") or "")


@each(
    "token",
    [
        "word",
        "e.g",
        "v1.2",
        "and/or",
        "TCP/IP",
        "don't",
        "12",
        "deadbeef",
        "a@",
        "x:y",
        "UTF-8x",
        "#",
        "@",
        "!",
        "12:30:45 pm",
        "A:B",
        "COVID-19",
        "SHA-256",
        "usd",
        "TRY",
        "std::find",
        "555-1234",
    ],
)
def test_words_are_no_values(token: str) -> None:
    assert value_kind(token) is None


CALCULATED: Final = "calculate arithmetic expression"


@each(
    ("query", "expression", "operation"),
    [
        ("what is 17 times 23", "17 times 23", ", multiply"),
        ("how much is 15% of 80?", "15% of 80", ""),
        ("what's 15 percent of 240", "15 percent of 240", ""),
        ("sqrt(2)*3", "sqrt(2)*3", ""),
        ("what is the square root of 144", "square root of 144", ""),
        ("Seventeen plus twenty-three", "Seventeen plus twenty-three", ", add"),
        ("144 / 12", "144 / 12", ", divide"),
        ("what is 144/12", "144/12", ", divide"),
        ("(3 + 4) * 2 = ?", "(3 + 4) * 2", ""),
        ("1,200 divided by 7, please", "1,200 divided by 7", ", divide"),
        ("2 to the power of 10", "2 to the power of 10", ""),
        ("an 18% tip on 64", "18% tip on 64", ""),
        ("how much is a third of 90", "a third of 90", ""),
        ("20% off $50", "20% off $50", ""),
        ("how many tiles for a room of 3.5 * 4.2", "3.5 * 4.2", ", multiply"),
    ],
)
def test_arithmetic_is_to_be_calculated(query: str, expression: str, operation: str) -> None:
    assert read_as(query) == query.replace(expression, f"{expression} ({CALCULATED}{operation})")


def test_the_numbers_of_arithmetic_count_little_and_its_kind_as_the_order() -> None:
    query = read("what is 17 times 23")

    assert query.weights["17"] < query.weights[stem("calculate")] == 1


@each(
    "query",
    [
        "upgrade to v1.2+3",
        "support is there 24/7",
        "what happened on 9/11",
        "resize the picture to 800 x 600",
        "call 555-1234",
        "open issues 4 and 5",
        "page 3 / 10 of the report",
        "flights on 5 - 7 May",
        "retry it 3 times 5 minutes apart",
        "buy an iPhone 14 plus 2 cases",
        "find releases 3.10-3.12",
        "is it 50/50",
        "the newest C++ 11 compiler",
        "add 5 and 7 to the cart of Anna",
        "create a note: 3 + 4 = 7",
        "a 50% discount",
        "pages 10-20",
        "how high up is 36.57 -118.29",
    ],
)
def test_numbers_with_signs_between_them_are_not_always_arithmetic(query: str) -> None:
    assert "arithmetic" not in (read_as(query) or "")


@each(
    ("query", "value", "kind"),
    [
        ("run it at 0 9 * * 1-5 please", "0 9 * * 1-5", "cron schedule"),
        ("weather at 40.7128, -74.0060", "40.7128, -74.0060", "coordinates"),
        ("what is at 38.5, -120.2", "38.5, -120.2", "coordinates"),
        ("call (555) 123-4567 now", "(555) 123-4567", "phone number"),
        ("text +49 151 2345678", "+49 151 2345678", "phone number"),
        ("make it rgb(12, 13, 14)", "rgb(12, 13, 14)", "color"),
        ("SELECT name FROM users WHERE age > 3", "SELECT name FROM users WHERE age > 3", "SQL query"),
    ],
)
def test_values_of_several_words_are_said_to_be_what_they_are(query: str, value: str, kind: str) -> None:
    assert read_as(query) == query.replace(value, f"{value} ({kind})")


@each("query", ["select all files from the folder", "Delete the notes from March", "3 * 4"])
def test_sentences_and_numbers_are_no_other_values(query: str) -> None:
    assert not {"SQL", "cron"} & {*(read_as(query) or "").replace("(", " ").split()}


@pytest.fixture(scope="module")
def found(engine: Engine) -> Callable[..., Sequence[str]]:
    """Names of the tools of a calculator, notes and a calendar for a query, best first."""
    tools = [
        tool(one["name"], one["description"], server=name)
        for name in ("calculator", "notes", "calendar")
        for one in server(name).tools()
    ]
    catalog = snapshot(*tools)

    def names(query: str, *servers: str) -> Sequence[str]:
        among = Filters(servers=frozenset(servers) if servers else None)
        return [result.item.name for result in engine.search(query, catalog, among).results]

    return names


@pytest.mark.parametrize(
    "query", ["what is 17 times 23", "how much is 15% of 80", "sqrt(2)*3", "144 / 12", "nine times seven"]
)
def test_a_calculator_is_found_for_arithmetic(found: Callable[..., Sequence[str]], query: str) -> None:
    assert found(query)[0] == "calculate"


@pytest.mark.parametrize("query", ["what is 17 times 23", "how much is 15% of 80"])
def test_nothing_fits_arithmetic_where_nothing_calculates(
    found: Callable[..., Sequence[str]], query: str
) -> None:
    assert found(query, "notes", "calendar") == []
