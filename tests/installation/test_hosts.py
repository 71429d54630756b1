"""Installing in each host and undoing it, over many forms of its file."""

import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from support.tables import each

from mcp_context_proxy.config import load
from mcp_context_proxy.installation import HOST_PLACES, hosts_here
from mcp_context_proxy.installation.editing import EditError, entries

from .conftest import Machine, Place
from .hosts import AWKWARD, PROGRAM, SETTINGS, URL

FORMS: dict[str, Callable[[str], bytes]] = {
    "as its documents show it": lambda text: text.encode(),
    "with a byte order mark": lambda text: b"\xef\xbb\xbf" + text.encode(),
    "with line ends of Windows": lambda text: text.replace("\n", "\r\n").encode(),
    "without an end of the last line": lambda text: text.rstrip("\n").encode(),
    "with empty lines at the end": lambda text: text.encode() + b"\n\n\n",
    "with names in other scripts": lambda text: (
        text.replace("dark", "тёмная 🌙").replace("mine", "mín").encode()
    ),
}
CHANGED = {"json": "// changed\n", "toml": "# changed\n", "yaml": "# changed\n"}
COMMENTED: dict[str, Callable[[str], str]] = {
    "json": lambda text: "// mine\n" + text.replace('"last": [', '/* {"a": 1,} */ "last": [ // here, too\n'),
    "toml": lambda text: "# mine\n" + text.replace("[tui]", "# [mcp_servers.other]\n[tui]"),
    "yaml": lambda text: "# mine\n" + text.replace("desk:\n", "desk: # the desk\n"),
}


@pytest.mark.each_value
@pytest.mark.parametrize("form", [*FORMS, "with comments"])
@pytest.mark.parametrize("host", SETTINGS)
def test_install_then_uninstall_changes_nothing(host: str, form: str, put: Place, machine: Machine) -> None:
    text = SETTINGS[host]
    data = COMMENTED[HOST_PLACES[host].form](text).encode() if form == "with comments" else FORMS[form](text)
    file = put(host, data)

    done = machine.install(host)

    left = entries(HOST_PLACES[host].form, file.read_bytes().decode(), HOST_PLACES[host].place)
    assert "context-proxy" in left
    assert not {"desk", "remote"} & left.keys()
    assert done.names == {"desk": "desk", "remote": "remote"}
    config = load(machine.file, environ=machine.environ)
    assert (config.servers["desk"].command, config.servers["desk"].args) == (PROGRAM, ("--stdio",))
    assert config.servers["desk"].env == {"DESK_KEY": "k-0123456789"}
    assert (config.servers["remote"].url, config.servers["remote"].transport) == (URL, "http")
    assert config.servers["remote"].headers == {"Authorization": "Bearer t-0123456789"}
    assert machine.uninstall() == [True]
    assert file.read_bytes() == data


REFUSED = {
    ("cursor", "control characters in text"),
    ("cursor", "duplicate mcpServers"),
    ("cursor", "list servers"),
    ("goose", "flow all"),
}
"""Files that are left alone, because they cannot be read in one way or edited in place."""


@pytest.mark.each_value
@pytest.mark.parametrize("start", ["", "\ufeff"], ids=["plain", "byte order mark"])
@pytest.mark.parametrize("case", AWKWARD, ids=" ".join)
def test_any_file_is_left_alone_or_comes_back(
    case: tuple[str, str], start: str, put: Place, machine: Machine
) -> None:
    """Byte for byte, and after another change of the file with the same servers."""
    host, text = case[0], start + AWKWARD[case]
    file = put(host, text.encode())
    if case in REFUSED:
        with pytest.raises(EditError):
            machine.install(host)
        assert file.read_bytes() == text.encode()
        return
    done = machine.install(host)
    place, form = done.place, HOST_PLACES[host].form
    before, after = (entries(form, one, place) for one in (text, file.read_bytes().decode()))
    assert done.names.keys() | done.staying.keys() == before.keys()
    assert (len(after), "context-proxy" in after) == (len(done.staying) + 1, True)
    kept = {path: path.read_bytes() for path in machine.journal.folder.iterdir()}

    written = file.read_bytes()
    file.write_text(start + CHANGED[form] + written.decode().removeprefix(start), "utf-8", newline="")
    assert machine.uninstall() == [False]
    assert entries(form, file.read_bytes().decode(), place) == before

    for path, data in kept.items():
        path.write_bytes(data)
    file.write_bytes(written)
    assert machine.uninstall() == [True]
    assert file.read_bytes() == text.encode()


def test_array_of_tables_after_a_server_stays(put: Place, machine: Machine) -> None:
    file = put("codex", b'[mcp_servers.a]\ncommand = "x"\n\n[[hooks]]\nname = "y"\n')
    machine.install("codex")
    assert tomllib.loads(file.read_text("utf-8"))["hooks"] == [{"name": "y"}]


def test_lines_that_stay_keep_their_ends(put: Place, machine: Machine) -> None:
    file = put("cursor", AWKWARD["cursor", "mixed line ends"].encode())
    machine.install("cursor")
    assert b'{\r\n  "theme": "x",\n  "mcpServers": {\n' in file.read_bytes()


@each(
    ("host", "variable", "name"),
    [
        ("codex", "CODEX_HOME", "config.toml"),
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("gemini-cli", "GEMINI_CLI_HOME", ".gemini/settings.json"),
        ("qwen-code", "QWEN_HOME", "settings.json"),
        ("continue", "CONTINUE_GLOBAL_DIR", "config.yaml"),
        ("opencode", "XDG_CONFIG_HOME", "opencode/opencode.json"),
        ("kilo-code", "XDG_CONFIG_HOME", "kilo/kilo.jsonc"),
        ("crush", "XDG_CONFIG_HOME", "crush/crush.json"),
        ("goose", "XDG_CONFIG_HOME", "goose/config.yaml"),
        ("crush", "CRUSH_GLOBAL_CONFIG", "crush.json"),
    ],
)
def test_settings_are_where_the_variable_of_the_host_says(
    host: str, variable: str, name: str, environ: dict[str, str], tmp_path: Path
) -> None:
    assert HOST_PLACES[host].file({**environ, variable: str(tmp_path)}) == tmp_path / name


@pytest.mark.parametrize("host", SETTINGS)
def test_host_without_a_file_gets_one_and_loses_it_again(host: str, put: Place, machine: Machine) -> None:
    file = put(host, None)
    machine.install(host)
    assert list(entries(HOST_PLACES[host].form, file.read_text("utf-8"), HOST_PLACES[host].place)) == [
        "context-proxy"
    ]
    assert machine.uninstall() == [True]
    assert not file.exists()


def test_new_file_of_continue_has_what_it_demands(put: Place, machine: Machine) -> None:
    file = put("continue", None)
    machine.install("continue")
    found = yaml.safe_load(file.read_text("utf-8"))
    assert {"name", "version", "schema"} < found.keys()
    assert [one["name"] for one in found["mcpServers"]] == ["context-proxy"]


def test_old_settings_of_continue_are_not_hidden_by_a_new_file(environ: dict[str, str]) -> None:
    folder = Path(environ["HOME"]) / ".continue"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert "continue" not in {host.name for host in hosts_here(environ)}
    (folder / "config.yaml").write_text("name: mine\n")
    assert "continue" in {host.name for host in hosts_here(environ)}


@pytest.mark.parametrize("host", SETTINGS)
def test_file_changed_since_keeps_the_change_and_gets_its_servers_back(
    host: str, put: Place, machine: Machine
) -> None:
    file = put(host, SETTINGS[host].encode())
    before = entries(HOST_PLACES[host].form, SETTINGS[host], HOST_PLACES[host].place)
    machine.install(host)
    text = file.read_text("utf-8")
    mark = CHANGED[HOST_PLACES[host].form]
    file.write_text(mark + text, "utf-8")

    assert machine.uninstall() == [False]

    after = file.read_text("utf-8")
    assert after.startswith(mark)
    assert entries(HOST_PLACES[host].form, after, HOST_PLACES[host].place) == before


@pytest.mark.parametrize("host", SETTINGS)
def test_second_install_finds_everything_in_place(host: str, put: Place, machine: Machine) -> None:
    file = put(host, SETTINGS[host].encode())
    machine.install(host)
    once, configuration = file.read_bytes(), machine.file.read_bytes()
    assert machine.install(host).change is None
    assert (file.read_bytes(), machine.file.read_bytes()) == (once, configuration)


def test_same_servers_of_all_hosts_are_configured_once(put: Place, machine: Machine) -> None:
    for host, text in SETTINGS.items():
        put(host, text.encode())
        machine.install(host)
    servers = tomllib.loads(machine.file.read_text("utf-8"))["servers"]
    assert servers.keys() == {"desk", "remote"}
    assert all(machine.uninstall())
    for host, text in SETTINGS.items():
        assert HOST_PLACES[host].file(machine.environ).read_text("utf-8") == text


def test_further_files_of_a_host_are_known(environ: dict[str, str], put: Place) -> None:
    chosen = put("vscode", b"{}")
    profile = chosen.parent / "profiles" / "1a2b" / "mcp.json"
    profile.parent.mkdir(parents=True)
    profile.write_text("{}", "utf-8")
    assert HOST_PLACES["vscode"].others(environ) == [profile]
    assert HOST_PLACES["cursor"].others(environ) == []


@pytest.mark.parametrize("host", SETTINGS)
@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"{ not :: [valid", b"\x00"])
def test_damaged_file_is_left_alone_with_a_reason(
    host: str, data: bytes, put: Place, machine: Machine
) -> None:
    file = put(host, data)
    with pytest.raises(EditError):
        machine.install(host)
    assert file.read_bytes() == data
    assert machine.journal.installations() == []


@pytest.mark.parametrize("changed", [False, True])
def test_servers_come_back_without_the_copy_of_the_file(changed: bool, put: Place, machine: Machine) -> None:
    """Somebody has cleaned up."""
    file = put("cursor", SETTINGS["cursor"].encode())
    before = entries("json", SETTINGS["cursor"], ("mcpServers",))
    machine.install("cursor")
    for copy in machine.journal.folder.glob("*.before"):
        copy.unlink()
    if changed:
        file.write_text("// changed\n" + file.read_text("utf-8"), "utf-8")
    assert machine.uninstall() == [False]
    assert entries("json", file.read_text("utf-8"), ("mcpServers",)) == before
    assert list(machine.journal.folder.iterdir()) == []


def test_installations_are_undone_in_their_order_after_the_clock_was_set_back(
    put: Place, machine: Machine
) -> None:
    text = '{"mcpServers": {"a": {"command": "x"}}}'
    file = put("cursor", text.encode())
    machine.install("cursor")
    for path in [*machine.journal.folder.iterdir()]:
        # As it is called if the clock was ten years ahead.
        name = f"{int(path.name[:20]) + 10 * 365 * 86_400 * 10**9:020d}{path.name[20:]}"
        record = path.read_text("utf-8").replace(path.name[:20], name[:20])
        path.unlink()
        path.with_name(name).write_text(record, "utf-8")
    first = file.read_text("utf-8")
    file.write_text(first.replace('"mcpServers": {', '"mcpServers": {"b": {"command": "y"},'), "utf-8")
    machine.install("cursor")
    assert machine.uninstall() == [True, False]
    assert entries("json", file.read_text("utf-8"), ("mcpServers",)).keys() == {"a", "b"}


def test_a_file_of_the_first_versions_of_opencode_counts(machine: Machine, home: Path) -> None:
    folder = home / ".config" / "opencode"
    folder.mkdir(parents=True)
    file = folder / "config.json"
    file.write_text('{"mcp": {"desk": {"type": "local", "command": ["/bin/x"]}}}', "utf-8")

    assert machine.install("opencode").names == {"desk": "desk"}
    assert "context-proxy" in entries("json", file.read_text("utf-8"), ("mcp",))


@pytest.mark.parametrize(
    ("host", "folder"), [("vscode", ".config/Code - Insiders/User"), ("cline", ".cline/data/settings")]
)
def test_first_file_of_a_host_is_made_for_the_edition_that_is_there(
    host: str, folder: str, home: Path, environ: dict[str, str]
) -> None:
    (home / folder).mkdir(parents=True)
    assert HOST_PLACES[host].file(environ, "linux").parent == home / folder
    assert HOST_PLACES[host].is_here(environ)


def test_hosts_are_found_by_their_files_and_folders(home: Path, environ: dict[str, str], put: Place) -> None:
    assert hosts_here(environ) == []
    put("codex", None)
    put("goose", b"")
    (home / ".claude").mkdir()
    assert {host.name for host in hosts_here(environ)} == {"claude-code", "codex", "goose"}


@each("platform", ["linux", "darwin", "win32"])
@each("host", SETTINGS)
def test_each_host_has_a_place_on_each_platform(host: str, platform: str, environ: dict[str, str]) -> None:
    file = HOST_PLACES[host].file(environ, platform)
    assert file.is_relative_to(environ["HOME"])
    assert "{" not in str(file)
