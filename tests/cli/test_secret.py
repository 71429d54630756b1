"""Secrets in the keyring: set, listed and removed, and never shown."""

import json

import pytest
from click.testing import CliRunner, Result
from support import fake_keyring
from support.fake_keyring import FakeKeyring

from mcp_context_proxy.cli.configure import secret_command

VALUE = "v4lue-of-a-secret"


@pytest.fixture(autouse=True)
def keyring(monkeypatch: pytest.MonkeyPatch) -> FakeKeyring:
    return fake_keyring.install(monkeypatch)


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(secret_command, arguments, input=stdin)


def test_a_secret_is_read_from_the_standard_input_and_never_shown(keyring: FakeKeyring) -> None:
    stored = run("set", "github", stdin=f"{VALUE}\n")
    listed = run("list")

    assert keyring.passwords["mcp-context-proxy", "github"] == VALUE
    assert listed.output == "github\n"
    assert "${keyring:github}" in stored.output
    assert VALUE not in stored.output + listed.output


def test_a_secret_is_typed_twice_and_not_echoed(
    keyring: FakeKeyring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False)
    result = run("set", "github", stdin=f"{VALUE}\nother\n{VALUE}\n{VALUE}\n")

    assert result.exit_code == 0
    assert "do not match" in result.output
    assert keyring.passwords["mcp-context-proxy", "github"] == VALUE
    assert VALUE not in result.output


def test_a_value_is_no_argument(keyring: FakeKeyring) -> None:
    result = run("set", "github", VALUE)

    assert result.exit_code == 2
    assert keyring.passwords == {}


def test_an_empty_value_is_not_stored(keyring: FakeKeyring) -> None:
    result = run("set", "github", stdin="\n")

    assert "the value is empty; nothing was stored" in result.output
    assert keyring.passwords == {}


def test_names_are_listed_and_removed(keyring: FakeKeyring) -> None:
    for name in ("b", "a"):
        run("set", name, stdin=VALUE)
    assert json.loads(run("list", "--json").output) == {"secrets": ["a", "b"]}

    removed, again = run("remove", "a"), run("remove", "a")

    assert removed.output == "Removed 1 secret.\n"
    assert str(again.exception) == "the keyring has no secret a"
    assert run("list").output == "b\n"
    assert ("mcp-context-proxy", "a") not in keyring.passwords


def test_a_damaged_list_of_names_lists_nothing(keyring: FakeKeyring) -> None:
    keyring.passwords["mcp-context-proxy", ":names"] = "{"

    assert run("list").output == "No secret is stored.\n"
