"""Calls of every example server through the SDK's client: results, and errors that name the reason."""

import anyio
import pytest
from support.tables import each


async def call(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content[0].text
    if result.structured_content is None:
        return result.content[0].text
    value = result.structured_content
    return value["result"] if value.keys() == {"result"} else value


async def failure(client, tool, **arguments):
    result = await client.call_tool(tool, arguments)
    assert result.is_error
    return result.content[0].text


async def test_notes_are_written_found_and_deleted(connect, era):
    async with connect("notes", era) as client:
        note = await call(client, "create_note", title="Shopping", body="milk", tags=["Home", "home"])
        await call(client, "append_to_note", note_id=note["id"], text="50% cocoa")
        await call(client, "create_note", title="Meeting")

        found = await call(client, "search_notes", query="50% shopping")
        tags = await call(client, "list_note_tags")
        await call(client, "delete_note", note_id=note["id"])
        missing = await failure(client, "get_note", note_id=note["id"])

    assert [line["title"] for line in found] == ["Shopping"]
    assert tags == {"home": 1}
    assert missing == f"the notes have no number {note['id']}; list or search them to find it"


async def test_notes_outlive_the_process(connect):
    async with connect("notes") as client:
        await call(client, "create_note", title="Kept")
    async with connect("notes") as client:
        assert [line["title"] for line in await call(client, "list_notes")] == ["Kept"]


async def test_no_line_is_lost_when_many_append_to_a_note_at_once(connect):
    """Two processes with several threads each; reading and writing back must be one step."""
    lines = [f"line {number}" for number in range(24)]
    async with connect("notes") as first, connect("notes") as second:
        note = await call(first, "create_note", title="Log")

        async def append(client, line):
            await call(client, "append_to_note", note_id=note["id"], text=line)

        async with anyio.create_task_group() as tasks:
            for number, line in enumerate(lines):
                tasks.start_soon(append, (first, second)[number % 2], line)
        body = (await call(first, "get_note", note_id=note["id"]))["body"]

    assert sorted(body.splitlines()) == sorted(lines)


async def test_issues_are_filed_discussed_and_closed(connect, era):
    async with connect("issues", era) as client:
        issue = await call(client, "create_issue", title="Crash", priority="high", labels=["bug"])
        number = issue["number"]
        await call(client, "comment_on_issue", number=number, text="me too", author="Ann")
        await call(client, "assign_issue", number=number, assignee="Bob")
        closed = await call(client, "close_issue", number=number, reason="duplicate")
        discussion = await call(client, "get_issue", number=number)
        again = await failure(client, "close_issue", number=number)
        assert await call(client, "list_issues") == []
        assert len(await call(client, "list_issues", state="all", label="bug")) == 1

    assert (closed["state"], closed["assignee"]) == ("closed", "Bob")
    assert [comment["text"] for comment in discussion["comments"]] == ["me too", "closed: duplicate"]
    assert "closed already" in again


async def test_files_are_written_edited_and_searched(connect, era):
    async with connect("files", era) as client:
        await call(client, "write_file", path="a/log.txt", content="one\ntwo\n")
        await call(client, "append_to_file", path="a/log.txt", content="three")
        await call(client, "replace_in_file", path="a/log.txt", old="two", new="2")
        text = await call(client, "read_file", path="a/log.txt", first_line=2)
        matches = await call(client, "search_in_files", pattern="^THREE$")
        kept = await failure(client, "write_file", path="a/log.txt", content="")
        await call(client, "move_file", source="a/log.txt", target="b/log.txt")
        listing = await call(client, "find_files", pattern="*.TXT")

    assert text == "2\nthree\n"
    assert matches == [{"path": "a/log.txt", "line": 3, "text": "three"}]
    assert "overwrite" in kept
    assert [entry["path"] for entry in listing] == ["b/log.txt"]


async def test_text_is_compared_searched_and_reshaped(connect, era):
    async with connect("text", era) as client:
        diff = await call(client, "compare_texts", old="a\nb", new="a\nc")
        assert await call(client, "make_slug", text="Crème brûlée: 3 ways") == "creme-brulee-3-ways"
        assert await call(client, "change_case", text="HTTPServer name", style="snake") == "http_server_name"
        assert await call(client, "extract_email_addresses", text="to a.b@example.org.") == [
            "a.b@example.org"
        ]
        assert await call(client, "find_pattern", text="one 22 three 4", pattern=r"\d+") == ["22", "4"]
        bad_pattern = await failure(client, "find_pattern", text="x", pattern="(")

    assert diff.splitlines()[-2:] == ["-b", "+c"]
    assert "not a regular expression" in bad_pattern


async def test_times_are_converted_across_a_change_of_the_clocks(connect, era):
    async with connect("clock", era) as client:
        [tokyo] = await call(
            client,
            "convert_time_zone",
            time="2026-03-29T03:30",
            from_zone="Europe/Berlin",
            to_zones=["Asia/Tokyo"],
        )
        later = await call(client, "add_to_date", time="2026-03-29T01:30", hours=1, zone="Europe/Berlin")
        month = await call(client, "add_to_date", time="2026-01-31", months=1)
        span = await call(client, "time_between", start="2026-05-04T12:30", end="2026-05-10")
        unknown = await failure(client, "current_time", zone="Berlin")

    assert tokyo["time"] == "2026-03-29T10:30:00+09:00"
    assert later["time"] == "2026-03-29T03:30:00+02:00"
    assert month["time"].startswith("2026-02-28")
    assert (span["days"], span["hours"], span["minutes"]) == (5, 11, 30)
    assert "list_time_zones" in unknown


async def test_numbers_are_calculated_and_units_converted(connect, era):
    async with connect("calculator", era) as client:
        assert await call(client, "calculate", expression="2 * (3 + 4) ** 2") == 98
        assert await call(client, "convert_units", value=1, from_unit="mi", to_unit="km") == 1.609344
        primes = [await call(client, "count_primes", limit=limit) for limit in (1, 2, 3, 4, 100, 3_000_000)]
        loan = await call(client, "loan_payment", amount=100_000, annual_rate=6, years=30)
        mixed = await failure(client, "convert_units", value=1, from_unit="mi", to_unit="kg")

    assert primes == [0, 1, 2, 2, 25, 216_816]
    assert loan["monthly_payment"] == 599.55
    assert "not units of one kind" in mixed


@pytest.fixture
async def calculator(connect):
    """A client of one server for all rows of a table."""
    async with connect("calculator") as client:
        yield client


@each(
    "expression",
    [
        pytest.param("__import__('os').getcwd()", id="code"),
        pytest.param("9 ** 9 ** 9", id="giant power"),
        pytest.param("abs(5) ** 0.5 + 1 / 0", id="division by zero"),
        pytest.param("floor(1e308) * floor(1e308)", id="giant whole number"),
        pytest.param("(-8) ** 0.5", id="imaginary"),
        pytest.param("1e308 * 10", id="infinite"),
        pytest.param("2 +", id="unfinished"),
        pytest.param("(" * 500 + "1" + ")" * 500, id="nested"),
    ],
)
async def test_an_expression_that_has_no_value_is_refused_at_once(calculator, expression):
    assert await failure(calculator, "calculate", expression=expression)
    assert await call(calculator, "calculate", expression="1 + 1") == 2


async def test_appointments_leave_free_time_around_them(connect, era):
    async with connect("calendar", era) as client:
        event = await call(client, "create_event", title="Review", starts="2026-05-04T10:00", minutes=90)
        free = await call(client, "find_free_time", day="2026-05-04")
        await call(client, "reschedule_event", event_id=event["id"], starts="2026-05-05T09:00")
        moved = await call(client, "list_events", first_day="2026-05-05", days=1)
        vague = await failure(client, "create_event", title="x", starts="tomorrow")

    assert [(slot["starts"][11:], slot["ends"][11:]) for slot in free] == [
        ("09:00", "10:00"),
        ("11:30", "17:00"),
    ]
    assert moved[0]["ends"] == "2026-05-05T10:30"
    assert "write it as '2026-05-04T14:30'" in vague


async def test_people_are_found_in_the_address_book(connect):
    async with connect("calendar") as client:
        await call(client, "add_contact", name="Ann Lee", company="Oslo Bakery", birthday="1990-02-20")
        await call(client, "add_contact", name="Bob Ray", company="Oslo Ferries")
        found = await call(client, "find_contacts", query="LEE oslo")
        impossible = await failure(client, "add_contact", name="Cid", birthday="1990-02-30")

    assert [contact["name"] for contact in found] == ["Ann Lee"]
    assert "not a date" in impossible
