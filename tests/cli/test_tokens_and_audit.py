"""``token`` and ``audit``: who may connect, and a record of their calls."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support.commands import PATIENCE, forked_command
from support.servers import Workshop, tool

from mcp_context_proxy.config import load
from mcp_context_proxy.trust.audit import audit_file, note_now
from mcp_context_proxy.trust.tokens import TokenBook, TokenFile, tokens_path

from .conftest import Run


@pytest.fixture
def config(workshop: Workshop) -> Path:
    workshop.server("desk", tools=[tool("post_message")])
    return workshop.config(store={"path": str(workshop.folder / "state" / "store.db")})


def test_a_token_is_shown_once_and_listed_renewed_and_revoked_by_its_name(run: Run, config: Path) -> None:
    options = ("--servers", "desk", "--classes", "read,write", "--expires", "90d", "--role", "view")
    added = run("token", "add", "anna", *options, "--config", config)
    listed = run("token", "list", "--config", config)
    data = json.loads(run("token", "list", "--json", "--config", config).stdout)
    book = TokenBook(TokenFile(tokens_path(load(config, environ={}))))
    book.load()
    found = book.find(added.stdout.strip())
    renewed = run("token", "renew", "anna", "--config", config)
    relisted = run("token", "list", "--config", config)
    book.load()
    both = [book.find(each.stdout.strip()) is not None for each in (added, renewed)]
    revoked = run("token", "revoke", "anna", "--config", config)

    assert (both, "its former token" in listed.stdout) == ([True, True], False)
    assert "its former token" in " ".join(relisted.stdout.split())
    assert added.returncode == 0, added.stderr
    assert "cannot be shown again" in added.stderr
    assert found is not None
    assert [reach.servers for reach in found.principal.reach] == [{"desk"}]
    assert added.stdout.strip() not in listed.stdout + json.dumps(data)
    assert "anna" in listed.stdout
    (entry,) = data["tokens"]
    assert (entry["servers"], entry["classes"], entry["role"]) == (["desk"], ["read", "write"], "view")
    assert abs(entry["expires"] - time.time() - 90 * 86_400) < 3_600
    assert revoked.returncode == 0
    assert TokenFile(tokens_path(load(config, environ={}))).read() == ()


def test_the_list_of_tokens_names_the_people_whose_tokens_were_revoked(run: Run, config: Path) -> None:
    person = "jwt:" + "5f" * 32
    revoked = run("token", "revoke", person, "--config", config)
    listed = run("token", "list", "--config", config)
    data = json.loads(run("token", "list", "--json", "--config", config).stdout)

    assert revoked.stdout == f"Revoked the tokens until now of {person}.\n"
    assert f"Tokens of {person} from before" in " ".join(listed.stdout.split())
    assert (data["tokens"], list(data["revoked"])) == ([], [person])


def test_the_list_of_tokens_names_the_profile_that_a_token_is_bound_to(run: Run, workshop: Workshop) -> None:
    state = {"path": str(workshop.folder / "state" / "store.db")}
    config = workshop.config(store=state, clients={"chat": {"tokens": ["carl"], "servers": ["desk"]}})
    run("token", "add", "carl", "--config", config)

    listed = run("token", "list", "--config", config)
    data = json.loads(run("token", "list", "--json", "--config", config).stdout)

    assert "all servers, within profile chat" in " ".join(listed.stdout.split())
    assert data["tokens"][0]["profile"] == "chat"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("owner",), "cannot be named"),
        (("anna", "--servers", "dusk"), "there is no server 'dusk'"),
        (("anna", "--classes", "all"), "'all' is no class; there are read, write, destructive"),
        (("anna", "--expires", "soon"), "'soon' is no period"),
        (("anna", "--role", "admin", "--servers", "desk"), "reaches everything"),
    ],
)
def test_a_mistake_in_a_token_is_said(run: Run, config: Path, arguments: tuple[str, ...], why: str) -> None:
    done = run("token", "add", *arguments, "--config", config)

    assert done.returncode != 0
    assert why in " ".join(done.stderr.split())


def test_the_audit_is_printed_filtered_and_as_data(run: Run, config: Path) -> None:
    file = audit_file(load(config, environ={}))
    assert file is not None
    now = time.time()
    call = {"kind": "call", "server": "desk", "tool": "post_message", "decision": "allowed"}
    old = {"time": now - 3 * 86_400, **call, "outcome": "failed"}
    new = {"time": now, **call, "outcome": "succeeded", "client": "evil\x1b[31m\u202e", "ms": 1.5}
    file.append([json.dumps(each).encode() for each in (old, new)])
    run("token", "add", "anna", "--config", config)

    day = run("audit", "--config", config)
    week = run("audit", "--since", "7d", "--kind", "call", "--config", config)
    other = run("audit", "--server", "desk", "--tool", "other", "--config", config)
    unknown = run("audit", "--server", "deks", "--config", config)
    data = json.loads(run("audit", "--tool", "post_message", "--json", "--config", config).stdout)

    assert day.returncode == 0, day.stderr
    lines = " ".join(day.stdout.split())
    assert "call desk.post_message; allowed, succeeded; 1.5 ms" in lines
    assert "  call           desk" in day.stdout, "kinds stand in a column"
    assert "token added; name anna" in lines
    assert "failed" not in lines
    assert "\x1b" not in day.stdout
    assert "\u202e" not in day.stdout
    assert "failed" in week.stdout
    assert "token" not in week.stdout
    assert "Nothing was recorded" in other.stdout
    assert unknown.returncode == 2
    assert "there is no server 'deks'. Did you mean 'desk'?" in unknown.stderr
    assert [entry["outcome"] for entry in data["entries"]] == ["succeeded"]


def test_check_says_where_the_audit_is_and_that_it_cannot_be_written(run: Run, config: Path) -> None:
    good = run("check", "--config", config)
    file = audit_file(load(config, environ={}))
    assert file is not None
    file.path.unlink()
    file.path.mkdir()
    bad = run("check", "--config", config)

    assert "audit.jsonl" in "".join(good.stdout.split())
    assert "cannot be written" in " ".join(bad.stdout.split())
    assert bad.returncode == 1


@pytest.mark.parametrize("instead", [os.mkdir, getattr(os, "mkfifo", os.mkdir)])
def test_an_audit_that_cannot_be_read_is_said(
    run: Run, config: Path, instead: Callable[[Path], None]
) -> None:
    file = audit_file(load(config, environ={}))
    assert file is not None
    file.folder.mkdir(exist_ok=True)
    instead(file.path)
    done = run("audit", "--config", config)

    assert done.returncode == 1
    assert "audit.jsonl cannot be read: it is not a regular file" in " ".join(done.stderr.split())


def test_an_audit_that_is_off_is_said(run: Run, workshop: Workshop) -> None:
    workshop.server("desk", tools=[tool("post_message")])
    done = run("audit", "--config", workshop.config())

    assert done.returncode == 1
    assert "nothing is recorded" in done.stderr


def test_damaged_and_strange_entries_hide_no_others_and_reach_no_terminal(run: Run, config: Path) -> None:
    hidden = "\x1b[2J\u202e\u200b"
    file = audit_file(load(config, environ={}))
    assert file is not None
    entry = {"time": time.time(), "kind": "call", "server": f"{hidden}desk\n2026 call", "tool": {hidden: [1]}}
    strange = [{**entry, "time": 1e300}, {**entry, "time": -1e300}, entry, {**entry, "server": "last"}]
    file.append([json.dumps(one).encode() for one in strange] + [b"x" * 100_000, b"[" * 100_000])
    done = run("audit", "--config", config)

    assert done.returncode == 0, done.stderr
    assert "last" in done.stdout
    assert not [one for one in "\x1b\u202e\u200b" if one in done.stdout]
    assert "\n2026 call" not in done.stdout


def test_whoever_follows_the_audit_prints_the_last_entries_when_told_to_end(
    config: Path, environment: dict[str, str]
) -> None:
    note_now(load(config, environ={}), "token", event="added", name="anna")
    words = forked_command("audit", "--follow", "--json", "--config", config)
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, encoding="utf-8") as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["event"] == "added"
        note_now(load(config, environ={}), "token", event="revoked", name="anna")
        following.terminate()
        rest, _ = following.communicate(timeout=PATIENCE)

    assert [json.loads(line)["event"] for line in rest.splitlines()] == ["revoked"]
    assert following.returncode == 0
