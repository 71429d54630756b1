"""Installation: the proxy takes the place of a host's servers in the host's own file, and gives it back.

Here are the places of hosts: the file in which each has its servers, and the form in which it writes one. The
paths are those of the hosts' own documents, for Linux, macOS and Windows. Several hosts allow a file in a
project, too; that one belongs to the project and is never changed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.config.host_profiles import HOSTS, SERVER
from mcp_context_proxy.config.hosts import ALLOWED_SERVERS
from mcp_context_proxy.config.source import MAX_BYTES
from mcp_context_proxy.config.variables import expand
from mcp_context_proxy.installation.editing import EditError, Form, Place, entries

_WORDS: Final = "{words}"
_PROGRAM: Final = "{program}"
_ARGS: Final = "{args}"
"""Stand in the entry of a host for the words of a command, for its first word, and for all others."""

_COMMON: Final[dict[str, Any]] = {"command": _PROGRAM, "args": _ARGS}
_STDIO: Final = {"type": "stdio", **_COMMON}
_NOTICES: Final = "nothing to do: it notices the change"


def _named_for_codex(entry: Mapping[str, Any], variables: Mapping[str, bool]) -> dict[str, Any]:
    named = entry.get("env_vars")
    known = list(named) if isinstance(named, list) else []
    more = [name for name in variables if name not in known]
    return {**entry, "env_vars": [*known, *more]} if more else dict(entry)


def _named_for_gemini(entry: Mapping[str, Any], variables: Mapping[str, bool]) -> dict[str, Any]:
    # It would hand over the reference itself for a variable that is not set.
    env = entry.get("env")
    known = dict(env) if isinstance(env, dict) else {}
    more = {name: f"${name}" for name, is_set in variables.items() if is_set and name not in known}
    return {**entry, "env": {**known, **more}} if more else dict(entry)


class HostPlace(Struct, frozen=True, kw_only=True):
    """One host: where its servers stand, and how they are written there."""

    name: str
    """Name on our command line."""
    title: str = ""
    """Name that people know; without one, it is that of its profile."""
    files: tuple[str, ...]
    """Paths of which the first that exists is used, else the first whose folder exists, else the first. ``~``
    is the home folder, ``{config}`` the folder of settings of the platform, ``{xdg}`` that of Linux."""
    files_on: Mapping[str, tuple[str, ...]] = {}
    """Paths on a platform (``darwin``, ``win32``) on which they are others."""
    place: Place = ("mcpServers",)
    newer: Place | None = None
    """Place in files of a newer version, which is taken where it has tables already."""
    rules: str = ""
    """Path of other settings of the host, which can deny tools of its servers, or turn servers off."""
    switches: str = ""
    """Path of a file in which the host notes which servers are turned off."""
    profiles: tuple[str, ...] = ()
    """Paths, with ``*`` for any folder, of further files in which it has servers."""
    allowed: tuple[Place, ...] = ()
    """Places of lists of the servers that it may start; without a list it starts all."""
    form: Form = "json"
    listed: bool = False
    """True if the servers are a list of entries that have names, instead of a table."""
    new_text: str = ""
    """Beginning of a file that does not exist yet, where the host demands more than servers."""
    entry: Mapping[str, Any] = field(default_factory=_COMMON.copy)
    """The entry that starts a command."""
    named: Callable[[Mapping[str, Any], Mapping[str, bool]], dict[str, Any]] | None = None
    """Adds variables, each with True if it is set here, to an entry of a host that hands over only those
    which an entry names. None for a host that hands over all."""
    restart: str = "start a new session"
    """The step by which a person has the host read its settings again."""
    signs: tuple[str, ...] = ()
    """Paths of which one shows that the host is there although it has no such file yet."""

    def file(self, environ: Mapping[str, str], platform: str = sys.platform, path: str = "") -> Path:
        """Return the path of its settings, or of another file of it, whether that exists or not."""
        known = (path,) if path else self._known(platform)
        paths = [_expanded(one, environ, platform) for one in known]
        there = [path for path in paths if path.exists()] or [path for path in paths if path.parent.exists()]
        return (there or paths)[0]

    def others(self, environ: Mapping[str, str]) -> list[Path]:
        """Return the other files with servers of this host that exist, such as those of profiles."""
        chosen = self.file(environ)
        known = (*self._known(sys.platform), *self.profiles)
        paths = [_expanded(one, environ, sys.platform) for one in known]
        found = (path.parent.parent.glob(f"{path.parent.name}/{path.name}") for path in paths)
        return [file for files in found for file in sorted(files) if file != chosen]

    def _known(self, platform: str) -> tuple[str, ...]:
        return self.files_on.get(platform, self.files)

    def place_in(self, text: str) -> Place:
        with suppress(EditError):
            if self.newer and (found := entries(self.form, text, self.newer)):
                return self.newer if all(isinstance(one, dict) for one in found.values()) else self.place
        return self.place

    def entry_for(self, command: Sequence[str]) -> dict[str, Any]:
        """Return the entry that starts a command."""
        words = {_WORDS: list(command), _PROGRAM: command[0], _ARGS: list(command[1:])}
        return {key: words.get(one, one) if isinstance(one, str) else one for key, one in self.entry.items()}

    def is_here(self, environ: Mapping[str, str]) -> bool:
        """Return True if there are settings of this host, or the folder for them."""
        file = self.file(environ)
        signs = [_expanded(one, environ, sys.platform) for one in self.signs] or [file.parent]
        return file.is_file() or any(sign.exists() for sign in signs if sign != _home(environ))


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME") or environ.get("USERPROFILE")
    return Path(home) if home else Path.home()


def _expanded(path: str, environ: Mapping[str, str], platform: str) -> Path:
    home = _home(environ)
    config = xdg = Path(environ.get("XDG_CONFIG_HOME") or home / ".config")
    if platform == "win32":
        config = Path(environ.get("APPDATA") or home / "AppData" / "Roaming")
    elif platform == "darwin":
        config = home / "Library" / "Application Support"
    named = expand(path.replace("{config}", str(config)).replace("{xdg}", str(xdg)), environ).text
    return home / named[2:] if named.startswith("~/") else Path(named)


_EXTENSIONS: Final = "{config}/Code/User/globalStorage"
_CLINE: Final = f"{_EXTENSIONS}/saoudrizwan.claude-dev/settings/cline_mcp_settings.json"

_OPENCODES: Final = ("opencode.json", "opencode.jsonc", "config.json")
"""Files that opencode reads together, the last of them from its first versions."""

_VSCODES: Final = ("Code", "Code - Insiders", "VSCodium")
"""Folders of the editions of VS Code."""

_HOSTS: Final = (
    HostPlace(
        name="claude-desktop",
        files=("{config}/Claude/claude_desktop_config.json",),
        restart="quit it and open it again",
    ),
    HostPlace(
        name="claude-code",
        files=("${CLAUDE_CONFIG_DIR:-~}/.claude.json",),
        rules="${CLAUDE_CONFIG_DIR:-~/.claude}/settings.json",
        # Without the last key, as below for Qwen Code, the model would search twice: in the host, then here.
        entry={"type": "stdio", **_COMMON, "alwaysLoad": True},
        signs=("${CLAUDE_CONFIG_DIR:-~/.claude}",),
    ),
    HostPlace(
        name="cursor",
        files=("~/.cursor/mcp.json",),
        restart="restart it, or turn the server on under Settings, MCP",
    ),
    HostPlace(
        name="vscode",
        files=tuple(f"{{config}}/{name}/User/mcp.json" for name in _VSCODES),
        profiles=tuple(f"{{config}}/{name}/User/profiles/*/mcp.json" for name in _VSCODES),
        place=("servers",),
        entry=_STDIO,
        restart="run 'Developer: Reload Window'",
    ),
    HostPlace(
        name="windsurf",
        title="Windsurf",
        files=("~/.codeium/windsurf/mcp_config.json",),
        restart="press Refresh in its MCP settings",
    ),
    HostPlace(
        name="codex",
        files=("${CODEX_HOME:-~/.codex}/config.toml",),
        place=("mcp_servers",),
        form="toml",
        named=_named_for_codex,
    ),
    HostPlace(
        name="gemini-cli",
        files=("${GEMINI_CLI_HOME:-~}/.gemini/settings.json",),
        switches="${GEMINI_CLI_HOME:-~}/.gemini/mcp-server-enablement.json",
        allowed=ALLOWED_SERVERS,
        named=_named_for_gemini,
        restart="start a new session, in a folder that you trust: elsewhere it starts no server",
    ),
    HostPlace(
        name="qwen-code",
        title="Qwen Code",
        files=("${QWEN_HOME:-~/.qwen}/settings.json",),
        allowed=ALLOWED_SERVERS,
        entry={**_COMMON, "alwaysLoadTools": True},
    ),
    HostPlace(
        name="zed",
        title="Zed",
        files=("{config}/zed/settings.json",),
        files_on={"darwin": ("~/.config/zed/settings.json",), "win32": ("{config}/Zed/settings.json",)},
        place=("context_servers",),
        entry={"source": "custom", **_COMMON, "env": {}},
        restart=_NOTICES,
    ),
    HostPlace(
        name="opencode",
        files=tuple(f"{{xdg}}/opencode/{name}" for name in _OPENCODES),
        place=("mcp",),
        newer=("mcp", "servers"),
        entry={"type": "local", "command": _WORDS},
    ),
    HostPlace(
        name="cline",
        files=(_CLINE, "${CLINE_DATA_DIR:-~/.cline/data}/settings/cline_mcp_settings.json"),
        # Without it, Cline waits three seconds for the first start, and then does without us.
        entry={**_COMMON, "timeout": 300},
        restart=_NOTICES,
    ),
    HostPlace(
        name="goose",
        title="Goose",
        files=("{xdg}/goose/config.yaml",),
        files_on={"win32": ("{config}/Block/goose/config/config.yaml",)},
        place=("extensions",),
        form="yaml",
        entry={
            "name": SERVER,
            "type": "stdio",
            "cmd": _PROGRAM,
            "args": _ARGS,
            "enabled": True,
            "timeout": 300,
        },
    ),
    HostPlace(name="lm-studio", title="LM Studio", files=("~/.lmstudio/mcp.json",), restart=_NOTICES),
    HostPlace(
        name="continue",
        files=("${CONTINUE_GLOBAL_DIR:-~/.continue}/config.yaml",),
        form="yaml",
        listed=True,
        new_text="name: Local Config\nversion: 1.0.0\nschema: v1\n",
        # A new file would hide an older `config.json`, so it is made only for who names this host.
        signs=("${CONTINUE_GLOBAL_DIR:-~/.continue}/config.yaml",),
        restart="reload its configuration",
    ),
    HostPlace(
        name="copilot-cli",
        files=("${COPILOT_HOME:-~/.copilot}/mcp-config.json",),
        rules="${COPILOT_HOME:-~/.copilot}/settings.json",
        entry={"type": "local", **_COMMON, "tools": ["*"]},
    ),
    HostPlace(
        name="jetbrains",
        files=("~/.config/github-copilot/intellij/mcp.json",),
        files_on={"win32": ("~/AppData/Local/github-copilot/intellij/mcp.json",)},
        place=("servers",),
        entry=_STDIO,
        restart="restart the IDE",
    ),
    HostPlace(
        name="kiro", title="Kiro", files=("~/.kiro/settings/mcp.json",), signs=("~/.kiro",), restart=_NOTICES
    ),
    HostPlace(
        name="antigravity",
        title="Antigravity",
        files=("~/.gemini/config/mcp_config.json", "~/.gemini/antigravity/mcp_config.json"),
        restart="start a new session, or press Refresh under Manage MCP Servers",
    ),
    HostPlace(
        name="amp",
        title="Amp",
        files=("${AMP_SETTINGS_FILE:-~/.config/amp/settings.json}",),
        place=("amp.mcpServers",),
    ),
    HostPlace(
        name="crush",
        title="Crush",
        files=("${CRUSH_GLOBAL_CONFIG:-{xdg}/crush}/crush.json",),
        place=("mcp",),
        entry=_STDIO,
    ),
    HostPlace(name="droid", title="Droid", files=("~/.factory/mcp.json",), entry=_STDIO),
    HostPlace(
        name="kilo-code",
        title="Kilo Code",
        files=tuple(f"{{xdg}}/kilo/{name}" for name in ("kilo.jsonc", "kilo.json")),
        place=("mcp",),
        entry={"type": "local", "command": _WORDS},
    ),
    HostPlace(
        name="roo-code",
        title="Roo Code",
        files=(f"{_EXTENSIONS}/rooveterinaryinc.roo-cline/settings/mcp_settings.json",),
        restart=_NOTICES,
    ),
    HostPlace(name="warp", title="Warp", files=("~/.warp/.mcp.json",), restart=_NOTICES),
)

HOST_PLACES: Final[Mapping[str, HostPlace]] = {
    host.name: replace(host, title=host.title or HOSTS[host.name].title) for host in _HOSTS
}
"""All hosts by name."""


def hosts_here(environ: Mapping[str, str]) -> list[HostPlace]:
    return [host for host in HOST_PLACES.values() if host.is_here(environ)]


def read_text(file: Path) -> str | None:
    """Return the text of a host's file as it stands there; None if there is no file.

    Raises `OSError` if the file cannot be read, and `EditError` if it is no regular file, too large, or not
    text.
    """
    if not file.exists():
        return None
    if not file.is_file():
        raise EditError("it is not a regular file")
    if file.stat().st_size > MAX_BYTES:
        raise EditError(f"it is larger than {MAX_BYTES >> 20} MiB")
    try:
        return file.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        raise EditError("it is not UTF-8 text") from None


@contextmanager
def about(file: Path) -> Iterator[None]:
    """Name a file in the `EditError` that says why it cannot be read or edited."""
    try:
        yield
    except (OSError, EditError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise EditError(f"{file}: {reason or error}") from None
