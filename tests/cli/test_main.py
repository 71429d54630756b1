import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers import Workshop, tool
from support.tables import each

from mcp_context_proxy.__main__ import plain_serve

from .conftest import PATIENCE, Run


def test_serve_imports_no_other_command(run: Run) -> None:
    """Imports would delay the first response to a host."""
    script = (
        "import sys, mcp_context_proxy.cli, mcp_context_proxy.cli.serve, mcp_context_proxy.app.serve;"
        "others = ('rich', 'mcp_context_proxy.library');"
        "print(sorted(m for m in sys.modules if m in others or m.startswith('mcp_context_proxy.cli.')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True)

    assert done.stdout.strip() == str(["mcp_context_proxy.cli.serve"])


@pytest.mark.parametrize("command", ["search", "tools", "servers"])
def test_an_unusable_configuration_is_reported_without_a_traceback(
    run: Run, command: str, tmp_path: Path
) -> None:
    query = ["anything"] if command == "search" else []
    done = run(command, *query, "--config", tmp_path / "none.toml")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("mcp-context-proxy: 1 problem in the configuration:")
    assert "Traceback" not in done.stderr


@each(
    "words",
    [("search", "\udce4"), ("explain", "\udce4", "x"), ("add", "x", "--", "x", "\udce4")],
)
def test_bytes_that_are_no_text_are_named_without_a_traceback(
    workshop: Workshop, run: Run, words: tuple[str, ...]
) -> None:
    workshop.server("one", tools=[tool("fetch")])
    command, *arguments = words
    done = run(command, "--config", workshop.config(), *arguments)

    assert done.returncode == 1
    assert done.stderr == "mcp-context-proxy: '\\udce4' is not UTF-8, which the terminal has to send\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_output_that_does_not_fit_ends_a_command_with_a_sentence(
    workshop: Workshop, environment: dict[str, str]
) -> None:
    workshop.server("one", tools=[tool("fetch")])
    config = workshop.config(store={"path": str(workshop.folder / "s.db")})
    named = ["--config", str(config)]
    listing = (["tools"], ["tools", "--json"], ["audit"], ["audit", "--json"])
    for arguments in (["--help"], ["--version"], ["hook", "--help"], *([*one, *named] for one in listing)):
        command = [sys.executable, "-m", "mcp_context_proxy", *arguments]
        with Path("/dev/full").open("w", encoding="utf-8") as full:
            done = subprocess.run(
                command, check=False, stdout=full, stderr=subprocess.PIPE, encoding="utf-8", env=environment
            )

        assert done.returncode == 1, arguments
        assert done.stderr.splitlines()[-1] == (
            "mcp-context-proxy: No space left on device: the output, or a file, is not complete"
        ), arguments
        assert "Traceback" not in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="Windows reports a reader that has gone in other ways")
def test_a_closed_pipe_ends_a_command_quietly(environment: dict[str, str], workshop: Workshop) -> None:
    workshop.server("many", tools=[tool(f"tool_{n}", "Does much. " * 50) for n in range(500)])
    with subprocess.Popen(
        [sys.executable, "-m", "mcp_context_proxy", "tools", "--json", "--config", str(workshop.config())],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding="utf-8",
    ) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.readline()
        command.stdout.close()
        assert command.stderr.read() == ""
        assert command.wait(PATIENCE) == 141


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("search", "x", "--explan"), "'--explan'. Did you mean '--explain'?"),
        (
            ("session", "options", "--top-n", "3"),
            "'--top-n'. There are: --config, --session, --json, --preset,",
        ),
        (("--verbose",), "'--verbose'. There are: --config, --log-level, --version"),
    ],
)
def test_an_unknown_option_gets_a_near_one_or_all_of_the_command(
    run: Run, words: tuple[str, ...], told: str
) -> None:
    done = run(*words)

    assert done.returncode == 2
    assert f"mcp-context-proxy: No such option {told}" in done.stderr
    assert "--help" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("store", "nope"), "No such command 'nope'. There are: check, "),
        (("hook", "install", "nope"), "Invalid value for 'HOST'"),
        (("hook", "install"), "Missing argument 'HOST'"),
        (("changes", "nope"), "there is no server 'nope'. There is none"),
    ],
)
def test_what_does_not_exist_is_answered_with_what_there_is(
    run: Run, workshop: Workshop, words: tuple[str, ...], told: str
) -> None:
    store = {"path": str(workshop.folder / "store.sqlite3")}
    config = [] if words[0] == "hook" else ["--config", str(workshop.config(store=store))]
    done = run(*config, *words)

    assert done.returncode == 2
    assert told in done.stderr


def test_a_group_without_a_command_shows_its_commands(run: Run) -> None:
    done = run("hook")

    assert done.returncode == 2
    assert done.stderr.startswith("Usage: mcp-context-proxy hook ")
    assert "uninstall" in done.stderr
    assert not done.stderr.rstrip().endswith("--help")


@pytest.mark.parametrize(
    "group", ["session", "hook", "learning", "store", "cluster", "interactions", "secret", "token"]
)
def test_the_help_of_a_group_cuts_no_sentence(run: Run, group: str) -> None:
    done = run(group, "--help", COLUMNS="60")

    assert done.returncode == 0
    commands = done.stdout.partition("Commands:\n")[2]
    assert commands
    assert not re.search(r"\.\.\.$", commands, re.MULTILINE)
    assert "Answer a hook" not in commands, "it is not for people"


@pytest.mark.parametrize(("given", "told"), [("serch", " Did you mean 'search'?"), ("xyz", "")])
def test_an_unknown_command_gets_a_suggestion(run: Run, given: str, told: str) -> None:
    done = run(given)

    assert done.returncode == 2
    assert (
        done.stderr
        == f"mcp-context-proxy: No such command {given!r}.{told}\nHelp: mcp-context-proxy --help\n"
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            ("serve", "--port", "70000"),
            "Invalid value for '--port': 70000 is not a whole number from 0 to 65535\n",
        ),
        (
            ("recall", "x", "--decay", "0"),
            "Invalid value for '--decay': 0 is not a number above 0, up to 1\n",
        ),
        (("stats", "--limit", "x"), "Invalid value for '--limit': x is not a whole number of at least 1\n"),
        (("search", ""), "QUERY is empty"),
        (("serve", "--host", "h"), "--host and --port need --http"),
    ],
)
def test_an_error_in_the_arguments_begins_like_every_other_and_names_the_help(
    run: Run, given: tuple[str, ...], told: str
) -> None:
    done = run(*given)

    assert done.returncode == 2
    assert done.stderr.startswith(f"mcp-context-proxy: {told}")
    assert done.stderr.endswith(f"\nHelp: mcp-context-proxy {given[0]} --help\n")


@each(
    ("line", "options"),
    [
        ("", {}),
        ("serve", {}),
        ("serve --own --config c", {"--config": "c"}),
        ("--config=c --log-level debug serve --own", {"--config": "c", "--log-level": "debug"}),
        ("--config c serve --config d", {"--config": "d"}),
        ("serve --config=c --listen-on 5", {"--config": "c", "--listen-on": "5"}),
    ],
)
def test_a_serve_without_further_options_needs_no_parser(line: str, options: dict[str, str]) -> None:
    assert plain_serve(line.split()) == options


@each(
    "line",
    [
        "--own",
        "serve serve",
        "serve --http",
        "serve --own --shared",
        "serve --log-level debug",
        "serve --config",
        "serve --config --own",
        "serve --profile work",
        "serve --help",
        "tools",
    ],
)
def test_any_other_command_line_is_parsed(line: str) -> None:
    assert plain_serve(line.split()) is None


def test_a_plain_serve_imports_no_parser_of_commands(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.touch()
    command = [sys.executable, "-X", "importtime", "-m", "mcp_context_proxy", "--config", str(config)]
    done = subprocess.run(
        [*command, "serve", "--own"], check=True, capture_output=True, encoding="utf-8", input=""
    )

    assert "mcp_context_proxy.app.serve" in done.stderr
    assert "click" not in done.stderr


def test_a_host_is_answered_with_the_option_that_is_misspelled_in_its_settings(run: Run) -> None:
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    done = run("serve", "--profle", "chat", stdin=json.dumps(hello) + "\n")
    over_http = run("serve", "--http", "--profle", "chat", stdin=json.dumps(hello) + "\n")

    assert "No such option '--profle'" in json.loads(done.stdout)["error"]["message"]
    assert over_http.stdout == ""


@pytest.mark.parametrize("options", [(), ("--preset", "none"), ("--profile", "none")])
def test_a_host_is_answered_with_the_fault_that_keeps_its_own_proxy_from_serving(
    run: Run, tmp_path: Path, options: tuple[str, ...]
) -> None:
    config = tmp_path / "config.toml"
    config.write_text("[servers.a]\ncommand = 'x\n" if options[:1] != ("--profile",) else "")
    hello = {"jsonrpc": "2.0", "id": "first", "method": "initialize", "params": {}}
    done = run("serve", "--own", *options, "--config", config, stdin=json.dumps(hello) + "\n")

    assert done.returncode != 0
    (answer,) = map(json.loads, done.stdout.splitlines())
    assert answer["id"] == "first"
    assert answer["error"]["code"] == -32_000
    said = answer["error"]["message"]
    assert said.startswith("the proxy does not start: ")
    assert ("clients.none" if options[:1] == ("--profile",) else f"{config}") in said
    assert "Traceback" not in done.stderr


def test_a_server_that_is_off_is_named_by_commands_that_start_the_others_and_by_no_others(
    run: Run, workshop: Workshop
) -> None:
    workshop.server("notes", tools=[tool("jot")])
    workshop.server("off").settings = {"command": "x", "env": {"A": "${NO_SUCH_VARIABLE}"}}
    config = workshop.config()
    told = {one: run(one, "--config", config).stderr for one in ("tools", "stats", "changes", "audit")}

    assert "server off: off: NO_SUCH_VARIABLE is not set" in told.pop("tools")
    assert not any("NO_SUCH_VARIABLE" in said for said in told.values())


@pytest.mark.parametrize("options", [(), ("--preset", "none")])
def test_a_serve_without_a_usable_configuration_ends_with_a_sentence(
    run: Run, tmp_path: Path, options: tuple[str, ...]
) -> None:
    done = run("serve", "--own", *options, "--config", tmp_path / "none.toml")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("mcp-context-proxy: 1 problem in the configuration:")
    assert "Traceback" not in done.stderr


INTERRUPTED = """
import os, signal, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "click":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
sys.argv = ["mcp-context-proxy", "--help"]
from mcp_context_proxy.__main__ import main
main()
"""


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such signals")
def test_a_command_that_is_interrupted_while_it_loads_says_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)

    assert done.returncode == -signal.SIGINT
    assert done.stderr == done.stdout == ""


def test_a_shell_is_told_how_a_command_line_could_go_on(run: Run) -> None:
    variable = "_MCP_CONTEXT_PROXY_COMPLETE"
    script = run(**{variable: "bash_source"})
    words = {"COMP_WORDS": "mcp-context-proxy se", "COMP_CWORD": "1"}
    offered = run(**{variable: "bash_complete"}, **words)

    hosts = {"COMP_WORDS": "mcp-context-proxy install cur", "COMP_CWORD": "2"}

    assert run(**{variable: "bash_complete"}, **hosts).stdout.strip() == "plain,cursor"
    assert "complete" in script.stdout
    assert {"plain,serve", "plain,search"} <= {*offered.stdout.split()}
