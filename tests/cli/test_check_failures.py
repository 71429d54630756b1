"""Each failure of a server, as ``check`` tells it: its cause, what it wrote, and a remedy."""

import json
import os
import re
import ssl
import subprocess
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest
from support.certificates import Authority
from support.commands import real_command
from support.servers import Workshop, tool
from support.services import QuietHandler, serving

from .conftest import Run, flat


class Forbidding(QuietHandler):
    """A web server that wants credentials."""

    def do_POST(self) -> None:
        self.send_response(401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_POST


@pytest.fixture
def forbidding_url() -> Iterator[str]:
    with serving(Forbidding) as root:
        yield f"{root}/mcp"


def test_data_comes_also_where_the_database_is_away_or_no_proxy_can_be_made(
    run: Run, workshop: Workshop
) -> None:
    pytest.importorskip("psycopg")
    workshop.server("plain", tools=[tool("a")])
    store = {"url": "postgresql://127.0.0.1:1/none", "timeout_seconds": 1}
    away = run("check", "--json", "--config", workshop.config(store=store))
    nothing = run(
        "check", "--json", "--config", workshop.config(cluster={"enabled": True, "key_file": "none"})
    )

    assert (away.returncode, nothing.returncode) == (0, 1)
    told = {(one["level"], one["subject"]): one["message"] for one in json.loads(away.stdout)["findings"]}
    assert "refused" in told["warning", "store"]
    assert "1 tool of plain is withheld: the database" in told["warning", "plain"]
    problems = [one for one in json.loads(nothing.stdout)["findings"] if one["level"] == "problem"]
    assert [one["key"] for one in problems] == ["cluster.key_file"]


def test_each_failure_of_a_server_comes_with_a_remedy(
    run: Run, workshop: Workshop, forbidding_url: str
) -> None:
    workshop.server("gone").settings = {"command": "no-such-program"}
    workshop.server("node").settings = {"command": "npx", "args": ["x@1.0"], "env": {"PATH": "/none"}}
    workshop.server("dies", at_start=[{"stderr": "no SECRET_OF_SHELL given\n"}, {"exit": 3}])
    workshop.server("silent", settings={"connect_timeout": 0.5}, on={"initialize": [{"wait": "/never"}]})
    workshop.server("closed").settings = {"url": forbidding_url}
    workshop.server("refuses", on={"initialize": [{"error": {"code": -32000, "message": "no"}}]})
    usage = r"printf 'Usage: tool [options]\n  --verbose  \033[31mloud\033[0m\nunknown option'; exit 2"
    workshop.server("usage").settings = {"command": "sh", "args": ["-c", usage]}
    complains = {"command": "sh", "args": ["-c", "while read line; do echo 'no licence key'; done"]}
    workshop.server("complains").settings = {**complains, "connect_timeout": 2}
    workshop.server("echo").settings = {"command": "cat"}
    done = run("check", "--config", workshop.config(), SECRET_OF_SHELL="hidden-value")

    told = flat(done.stdout)
    assert done.returncode == 1
    assert "gone: cannot start: no program 'no-such-program' on its PATH" in told
    assert "-> install Node.js" in told
    assert "dies: it exited (code 3) | no SECRET_OF_SHELL given -> run it by hand to see why" in told
    assert "silent: it was not ready within 0.5 s" in told
    assert "raise connect_timeout under servers.silent. If it is no MCP server" in told
    assert "run: mcp-context-proxy login closed -> if it takes a fixed token instead, set" in told
    assert "refuses: it answered with error -32000: no -> the error is its own" in told
    assert "usage: it exited (code 2) | stdout: Usage: tool [options] | stdout: --verbose loud" in told
    assert "| stdout: unknown option -> its output on stdout is no MCP message" in told
    assert "complains: it was not ready within 2 s | stdout: no licence key ->" in told
    assert (
        "echo: it answered with what it was sent, so it is no MCP server -> "
        "if it is no MCP server, correct the command" in told
    )
    assert told.count("of this shell") == 1
    # The output of one of them says which variable is meant.
    assert (
        "note environment: dies, silent, refuses, usage, complains failed without these variables of this "
        "shell: SECRET_OF_SHELL -> name those that a server needs in its inherit" in told
    )
    assert "hidden-value" not in told
    assert "\x1b" not in done.stdout
    assert "9 problems to fix" in told


def test_a_few_variables_are_named_where_no_output_mentions_one(run: Run, workshop: Workshop) -> None:
    workshop.server("dies", at_start=[{"exit": 3}])
    plain = {f"PLAIN_{number}": "x" for number in range(30)}
    told = flat(run("check", "--config", workshop.config(), ANY_TOKEN="hidden-value", **plain).stdout)
    listed = told.partition("without these variables of this shell: ")[2].partition(" -> ")[0]

    assert re.fullmatch(r"ANY_TOKEN, \w+, \w+ and \d+ more", listed)
    assert not {"OPENBLAS_NUM_THREADS", "PYDANTIC_DISABLE_PLUGINS"} & set(told.replace(",", " ").split())


def test_a_variable_that_is_written_for_a_shell_is_told(run: Run, workshop: Workshop) -> None:
    plain = workshop.server("plain").settings
    args = [*plain["args"], "$DESK_KEY", "$UNKNOWN", "$${DESK_KEY}", "${DESK_KEY}"]
    workshop.server("plain").settings = {**plain, "args": args}
    workshop.server("shell").settings = {"command": "sh", "args": ["-c", "exec cat $DESK_KEY"]}
    told = flat(run("check", "--config", workshop.config(), DESK_KEY="hidden-value").stdout)

    assert "warning plain: no braces around DESK_KEY: passed on as written, and not its value ->" in told
    assert told.count("passed on as written") == 1
    assert "hidden-value" not in told


def test_what_a_program_says_at_its_end_leads_to_a_remedy(run: Run, workshop: Workshop) -> None:
    """The words are those of real programs: of uv, of Node.js, and of a server for the SDK before."""
    said = {
        "python": (
            "x No solution found when resolving tool dependencies:",
            "Because the current Python version (3.11.7) does not satisfy Python>=3.12 and books==1.2",
            "depends on Python>=3.12,",
            "we can conclude that books==1.2 cannot be used.",
            "And because only that was asked for",
            "and nothing else,",
            "we can conclude",
            "that your requirements are unsatisfiable.",
        ),
        "port": (
            "Error: listen EADDRINUSE: address already in use :::3001",
            "  at Server.x (node:net)",
            "  errno: -98,",
            "  syscall: 'listen',",
            "  address: '::',",
            "  port: 3001",
            "}",
        ),
        "sdk": (
            "  @server.list_tools()",
            "AttributeError: 'Server' object has no attribute 'list_tools'",
        ),
        "npm": (
            "npm error code E404",
            "npm error 404 Not Found - GET https://registry.npmjs.org/@some%2fserver",
            "npm error 404 The requested resource '@some/server@*' could not be found",
        ),
        "uv": (
            "An executable named `some-server` is not provided by package `some-server`.",
            "The following executables are available:",
            "- some_server",
        ),
        "docker": ("docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock.",),
        "network": ("Error: getaddrinfo ENOTFOUND example.com",),
        "redis": ("Error: connect ECONNREFUSED 127.0.0.1:6379", "    at Socket (node:net)"),
        "postgres": ("Please provide a database URL as a command-line argument",),
        "remote": ("[14338] Usage: mcp-remote <https://server-url> [callback-port] [--debug]",),
        "browser": ("error: unknown option '--nope'",),
        "fetch": (
            "usage: mcp-server-fetch [-h]",
            "mcp-server-fetch: error: unrecognized arguments: --nope x",
        ),
    }
    for name, lines in said.items():
        workshop.server(name, at_start=[{"stderr": "\n".join(lines) + "\n"}, {"exit": 1}])
    told = flat(run("check", "--config", workshop.config()).stdout)

    assert '-> it needs another version of Python: with uvx, begin its args with "--python"' in told
    assert "| Because the current Python version (3.11.7) does not satisfy Python" in told
    assert "| Error: listen EADDRINUSE: address already in use :::3001 |" in told
    assert "-> a port that it wants is taken" in told
    assert 'begin its args with "--with", "mcp<2"' in told
    assert "-> its registry does not have this package, or no such version: check the name" in told
    assert 'begin its args with "--from", the package, and the executable' in told
    assert "-> start Docker" in told
    assert "-> it does not reach the network" in told
    assert told.count("-> what it connects to does not run") == 1
    assert told.count("-> its args are wrong, or lack something that it needs") == 4
    assert "failed without these variables" not in told, "what they said is the reason"


def test_a_program_that_ends_without_a_variable_is_told_where_to_set_it(run: Run, workshop: Workshop) -> None:
    """The words are those of real programs."""
    said = {
        "slack": "Please set SLACK_BOT_TOKEN and SLACK_TEAM_ID environment variables",
        "brave": "Error: BRAVE_API_KEY environment variable is required",
        "gitlab": "GITLAB_PERSONAL_ACCESS_TOKEN environment variable is not set",
        "python": "KeyError: 'SOME_API_KEY'",
        "list": "Missing required environment variables:\n  - FIRST_KEY\n  - SECOND_KEY\nSee the README_FILE",
        "shell": "ANY_TOKEN must be set",
        "given": "GIVEN_TOKEN is required to be valid",
        "other": "Error [ERR_MODULE_NOT_FOUND]: required by /srv/SOME_FILE.js",
    }
    for name, lines in said.items():
        workshop.server(name, at_start=[{"stderr": f"{lines}\n"}, {"exit": 1}])
    workshop.servers["given"].settings["env"] = {"GIVEN_TOKEN": "abc"}
    told = flat(run("check", "--config", workshop.config(), ANY_TOKEN="hidden-value").stdout)

    assert "-> set SLACK_BOT_TOKEN, SLACK_TEAM_ID in env under servers.slack" in told
    assert "-> set BRAVE_API_KEY in env under servers.brave" in told
    assert "-> set GITLAB_PERSONAL_ACCESS_TOKEN in env under servers.gitlab" in told
    assert "-> set SOME_API_KEY in env under servers.python" in told
    assert "-> set FIRST_KEY, SECOND_KEY in env under servers.list" in told
    assert '-> it does not get ANY_TOKEN of this environment: write inherit = ["ANY_TOKEN"] under' in told
    assert "environment: given, other failed without these variables" in told


def test_a_certificate_that_is_not_trusted_is_no_wrong_url(run: Run, workshop: Workshop) -> None:
    file = Authority().write(workshop.folder / "server.pem", "localhost")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Forbidding)
    secured = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secured.load_cert_chain(file)
    server.socket = secured.wrap_socket(server.socket, server_side=True)
    with serving(server):
        workshop.server("old").settings = {"url": f"https://localhost:{server.server_port}/mcp"}
        told = flat(run("check", "--config", workshop.config()).stdout)
        workshop.servers["old"].settings["tls"] = {"ca": "nowhere.pem"}
        unnamed = flat(run("check", "--config", workshop.config()).stdout)
        del workshop.servers["old"].settings["tls"]
        # Tests that are forked have read all certificates.
        unread = subprocess.run(
            real_command("--config", workshop.config(), "check"),
            capture_output=True,
            text=True,
            env={**os.environ, "SSL_CERT_FILE": "/nowhere.pem"},
            check=False,
        ).stdout

    assert "certificate verify failed" in told
    assert "-> have its certificate renewed" in told
    assert f"{workshop.folder}/nowhere.pem cannot be used for TLS: No such file or directory" in unnamed
    assert "-> correct tls under servers.old" in unnamed
    assert "SSL_CERT_FILE=/nowhere.pem cannot be used for TLS: No such file or directory" in flat(unread)
    assert "0 of 1 server works" in unread


def test_an_unknown_host_name_is_told_from_a_refused_connection_and_a_proxy_is_named(
    run: Run, workshop: Workshop
) -> None:
    workshop.server("nowhere").settings = {"url": "http://no-such-host.invalid/mcp"}
    workshop.server("refused").settings = {"url": "http://127.0.0.1:9/certificates"}
    config = workshop.config()
    without = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), "")
    told = flat(run("check", "--config", config, **without).stdout)
    beside = flat(run("check", "--config", config, **without, all_proxy="http://127.0.0.1:9").stdout)

    assert "http://no-such-host.invalid/mcp: its host name leads to no address" in told
    assert "-> check the host name in the URL and the connection to the network, and whether this" in told
    assert "/certificates: nothing answers there -> check that it is running and that the URL is" in told
    assert "all_proxy is set: it may be that proxy which cannot be reached" in beside
    assert "all_proxy" not in told


def test_a_traceback_whose_remedy_is_known_is_shown_by_its_error_alone(run: Run, workshop: Workshop) -> None:
    lines = (
        "Traceback (most recent call last):",
        '  File "/srv/server.py", line 3, in <module>',
        "    @server.list_tools()",
        "     ^^^^^^^^^^^^^^^^^^^",
        "AttributeError: 'Server' object has no attribute 'list_tools'",
    )
    workshop.server("sdk", at_start=[{"stderr": "\n".join(lines) + "\n"}, {"exit": 1}])
    told = flat(run("check", "--config", workshop.config()).stdout)

    assert "sdk: it exited (code 1) | AttributeError: 'Server' object has no attribute" in told


def test_a_program_that_serves_http_instead_of_stdio_is_told_so(run: Run, workshop: Workshop) -> None:
    says = "echo 'MCP server listening on http://localhost:3001/mcp' >&2; exec sleep 60"
    workshop.server("web").settings = {"command": "sh", "args": ["-c", says], "connect_timeout": 2}
    login = "echo 'OAuth callback server running at http://127.0.0.1:3334' >&2; exec sleep 60"
    workshop.server("login").settings = {"command": "sh", "args": ["-c", login], "connect_timeout": 2}
    pages = "echo 'Dashboard running at http://127.0.0.1:24282/dashboard' >&2; exec sleep 60"
    workshop.server("pages").settings = {"command": "sh", "args": ["-c", pages], "connect_timeout": 2}
    told = flat(run("check", "--config", workshop.config()).stdout)

    assert (
        "web: it serves HTTP at http://localhost:3001/mcp, and has not answered over stdio within 2 s" in told
    )
    assert "-> give it the option that makes it speak over stdio" in told
    assert "login: it was not ready within 2 s" in told
    assert "pages: it was not ready within 2 s" in told
