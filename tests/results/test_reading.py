"""Parts of a large result are found by words and by paths, in time that grows with its size and no faster."""

import contextlib
import json
import tracemalloc

import pytest
from support.growth import costs_more
from support.tables import each

from mcp_context_proxy.results.result_store import PLACES, ReadError, read

LINES = [f"row {number}" for number in range(100)]


def found(text: str, pattern: str) -> list[str]:
    return read(text.encode(), 1, None, pattern, 1_000_000).text.decode().split("\n")


def test_matches_that_are_near_share_the_lines_around_them() -> None:
    assert found("\n".join(LINES[:19]), "row 1*") == [
        *(f"{at + 1}{':' if at == 1 or at >= 10 else '-'} row {at}" for at in range(4)),
        "--",
        *(f"{at + 1}{':' if at >= 10 else '-'} row {at}" for at in range(8, 19)),
    ]


def test_many_matches_are_shown_without_the_lines_around_them() -> None:
    reading = read("\n".join(LINES).encode(), 1, None, "row 1*")

    assert reading.text.decode().split("\n") == [f"{at + 1}: row {at}" for at in (1, *range(10, 20))]
    assert reading.note.startswith("[11 places match, shown without the text around them; this is all]")


def test_a_star_stands_for_anything_in_one_line() -> None:
    assert found("error a\nfailed b\nerror and failed c\n", "Error*Failed") == [
        "1- error a",
        "2- failed b",
        "3: error and failed c",
    ]
    with pytest.raises(ReadError, match="nothing matches"):
        found("error\nfailed", "error*failed")


def test_what_is_written_like_a_regular_expression_finds_lines_where_it_has_no_match_as_it_stands() -> None:
    text = "begin\n\n\nERROR a(1)\n\n\nit took 12 ms\n\n\nfatal: b|c"

    def numbers(pattern: str) -> list[int]:
        return [
            int(line.partition(":")[0]) for line in found(text, pattern) if line.split(" ")[0].endswith(":")
        ]

    assert numbers("error|fatal") == [4, 10]
    assert numbers("(took \\d+ ms|^begin$)") == [1, 7]
    assert numbers(r"(?i)\berror.*a\(1\)") == [4]
    assert numbers("(?i)(error|(?:fatal))") == [4, 10]
    assert numbers("b|c") == [10]
    with pytest.raises(ReadError, match=r"in 1 line; \* stands for anything in a line, \| for or"):
        found("a", "x|y")


def test_a_match_in_a_long_line_is_shown_with_what_surrounds_it() -> None:
    line = "x" * 5000 + "needle" + "y" * 5000 + "needle" + "z" * 5000
    first, second = found(line, "needle")

    assert first.startswith("1: (at 5,000) ...xxx")
    assert second.startswith("1: (at 10,006) ...yyy")
    assert max(len(first), len(second)) < 400


def test_a_match_at_the_end_of_a_long_line_hides_none_in_the_next_and_is_shown_once() -> None:
    long = "x" * 1000 + "needle"

    assert [line.partition(" ")[0] for line in found(f"a\nneedle\n{long}\nb\nneedle", "needle")] == [
        *("1-", "2:", "3:", "4-", "5:"),
    ]


def test_a_search_tells_of_a_bounded_number_of_places() -> None:
    reading = read(b"hit\n" * 10 * PLACES, 1, None, "hit", 1_000_000)

    assert reading.note.startswith(f"[10,000 places match, of which the first {PLACES:,} are shown")
    assert reading.text.count(b"hit") == PLACES


def test_the_words_of_a_pattern_are_found_in_any_order_where_they_do_not_stand_as_written() -> None:
    rows = "id;state;city\n1;lost;Graz\n2;Lyon;lost\n3;open;Graz\n4;lost in Graz;-"

    assert found(rows, "lost in Graz") == ["3- 2;Lyon;lost", "4- 3;open;Graz", "5: 4;lost in Graz;-"]
    assert [line for line in found(rows, "lyon lost") if ": " in line] == ["3: 2;Lyon;lost"]
    assert [line for line in found(rows, "graz lost") if ": " in line] == [
        "2: 1;lost;Graz",
        "5: 4;lost in Graz;-",
    ]


def test_each_page_says_which_lines_of_the_whole_it_has() -> None:
    whole = b"".join(b"row %d\n" % number for number in range(3_000))
    begun, pages = 0, [read(whole, number, None, None, 9_000) for number in (1, 2, 3)]
    for number, page in enumerate(pages, 1):
        lines = page.text.count(b"\n")
        assert page.note.startswith(
            f"[page {number} of 4, lines {begun + 1:,} to {begun + lines:,} of 3,000."
        )
        begun += lines


def test_a_path_and_a_pattern_together_search_the_part() -> None:
    data = json.dumps({"a": ["apple", "pear"], "b": ["pear"]}).encode()

    assert read(data, 1, "a[*]", "pear").text == b'2: "pear"'


def test_each_of_several_values_is_one_line_however_its_server_has_written_it() -> None:
    rows = [{"id": number, "state": "open" if number % 2 else "done"} for number in range(3)]
    data = json.dumps({"rows": rows}, indent=4).encode()

    assert read(data, 1, "rows[0:2]", None).text == b'{"id":0,"state":"done"}\n{"id":1,"state":"open"}'
    found = read(data, 1, "rows[*]", '"id":2*done')
    assert found.text.splitlines()[-1] == b'3: {"id":2,"state":"done"}'


@each(
    ("path", "value"),
    [
        ("a.b", "1"),
        ("$['a']['b']", "1"),
        ('["odd.name"][0]', "2"),
        ("list[-1].id", "4"),
        ("list.id", "3\n4"),
        (".list.1.id", "4"),
        ("list[*][id, t]", '{"id":3,"t":"x"}\n{"id":4}'),
        ("list[0:1]['id']", "3"),
        ("list[0].t", "x"),
        ("empty[*]", ""),
        ("list[?id==4]", '{"id":4}'),
        ("list[?(@.id > 3.5)].id", "4"),
        ("$.list[?@.t=='x' && @.id<9].id", "3"),
        ("list[?t != x].id", "4"),
        ("list[?id>9]", ""),
        ("list[?id>2][0:1].id", "3"),
        ("list[?id>2][-1]", '{"id":4}'),
        ("sets[*][0].id", "1\n2"),
        ("list[?id>9].t", ""),
        ("sets[*][?late==1].id", "2"),
        ("list[?(@.id>9 || @.t == 'x')].id", "3"),
        ("list[?t == 'y and z' or id >= 3 and id < 4].id", "3"),
    ],
)
def test_a_path_leads_to_a_part(path: str, value: str) -> None:
    data = b"""{"a":{"b":1},"odd.name":[2],"list":[{"id":3,"t":"x"},{"id":4}],"empty":[],
    "sets":[[{"id":1}],[{"id":2,"late":1}]]}"""

    assert read(data, 1, path, None).text.decode() == value


def test_numbers_that_a_path_leads_to_are_summed_below_them() -> None:
    data = b'{"rows":[{"kg":1.5,"to":"Graz"},{"kg":2},{"kg":-1,"to":"Graz"}]}'

    assert "3 numbers: sum 2.5, least -1, greatest 2" in read(data, 1, "rows[*].kg", None).note
    assert "2 numbers: sum 0.5, least -1, greatest 1.5" in read(data, 1, "rows[?to=Graz].kg", None).note
    assert "numbers" not in read(data, 1, "rows[*].to", None).note
    ids = b"[1234567890123456788,1234567890123456789]"
    assert "least 1234567890123456788, greatest 1234567890123456789" in read(ids, 1, "[*]", None).note


@each("numbers", [b"1e308\n1e308", b"1e999\n-1e999", b"9" * 5000 + b"\n-" + b"9" * 5000])
def test_numbers_that_have_no_sum_are_shown_without_one(numbers: bytes) -> None:
    part = read(b"[" + numbers.replace(b"\n", b",") + b"]", 1, "[*]", None)
    assert part.text == numbers
    assert "sum" not in part.note


def test_a_condition_tells_ids_apart_that_are_equal_as_floats() -> None:
    data = b'[{"id":1234567890123456788,"at":"nan"},{"id":"1234567890123456789","at":"b"}]'
    assert read(data, 1, "[?id == 1234567890123456789].at", None).text == b'"b"'
    assert read(data, 1, "[?id < 1234567890123456789].at", None).text == b'"nan"'
    assert read(data, 1, "[?at == nan].at", None).text == b'"nan"'


def test_the_fields_of_a_list_need_no_brackets() -> None:
    assert read(b'[{"a":1,"b":2,"c":3},{"a":4}]', 1, "a,b", None).text == b'{"a":1,"b":2}\n{"a":4}'


@each(
    "text",
    [
        '{"id": 3, "to": "Graz, AT"}\n{"id": 4, "to": "b"}\n\n{"id": 5, "to": "b"}\n{"id": 5, "to": "b"}',
        'id,to\r\n3,"Graz, AT"\r\n4,b\r\n5,b\r\n',
        "id;to\n3;Graz, AT\n4;b\n5;b",
        "id\tto\n3\tGraz, AT\n4\tb\n5\tb\n",
        "3 rows:\n\n| id | to |\n|:---|----|\n| 3 | Graz, AT |\n| 4 | b |\n|5|b|\nThat is all.",
        'id\tto\tsaid\n3\tGraz, AT\t"so\n4\tb\tc\n5\tb\tc',
        '\ufeffid, to, said\n3, "Graz, AT", "two\nlines"\n4, b, c\n5, b, c',
        " id | to\n--- | ---\n3 | Graz, AT\n4 | b\n5 | b",
        "+----+----------+\n| id | to |\n+----+--+\n| 3 | Graz, AT |\n| 4 ||\n| 5 ||\n+----+----------+",
    ],
)
def test_the_rows_of_a_table_and_json_lines_are_read_by_a_path(text: str) -> None:
    assert read(text.encode(), 1, "[?to == 'Graz, AT'].id", None).text == b"3"
    assert "sum " in read(text.encode(), 1, "[?id > 3].id", None).note


@each(
    "text",
    [
        "10:00:01,INFO,a\n10:00:02,INFO,b\n" * 9,
        "One, two\nthree\nfour, five\nsix",
        "a\nb\nc\nd",
        # A path would lead to other cells than are meant.
        "id,sum\n" + "1,2\n" * 50 + "1,2,3\n",
        "id,sum,sum\n1,2,3\n4,5,6",
        'id,sum\n1,2\n3,"4\n5,6',
        # Each cell would have the name of its column beside it.
        ",".join(f"{'x' * 50}{number}" for number in range(400)) + f"\n{',' * 399}" * 2_000,
    ],
)
def test_lines_that_are_no_table_have_no_path(text: str) -> None:
    with pytest.raises(ReadError, match="no JSON or table"):
        read(text.encode(), 1, "[0]", None)


@each(
    ("path", "why"),
    [
        ("a.c", "no member 'c'; what there is: {b: number}"),
        ("list[9]", "no element 9; what there is: array of 1 number"),
        ("a[", "not closed"),
        ("rows[?(id>3||id<1) && id!=2]", "such as items[?size > 3 && state == 'open']"),
        ("rows[?state=='open']", "no member 'state'; what there is: {id: null}"),
        ("$.rows[?(@.id == 3 || @.id)]", "such as items[?size > 3 && state == 'open']"),
        ("a..b", "empty step"),
        ("a. .b", "empty step"),
        ("rows[9]", "array of 2 {id: number}"),
        ("wide.x", "m28: number, m29: number, ... 10 more}"),
        ("a" + ".a" * 40, "at most 32 steps"),
    ],
)
def test_a_path_that_leads_nowhere_says_what_there_is(path: str, why: str) -> None:
    wide = {f"m{number}": number for number in range(40)}
    data = {"a": {"b": 1}, "list": [1], "rows": [{"id": None}, {"id": 3}], "wide": wide}
    with pytest.raises(ReadError) as refused:
        read(json.dumps(data).encode(), 1, path, None)
    assert why in str(refused.value)


@each(
    ("number", "path", "pattern", "why"),
    [
        (3, None, None, "there is no page 3; the last one is 1"),
        (1, "a", None, "no JSON"),
        (1, None, "x" * 201, "at most 200 characters"),
    ],
)
def test_what_cannot_be_read_is_refused_in_words(
    number: int, path: str | None, pattern: str | None, why: str
) -> None:
    with pytest.raises(ReadError, match=why):
        read(b"plain text", number, path, pattern)


@each(
    ("unit", "path", "pattern"),
    [
        ("a", None, "a*b"),
        ("ab", None, "aab*"),
        ("\n", None, "x"),
        ("a\n", None, "a*a"),
        ("a\n", None, "a*b"),
        ("a\n", None, "b|" * 99),
        ("ab\n\n", None, "b*a"),
        ("İ", None, "i"),
        ("[", "[0][0]", None),
        ('{"a":', "a.a.a", None),
        ("0,", "[*]", None),
        ("a,b\n", "[*]", None),
        ('a,"', "[*]", None),
        ("| \n", "[*]", None),
        ("{}\n", "[?a=='b' || c==d]", None),
    ],
)
def test_hostile_text_is_read_in_time_in_proportion_to_its_length(
    unit: str, path: str | None, pattern: str | None
) -> None:
    def text(times: int) -> bytes:
        return b"[%b0]" % (unit * times).encode() if unit == "0," else (unit * times).encode()

    def reading(text: bytes) -> None:
        with contextlib.suppress(ReadError):
            read(text, 1, path, pattern)

    # Sixteen times the text; with its square it would be 256 times as much.
    assert not costs_more(80, reading, text(800_000), text(50_000))


def test_a_pattern_that_millions_of_short_lines_begin_to_match_is_searched_at_once() -> None:
    def reading(lines: int) -> None:
        with pytest.raises(ReadError, match="nothing matches"):
            read(b"ab\n" * lines, 1, None, "a*a")

    assert not costs_more(40, reading, 2_000_000, 200_000)


def test_a_long_pattern_that_a_text_has_nearly_takes_no_longer_than_a_short_one() -> None:
    def reading(length: int) -> None:
        with pytest.raises(ReadError, match="nothing matches"):
            read((b"a" * 60_000 + b"\n") * 50, 1, None, f"a*{'a' * length}b")

    assert not costs_more(4, reading, 190, 15)


def test_a_match_after_lines_without_one_keeps_its_number_whatever_stands_between() -> None:
    long = b"a " * 300_000
    text = b"a\n" * 200_000 + long + b"\n" + b"\n" * 5 + b"x\na then b\n" + b"a\n" * 200_000 + b"a b"
    found = read(text, 1, None, "a*b")

    assert b"200008: a then b" in found.text
    assert b"400009: a b" in found.text
    assert "2 places match" in found.note


def test_a_row_of_millions_of_cells_is_not_taken_apart() -> None:
    size = 8_000_000
    text = b"id,name\n1,a\n" + b"," * size + b"\n2,b\n"
    tracemalloc.start()
    try:
        with pytest.raises(ReadError, match="no JSON or table"):
            read(text, 1, "name", None)
        assert tracemalloc.get_traced_memory()[1] < 4 * size
    finally:
        tracemalloc.stop()


def test_a_field_that_a_path_names_often_is_taken_once() -> None:
    text = b"[" + b",".join([b'{"a":1,"b":2}'] * 50_000) + b"]"
    often, once = "[*][" + ",".join(["b", "a"] * 200) + "]", "[*][b,a]"

    assert not costs_more(10, lambda path: read(text, 1, path, None), often, once)
    assert read(text, 1, often, None).text == read(text, 1, once, None).text


def test_a_path_that_goes_through_a_large_result_over_and_over_is_refused() -> None:
    nested, deep, long = (
        b"[" * 100 + b"[0]," * 1_500_000 + b"0" + b"]" * 100,
        b"[" + b'{"a":' * 100 + b"[" + b"0," * 1_500_000 + b"0]" + b"}" * 100 + b"]",
        b"[" + b",".join([b'{"a":1}'] * 50_000) + b"]",
    )
    steps, names, tests = "[0]" * 32, f"[?{'a.' * 99}a==1]", f"[?{'a>0&&' * 30}a>0]"
    for text, path in ((nested, steps), (deep, names), (long, tests)):
        with pytest.raises(ReadError, match="too many steps or conditions for a result of this size"):
            read(text, 1, path, None)

    assert "50,000 numbers: sum 50000" in read(long, 1, "[?a>0 && a<2 && a!=3].a", None).note
    assert read(b"[" * 33 + b"]" * 33, 1, "[0]" * 32, None).text == b"[]"
