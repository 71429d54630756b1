"""A mistake costs the part it stands in and no more; protections of the proxy never fall back to less."""

import json

import pytest

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.reload import without_mistakes
from mcp_context_proxy.errors import ConfigError

GOOD = "[servers.good]\ncommand = 'x'\n"


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ("command = 'x'\nenv = { TOKEN = '${GITHUB_TOKEN}' }", "GITHUB_TOKEN is not set (config.toml:5)"),
        ("url = 'htp://h'", "url: must begin with http:// or https:// and name a host (config.toml:4)"),
        (
            "url = 'http://h/sse'\nheaders = { A = 3 }",
            "headers.A: must be text in quotes, not a whole number",
        ),
        ("comand = 'x'", "comand: unknown key; did you mean command? (config.toml:4)"),
        ("URL = 'http://h'", "URL: unknown key; did you mean url? (config.toml:4)"),
        ("args = ['x']", "has neither command nor url; a server needs one of them (config.toml:3)"),
        ("command = 'x'\nargs = 'y'", "args: must be a list, not text (config.toml:5)"),
        ("command = 'x'\ntools.t.includ = 'manual'", "tools.t.includ: unknown key; did you mean include?"),
    ],
)
def test_a_mistake_in_a_server_switches_off_that_one(load_text, lines, reason):
    config = load_text(f"{GOOD}[servers.github]\n{lines}\n")

    assert list(config.servers) == ["good"]
    assert str(config.off["github"]).startswith(reason)
    assert next(config.complaints()).startswith(f"server github: off: {reason}")
    assert next(config.complaints()).endswith("; 1 other starts")


def test_each_mistake_of_a_server_is_named(load_text):
    config = load_text("[servers.github]\ncommand = 'x'\nargs = 'y'\nenv = { A = 3 }\n")

    first, second = config.complaints()
    assert first.startswith("server github: off: args: must be a list, not text (config.toml:3, and 1 more)")
    assert second.startswith("server github: also ")
    assert second.endswith("config.toml:4: servers.github.env.A: must be text in quotes, not a whole number")


def test_an_entry_that_is_no_table_or_has_a_bad_name_is_off_alone(load_text):
    config = load_text(f"{GOOD}[servers.'a b']\ncommand = 'x'\n[servers]\nflat = 3\n")

    assert list(config.servers) == ["good"]
    assert config.off.keys() == {"a b", "flat"}


def test_one_bad_entry_of_a_host_file_is_off_alone(load_text):
    entries = {
        "My Server": {"command": "x", "env": {"A": "${input:key}"}},
        "list": [],
        "good": {"command": "y"},
    }
    config = load_text(json.dumps({"mcpServers": entries}), "mcp.json")
    twice = load_text(
        '{"mcpServers": {"a": {"command": "x"},\n"a": {"command": "y"}, "b": {"command": "z"}}}', "m.json"
    )

    assert list(config.servers) == ["good"]
    assert config.off.keys() == {"My-Server", "list"}
    assert (list(twice.servers), str(twice.off["a"])) == (
        ["b"],
        "is given twice; keep one of them (m.json:2)",
    )


@pytest.mark.parametrize("entry", ['"command": "\\ud800"', '"command": "x", "args": ["a\\udc80"]'])
def test_a_server_with_half_of_a_character_is_off_alone(load_text, entry):
    config = load_text(f'{{"mcpServers": {{"a": {{{entry}}}, "good": {{"command": "y"}}}}}}', "mcp.json")

    assert list(config.servers) == ["good"]
    assert "has half of a character" in str(config.off["a"])


@pytest.mark.parametrize("first", ['"a": {"command": "x"}', '"a": {"command": "x"}, "a": {"command": "y"}'])
def test_servers_that_are_given_twice_as_a_whole_stop_everything(load_text, first):
    with pytest.raises(ConfigError, match="mcpServers: is given twice"):
        load_text(f'{{"mcpServers": {{{first}}}, "mcpServers": {{}}}}', "mcp.json")


def test_an_unset_variable_of_a_header_is_one_problem(problems):
    lines = "url = 'http://h/'\nheaders = { Authorization = 'Bearer ${env:GONE}' }"

    assert problems(f"[servers.s]\n{lines}\n") == [
        "3 servers.s.headers.Authorization: GONE is not set; "
        "set this environment variable, or write ${GONE:-default}"
    ]


@pytest.mark.parametrize(
    ("text", "table", "left"),
    [
        ("[expose]\nmod = 'all'\nprefix = false", "expose", {"mode": "auto", "prefix": False}),
        (
            "[limits]\ncall_seconds = 'x'\nconnect_seconds = 3.0",
            "limits",
            {"call_seconds": 60.0, "connect_seconds": 3},
        ),
        ("[search]\ntop_n = 2\ntools = { top_k = 0, top_n = 1 }", "search", {"top_n": 2}),
        ("expose = 3", "expose", {"mode": "auto"}),
        ("[learning]\nstore_queries = 'no'", "learning", {"enabled": False}),
        ("[statistics]\nenabled = 'no'", "statistics", {"enabled": False}),
        ("[interactions]\nenabled = true\nkeep = 'all'", "interactions", {"enabled": False}),
        ("[context]\nkeep_requests = 'no'", "context", {"keep_requests": False}),
        ("[approval]\nmode = 'al'", "approval", {"mode": "all"}),
        (
            "[guards]\nresults = 'redakt'\npublic = ['A']",
            "guards",
            {"secrets": True, "results": "redact", "public": ()},
        ),
        ("[store]\npath = 3", "store", {"path": "memory"}),
        (
            "[embedding]\nendpoint = 'http://h/v1'\nmodel = 'm'\napi_key = '${GONE}'",
            "embedding",
            {"model": None},
        ),
        ("[rerank]\nmode = 'alway'\nmodel = 'm'", "rerank", {"mode": "never", "model": None}),
    ],
)
def test_a_mistake_elsewhere_leaves_a_default_that_keeps_and_sends_no_more_than_was_wanted(
    load_text, text, table, left
):
    config = load_text(f"{text}\n{GOOD}")

    assert list(config.servers) == ["good"]
    assert len(config.mistakes) == 1
    assert {key: getattr(getattr(config, table), key) for key in left} == left
    assert f"config.toml:{config.mistakes[0].line}: {table}" in next(config.complaints())


def test_a_document_that_cannot_be_read_leaves_the_others(load_text, tmp_path):
    (tmp_path / "rules").mkdir()
    text = "".join(f"[[documents]]\npath = '{path}'\n" for path in ("gone", "rules", "lost"))
    config = load_text(text)

    assert [document.path for document in config.documents] == [tmp_path / "rules"]
    assert [problem.key for problem in config.mistakes] == ["documents[0].path", "documents[2].path"]


@pytest.mark.parametrize("text", ["[http]\nauth = 'no'", "[http]\nhosts = ['a']", "http = 3"])
def test_a_mistake_in_what_protects_the_proxy_stops_everything(load_text, text):
    with pytest.raises(ConfigError, match="http"):
        load_text(f"{text}\n{GOOD}")


def test_a_mistake_on_the_command_line_stops_everything(load_text):
    with pytest.raises(ConfigError, match="must be true or false"):
        load_text(GOOD, overrides={"learning.enabled": "maybe"})


def test_after_an_edit_with_mistakes_everything_with_a_mistake_is_as_before(load_text):
    before = load_text(f"[search]\ntop_n = 2\n{GOOD}[servers.other]\ncommand = 'y'\n")
    edited = load_text("[search]\ntop_n = 'x'\n[servers.good]\ncomand = 'z'\n[servers.new]\nurl = 'x'\n")
    config = without_mistakes(edited, before)

    assert config.servers == {"good": before.servers["good"]}
    assert config.off.keys() == {"new"}
    assert config.search == before.search
    assert [problem.key for problem in config.mistakes] == [
        "search.top_n",
        "servers.good.comand",
    ]


def test_an_edit_with_a_mistake_in_what_is_set_for_all_servers_changes_none_of_them(load_text):
    before = load_text(f"env = {{ A = '1' }}\n{GOOD}")
    edited = load_text(f"env = {{ A = '${{GONE}}' }}\n{GOOD}[servers.new]\ncommand = 'x'\n")
    config = without_mistakes(edited, before)

    assert config.servers["good"] == before.servers["good"]
    assert config.servers["new"].env == {}
    assert without_mistakes(load_text("servers = 3"), before).servers == before.servers


def test_a_file_without_mistakes_has_no_complaints(load_text):
    config: Config = load_text(GOOD)

    assert [*config.complaints()] == []
    assert (config.off, config.mistakes) == ({}, ())
