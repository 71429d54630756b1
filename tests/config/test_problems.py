"""Every mistake is reported at once, with file, line and key, in words that name the remedy."""

import json

import pytest
from support.tables import each

from mcp_context_proxy.errors import MOST_TOLD, ConfigError

URL = "must begin with http:// or https:// and name a host"
TWICE = "is given twice; keep one of them"
MODES = 'must be "always", "manual" or "agent"'


def test_all_mistakes_of_a_file_are_reported_at_once_in_file_order(problems):
    found = problems(
        """
[expose]
mod = "auto"
list_all_below = -1
[search]
preset = "agressive"
[servers.github]
command = "npx"
url = "https://example.com/mcp"
args = "-y"
[servers."my server"]
[servers.remote]
url = "ftp://example.com"
env = { TOKEN = "${NOT_THERE}" }
[[documents]]
kind = "rules"
path = "nowhere"
[serverz]
"""
    )

    assert found == [
        "3 expose.mod: unknown key; did you mean mode?",
        "4 expose.list_all_below: must be at least 0",
        '6 search.preset: must be "aggressive", "normal" or "conservative", not "agressive"',
        "7 servers.github: has both command and url; keep one of them",
        "10 servers.github.args: must be a list, not text",
        """11 servers."my server": a server's name is 1 to 32 of A-Z a-z 0-9 _ - and has no '__', """
        "because it becomes part of its tools' names",
        '11 servers."my server": has neither command nor url; a server needs one of them',
        "13 servers.remote.url: must begin with http:// or https:// and name a host",
        "14 servers.remote.env.TOKEN: NOT_THERE is not set; "
        "set this environment variable, or write ${NOT_THERE:-default}",
        "14 servers.remote.env: has no effect on a server with a url",
        '16 documents[0].kind: must be "rule" or "reference", not "rules"',
        "17 documents[0].path: TMP/nowhere: no such file or directory",
        "18 serverz: unknown key; did you mean servers?",
    ]


def test_a_key_that_is_gone_is_not_taken_for_another(problems) -> None:
    (found,) = problems("[limits]\nqueue_per_server = 10")
    assert found == (
        "2 limits.queue_per_server: unknown key, of an earlier version; nothing takes its place, so remove it"
    )


def test_of_very_many_unknown_keys_only_the_first_are_compared_with_those_there_are(problems) -> None:
    found = problems("[http]\n" + "".join(f"portt{number} = 1\n" for number in range(1_000)))

    assert [one.partition("; ")[2] for one in found[:2]] == ["did you mean port?"] * 2
    assert len(found) == 1_000
    assert found[-1] == "1001 http.portt999: unknown key"


@pytest.mark.parametrize("table", ["limits", "servers.one", "http"])
def test_of_very_many_mistakes_the_first_are_told_and_the_number_of_the_others(load_text, table: str) -> None:
    text = f"[{table}]\n" + "".join(f"unknown{number} = 1\n" for number in range(5_000))
    try:
        told = list(load_text(text).complaints())
    except ConfigError as error:
        head, *told = str(error).splitlines()
        assert head == "5000 problems in the configuration:"

    assert len(told) == MOST_TOLD + 1
    assert any("unknown90:" in line for line in told)
    assert not any("unknown101:" in line for line in told)
    assert told[-1].strip().startswith("and 4,90")


def test_the_message_has_the_file_and_line_of_each_mistake(load_text, tmp_path):
    with pytest.raises(ConfigError) as caught:
        load_text("[http]\nport = 70000\nhost = 1\n")

    assert str(caught.value) == (
        "2 problems in the configuration:\n"
        f"  {tmp_path}/config.toml:2: http.port: must be at most 65535\n"
        f"  {tmp_path}/config.toml:3: http.host: must be text in quotes, not a whole number"
    )


@each(
    ("text", "expected"),
    [
        ("[expose]\nprefix = 'no'", "2 expose.prefix: must be true or false, not text"),
        ("[expose]\nprefix = 1", "2 expose.prefix: must be true or false, not a whole number"),
        ("[http]\nport = '80'", "2 http.port: must be a whole number, not text"),
        ("[http]\nport = 1.0", "2 http.port: must be a whole number, not a number"),
        ("[http]\nport = true", "2 http.port: must be a whole number, not true"),
        ("[search]\ntop_n = 0", "2 search.top_n: must be at least 1"),
        ("[search]\ninclude_score = 1.5", "2 search.include_score: must be at most 1"),
        ("[search]\ninclude_score = nan", "2 search.include_score: must be a finite number"),
        ("[limits]\ncall_seconds = inf", "2 limits.call_seconds: must be a finite number"),
        ("[search]\ntop_n = 1" + "0" * 22, f"2 search.top_n: must be at most {10**15}"),
        ("[limits]\ncall_seconds = 1e18", f"2 limits.call_seconds: must be at most {10**9}"),
        ("[limits]\ncall_seconds = -1", "2 limits.call_seconds: must be more than 0"),
        ("[limits]\ncall_second = 1", "2 limits.call_second: unknown key; did you mean call_seconds?"),
        ("search = 3", "1 search: must be a table, not a whole number"),
        ("servers = []", "1 servers: must be a table, not a list"),
        ("[servers]\na = 'x'", "2 servers.a: must be a table, not text"),
        (
            "[documents]\nkind = 'rule'",
            "1 documents: must be a list, not a table; write [[documents]] above each",
        ),
        ("[[documents]]\nkind = 'rule'", "1 documents[0].path: is missing"),
        ("[store]\npath = ''", "2 store.path: must not be empty"),
        ("[http]\ntoken_file = ''", "2 http.token_file: must not be empty"),
        (
            '[store]\npath = "a\\u0000"',
            "2 store.path: has the character U+0000, which no program can be given",
        ),
        (
            "[http]\nresource_url = 'proxy.example.com'",
            "2 http.resource_url: must begin with http:// or https:// and name a host",
        ),
        (
            "[http]\nallowed_hosts = ['https://proxy.example.com']",
            "2 http.allowed_hosts[0]: must be a name, or name:port, as in the header Host",
        ),
        (
            "[servers.a]\ncommand = 'x'\nenv = { 'A=B' = 'c' }",
            '3 servers.a.env."A=B": cannot be the name of a variable',
        ),
        (
            "[servers.a]\nurl = 'https://a.example'\noauth = { issuer = 'x' }",
            "3 servers.a.oauth.issuer: must begin with http:// or https:// and name a host",
        ),
        (
            "[servers.a]\nurl = 'https://a.example'\noauth = { scope = 'l\u00e9ser \"' }",
            "3 servers.a.oauth.scope: has a character that no scope has (RFC 6749)",
        ),
        ("[store]\npath = 1979-05-27", "2 store.path: must be text in quotes, not a date"),
        (
            "mistakes = 'x'",
            "1 mistakes: unknown key; allowed here: inherit, env, expose, search, context, results, "
            "approval, learning, statistics, interactions, audit, store, cluster, http, auth, shared, "
            "embedding, rerank, guards, secrets, limits, servers, documents, clients",
        ),
        (
            "[context]\nexpand_results = ['a', 1]",
            "2 context.expand_results[1]: must be text in quotes, not a whole number",
        ),
        (
            "[servers.s]\ncommand = 'x'\nconfirm = 'all'",
            '3 servers.s.confirm: must be "destructive", "write" or "never"; allow and classes say more',
        ),
        (
            "[servers.s]\ncommand = 'x'\ntools.t = { confirm = 'never', allow = 'ask' }",
            "3 servers.s.tools.t.confirm: has no effect beside allow; keep allow",
        ),
        ("[auth]\nalgorithms = []", "2 auth.algorithms: must not be empty"),
        (
            "[auth]\nissuer = 'http://h'",
            "1 auth: issuer must begin with https://; http:// is for this machine only",
        ),
        ("[store]\nurl = 'mysql://h/d'", "2 store.url: must begin with postgresql://"),
        ("[learning]\nab_share = 1.0", "2 learning.ab_share: must be less than 1"),
        (
            "[servers.s]\ncommand = 'x'\ntimeout_seconds = 3",
            "3 servers.s.timeout_seconds: unknown key; did you mean connect_timeout or call_timeout or "
            "idle_timeout?",
        ),
        ("[mcpServers]", "1 mcpServers: unknown key; did you mean servers?"),
    ],
)
def test_a_wrong_value_is_reported_with_the_allowed_ones(problems, text, expected):
    assert problems(text) == [expected]


@each(
    ("lines", "expected"),
    [
        ("", "1 servers.s: has neither command nor url; a server needs one of them"),
        ("command = ''", "2 servers.s.command: must not be empty"),
        ("command = ['npx']", "2 servers.s.command: must be text in quotes, not a list"),
        (
            "command = 'x'\nargs = [\n'a',\n1]",
            "5 servers.s.args[1]: must be text in quotes, not a whole number",
        ),
        ("command = 'x'\nenv = {A = 1}", "3 servers.s.env.A: must be text in quotes, not a whole number"),
        (
            "command = 'x'\ntransport = 'http'",
            "3 servers.s.transport: http needs a url, but the server has a command",
        ),
        (
            "url = 'http://h'\ntransport = 'stdio'",
            "3 servers.s.transport: stdio needs a command, but the server has a url",
        ),
        (
            "url = 'http://h'\ntransport = 'ws'",
            '3 servers.s.transport: must be "stdio", "http" or "sse", not "ws"',
        ),
        ("url = 'http://h'\nargs = ['x']", "3 servers.s.args: has no effect on a server with a url"),
        (
            "command = 'x'\nheaders = {a = 'b'}",
            "3 servers.s.headers: has no effect on a server with a command",
        ),
        ("url = 'example.com/mcp'", f"2 servers.s.url: {URL}"),
        ("url = 'http:///mcp'", f"2 servers.s.url: {URL}"),
        ("url = 'http://[::1'", f"2 servers.s.url: {URL}"),
        ("url = 'http://h:99999'", f"2 servers.s.url: {URL}"),
        ("command = 'x'\ninclude = 'allways'", f'3 servers.s.include: {MODES}, not "allways"'),
        ("command = 'x'\ndisabled = true", "3 servers.s.disabled: unknown key; did you mean enabled?"),
        ("serverUrl = 'http://h'\nurl = 'http://h'", "2 servers.s.serverUrl: unknown key; did you mean url?"),
        (
            "command = 'x'\nsecrets = []",
            "3 servers.s.secrets: unknown key; allowed here: command, args, env, inherit, cwd, url, headers, "
            "transport, era, isolation, enabled, include, allow, deny, classes, approval, tools, tags, "
            "category, trusted, connect_timeout, call_timeout, start, idle_timeout, spotlight, results, "
            "oauth, tls",
        ),
        ("command = 'x'\nconnect_timeout = 0", "3 servers.s.connect_timeout: must be more than 0"),
        (
            "command = 'x'\n[servers.s.tools.t]\nincluded = 'agent'",
            "4 servers.s.tools.t.included: unknown key; did you mean include?",
        ),
        (
            "command = 'x'\n[servers.s.tools.t]\ntags = ['fine', 'a,b']",
            "4 servers.s.tools.t.tags[1]: must be 1 to 64 characters, without commas, and without spaces at "
            "its ends",
        ),
        (
            "command = 'x'\ncategory = ' '",
            "3 servers.s.category: must be 1 to 64 characters, without commas, and without spaces at "
            "its ends",
        ),
        ("command = 'x'\ntools.t.include = 'no'", f'3 servers.s.tools.t.include: {MODES}, not "no"'),
        (
            "url = 'http://host/'\nheaders = { Key = 'secr\u00e9t' }",
            "3 servers.s.headers.Key: has a character that a header cannot carry; only ASCII without line "
            "breaks is allowed",
        ),
        (
            "url = 'http://host/'\nheaders = { Key = \"from a file\\n\" }",
            "3 servers.s.headers.Key: begins or ends with a space or a line break, which a header cannot "
            "carry; remove it",
        ),
        (
            "url = 'http://host/'\nheaders = { 'a b' = 'x' }",
            '3 servers.s.headers."a b": cannot be the name of a header',
        ),
        (
            "url = 'http://host/'\ntls = { ca = 'ca.pem' }",
            "3 servers.s.tls: has no effect on a url that begins with http://",
        ),
        (
            "url = 'https://host/'\ntls = { key = 'key.pem' }",
            "3 servers.s.tls.key: needs certificate, too",
        ),
    ],
)
def test_a_mistake_in_a_server_is_reported_with_its_place(problems, lines, expected):
    assert problems(f"[servers.s]\n{lines}\n") == [expected]


@pytest.mark.parametrize("name", ["a__b", "a.b", "x" * 33, "ä", "", "a b", "a\n"])
def test_an_invalid_server_name_is_refused(problems, name):
    (found,) = problems(f"[servers.{json.dumps(name)}]\ncommand = 'x'\n")

    assert "a server's name is 1 to 32 of A-Z a-z 0-9 _ - and has no '__'" in found


@pytest.mark.parametrize("name", ["a", "x" * 32, "GitHub-2_b", "9"])
def test_a_valid_server_name_is_kept(load_text, name):
    assert list(load_text(f"[servers.{name}]\ncommand = 'x'\n").servers) == [name]


@each(
    ("text", "expected"),
    [
        (
            "[servers.s]\ncommand = npx\n",
            "2 : is not valid TOML: Invalid value (column 11); text stands in straight quotes, and true and "
            "false are small",
        ),
        (
            '[servers.s]\ncwd = "C:\\work"\n',
            "2 : is not valid TOML: Unescaped '\\' in a string (column 12); write a path with backslashes in "
            "single quotes: 'C:\\folder'",
        ),
        (
            '{"mcpServers": {}}',
            "1 : is not valid TOML: Invalid statement (column 1); a line is KEY = VALUE or [TABLE], and JSON "
            "needs a file name that ends in .json",
        ),
        (
            "[http\nport = 1",
            "1 : is not valid TOML: Expected ']' at the end of a table declaration (column 6)",
        ),
        (
            '[servers.s]\ncommand = "npx\nargs = []\n',
            "2 : is not valid TOML: Illegal character '\\n' (column 15); a quote is not closed on this line",
        ),
        ("a = 'x", '1 : is not valid TOML: Expected "\'"'),
        ("[http]\nport = 1\nport = 2\n", f"3 port: {TWICE}"),
        ("[http]\n[expose]\n[http]\n", f"3 http: {TWICE}"),
        ("a = {b = 1, b = 2}", f"1 a: {TWICE}"),
        ("a = " + "[" * 50_000, "None : is nested too deeply"),
        (
            "[http]\nport = 1\n[a" + '. "a.b" .b' * 50 + ".c]\n",
            "3 : is not valid TOML: A key has more than 100 parts (column 1)",
        ),
        (
            "a = {b = 1, " + "b." * 50_000 + "c = 1}",
            "1 : is not valid TOML: A key has more than 100 parts (column 1)",
        ),
        ("a" + ".a" * 99 + " = 1", "None : is nested too deeply"),
        (b"[http]\nhost = '\xff'\n", "2 : is not UTF-8 text; save it with that encoding"),
    ],
)
def test_a_syntax_error_in_toml_is_reported_with_its_line(problems, text, expected):
    assert problems(text) == [expected]


@each(
    ("text", "expected"),
    [
        ('{\n "mcpServers": {\n  "a" {}}}', "3 : is not valid JSON: Expecting ':' delimiter (column 7)"),
        ("{", "1 : is not valid JSON: Expecting property name enclosed in double quotes (column 2)"),
        ("[]", "1 : must hold a JSON object"),
        ("", "1 : is not valid JSON: Expecting value (column 1)"),
        ('{"a":' * 50_000, "None : is nested too deeply"),
        ('{"mcpServers":' * 400 + "{}" + "}" * 400, "None : is nested too deeply"),
        (
            "{}",
            'None : has neither "mcpServers" nor "servers"; '
            "it must be a host's MCP settings, or config.toml",
        ),
        ('{"mcpServers": {\n"a": {},\n"a": {"command": "x"}}}', f"3 mcpServers.a: {TWICE}"),
        ('{"mcpServers": {\n"a": {"command": "x",\n"command": "y"}}}', f"3 mcpServers.a.command: {TWICE}"),
    ],
)
def test_a_syntax_error_in_json_is_reported_with_line_and_column(problems, text, expected):
    assert problems(text, "mcp.json") == [expected]


def test_a_mistake_never_repeats_a_value_that_may_be_secret(problems):
    """Errors end in logs and in answers to clients."""
    text = """
[servers.a]
url = "s3cr3t://s3cr3t@host/s3cr3t"
headers = { Authorization = ["s3cr3t"] }
[servers.b]
command = "x"
args = [["s3cr3t"]]
env = { A = { s3cr3t = 1 }, B = "${TOKEN}${MISSING}" }
"""

    assert "s3cr3t" not in "\n".join(problems(text, environ={"TOKEN": "s3cr3t"}))


def test_a_mistake_in_an_override_is_not_blamed_on_the_file(load_text):
    with pytest.raises(ConfigError) as caught:
        load_text("[http]\nport = 1\n", overrides={"http.port": "x", "expose": {"mod": "all"}})

    assert sorted(map(str, caught.value.problems)) == [
        "configuration: expose.mod: unknown key; did you mean mode?",
        "configuration: http.port: must be a whole number, not text",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            '[rerank]\nmode = "sometimes"',
            '2 rerank.mode: must be "never", "auto" or "always", not "sometimes"',
        ),
        (
            '[rerank]\nendpoint = "http://h/v1"',
            "2 rerank.endpoint: needs rerank.model, too: the name of the model at the endpoint",
        ),
        ('[rerank]\nmodel = "m"\napi_key = "k"', "3 rerank.api_key: has no effect without an endpoint"),
        (
            "[learning]\nworking_set_tokens = 500\nenabled = false",
            "2 learning.working_set_tokens: has no effect with learning.enabled = false",
        ),
        (
            "[learning]\nworking_set_tokens = 500\n[statistics]\nenabled = false",
            "2 learning.working_set_tokens: needs statistics.enabled, because the statistics know "
            "the cost of a tool",
        ),
    ],
)
def test_settings_without_effect_in_rerank_and_learning_are_reported(problems, text, told):
    assert problems(text + "\n") == [told]


@pytest.mark.parametrize(
    ("table", "told"),
    [
        (
            'endpoint = "http://h/v1"',
            "2 endpoint: needs embedding.model, too: the name of the model at the endpoint",
        ),
        ('endpoint = "h:11434"\nmodel = "m"', f"2 endpoint: {URL}"),
        (
            'endpoint = "http://me:pw@h/v1"\nmodel = "m"',
            "2 endpoint: must hold neither a user nor a query; a key belongs in api_key",
        ),
        ('model = "m"\napi_key = "k"', "3 api_key: has no effect without an endpoint"),
        (
            'query_prefix = "query: "',
            "2 query_prefix: has no effect on the packaged model; name another one with model",
        ),
        (
            'model = "all-MiniLM-L6-v2"\nmax_tokens = 64',
            "3 max_tokens: has no effect on the packaged model; name another one with model",
        ),
        ('model = "m"\npooling = "max"', '3 pooling: must be "mean" or "cls", not "max"'),
        ('model = "m"\nfitting_cosine = 2', "3 fitting_cosine: must be at most 1"),
        (
            'model = "m"\nendpoint = "http://h/v1"\napi_key = "${NOT_THERE}"',
            "4 api_key: NOT_THERE is not set; set this environment variable, or write ${NOT_THERE:-default}",
        ),
    ],
)
def test_contradictory_settings_of_the_embedding_model_are_reported(problems, table, told):
    line, key = told.split(" ", 1)

    assert problems(f"[embedding]\n{table}\n") == [f"{line} embedding.{key}"]
