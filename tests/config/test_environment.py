"""Variables that servers inherit: those that programs need on this machine and in its network, no more."""

import sys

import pytest

from mcp_context_proxy.config.programs import differs_from_shell, environment_of, inherited
from mcp_context_proxy.config.secrets import Redactor, all_secrets_of

NEEDED = {
    **{name: f"/ca/{name}" for name in ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS")},
    "REQUESTS_CA_BUNDLE": "/ca/bundle",
    "HTTPS_PROXY": "http://proxy:3128",
    "no_proxy": "localhost",
    "LANG": "de_DE.UTF-8",
    "LC_ALL": "C.UTF-8",
    "TMPDIR": "/scratch",
    "XDG_CACHE_HOME": "/scratch/cache",
    "PATH": "/bin",
    "HOME": "/home/ada",
}
OTHERS = {
    "AWS_SECRET_ACCESS_KEY": "k3y-k3y-k3y",
    "AWS_REGION": "eu",
    "GITHUB_TOKEN": "t0ken-t0ken",
    "LANGUAGES": "x",
}


@pytest.fixture
def server(load_text):
    return lambda text, **environ: load_text(text, environ=environ).servers["s"]


@pytest.mark.skipif(sys.platform == "win32", reason="the names of other systems")
def test_a_server_inherits_what_programs_need_here_and_no_secret(server):
    assert inherited(server("[servers.s]\ncommand = 'x'"), {**NEEDED, **OTHERS}) == NEEDED


def test_further_variables_are_inherited_by_name_or_pattern(server):
    text = "inherit = ['GITHUB_TOKEN']\n[servers.s]\ncommand = 'x'\ninherit = ['AWS_*']"

    assert inherited(server(text), OTHERS).keys() == {"GITHUB_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"}


def test_variables_for_all_servers_give_way_to_those_of_a_server(server):
    text = "env = { A = '${ALL}', B = 'all' }\n[servers.s]\ncommand = 'x'\nenv = { B = 'own' }"

    assert environment_of(server(text, ALL="value"), {"A": "inherited"}) == {"A": "value", "B": "own"}


def test_no_server_gets_what_another_was_given(load_text):
    text = (
        "env = { ALL = 'for all' }\n"
        "[servers.a]\ncommand = 'x'\nenv = { A = '${SECRET_A}' }\ninherit = ['AWS_*']\n"
        "[servers.b]\ncommand = 'x'\nenv = { B = '${SECRET_B}', ALL = 'its own' }\n"
    )
    environ = {"SECRET_A": "hunter-a-hunter-a", "SECRET_B": "hunter-b-hunter-b", **OTHERS}
    servers = load_text(text, environ=environ).servers
    got = {name: environment_of(server, inherited(server, environ)) for name, server in servers.items()}

    assert got == {
        "a": {
            "ALL": "for all",
            "A": "hunter-a-hunter-a",
            "AWS_SECRET_ACCESS_KEY": OTHERS["AWS_SECRET_ACCESS_KEY"],
            "AWS_REGION": "eu",
        },
        "b": {"ALL": "its own", "B": "hunter-b-hunter-b"},
    }


def test_variables_for_all_servers_do_not_reach_a_server_at_a_url(server):
    assert server("env = { A = '1' }\n[servers.s]\nurl = 'http://h/mcp'").env == {}


def test_the_password_of_a_network_proxy_is_a_secret_of_each_server(load_text):
    environ = {"HTTPS_PROXY": "http://ada:pass%40word@proxy:3128", "MY_API_KEY": "k3y-k3y-k3y"}
    text = "inherit = ['MY_API_KEY']\nenv = { T = '${TOP}' }\n[servers.s]\ncommand = 'x'"
    redact = Redactor(all_secrets_of(load_text(text, environ={**environ, "TOP": "t0psecret"})))

    shown = redact("via http://ada:pass%40word@proxy:3128 (pass@word), k3y-k3y-k3y, t0psecret")
    assert shown == "via http://ada:[redacted HTTPS_PROXY]@proxy:3128 ([redacted HTTPS_PROXY]), " + (
        "[redacted MY_API_KEY], [redacted TOP]"
    )


@pytest.mark.skipif(sys.platform == "win32", reason="the names of other systems")
def test_a_variable_that_every_server_inherits_is_no_secret_where_it_is_written(load_text):
    text = "[servers.s]\ncommand = 'x'\nargs = ['${HOME}/notes', '${TEAM}', '${https_proxy}']\n"
    environ = {"HOME": "/home/ada", "TEAM": "t0psecret", "https_proxy": "http://ada:pass-w0rd@proxy:3128"}
    redact = Redactor(all_secrets_of(load_text(text, environ=environ)))

    assert redact("/home/ada/notes for t0psecret") == "/home/ada/notes for [redacted TEAM]"
    assert "pass-w0rd" not in redact("ada:pass-w0rd")


def test_the_variables_that_differ_from_the_shell_are_named(server):
    shell = {"HOME": "/home/ada", "PATH": "/bin", "JAVA_HOME": "/java", "PWD": "/x", "GITHUB_TOKEN": "t"}
    own = server("[servers.s]\ncommand = 'x'\nenv = { PATH = '/none', NEW = '1' }")

    assert differs_from_shell(own, shell) == (["GITHUB_TOKEN", "JAVA_HOME"], ["PATH"])
