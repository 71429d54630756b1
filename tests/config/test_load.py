"""A valid configuration, and the values that it loads as."""

import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import asdict

from mcp_context_proxy.catalog.names import include_of
from mcp_context_proxy.config import Config, DomainOptions, Limits, ServerConfig, load
from mcp_context_proxy.items import IncludeMode

EVERY_FIXED_KEY = """
[expose]
mode = "search"
prefix = false
list_all_below = 10
max_name_length = 40
[search]
preset = "aggressive"
top_k = 7
warm_up = true
[search.tools]
top_n = 2
[search.documents]
preset = "conservative"
[learning]
enabled = false
[store]
path = "state/store.db"
[http]
host = "0.0.0.0"
port = 1
token_file = "~/token"
allowed_hosts = ["proxy.example.com"]
[embedding]
model = "model"
[limits]
call_max_seconds = 90
[servers.github]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-github"]
env = { GITHUB_PERSONAL_ACCESS_TOKEN = "${GITHUB_TOKEN}" }
cwd = "~/work"
include = "manual"
era = "handshake"
tags = ["code"]
category = "development"
connect_timeout = 5
call_timeout = 6.5
enabled = false
[servers.github.tools.create_issue]
include = "always"
[servers.docs]
url = "https://example.com/mcp"
transport = "sse"
headers = { Authorization = "Bearer ${DOCS_TOKEN}" }
tls = { certificate = "proxy.pem", key = "~/proxy.key", ca = "ca.pem", password = "${DOCS_TOKEN}" }
[servers.tickets]
url = "https://example.com/mcp"
oauth = { client_id = "us", client_key = "client.pem", key_id = "k1", issuer = "https://example.com" }
[[documents]]
kind = "rule"
path = "."
[[documents]]
kind = "reference"
path = "."
include = "manual"
"""


@pytest.fixture
def config(load_text) -> Config:
    return load_text(EVERY_FIXED_KEY, environ={"HOME": "/home/ada", "DOCS_TOKEN": "t0ken"})


def test_every_key_of_the_file_is_loaded(config, tmp_path):
    github, docs, tickets = config.servers.values()

    assert config.path == tmp_path / "config.toml"
    assert (config.expose.mode, config.expose.prefix) == ("search", False)
    assert (config.expose.list_all_below, config.expose.max_name_length) == (10, 40)
    assert (config.search.warm_up, config.learning.enabled) == (True, False)
    assert (config.http.host, config.http.port, config.http.allowed_hosts) == (
        "0.0.0.0",
        1,
        ("proxy.example.com",),
    )
    assert (github.name, github.command) == ("github", "npx")
    assert github.args == ("-y", "@modelcontextprotocol/server-github")
    assert (github.era, github.tags, github.category) == ("handshake", ("code",), "development")
    assert (github.connect_timeout, github.call_timeout, github.enabled) == (5.0, 6.5, False)
    assert (docs.url, docs.transport) == ("https://example.com/mcp", "sse")
    assert docs.headers == {"Authorization": "Bearer t0ken"}
    assert (docs.tls.password, tickets.oauth.key_id) == ("t0ken", "k1")
    assert [(d.kind, d.include) for d in config.documents] == [
        ("rule", None),
        ("reference", IncludeMode.MANUAL),
    ]


def test_paths_are_relative_to_the_file_and_a_tilde_is_the_home_folder(config, tmp_path):
    assert config.store.path == str(tmp_path / "state/store.db")
    assert config.embedding.model == str(tmp_path / "model")
    assert config.documents[0].path == tmp_path
    assert config.http.token_file == Path("/home/ada/token")
    assert config.servers["github"].cwd == Path("/home/ada/work")
    tls = config.servers["docs"].tls
    assert (tls.certificate, tls.ca) == (tmp_path / "proxy.pem", tmp_path / "ca.pem")
    assert tls.key == Path("/home/ada/proxy.key")
    assert config.servers["tickets"].oauth.client_key == tmp_path / "client.pem"


def test_the_name_of_a_packaged_model_is_no_folder(load_text, tmp_path):
    named = load_text('[embedding]\nmodel = "all-MiniLM-L6-v2"\n')
    folder = load_text('[embedding]\nmodel = "./all-MiniLM-L6-v2"\n')

    assert (named.embedding.model, named.embedding.packaged) == ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2")
    assert (folder.embedding.model, folder.embedding.packaged) == (str(tmp_path / "all-MiniLM-L6-v2"), None)
    assert load_text("").embedding.packaged == "tools-MiniLM-L6"


def test_a_command_in_the_home_folder_is_found(load_text):
    config = load_text("[servers.a]\ncommand = '~/bin/a'\n", environ={"HOME": "/home/ada"})

    assert config.servers["a"].command == "/home/ada/bin/a"


def test_a_store_in_memory_is_not_a_path(load_text):
    assert load_text("[store]\npath = 'memory'\n").store.path == "memory"


def test_the_include_mode_of_a_tool_falls_back_to_its_server_and_then_to_agent(config):
    assert include_of(config.servers["github"], "create_issue") is IncludeMode.ALWAYS
    assert include_of(config.servers["github"], "other") is IncludeMode.MANUAL
    assert include_of(config.servers["docs"], "search") is IncludeMode.AGENT


def test_servers_keep_the_order_of_the_file(load_text):
    text = "".join(f"[servers.{name}]\ncommand = 'x'\n" for name in ["zebra", "apple", "mango"])

    assert list(load_text(text).servers) == ["zebra", "apple", "mango"]


def test_an_empty_file_is_a_configuration_with_the_defaults(load_text, tmp_path):
    assert load_text("") == Config(path=tmp_path / "config.toml")


def test_the_defaults_are_the_documented_ones():
    config, server = Config(), ServerConfig(name="a", command="x")

    assert asdict(config.expose) == {
        "mode": "auto",
        "prefix": True,
        "list_all_below": 3000,
        "found_tokens": 3000,
        "page_size": 0,
        "max_name_length": None,
    }
    assert config.search.resolved("tools") == DomainOptions(20, 5, include_score=0.7, by_fit=True)
    assert (config.search.preset, config.search.warm_up, config.learning.enabled) == ("normal", False, True)
    assert (config.store.path, config.http.host, config.http.port) == (None, "127.0.0.1", 8765)
    assert (server.transport, server.era, server.enabled, server.include) == (
        "stdio",
        "auto",
        True,
        IncludeMode.AGENT,
    )
    assert (server.connect_timeout, server.call_timeout, server.args, server.env) == (30.0, 60.0, (), {})


def test_a_url_means_streamable_http_unless_a_transport_is_set(load_text):
    urls = {"a": "", "b": "/sse?key=1", "c": "/sse'\ntransport = 'http"}
    text = "\n".join(f"[servers.{name}]\nurl = 'https://example.com{rest}'" for name, rest in urls.items())

    assert [one.transport for one in load_text(text).servers.values()] == ["http", "sse", "http"]


def test_a_search_domain_prefers_its_number_then_its_preset_then_the_general_numbers(config):
    assert config.search.resolved("tools") == DomainOptions(top_k=7, top_n=2, include_score=0.8)
    assert config.search.resolved("documents") == DomainOptions(top_k=40, top_n=10, include_score=0.6)


def test_the_numbers_of_a_preset_are_used_beside_those_of_the_file(load_text):
    search = load_text("[search]\npreset = 'conservative'\ntop_n = 3\n").search

    assert search.resolved("tools") == DomainOptions(top_k=40, top_n=3, include_score=0.6)


@pytest.mark.parametrize("where", ["search", "search.tools"])
def test_a_number_of_results_in_the_file_is_a_promise(load_text, where):
    search = load_text(f"[{where}]\ntop_n = 4\n").search

    assert search.resolved("tools").top_n == 4
    assert search.resolved("tools").by_fit is False
    assert load_text("[search]\ntop_k = 30\n").search.resolved("tools").by_fit is True


def test_presets_are_ordered_by_how_much_they_show(load_text):
    shown = [
        load_text(f"[search]\npreset = '{preset}'").search.resolved("tools")
        for preset in ("aggressive", "normal", "conservative")
    ]

    assert [s.top_n for s in shown] == sorted({s.top_n for s in shown})
    assert [s.top_k for s in shown] == sorted({s.top_k for s in shown})
    assert [s.include_score for s in shown] == sorted({s.include_score for s in shown}, reverse=True)


def test_a_server_without_timeouts_uses_the_limits(load_text):
    config = load_text(
        "[limits]\ncall_seconds = 7\nconnect_seconds = 8\n"
        "[servers.a]\ncommand = 'x'\n[servers.b]\ncommand = 'x'\ncall_timeout = 9\n"
    )

    assert (config.servers["a"].call_timeout, config.servers["a"].connect_timeout) == (7.0, 8.0)
    assert (config.servers["b"].call_timeout, config.servers["b"].connect_timeout) == (9.0, 8.0)


def test_any_limit_can_be_overridden_and_the_others_stay(load_text):
    limits = load_text("[limits]\nmessage_bytes = 1024\nprobe_seconds = 1\n").limits

    assert limits == Limits(message_bytes=1024, probe_seconds=1.0)


def test_every_limit_has_its_reason_in_the_file_that_sets_it():
    """A number without a reason cannot be judged later."""
    import inspect

    source = inspect.getsource(Limits)

    for name in Limits.__struct_fields__:
        declaration = source.index(f"    {name}: ")
        assert source[declaration:].split("\n")[1].startswith('    """'), name


def test_a_loaded_configuration_is_immutable(config):
    with pytest.raises(AttributeError):
        config.http.port = 2


def test_writing_out_a_default_does_not_change_a_server(load_text):
    """A reload restarts only servers that differ."""
    short = load_text("[servers.a]\ncommand = 'x'\n")
    long = load_text("[servers.a]\ncommand = 'x'\nenabled = true\nargs = []\ncall_timeout = 60.0\n")

    assert short.servers == long.servers


def test_expanded_variables_are_kept_for_redaction_and_not_shown(load_text):
    text = """
[servers.a]
command = "${BIN}/a"
args = ["--key", "${KEY}", "${MODE:-fast}"]
env = { TOKEN = "${TOKEN}", AGAIN = "${TOKEN}" }
"""
    server = load_text(text, environ={"BIN": "/opt", "KEY": "k3y-value", "TOKEN": "t0ken"}).servers["a"]

    assert server.secrets == (("KEY", "k3y-value"), ("TOKEN", "t0ken"))
    assert server.args == ("--key", "k3y-value", "fast")
    assert server.command == "/opt/a"
    assert "t0ken" not in repr(server)
    assert "k3y-value" not in repr(server)


def test_a_disabled_server_needs_no_variables(load_text):
    """Switching a server off must not demand the credentials it lacks."""
    text = "[servers.a]\ncommand = 'x'\nenabled = false\nenv = { T = '${T}' }\n"

    assert load_text(text).servers["a"].env == {"T": "${T}"}


@pytest.mark.parametrize(
    "overrides",
    [
        {"http.port": 9, "expose.mode": "all", "http.host": None},
        {"http": {"port": 9}, "expose": {"mode": "all"}},
    ],
    ids=["dotted", "nested"],
)
def test_overrides_beat_the_file_unless_they_are_none(load_text, overrides):
    config = load_text("[http]\nport = 1\nhost = 'h'\n", overrides=overrides)

    assert (config.http.port, config.http.host, config.expose.mode) == (9, "h", "all")


def test_a_path_in_an_override_is_relative_to_the_working_directory(load_text):
    config = load_text("", overrides={"http.token_file": "token"})

    assert config.http.token_file == Path.cwd() / "token"


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(load_text):
    assert load_text(b"\xef\xbb\xbf[http]\r\nport = 1\r\n").http.port == 1


def test_a_file_with_an_unknown_suffix_is_recognised_by_its_first_character(load_text):
    assert list(load_text('\n{"mcpServers": {"a": {"command": "x"}}}', "settings").servers) == ["a"]
    assert list(load_text("[servers.b]\ncommand = 'x'\n", "settings").servers) == ["b"]


def test_the_file_is_found_through_the_environment(tmp_path):
    file = tmp_path / "any.toml"
    file.write_text("[http]\nport = 1\n", encoding="utf-8")

    assert load(environ={"MCP_CONTEXT_PROXY_CONFIG": str(file)}).path == file


def test_importing_the_configuration_does_not_import_numpy_or_the_sdk():
    """A command that only reads the configuration must start at once."""
    heavy = "{'numpy', 'mcp', 'onnxruntime'}"
    code = f"import sys, mcp_context_proxy.config; print(*sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, encoding="utf-8")

    assert done.stdout.strip() == ""


def test_variables_are_expanded_in_every_table(load_text, tmp_path):
    text = (
        '[store]\npath = "${D}/s.db"\n[[documents]]\npath = "${D}"\nroots = ["${D}/one"]\n'
        '[http]\nallowed_hosts = ["${H}"]\n[search.synonyms]\nold = "$${D}"\n[[documents]]\npath="${GONE}"\n'
    )
    config = load_text(text, environ={"D": str(tmp_path), "H": "proxy.example.com"})

    assert config.store.path == str(tmp_path / "s.db")
    assert (config.documents[0].path, config.documents[0].roots) == (tmp_path, (tmp_path / "one",))
    assert config.http.allowed_hosts == ("proxy.example.com",)
    assert config.search.synonyms == {"old": "${D}"}
    (mistake,) = config.mistakes
    assert (mistake.key, mistake.message) == ("documents[1].path", "GONE is not set")


def test_the_model_of_an_endpoint_is_a_name_and_its_key_comes_from_the_environment(load_text):
    config = load_text(
        '[embedding]\nmodel = "nomic"\nendpoint = "http://${H}/v1"\napi_key = "${K}"\n',
        environ={"K": "sk-secret", "H": "localhost:1"},
    )

    assert (config.embedding.model, config.embedding.endpoint) == ("nomic", "http://localhost:1/v1")
    assert config.embedding.api_key == "sk-secret"
    assert "sk-secret" not in repr(config)
