"""Hosts' files are edited in place: entries leave, and everything else stays as it was."""

import json
import tomllib
from difflib import unified_diff
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.growth import costs_more
from support.tables import each

from mcp_context_proxy.config.source import parse
from mcp_context_proxy.config.texts import plain_json
from mcp_context_proxy.errors import ConfigError
from mcp_context_proxy.installation import read_text
from mcp_context_proxy.installation.editing import EditError, edited, entries
from mcp_context_proxy.installation.plan import FileChange

OURS = {"context-proxy": {"command": "/bin/proxy", "args": ["serve"]}}

JSON = """{
  // my settings
  "theme": "dark", /* of the evening, mostly */
  "mcpServers": {
    // from npm
    "docs": { "command": "npx", "args": ["-y", "docs"] }, // beside it
    "files": {
      "command": "files", // a program
    },
  },
  "last": [1, 2,],
}
"""


def test_entry_takes_the_place_of_those_that_leave_and_comments_of_others_stay() -> None:
    assert edited("json", JSON, ("mcpServers",), {"docs"}, OURS) == JSON.replace(
        '    // from npm\n    "docs": { "command": "npx", "args": ["-y", "docs"] }, // beside it\n',
        '    "context-proxy": {\n      "command": "/bin/proxy",\n      "args": ["serve"]\n    },\n',
    )


def test_last_entry_leaves_without_a_comma_before_the_end() -> None:
    text = '{"mcpServers": {"a": {"command": "x"}, "b": {}}}'
    assert edited("json", text, ("mcpServers",), {"b"}, {}) == '{"mcpServers": {"a": {"command": "x"}}}'


@each("text", ["", "\n", "{}", '{"theme": "x"}', '{\n\t"theme": "x"\n}\n'])
def test_place_that_is_missing_is_made(text: str) -> None:
    after = edited("json", text, ("mcp", "servers"), (), OURS)
    assert (
        json.loads(after) == {**json.loads(text or "{}"), "mcp": {"servers": OURS}} if text.strip() else OURS
    )
    assert after.startswith("{")


def test_indentation_of_the_file_is_used() -> None:
    after = edited("json", '{\n\t"mcpServers": {\n\t\t"a": {}\n\t}\n}\n', ("mcpServers",), (), OURS)
    assert '\n\t\t"context-proxy": {\n\t\t\t"command"' in after


def test_mark_and_line_ends_of_windows_stay() -> None:
    text = "\ufeff" + JSON.replace("\n", "\r\n")
    after = edited("json", text, ("mcpServers",), {"files"}, OURS)
    assert after.startswith("\ufeff{\r\n")
    assert "\n" not in after.replace("\r\n", "")


def test_repeated_key_leaves_wholly() -> None:
    text = '{"mcpServers": {"a": {"command": "x"}, "a": {"command": "y"}, "b": {}}}'
    assert json.loads(edited("json", text, ("mcpServers",), {"a"}, {})) == {"mcpServers": {"b": {}}}


TOML = """# codex
model = "gpt"

# documents
[mcp_servers.docs] # here
command = "npx"
text = '''
[mcp_servers.no_table]
'''
[mcp_servers.docs.env]
A = "1"

# issues
[mcp_servers.issues]
url = "https://example.com"

[profiles.a]
x = 1 # kept
"""


def test_table_of_toml_leaves_with_its_comment_and_its_tables() -> None:
    after = edited("toml", TOML, ("mcp_servers",), {"docs"}, OURS)
    assert after.startswith('# codex\nmodel = "gpt"\n\n# issues\n[mcp_servers.issues]\n')
    assert after.endswith(
        'x = 1 # kept\n\n[mcp_servers.context-proxy]\ncommand = "/bin/proxy"\nargs = ["serve"]\n'
    )


@pytest.mark.parametrize("quotes", ["'''", '"""'])
def test_text_of_very_many_rows_that_look_like_tables_stays(quotes: str) -> None:
    """Each row is looked at once: with all rows before it, that would take hours."""
    prompt = f"prompt = {quotes}\n" + "[mcp_servers.docs]\n" * 200_000 + f"{quotes}\n"
    after = edited("toml", f"{prompt}[mcp_servers.docs]\nurl = 'x'\n", ("mcp_servers",), {"docs"}, {})
    assert after == prompt


@each(
    "value",
    [
        "[ # [\n  '[', \"]\", # ]\n]",
        '"""a""""',
        '""""a"\n[mcp_servers.docs]\\""" """""',
        "''''a'\n[mcp_servers.docs]'''''",
        '"a\\"#" # "',
        "'\\' # '",
        '{ a = "}", b = [ "{" ] }',
        '""',
    ],
)
def test_statement_of_toml_ends_where_its_value_ends(value: str) -> None:
    kept = f"kept = {value}\n"
    assert tomllib.loads(kept)
    after = edited("toml", f"{kept}[mcp_servers.docs]\nurl = {value}\n", ("mcp_servers",), {"docs"}, {})
    assert after == kept


def test_toml_on_one_line_leaves_with_all_its_servers() -> None:
    text = 'model = "o"\nmcp_servers = { docs = { command = "x" } }\n'
    assert edited("toml", text, ("mcp_servers",), {"docs"}, {"b": {"url": "u"}}) == (
        'model = "o"\n\n[mcp_servers.b]\nurl = "u"\n'
    )


@pytest.mark.parametrize("text", ['mcp_servers = { docs = { command = "x" }, b = {} }\n', "= nothing"])
def test_toml_in_a_form_that_cannot_be_edited_is_refused(text: str) -> None:
    with pytest.raises(EditError):
        edited("toml", text, ("mcp_servers",), {"docs"}, OURS)


YAML = """# goose
GOOSE_MODEL: x
extensions:
  # its own
  developer:
    type: builtin
  docs:
    cmd: npx
    args: [-y, docs]   # the newest

  # the last one
  fetch:
    cmd: uvx
    args:
      - fetch
# the end
other: 1
"""


def test_entries_of_yaml_leave_line_by_line() -> None:
    after = edited("yaml", YAML, ("extensions",), {"docs"}, {})
    assert after == YAML.replace("  docs:\n    cmd: npx\n    args: [-y, docs]   # the newest\n", "")


def test_server_in_a_yaml_list_is_known_by_its_name() -> None:
    text = "name: c\nmcpServers:\n  - name: docs\n    command: npx\n  - name: other\n    url: x\nmodels: []\n"
    after = yaml.safe_load(edited("yaml", text, ("mcpServers",), {"docs"}, OURS))
    assert [one["name"] for one in after["mcpServers"]] == ["context-proxy", "other"]
    assert after["models"] == []


@each("text", ["", "a: 1", "extensions: {}\n", "extensions:\n", "a: 1\nextensions: {}\nb: 2\n"])
def test_yaml_without_servers_gets_one(text: str) -> None:
    assert entries("yaml", edited("yaml", text, ("extensions",), (), OURS), ("extensions",)) == OURS


@each("text", ["", "name: mine\n", "name: mine\nmcpServers:\n", "mcpServers: []\n"])
def test_first_server_of_a_host_that_lists_them_begins_a_list(text: str) -> None:
    after = edited("yaml", text, ("mcpServers",), (), OURS, listed=True)
    (ours,) = yaml.safe_load(after)["mcpServers"]
    assert ours == {"name": "context-proxy", **OURS["context-proxy"]}
    left = edited("yaml", after, ("mcpServers",), OURS, {}, listed=True)
    assert entries("yaml", left, ("mcpServers",)) == {}


def test_last_of_two_keys_of_yaml_counts_as_for_the_host() -> None:
    text = "extensions: x\nextensions:\n  docs:\n    cmd: npx\n  other:\n    cmd: y\n"
    after = edited("yaml", text, ("extensions",), {"docs"}, {})
    assert after == "extensions: x\nextensions:\n  other:\n    cmd: y\n"


def test_yaml_on_one_line_is_refused() -> None:
    with pytest.raises(EditError, match="one line"):
        edited("yaml", "extensions: {docs: {cmd: x}}\n", ("extensions",), {"docs"}, OURS)


@each(
    ("form", "text"),
    [("json", "{"), ("json", "[]"), ("json", '{"mcpServers": 3}'), ("yaml", "- a"), ("yaml", "a: [")],
)
def test_file_that_is_not_valid_is_refused_and_not_repaired(form: str, text: str) -> None:
    with pytest.raises(EditError):
        edited(form, text, ("mcpServers",), (), OURS)  # type: ignore[arg-type]


NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
VALUES = st.one_of(
    st.text(max_size=6).filter(lambda text: "\x7f" not in text), st.integers(-9, 9), st.booleans()
)
SERVERS = st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=5)


@given(SERVERS, st.data(), st.sampled_from([None, 1, 2, "\t"]), NAMES)
def test_any_json_keeps_what_stays(
    servers: dict[str, dict[str, object]], data: st.DataObject, indent: int | str | None, name: str
) -> None:
    text = json.dumps(
        {"before": [servers], "mcpServers": servers, "after": "}"}, indent=indent, ensure_ascii=False
    )
    leaving = data.draw(st.sets(st.sampled_from(sorted(servers))))
    after = edited("json", text, ("mcpServers",), leaving, {name: {"command": "x"}})
    kept = {key: one for key, one in servers.items() if key not in leaving} | {name: {"command": "x"}}
    assert json.loads(plain_json(after)) == {"before": [servers], "mcpServers": kept, "after": "}"}


@given(st.dictionaries(NAMES, st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), max_size=4), st.data())
def test_any_toml_written_and_removed_is_as_before(
    servers: dict[str, dict[str, object]], data: st.DataObject
) -> None:
    before = 'title = "x"\n'
    text = edited("toml", before, ("servers",), (), servers)
    assert tomllib.loads(text).get("servers", {}) == servers
    leaving = data.draw(st.sets(st.sampled_from(sorted(servers)))) if servers else set()
    after = edited("toml", text, ("servers",), leaving, {})
    assert tomllib.loads(after).get("servers", {}) == {k: v for k, v in servers.items() if k not in leaving}


@pytest.mark.parametrize("merged", ["args: *h", "<<: *h"])
def test_aliases_that_repeat_each_other_are_refused_at_once(merged: str) -> None:
    def hostile(keys: str) -> str:
        lines = ["a: &a {b: 1}"]
        for before, key in pairwise(keys):
            lines.append(f"{key}: &{key} [{', '.join([f'*{before}'] * 9)}]")
        return "\n".join([*lines, "extensions:", f"  x: {{cmd: echo, {merged}}}"])

    def reading(text: str) -> None:
        with pytest.raises(EditError, match="aliases"):
            entries("yaml", text, ("extensions",))
        with pytest.raises(ConfigError, match="aliases"):
            parse(Path("config.yaml"), text)

    assert not costs_more(20, reading, hostile("abcdefgh"), hostile("abcdeh"))


def test_settings_of_megabytes_are_edited_and_compared_in_some_times_the_time_of_reading_them() -> None:
    history = [
        {"display": f"see https://example.com/{number}", "pasted": "x" * 99} for number in range(4_000)
    ]
    text = json.dumps({"history": history, "mcpServers": {"docs": {"command": "npx"}}}, indent=2)

    def change() -> None:
        after = edited("json", text, ("mcpServers",), {"docs"}, OURS)
        difference = FileChange(Path("settings.json"), text, after).difference()
        assert [line for line in difference if "docs" in line] == ['-    "docs": {']

    assert not costs_more(30, lambda work: work(), change, lambda: json.loads(text))


@each(
    "before, after",
    [
        ("abcdefghij", "abcdeXghij"),
        ("abcdefghij", "Xbcdefghij"),
        ("abcdefghij", "abcdefghiX"),
        ("abcdefghijklmnopq", "aXcdefghijklmnoYq"),
        ("", "abc"),
        ("aaaaaaaa", "aaaaaaaaa"),
    ],
)
def test_the_difference_has_the_lines_of_that_of_the_whole_file(before: str, after: str) -> None:
    told = FileChange(Path("f"), "\n".join(before), "\n".join(after)).difference()
    whole = unified_diff(list(before), list(after), "f", "f", lineterm="")
    assert [one for one in told if one[:2] != "@@"] == [one for one in whole if one[:2] != "@@"]


def test_only_a_regular_file_of_a_host_is_read(tmp_path: Path) -> None:
    link = tmp_path / "mcp.json"
    link.symlink_to("/dev/zero")
    with pytest.raises(EditError, match="regular"):
        read_text(link)
