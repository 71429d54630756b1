"""``secret``: keeps secrets for the configuration in the keyring of the system.

A value is typed without being shown, or read from the standard input. It is never an argument, which other
programs of the machine could read, and nothing prints it.
"""

from __future__ import annotations

import sys

import click

from mcp_context_proxy.cli.options import echo_json, json_option
from mcp_context_proxy.cli.terminal import counted, results


@click.group("secret")
def secret_command() -> None:
    """Keep secrets in the keyring of the system; ${keyring:NAME} in the configuration is the value of one."""


@secret_command.command("set")
@click.argument("name")
def set_secret(name: str) -> None:
    """Store a secret as NAME: typed at the prompt, or read from the standard input."""
    from mcp_context_proxy.config.secret_sources import store_secret

    if sys.stdin.isatty():
        value = click.prompt(f"Value of {name}", hide_input=True, confirmation_prompt=True)
    else:
        value = sys.stdin.read().rstrip("\r\n")
    if not value:
        raise click.ClickException("the value is empty; nothing was stored")
    store_secret(name, value)
    results().say(f"Stored. Write ${{keyring:{name}}} in the configuration.")


@secret_command.command("list")
@json_option
def list_secrets(as_json: bool) -> None:
    """List the names of the stored secrets."""
    from mcp_context_proxy.config.secret_sources import stored_names

    names = stored_names()
    if as_json:
        echo_json({"secrets": names})
        return
    for name in names:
        results().say(name)
    if not names:
        results().say("No secret is stored.")


@secret_command.command("remove")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
def remove_secrets(names: tuple[str, ...]) -> None:
    """Remove secrets from the keyring."""
    from mcp_context_proxy.config.secret_sources import remove_secret

    for name in names:
        remove_secret(name)
    results().say(f"Removed {counted(len(names), 'secret')}.")
