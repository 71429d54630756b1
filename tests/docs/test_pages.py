"""Every page is right: links lead somewhere, snippets load, commands exist."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from mcp_context_proxy import __version__
from mcp_context_proxy.config import load

_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.*)$", re.MULTILINE)


def anchors(path: Path) -> set[str]:
    headings = _HEADING.findall(path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


def test_links_lead_to_files_and_headings_that_are_there(pages):
    lost = []
    for page in pages:
        for match in _LINK.finditer(page.text):
            file, _, anchor = match["target"].partition("#")
            if not file.startswith(("http://", "https://")):
                target = (page.path.parent / file).resolve() if file else page.path
                if not target.exists() or (anchor and anchor not in anchors(target)):
                    lost.append((page.path.name, match["target"]))

    assert lost == []


def test_rows_of_a_table_have_as_many_cells_as_its_head(pages):
    """A bar ends a cell, also in code, unless a backslash is before it."""
    torn = []
    for page in pages:
        cells = 0
        for line in re.sub(r"(?ms)^```.*?^```", "", page.text).splitlines():
            here = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
            if cells and here not in (0, cells):
                torn.append((page.path.name, line))
            cells = here and (cells or here)

    assert torn == []


def test_json_snippets_are_json(pages):
    for page in pages:
        for block in page.blocks("json"):
            assert json.loads(block) is not None, page.path


def environ(home):
    """An environment in which every variable that the pages mention is set."""
    secrets = ("GITHUB_TOKEN", "DOCS_TOKEN", "OPENAI_API_KEY", "DB_PASSWORD", "CLUSTER_KEY")
    replica = {"HOSTNAME": "proxy-0", "POD_IP": "10.0.0.3"}
    return {"HOME": str(home)} | replica | dict.fromkeys(secrets, "t" * 32)


@pytest.mark.parametrize("sign", [None, r"(?m)^# (?=\[|[a-z_]+ = )"], ids=["as they are", "uncommented"])
def test_toml_snippets_load_as_a_configuration(pages, tmp_path, sign):
    for name in ("rules", "references", ".claude/skills", "project/.cursor/rules", "project/AGENTS.md"):
        (tmp_path / name).mkdir(parents=True)
    for page in pages:
        file = tmp_path / f"{page.path.stem}.toml"
        for block in page.blocks("toml"):
            text = block if sign is None else re.sub(sign, "", block)
            assert tomllib.loads(text), page.path
            if sign is None or "documents" not in text:
                file.write_text(text, encoding="utf-8")
                load(file, environ=environ(tmp_path))


def test_commands_are_ones_the_program_has(pages, understood):
    for page in pages:
        for line in page.commands("mcp-context-proxy"):
            understood(shlex.split(line)[1:])


def test_the_changelog_has_this_version(changelog):
    assert f"## [{__version__}]" in changelog.text
