"""docs/configuration.md names every key with its default, and no other."""

import re
import sys
import tomllib
from pathlib import Path

import pytest
from msgspec import NODEFAULT
from msgspec.structs import asdict, fields

import mcp_context_proxy
from mcp_context_proxy.config import (
    ClassesConfig,
    Config,
    DocumentsConfig,
    Limits,
    OAuthConfig,
    ServerConfig,
    TlsConfig,
    ToolConfig,
)
from mcp_context_proxy.config.programs import INHERITED
from mcp_context_proxy.config.settings import PRESETS, DomainConfig, ServerResultsConfig
from mcp_context_proxy.config.source import Table
from mcp_context_proxy.config.tables import ClientConfig

TABLES: dict[str, type[Table]] = {
    "[servers.NAME]": ServerConfig,
    "[servers.NAME.oauth]": OAuthConfig,
    "[servers.NAME.tls]": TlsConfig,
    "[servers.NAME.results]": ServerResultsConfig,
    "[servers.NAME.classes]": ClassesConfig,
    "[servers.NAME.tools.TOOL]": ToolConfig,
    "[[documents]]": DocumentsConfig,
    "[clients.NAME]": ClientConfig,
    "[search.tools]": DomainConfig,
} | {f"[{name}]": type(value) for name, value in asdict(Config()).items() if isinstance(value, Table)}

_ROW = re.compile(r"^\| `(?P<key>\w+)` \| (?P<default>[^|]*) \| (?P<meaning>[^|]*) \|$", re.MULTILINE)


@pytest.fixture
def sections(configuration):
    """The text under each heading that is a table of the file."""
    parts = re.split(r"^## (\[.*\])$", configuration.text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], (part.split("\n## ")[0] for part in parts[2::2]), strict=True))


def written(text: str) -> object:
    """A default as the page writes it."""
    if text in ("none", "required"):
        return None if text == "none" else NODEFAULT
    return tomllib.loads(f"value = {text.strip('`')}")["value"]


def plain(default: object) -> object:
    """A default as TOML knows it."""
    if isinstance(default, Table):
        return {}
    return list(default) if isinstance(default, tuple) else default


def test_every_table_has_a_section(sections):
    assert sections.keys() == TABLES.keys()


def test_every_key_is_described_and_no_other(sections):
    described = {table: [match["key"] for match in _ROW.finditer(text)] for table, text in sections.items()}

    assert described == {table: [*form.keys()] for table, form in TABLES.items()}


def test_the_defaults_are_those_of_the_code(sections):
    for table, form in TABLES.items():
        defaults = {one.name: {} if one.default_factory is dict else one.default for one in fields(form)}
        for match in _ROW.finditer(sections[table]):
            # Derived from another key when it is not given.
            if match["key"] != "transport":
                assert written(match["default"]) == plain(defaults[match["key"]]), (table, match["key"])


def test_the_presets_are_those_of_the_code(sections):
    row = r"^\| `(\w+)` \| (\d+) \| (\d+|those that fit) \| ([\d.]+) \|$"
    rows = re.findall(row, sections["[search]"], re.MULTILINE)

    assert {name: (int(k), n, float(score)) for name, k, n, score in rows} == {
        name: (preset.top_k, "those that fit" if preset.by_fit else str(preset.top_n), preset.include_score)
        for name, preset in PRESETS.items()
    }


@pytest.mark.skipif(sys.platform == "win32", reason="the table has the names of other systems")
def test_the_inherited_variables_are_those_of_the_code(configuration):
    section = configuration.text.split("## Environment of servers")[1].split("On Windows")[0]

    assert re.findall(r"`([A-Za-z_]+\*?)`", section) == list(INHERITED)


def test_limits_without_effect_are_documented_as_such(sections):
    described = {match["key"]: match["meaning"] for match in _ROW.finditer(sections["[limits]"])}
    idle = {key for key, meaning in described.items() if meaning.endswith("*not enforced yet*")}

    assert idle == {*Limits.keys()} - limits_in_use()


def limits_in_use() -> set[str]:
    """Limits that some module reads from a `Limits`."""
    files = Path(mcp_context_proxy.__file__).parent.rglob("*.py")
    return {key for file in files for key in re.findall(r"limits\.(\w+)", file.read_text(encoding="utf-8"))}
