"""On which line a key stands: `tomllib` and `json` do not tell."""

import json
import tomllib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.tables import each

from mcp_context_proxy.config.texts import KeyPath, json_lines, plain_json, toml_lines

TOML = '''# comment with [brackets] and "quotes
top = 1
[a."b.c"]
x = """
[no]
y = 1
""" # y
y = { q = 1, r.s = [1,
  2] }
"k\\u00e9y" . 'lit' = 1979-05-27 07:32:00
[[d]]
p = \'\'\'it''s # not [[d]]\'\'\'
[[d]]
p = [
  "a", # [ "

  "b]",
]
[d.sub]
z = """a""\\""""
[[d.more]]
[[d.more]]
w = {}
[ spaced . out ]
v = inf'''


@each(
    ("path", "line"),
    [
        (("top",), 2),
        (("a", "b.c"), 3),
        (("a", "b.c", "x"), 4),
        (("a", "b.c", "y"), 8),
        (("a", "b.c", "y", "q"), 8),
        (("a", "b.c", "y", "r", "s", 1), 9),
        (("a", "b.c", "kéy", "lit"), 10),
        (("d", 0), 11),
        (("d", 0, "p"), 12),
        (("d", 1), 13),
        (("d", 1, "p", 0), 15),
        (("d", 1, "p", 1), 17),
        (("d", 1, "sub", "z"), 20),
        (("d", 1, "more", 0), 21),
        (("d", 1, "more", 1, "w"), 23),
        (("spaced", "out", "v"), 25),
    ],
)
def test_the_line_of_a_toml_key(path, line):
    assert toml_lines(TOML)[path] == line


def test_every_key_of_a_toml_text_has_a_line():
    assert set(_paths(tomllib.loads(TOML))) <= toml_lines(TOML).keys()


@each("text", ["a = [", "[", "= 1", 'a = "', "a = {b", "[[a]", "a.b", "\x00", "a = [,", "a={=}"])
def test_text_that_is_not_toml_has_no_lines_and_no_error(text):
    toml_lines(text)


@given(st.text(alphabet="ab.=[]{}\"'#,\n 1\\", max_size=60))
def test_any_text_is_searched_in_finite_time(text):
    lines = toml_lines(text)

    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())


JSON = """{ // "a": 0
  "a": "http://x // no comment, ]",
  /* "b":
     1 */ "b": [1, {"c": 2},
    3, ],
  "d": {}, "e": [],
  "f\\u0021": {"g": [
      [true, "x,}"]
  ],},
}"""


@each(
    ("path", "line"),
    [
        (("a",), 2),
        (("b",), 4),
        (("b", 1, "c"), 4),
        (("b", 2), 5),
        (("e",), 6),
        (("f!", "g"), 7),
        (("f!", "g", 0, 1), 8),
    ],
)
def test_the_line_of_a_json_key(path, line):
    assert json_lines(plain_json(JSON)).lines[path] == line


def test_removing_comments_and_trailing_commas_keeps_every_position():
    plain = plain_json(JSON)

    assert json.loads(plain)["a"] == "http://x // no comment, ]"
    assert [len(row) for row in plain.split("\n")] == [len(row) for row in JSON.split("\n")]


def test_repeated_keys_of_json_are_found_with_their_line():
    assert json_lines('{"a": 1,\n"b": {"c": 1,\n"c": 2},\n"a": 2}').duplicates == [
        (("b", "c"), 3),
        (("a",), 4),
    ]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(st.text(max_size=5), _VALUES, max_size=4), st.sampled_from([None, 1]))
def test_every_key_of_any_json_has_a_line_and_strict_json_is_left_alone(value, indent):
    text = json.dumps(value, indent=indent)
    lines = json_lines(plain_json(text))

    assert plain_json(text) == text
    assert set(_paths(value)) <= lines.lines.keys()
    assert lines.duplicates == []


def _paths(value: Any, above: KeyPath = ()) -> list[KeyPath]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path for key, item in pairs for path in [(*above, key), *_paths(item, (*above, key))]]
