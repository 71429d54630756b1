"""What to do about a server that does not work, and about one that may not tomorrow."""

from __future__ import annotations

import re
from pathlib import Path, PurePath
from typing import Final

from mcp_context_proxy.cli.server_facts import address
from mcp_context_proxy.config import ServerConfig

STATUS_SECONDS: Final = 5.0
"""For the one request that finds out the HTTP status of a server."""

_INSTALL: Final = {
    "npx": "install Node.js: https://nodejs.org",
    "npm": "install Node.js: https://nodejs.org",
    "node": "install Node.js: https://nodejs.org",
    "bunx": "install Bun: https://bun.sh",
    "uvx": "install uv: https://docs.astral.sh/uv",
    "uv": "install uv: https://docs.astral.sh/uv",
    "pipx": "install pipx: https://pipx.pypa.io",
    "docker": "install Docker: https://docs.docker.com/get-docker",
}

_RUNNERS: Final = {
    ("npx",): "@",
    ("npm", "exec"): "@",
    ("npm", "x"): "@",
    ("pnpm", "dlx"): "@",
    ("yarn", "dlx"): "@",
    ("bunx",): "@",
    ("bun", "x"): "@",
    ("uvx",): "==",
    ("uv", "tool", "run"): "==",
    ("pipx", "run"): "==",
}
"""Programs that download what they run, and how a version is pinned with each."""

_CONTAINERS: Final = {"docker", "podman", "nerdctl"}
_WITHOUT_VALUE: Final = {
    *("--rm", "--interactive", "--tty", "--detach", "--init", "--privileged", "--read-only", "--quiet"),
    *("--publish-all", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--replace"),
}
"""Of the options of their ``run``; every other takes a value."""

_PACKAGE_FLAGS: Final = {"-p", "--package", "--from"}
_FLAGS_WITH_VALUE: Final = {"--python", "--with", "--index-url", "--index", "--registry", "--directory"}
_PINNED: Final = re.compile(r".+(?:==|@)v?\d[^,<>~^*]*")
_RANGE: Final = re.compile(r"[<>=~!^]")
"""What a range of versions of a package begins with."""
_ELSEWHERE: Final = re.compile(r"[./~]|[a-z+]+://|git\+|[A-Za-z]:\\")
"""What a path or a URL begins with: those are the user's own to pin."""


def remedy(config: ServerConfig, cause: str, status: int | None = None, strays: bool = False) -> str:
    """What to do about a server that failed; empty when the cause says it already.

    Args:
        config: Of the server.
        cause: Why it failed.
        status: With which its URL answered.
        strays: It printed something to stdout that is no message.
    """
    if status is not None and status >= 300:
        return _for_status(config, status)
    if strays:
        return (
            "what it prints to stdout is no MCP message. If that is a help text or an error, correct command "
            f"and args: {address(config)}. If it is an MCP server, it must print such lines to stderr"
        )
    if cause.startswith("cannot start"):
        return _for_start(config)
    if "exited (code" in cause or "was killed" in cause or "closed its output" in cause:
        return (
            f"run it by hand to see why: {address(config)}. Started by the proxy it sees only PATH, HOME and "
            "the like, and what its env names"
        )
    if "not ready within" in cause:
        return (
            "if it is slow to start, such as by a download at its first start, give it longer: "
            f"connect_timeout under servers.{config.name}, now {config.connect_timeout:g} s. "
            "If it is no MCP server, correct the command"
        )
    if "is no MCP server" in cause and config.command is not None:
        return "correct the command"
    if "answered with error" in cause and config.command is not None:
        return "if it is no MCP server, correct the command"
    return "check that it is running and that the URL is right" if config.url is not None else ""


def unpinned(config: ServerConfig) -> str | None:
    """What makes a server another program whenever its author publishes one; None when nothing does."""
    program = PurePath(config.command or "").name.removesuffix(".cmd").removesuffix(".exe")
    if program in _CONTAINERS:
        return _unpinned_image(program, config.args)
    words = (program, *config.args)
    found = next((one for one in _RUNNERS if words[: len(one)] == one), None)
    if found is None:
        return None
    runner, package = " ".join(found), _package(words[len(found) :])
    if package is None or _PINNED.fullmatch(package) or _ELSEWHERE.match(package):
        return None
    name = package.removesuffix("@latest")
    return (
        f"{runner} runs whatever version of {name} is newest; pin it, with the number of one that you trust: "
        f"{_RANGE.split(name)[0]}{_RUNNERS[found]}NUMBER"
    )


def _unpinned_image(program: str, args: tuple[str, ...]) -> str | None:
    image = _image(args)
    if image is None or "@" in image:
        return None
    name, colon, tag = image.rpartition(":")
    if colon and "/" not in tag and tag != "latest":
        return None
    name = name if colon and "/" not in tag else image
    return (
        f"{program} runs whatever {name}:latest is just then; pin it, with the tag or the digest of one that "
        f"you trust: {name}:TAG or {name}@sha256:DIGEST"
    )


def _image(args: tuple[str, ...]) -> str | None:
    """What is run as a container; None for other commands."""
    words = iter(args)
    if "run" not in words:  # also moves on behind it
        return None
    for word in words:
        if not word.startswith("-"):
            return word
        if word.startswith("--"):
            has_value = word not in _WITHOUT_VALUE and "=" not in word
        else:
            has_value = word[-1] not in "itdPq" and len(word) == 2
        if has_value:
            next(words, None)
    return None


async def http_status(config: ServerConfig) -> int | None:
    """The status with which a URL answers the first message; None when it does not answer.

    The connection itself does not tell it: where one transport is refused, the next one is tried.
    """
    import httpx2

    from mcp_context_proxy.wire import envelope
    from mcp_context_proxy.wire.era import HANDSHAKE_VERSION

    hello = {
        "protocolVersion": HANDSHAKE_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "mcp-context-proxy", "version": "check"},
    }
    headers = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    method, body = (
        ("GET", None) if config.transport == "sse" else ("POST", envelope.request(1, "initialize", hello))
    )
    try:
        async with (
            httpx2.AsyncClient(timeout=STATUS_SECONDS) as client,
            client.stream(
                method, config.url or "", content=body, headers={**headers, **config.headers}
            ) as response,
        ):
            return response.status_code
    except (httpx2.HTTPError, httpx2.InvalidURL):
        return None


def _for_start(config: ServerConfig) -> str:
    command = Path(config.command or "")
    if command.is_absolute() and command.is_file():
        return f"the file is there but cannot be run: chmod +x {command}, or name the interpreter as command"
    return _INSTALL.get(command.name, "")


def _for_status(config: ServerConfig, status: int) -> str:
    if status < 400:
        return "it has moved: give the URL that it redirects to"
    if status in {401, 403}:
        return (
            f"it wants credentials, or others: run mcp-context-proxy login {config.name}, "
            f"or set headers.Authorization under servers.{config.name}"
        )
    if status in {404, 405, 406}:
        other = "http" if config.transport == "sse" else "sse"
        return f'check the path of the URL, often /mcp or /sse; or set transport = "{other}"'
    return "the server has a fault, or something in front of it: ask who runs it"


def _package(args: tuple[str, ...]) -> str | None:
    """What a runner is told to download: after a flag that says so, else its first word."""
    words = iter(args)
    for word in words:
        flag, _, value = word.partition("=")
        if flag in _PACKAGE_FLAGS:
            return value or next(words, None)
        if flag in _FLAGS_WITH_VALUE and not value:
            next(words, None)
        elif not word.startswith("-"):
            return word
    return None
