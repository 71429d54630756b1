"""Facts about servers for a person, without their secrets.

The environment and the headers of a server are never shown. In texts about it, values that came from
variables, credentials in URLs, and arguments with the name of a secret are replaced.
"""

from __future__ import annotations

import shlex
from typing import Any, Final

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.secrets import Redactor, secret_arguments, secrets_of
from mcp_context_proxy.config.settings import LAUNCH
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.lifecycle import ServerState
from mcp_context_proxy.protocol.strangers import NAME_CHARACTERS, one_line
from mcp_context_proxy.system.later import pattern

HIDDEN: Final = "***"
"""Replaces a secret."""

STDERR_SHOWN: Final = 5
"""Lines shown of a failed server's last output."""

_REDACTED: Final = r"\[redacted [^\]]{0,200}+\]"
"""What stands for a secret; it has a space."""
_USER_INFO: Final = pattern(rf"(?:{_REDACTED}|[^/?#\s@])++@")
_QUERY: Final = pattern(rf"((?:{_REDACTED}|[^\s?#])*+)\?(?:{_REDACTED}|[^\s#'\"])*+")


def redacted(config: ServerConfig, text: str) -> str:
    """Return a text without this server's secrets and without control characters, on one line."""
    text = Redactor(secrets_of(config))(text)
    # Each is looked for only where a URL begins: anywhere else it would take the square of the length.
    first, *urls = text.split("://")
    return one_line("://".join((first, *map(_without_credentials, urls))))


def _without_credentials(url: str) -> str:
    """Return a URL without scheme, user and query, and any text after it."""
    if found := _USER_INFO.match(url):
        url = f"{HIDDEN}@{url[found.end() :]}"
    if found := _QUERY.match(url):
        url = f"{found[1]}?{HIDDEN}{url[found.end() :]}"
    return url


def address(config: ServerConfig) -> str:
    """Return a server's command line or URL, without secrets."""
    if config.url is not None:
        return redacted(config, config.url)
    shown = [*config.args]
    for position, _, value in secret_arguments(config.args):
        shown[position] = shown[position].removesuffix(value) + HIDDEN
    return redacted(config, shlex.join([config.command or "", *shown]).replace(f"'{HIDDEN}'", HIDDEN))


def working_folder(config: ServerConfig) -> str:
    """Return the folder in which a server's program starts, as a person reads it; empty for a URL."""
    if config.command is None:
        return ""
    try:
        folder = redacted(config, one_line(str(config.folder)))
    except OSError as error:
        return f"a folder that cannot be used ({error.strerror})"
    return f"{folder} (where the host starts the proxy)" if config.cwd == LAUNCH else folder


def failure(client: DownstreamClient) -> str:
    """Return why a server is not ready; empty if it is ready, or was never started."""
    if client.state in {ServerState.READY, ServerState.ASLEEP}:
        return ""
    return redacted(client.config, client.cause)


def last_output(client: DownstreamClient) -> tuple[str, ...]:
    """Return the last lines of a server on stderr; lines that it repeats at each restart once."""
    lines = dict.fromkeys(redacted(client.config, line) for line in reversed(client.stderr))
    return tuple(lines)[:STDERR_SHOWN][::-1]


def strays(client: DownstreamClient) -> tuple[str, ...]:
    """Return the first lines of a server on stdout that are no messages."""
    return tuple(redacted(client.config, line) for line in client.output.strays)


def server_facts(client: DownstreamClient, findings: list[str], turned_off: int) -> dict[str, Any]:
    """Return the state of a server, its sizes, and why it failed if it has.

    Args:
        client: The server.
        findings: Remarks on its definitions.
        turned_off: Number of its tools that the configuration turns off.
    """
    introduction, listing = client.introduction, client.listing
    failed = bool(client.cause) or introduction is None
    facts: dict[str, Any] = {
        "name": client.name,
        "state": "failed" if failed else "asleep" if client.state is ServerState.ASLEEP else "ready",
        "address": address(client.config),
        "findings": findings,
    }
    if folder := working_folder(client.config):
        facts["folder"] = folder
    if introduction is not None:
        facts |= {
            "era": str(introduction.era),
            "protocol": introduction.version,
            "server_name": one_line(str(introduction.server_info.get("name", "")), NAME_CHARACTERS),
            "server_version": one_line(str(introduction.server_info.get("version", "")), NAME_CHARACTERS),
            "tools": len(listing.tools),
            "turned_off": turned_off,
            "resources": len(listing.resources) + len(listing.templates),
            "prompts": len(listing.prompts),
        }
    if failed:
        facts |= {"cause": failure(client), "stderr": last_output(client), "stdout": strays(client)}
    return facts
