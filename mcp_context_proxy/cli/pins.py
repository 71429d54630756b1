"""Checks for ``check``: versions without a pin, profiles, the issuer, effects of hosts, remedies.

A server without a pinned version becomes another program whenever its author publishes one. The version that
just ran is read from the files of the running program, never from the server's own words, and is
written into the configuration on request.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from msgspec import Raw, Struct
from msgspec.structs import replace

from mcp_context_proxy.catalog.names import SEPARATOR, name_lengths, name_within
from mcp_context_proxy.catalog.uri_owners import part_for
from mcp_context_proxy.cli import open_configured_store
from mcp_context_proxy.cli.terminal import counted
from mcp_context_proxy.config import Config, ServerConfig, load
from mcp_context_proxy.config.host_profiles import HOSTS, HostProfile, NameRule, room_given
from mcp_context_proxy.config.hosts import from_host
from mcp_context_proxy.config.programs import (
    RUNNERS,
    environment_of,
    program_of,
    requested_package,
    version_in_group,
)
from mcp_context_proxy.config.settings import PRESETS, SHORTEST_NAME
from mcp_context_proxy.config.source import parse, plain, read
from mcp_context_proxy.config.tables import ClientConfig, matches
from mcp_context_proxy.config.texts import KeyPath
from mcp_context_proxy.downstream import NO_ADDRESS
from mcp_context_proxy.downstream.connections import CREDENTIALS_WANTED
from mcp_context_proxy.downstream.fleet import address
from mcp_context_proxy.downstream.listing import ListingCache
from mcp_context_proxy.errors import ConfigError, ConfigProblem, Fault, some_of
from mcp_context_proxy.installation.editing import EditError
from mcp_context_proxy.installation.journal import write
from mcp_context_proxy.installation.plan import FileChange
from mcp_context_proxy.items import Tool
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.trust import THE_USER, Profile, names_of
from mcp_context_proxy.trust.tokens import OWNER, TokenError, tokens_of

if TYPE_CHECKING:
    from mcp_context_proxy.app.proxy import Proxy


_CONTAINERS: Final = {"docker", "podman", "nerdctl"}
_WITHOUT_VALUE: Final = {
    *("--rm", "--interactive", "--tty", "--detach", "--init", "--privileged", "--read-only", "--quiet"),
    *("--publish-all", "--no-healthcheck", "--oom-kill-disable", "--sig-proxy", "--replace"),
}
"""Options of their ``run`` without a value; all others have one."""

_PINNED: Final = re.compile(r".+(?:==|@)v?\d[^,<>~^*]*")
_RANGE: Final = re.compile(r"(?<=.)@|[<>=~!^]")
"""Beginning of a tag or a range of versions; the ``@`` of a scope comes first in a name."""
_ELSEWHERE: Final = re.compile(r"[./~]|[a-z+]+://|git\+|[A-Za-z]:\\")
"""Beginning of a path or a URL: those are the user's own to pin."""

_DIGEST: Final = re.compile(r"@(sha256:[0-9a-f]{64})$")
_INSPECT_SECONDS: Final = 10.0
"""Time for a container program to tell the digest of an image that it has."""


class Level(StrEnum):
    """Level of a verdict."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    PROBLEM = "PROBLEM"


class Verdict(Struct, frozen=True):
    """Result of one check."""

    level: Level
    subject: str
    message: str
    remedy: str = ""
    output: tuple[str, ...] = ()
    """Lines that a server wrote."""
    problem: ConfigProblem | None = None
    """The mistake in the configuration, if it is one."""


class Unpinned(Struct, frozen=True):
    """An argument of a server that names a package or an image without a version."""

    position: int
    """The place among the arguments."""
    before: str
    """The part of the argument before the name, such as ``--package=``."""
    package: str
    """The name, without tags and ranges."""
    mark: str
    """The mark between name and version."""

    def pinned(self, version: str) -> str:
        return f"{self.before}{self.package}{self.mark}{version}"


Versions: TypeAlias = dict[str, tuple[Unpinned, ServerConfig, str]]
"""Servers that ran without a pinned version, by name: argument, settings, and the version that ran."""


def unpinned(config: ServerConfig) -> Unpinned | None:
    """Return the argument of a server that lacks a version; None if it has one, or needs none."""
    if program_of(config) in _CONTAINERS:
        return _unpinned_image(config.args)
    requested = requested_package(config)
    if requested is None:
        return None
    runner, position, before, package = requested
    if _PINNED.fullmatch(package) or _ELSEWHERE.match(package):
        return None
    return Unpinned(position, before, _RANGE.split(package)[0], RUNNERS[runner])


def _unpinned_image(args: tuple[str, ...]) -> Unpinned | None:
    position = _image(args)
    if position is None or "@" in args[position]:
        return None
    name, colon, tag = args[position].rpartition(":")
    tagged = bool(colon) and "/" not in tag
    if tagged and tag != "latest":
        return None
    return Unpinned(position, "", name if tagged else args[position], "@")


def _image(args: tuple[str, ...]) -> int | None:
    """Return the place of the image of a ``run`` command; None for other commands."""
    words = iter(enumerate(args))
    if not any(word == "run" for _, word in words):  # also moves on behind it
        return None
    for position, word in words:
        if not word.startswith("-"):
            return position
        if word.startswith("--"):
            has_value = word not in _WITHOUT_VALUE and "=" not in word
        else:
            has_value = word[-1] not in "itdPq" and len(word) == 2
        if has_value:
            next(words, None)
    return None


def version_that_runs(config: ServerConfig, missing: Unpinned, group: int | None) -> str | None:
    """Return the version of the package or image that a server runs; None if it cannot be told. Blocking.

    `group` is the process group of the server, whose programs lie in the folder that the runner has filled.
    """
    if PurePath(config.command or "").name in _CONTAINERS:
        return _digest(config, missing.package)
    return version_in_group(group, missing.package, missing.mark)


def _digest(config: ServerConfig, image: str) -> str | None:
    environment = environment_of(config, os.environ)
    program = shutil.which(config.command or "", path=environment.get("PATH"))
    if program is None:
        return None
    command = [program, "image", "inspect", "--format", "{{json .RepoDigests}}", image]
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        told = subprocess.run(
            command, capture_output=True, env=environment, timeout=_INSPECT_SECONDS, check=True
        )
        for digest in json.loads(told.stdout):
            if found := _DIGEST.search(str(digest)):
                return found[1]
    return None


class Pinning(Struct, frozen=True):
    """Versions written into the text of a file."""

    change: FileChange
    by_hand: tuple[str, ...]
    """Servers whose argument is not found in the file as it is, such as one with a variable in it."""

    @property
    def changes(self) -> bool:
        return self.change.before != self.change.after


def pin(file: Path, pins: Versions) -> Pinning:
    """Return the text of a configuration with versions in the arguments of servers; nothing else changes.

    `pins` has the version of each server. The result is checked: it is the same configuration but for them.
    Raises `ConfigError` or `OSError` if the file can no longer be read.
    """
    text = before = file.read_bytes().decode("utf-8")
    source = read(file)
    if source.of_host:
        from_host(source, lambda _warning: None)
    by_hand = []
    for name, (missing, config, version) in pins.items():
        path = source.written(("servers", name, "args", missing.position))
        changed = _replaced(file, text, path, config.args[missing.position], missing.pinned(version))
        if changed is None:
            by_hand.append(name)
        else:
            text = changed
    return Pinning(FileChange(file, before, text), tuple(by_hand))


def _replaced(file: Path, text: str, path: KeyPath, old: str, new: str) -> str | None:
    """Return a text with one string replaced; None if it does not stand there as it is."""
    source = parse(file, plain(text))
    line = source.lines().get(path)
    expected: Any = copy.deepcopy(source.tables)
    holder = expected
    for part in path[:-1]:
        holder = holder[part]
    if line is None or holder[path[-1]] != old:
        return None
    holder[path[-1]] = new
    rows = text.split("\n")
    row = rows[line - 1]
    for quoted, quotes in ((json.dumps(old, ensure_ascii=False), '"'), (f"'{old}'", "'")):
        for found in re.finditer(re.escape(quoted), row):
            rows[line - 1] = f"{row[: found.start()]}{quotes}{new}{quotes}{row[found.end() :]}"
            with suppress(ConfigError):
                changed = "\n".join(rows)
                if parse(file, plain(changed)).tables == expected:
                    return changed
    return None


def write_keeping(change: FileChange) -> Path:
    """Write a changed configuration, and return the copy of the file as it was before.

    Raises `EditError` if the folder or the file cannot be written, or it has changed since it was read.
    """
    file = change.file.resolve()
    places = (file.with_name(f"{file.name}.bak{number}") for number in ("", *range(2, 1000)))
    backup = next((place for place in places if not place.exists()), None)
    if backup is None:
        raise EditError(f"{file} has too many copies already")
    write(FileChange(backup, None, change.before or ""))
    write(change)
    return backup


def keep_listings(file: Path, pins: Versions) -> None:
    """Give servers that were just pinned in a file the lists that the same versions had a moment ago.

    Lists are kept by how a server is started. Without this, a host that connects next would find no tool
    until each server has been downloaded under its new name and listed again.
    """
    config = load(file, warn=lambda _text: None)
    with open_configured_store(config) as store:
        for name, (_missing, before, _version) in pins.items():
            found = ListingCache(before, store.listings).load()
            if found is not None and name in config.servers:
                ListingCache(config.servers[name], store.listings).save(
                    found.introduction, found.listing, started=False
                )


NAMED: Final = 3
"""Tools that a line names."""

_BREACHES: Final[Mapping[str, tuple[Level, str]]] = {
    "refused": (Level.PROBLEM, "and one such name is enough to have the whole list refused"),
    "dropped": (Level.WARNING, "and the host leaves these tools out"),
    "shortened": (
        Level.WARNING,
        "and the host shortens them in its own way, so that two may become the same",
    ),
}
"""Level and consequence of names that are too long."""


def names(proxy: Proxy) -> Iterator[Verdict]:
    """Yield which tools have a shortened name, and which names are too long for one of the hosts.

    The proxy is taken to have its recommended name in each of them.
    """
    tools = [*proxy.catalog.snapshot.tools.values()]
    yield from _shortened(tools, name_lengths(proxy.config.expose)[0])
    hosts = [host for host in HOSTS.values() if _too_long(tools, host.name_characters)]
    if hosts:
        room = min(host.name_characters for host in hosts)
        long = _too_long(tools, room)
        message = (
            f"{counted(len(long), 'name')} of tools over {room} characters, too long for "
            f"{', '.join(host.title for host in hosts)}: {_listed(long)}"
        )
        remedy = "leave out expose.max_name_length, or run check --host NAME for the host that you use"
        yield Verdict(Level.WARNING, "names", message, remedy)


def profiles(proxy: Proxy) -> Iterator[Verdict]:
    """Yield what the clients of each profile see, and mistakes in the profiles that no other check finds."""
    config, saved = proxy.config, {*proxy.contexts.presets.names, *PRESETS}
    for name, settings in config.clients.items():
        about = f"clients.{name}"
        seen = part_for(THE_USER.within(Profile(name, settings)), proxy.catalog.whole.snapshot)
        servers = {tool.server for tool in seen.tools.values()}
        documents = sum(not one.server for one in seen.documents.values())
        sees = (
            f"sees {counted(len(seen.tools), 'tool')} of {counted(len(servers), 'server')}, "
            f"{counted(documents, 'document')}"
        )
        yield Verdict(Level.OK if seen.tools or documents else Level.WARNING, about, sees)
        yield from (replace(one, subject=about) for one in _missing(proxy, settings))
        for preset in settings.presets:
            if preset not in saved:
                remedy = f"'mcp-context-proxy session save {preset}' saves one"
                yield Verdict(Level.WARNING, about, f"there is no preset {preset!r}", remedy)
    if config.audit.files == 1:
        text = "audit.files = 1 counts as 2: the oldest records are merged with the next ones, not deleted"
        yield Verdict(Level.WARNING, "audit", text, "set files = 2 under [audit]")
    if config.context.interactions_top_n and not config.interactions.enabled:
        text = "context.interactions_top_n has no effect: nothing is remembered"
        yield Verdict(Level.WARNING, "context", text, "set interactions.enabled = true")


async def issuer(config: Config) -> list[Verdict]:
    """Return whether the keys of the issuer can be had, where its tokens are accepted."""
    if config.auth.mode != "jwt":
        return []
    from mcp_context_proxy.front.issuer import IssuedTokens, KeysUnavailableError

    try:
        keys = IssuedTokens(config).keys
        await keys.fitting(None, config.auth.algorithms[0])
    except ConfigError as error:
        return [Verdict(Level.PROBLEM, "issuer", str(error), "until then, serve --http does not start")]
    except KeysUnavailableError:
        fault = f"the keys of {config.auth.issuer} cannot be fetched: {keys.fault}"
        return [Verdict(Level.PROBLEM, "issuer", fault, "until then, nobody gets in with a token of it")]
    return [Verdict(Level.OK, "issuer", f"the keys of {config.auth.issuer} have been fetched")]


def _missing(proxy: Proxy, profile: ClientConfig) -> Iterator[Verdict]:
    """Yield the names in a profile that nothing has."""
    config, snapshot = proxy.config, proxy.catalog.whole.snapshot
    tools = {f"{tool.server}__{tool.name}" for tool in snapshot.tools.values()}
    own = {name for one in snapshot.documents.values() if not one.server for name in names_of(one)}
    enabled = {name for name, server in config.servers.items() if server.enabled}
    # A server that could not be reached may have a tool of that name.
    are_known = enabled <= {tool.server for tool in snapshot.tools.values()}
    for kind, globs, names in (
        ("server", profile.servers, config.servers),
        ("tool", profile.tools if are_known else (), tools),
        ("document", profile.documents, own),
    ):
        for glob in globs or ():
            if not any(matches(glob, name) for name in names):
                # The name of a folder is the beginning of those of its documents.
                inside = f"{glob.rstrip('/')}/"
                below = any(name.startswith(inside) for name in names)
                remedy = f"write {inside + '*'!r} for those of the folder" if below else ""
                yield Verdict(Level.WARNING, "", f"no {kind} is named {glob!r}", remedy)
    with suppress(TokenError):
        issued = {OWNER, *(one.name for one in tokens_of(config, proxy.credentials).read())}
        for token in profile.tokens:
            # Whoever has the token that was meant gets everything.
            if token not in issued:
                remedy = f"mcp-context-proxy token add {token}"
                yield Verdict(Level.WARNING, "", f"there is no token {token!r}", remedy)


def effects(proxy: Proxy, host: HostProfile) -> Iterator[Verdict]:
    """Yield findings on how a host treats the names, descriptions, lists and results of a proxy.

    The servers of the proxy must have been connected.
    """
    snapshot = proxy.catalog.snapshot
    tools = [*snapshot.tools.values()]
    most = proxy.config.expose.max_name_length or room_given(host)
    tools = [replace(tool, exposed_name=name_within(tool, most)) for tool in tools]
    yield from _shortened(tools, most)
    yield _names(tools, host.names.value, host.server)
    listed = proxy.tool_list.definitions(snapshot, proxy.tool_list.base_names(snapshot))
    if host.description_bytes.value is not None:
        yield from _descriptions(listed, len(proxy.instructions().encode()), host.description_bytes.value)
    if (most_tools := host.tools.value) is not None and len(listed) <= most_tools:
        message = f"{len(listed):,} are listed, of at most {most_tools} from all servers of the host"
        yield Verdict(Level.OK, "tools", message)
    elif most_tools is not None:
        message = f"{len(listed):,} are listed, and the host takes at most {most_tools} from all its servers"
        remedy = 'set expose.mode = "search", and include = "always" for fewer tools'
        yield Verdict(Level.WARNING, "tools", message, remedy)
    if host.list_changes.value:
        yield Verdict(Level.OK, "list changes", "it lists the tools again when they change")
    else:
        missed = "new tools; those that a search finds are called through call_tool"
        if proxy.tool_list.lists_all(snapshot):
            missed = "tools of servers that were not ready when it started"
        yield Verdict(Level.OK, "list changes", f"until it is restarted or refreshed, it misses {missed}")
    yield _results(host)


def _shortened(tools: Iterable[Tool], most: int) -> Iterator[Verdict]:
    cut = [tool for tool in tools if tool.exposed_name != tool.name and len(_full_name(tool)) > most]
    if cut:
        whose = "the name of 1 tool is" if len(cut) == 1 else f"the names of {len(cut):,} tools are"
        examples = some_of([f"{one_line(_full_name(tool))} is {tool.exposed_name}" for tool in cut], NAMED)
        yield Verdict(Level.OK, "names", f"{whose} shortened to {most} characters: {examples}")


def _full_name(tool: Tool) -> str:
    return f"{tool.server}{SEPARATOR}{tool.name}"


def _too_long(tools: Iterable[Tool], room: int) -> list[Tool]:
    return [tool for tool in tools if len(tool.exposed_name) > room]


def _names(tools: Sequence[Tool], rule: NameRule, server: str) -> Verdict:
    prefix, room = rule.prefix_with(server), rule.room(server)
    added = f"the host puts {prefix} before each" if prefix else "the host puts nothing before them"
    long = _too_long(tools, room)
    if not long:
        longest = max((len(tool.exposed_name) for tool in tools), default=0) + len(prefix)
        return Verdict(Level.OK, "names", f"{added}; the longest has {longest} of {rule.most} characters")
    level, fate = _BREACHES[rule.breach]
    message = (
        f"{added}, and {len(long):,} of {len(tools):,} then have more than {rule.most} characters, "
        f"{fate}: {_listed(long)}"
    )
    remedy = f"give the proxy a shorter name in the host than {server}"
    shorter = f"set expose.max_name_length = {room}, or " if room >= SHORTEST_NAME else ""
    return Verdict(level, "names", message, f"{shorter}{remedy}")


def _descriptions(listed: Sequence[Raw], instructions: int, most: int) -> Iterator[Verdict]:
    """Yield the listed descriptions, and the instructions, of which a host cuts all over so many bytes."""
    described: dict[str, int] = {}
    for definition in listed:
        members = envelope.members(definition)
        text = envelope.text(members.get("description")) or ""
        described[envelope.text(members["name"]) or ""] = len(text.encode())
    if long := {name: size for name, size in described.items() if size > most}:
        named = some_of([f"{name} ({size:,} bytes)" for name, size in long.items()], NAMED)
        message = f"{len(long)} of {len(described):,} listed are cut to {most:,} bytes: {named}"
        remedy = 'include = "agent" leaves such tools to the search'
        yield Verdict(Level.WARNING, "descriptions", message, remedy)
    else:
        yield Verdict(Level.OK, "descriptions", f"none of {len(described):,} listed is over {most:,} bytes")
    if instructions > most:
        yield Verdict(Level.WARNING, "instructions", f"{instructions:,} bytes are cut to {most:,}")


def _results(host: HostProfile) -> Verdict:
    forms = {
        "text": "the model reads their text",
        "structured": "the model reads structuredContent where there is any, and the text otherwise",
        "both": "the model reads the text and structuredContent, which may be the same twice",
    }
    message, limit = forms[host.result.value], host.results.value
    if limit is None:
        return Verdict(Level.OK, "results", f"{message}; no limit of their length is known")
    fate = "go to a file" if limit.rest == "in a file" else "are cut"
    return Verdict(Level.OK, "results", f"{message}; those over {limit.most:,} {limit.unit} {fate}")


def _listed(tools: Iterable[Tool]) -> str:
    return some_of([tool.exposed_name for tool in tools], NAMED)


LOGIN: Final = "mcp-context-proxy login"

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


def remedy_for(
    config: ServerConfig,
    fault: Fault | None,
    status: int | None = None,
    strays: bool = False,
    cause: str = "",
) -> str:
    """Return the remedy for a failed server beside what its cause says; empty if there is no other.

    `status` is the HTTP status of its URL. With `strays`, it printed something to stdout that is no message.
    """
    if status is not None and status >= 300:
        return _remedy_for_status(config, status, cause)
    if strays and fault is not Fault.SERVES_HTTP:
        return (
            "its output on stdout is no MCP message. If it is a help text or an error, correct command and "
            f"args: {address(config)}. If this is an MCP server, it must print such lines to stderr"
        )
    match fault:
        case Fault.NO_PROGRAM:
            return _INSTALL.get(PurePath(config.command or "").name, "")
        case Fault.NOT_RUNNABLE:
            return f"the file cannot be run: chmod +x {config.command}, or name the interpreter as command"
        case Fault.EXITED if config.command is not None:
            return f"run it by hand to see why: {address(config)}"
        case Fault.SILENT:
            return (
                "if it starts slowly, such as with a download at its first start, raise connect_timeout "
                f"under servers.{config.name}. If it is no MCP server, correct the command"
            )
        case Fault.SERVES_HTTP:
            return (
                "give it the option that makes it speak over stdio, such as --stdio or --transport stdio; or "
                "start it yourself and configure its url instead of a command"
            )
        case Fault.NO_MCP if config.command is not None:
            return "if it is no MCP server, correct the command"
        case Fault.REFUSED if config.command is not None:
            return "the error is its own: its documentation, or its output above, may say what it lacks"
    if config.url is None or "SSL_CERT_FILE" in cause:
        return ""
    if "certificate verify failed" in cause:
        return (
            "have its certificate renewed or corrected; an authority of your own is named in "
            f"SSL_CERT_FILE, or in tls.ca under servers.{config.name}"
        )
    if fault is Fault.NO_START:
        return f"correct tls under servers.{config.name}"
    if fault is Fault.EXITED and config.tls is None and config.url.startswith("https:"):
        return f"if it demands a certificate of its clients, set tls.certificate under servers.{config.name}"
    named = [name for name in os.environ if name.upper() in PROXIES and os.environ[name]]
    through = f"; {some_of(named)} is set: it may be that proxy which cannot be reached" if named else ""
    if NO_ADDRESS in cause:
        needed = "" if named else ", and whether this network needs HTTPS_PROXY"
        return f"check the host name in the URL and the connection to the network{needed}{through}"
    return f"check that it is running and that the URL is right{through}"


PROXIES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
"""Variables, in either case, by which requests go through a proxy."""


def _remedy_for_status(config: ServerConfig, status: int, cause: str) -> str:
    if status < 400:
        return "it has moved: configure the URL that it redirects to"
    if status in CREDENTIALS_WANTED and LOGIN in cause:
        return f"if it takes a fixed token instead, set headers.Authorization under servers.{config.name}"
    if status in CREDENTIALS_WANTED:
        return (
            f"it needs credentials, or other ones: run {LOGIN} {config.name}, "
            f"or set headers.Authorization under servers.{config.name}"
        )
    if status in {404, 405, 406}:
        other = "http" if config.transport == "sse" else "sse"
        return f'check the path of the URL, often /mcp or /sse; or set transport = "{other}"'
    if status == 429:
        return "it was asked too often: try again in a while"
    return "the server, or something in front of it, has a fault: ask its operator"
