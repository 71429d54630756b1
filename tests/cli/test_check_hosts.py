"""``check`` tells what hosts do with the names, the texts and the results of tools."""

import pytest
from support.servers import Workshop, tool

from mcp_context_proxy.config.host_profiles import HOSTS

from .conftest import Run, flat

LONG = "create_" + "very_" * 10 + "long_note"


def test_names_that_were_shortened_are_shown(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=[tool("a"), tool(LONG), tool(LONG.replace("create", "delete"))])
    done = run("check", "--strict", "--config", workshop.config())

    told = flat(done.stdout)
    assert done.returncode == 0, told
    assert "ok names: the names of 2 tools are shortened to 41 characters" in told
    assert f"desk__{LONG}isdesk__create_very_ve" in told.replace(" ", "")  # such words are wrapped


def test_names_that_are_too_long_for_a_host_are_a_warning(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=[tool("a"), tool(LONG[:39])])
    done = run("check", "--config", workshop.config(expose={"max_name_length": 64}))

    told = flat(done.stdout)
    assert done.returncode == 0
    assert "warning names: 1 name of tools over 41 characters, too long for Claude Code," in told
    hosts = "Claude Code (plugin), Codex, Copilot in JetBrains IDEs, Qwen Code"
    assert f"{hosts}: desk__{LONG[:39]} -> leave out expose.max_name_length" in told


@pytest.mark.parametrize(
    ("host", "title", "told"),
    [
        (
            "claude-code",
            "Claude Code",
            "PROBLEM Claude Code: names: the host puts mcp__context-proxy__ before each, and 1 of 2 then "
            "have more than 64 characters, and one such name is enough to have the whole list refused",
        ),
        ("cursor", "Cursor", "warning Cursor: names: the host puts context-proxy: before each, and 1 of 2"),
        ("gemini-cli-mcp-client", "Gemini CLI", "and the host shortens them in its own way"),
        (
            "plain",
            "A plain client",
            "ok A plain client: names: the host puts nothing before them; the longest",
        ),
    ],
)
def test_the_host_that_is_asked_about_says_what_it_does_with_long_names(
    run: Run, workshop: Workshop, host: str, title: str, told: str
) -> None:
    workshop.server("desk", tools=[tool("a"), tool(LONG)])
    done = run("check", "--host", host, "--config", workshop.config(expose={"max_name_length": 64}))

    assert told in flat(done.stdout)
    assert f"{title}: results: the model reads" in flat(done.stdout)
    assert done.returncode == (host == "claude-code")


def test_a_host_cuts_long_descriptions_and_takes_so_many_tools(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=[tool("wordy", "Says much. " * 300), *(tool(f"t{n}") for n in range(60))])
    config = workshop.config(expose={"mode": "all"})
    claude, cursor = (run("check", "--host", name, "--config", config) for name in ("claude-code", "cursor"))

    assert "listed are cut to 2,048 bytes: desk__wordy (3,300 bytes) -> include = " in flat(claude.stdout)
    assert "ok Claude Code: list changes: it lists the tools again" in flat(claude.stdout)
    assert "those over 25,000 tokens go to a file" in flat(claude.stdout)
    assert "listed, and the host takes at most 40 from all its servers -> set expose.mode" in flat(
        cursor.stdout
    )
    assert "ok Cursor: list changes: until it is restarted or refreshed, it misses tools" in flat(
        cursor.stdout
    )
    assert (claude.returncode, cursor.returncode) == (0, 0)


def test_the_defaults_have_no_warning_for_any_host(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=[tool("a"), tool(LONG)])
    for host in HOSTS:
        done = run("check", "--strict", "--host", host, "--config", workshop.config())
        assert done.returncode == 0, done.stdout


def test_the_name_of_the_proxy_in_a_host_counts(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=[tool(LONG)])
    config = workshop.config()
    done = run("check", "--host", "claude-code", "--as", "all-my-servers-in-one-place", "--config", config)

    assert done.returncode == 1
    assert "the host puts mcp__all-my-servers-in-one-place__ before each, and 1 of 1" in flat(done.stdout)
    assert "-> set expose.max_name_length = 30, or give the proxy a shorter name" in flat(done.stdout)


def test_an_unknown_host_is_refused_with_those_that_are_known(run: Run, workshop: Workshop) -> None:
    config = workshop.config()
    unknown = run("check", "--host", "netscape", "--config", config)
    alone = run("check", "--as", "tools", "--config", config)
    without = run("check", "--host-file", "--config", config)

    assert unknown.returncode == alone.returncode == without.returncode == 2
    assert "--host-file needs --pin" in flat(without.stderr)
    assert "'netscape' is not known; known are claude-code, claude-code-plugin," in flat(unknown.stderr)
    assert "--as needs --host" in flat(alone.stderr)
