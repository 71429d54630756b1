"""What may be told of a server: where it is and how it failed, never its secrets.

Left out are the environment and the headers; replaced are values that came from variables, credentials in
URLs, and arguments that by their name are secrets.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from mcp_context_proxy.cli.terminal import one_line
from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.redaction import Redactor
from mcp_context_proxy.config.secrets import secret_arguments, secrets_of
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.condition import State

if TYPE_CHECKING:
    from mcp_context_proxy.app import Proxy

HIDDEN: Final = "***"

STDERR_SHOWN: Final = 5
"""Lines of a failed server's last output."""

_USER_INFO: Final = re.compile(r"(?<=://)[^/?#\s@]+@")
_QUERY: Final = re.compile(r"(?<=://)([^\s?#]*)\?[^\s#'\"]*")


def address(config: ServerConfig) -> str:
    """The command line, or the URL."""
    if config.url is not None:
        return redacted(config, config.url)
    words = [config.command or "", *_without_secrets(config.args)]
    return redacted(config, shlex.join(words).replace(f"'{HIDDEN}'", HIDDEN))


def failure(client: DownstreamClient) -> str:
    """Why a server is not ready; empty when it is, or was never started."""
    return "" if client.state in {State.READY, State.ASLEEP} else redacted(client.config, client.cause)


def last_output(client: DownstreamClient) -> tuple[str, ...]:
    """The last lines a server wrote to stderr; those it repeats at each restart once."""
    lines = dict.fromkeys(redacted(client.config, line) for line in reversed(client.stderr))
    return tuple(lines)[:STDERR_SHOWN][::-1]


def strays(client: DownstreamClient) -> tuple[str, ...]:
    """What a server printed first to stdout that is no message."""
    return tuple(redacted(client.config, line) for line in client.strays)


def marked(strays: Iterable[str]) -> Iterator[str]:
    """The stray lines for a person, who sees them beside lines from stderr."""
    return (f"stdout: {line}" for line in strays)


def findings(proxy: Proxy) -> Iterator[tuple[str, str]]:
    """What was withheld or cut of what servers listed, and why, with the server; '' where it is of none."""
    for finding in proxy.catalog.snapshot.findings:
        server, colon, message = finding.partition(": ")
        known = bool(colon) and server in proxy.fleet.clients
        yield (server, one_line(message)) if known else ("", one_line(finding))


def redacted(config: ServerConfig, text: str) -> str:
    """A text without this server's secrets, harmless and on one line."""
    text = Redactor(secrets_of(config))(text)
    return one_line(_QUERY.sub(rf"\1?{HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", text)))


def _without_secrets(arguments: Sequence[str]) -> list[str]:
    shown = [*arguments]
    for position, _, value in secret_arguments(arguments):
        shown[position] = shown[position].removesuffix(value) + HIDDEN
    return shown
