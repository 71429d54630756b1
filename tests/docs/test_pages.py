"""Every page is right: links lead somewhere, snippets load, commands exist."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

from mcp_context_proxy import __version__
from mcp_context_proxy.config import load

_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<text>.*)$", re.MULTILINE)


def anchors(path: Path) -> set[str]:
    headings = _HEADING.findall(path.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w -]", "", text.lower()).replace(" ", "-") for text in headings}


def test_links_lead_to_files_and_headings_that_are_there(any_page):
    for match in _LINK.finditer(any_page.text):
        file, _, anchor = match["target"].partition("#")
        if not file.startswith(("http://", "https://")):
            target = (any_page.path.parent / file).resolve() if file else any_page.path
            assert target.exists(), match["target"]
            assert not anchor or anchor in anchors(target), match["target"]


def test_json_snippets_are_json(any_page):
    for block in any_page.blocks("json"):
        json.loads(block)


def environ(home):
    """An environment in which every variable that the pages mention is set."""
    secrets = ("GITHUB_TOKEN", "DOCS_TOKEN", "OPENAI_API_KEY", "DB_PASSWORD", "CLUSTER_KEY")
    replica = {"HOSTNAME": "proxy-0", "POD_IP": "10.0.0.3"}
    return {"HOME": str(home)} | replica | dict.fromkeys(secrets, "t" * 32)


def test_toml_snippets_load_as_a_configuration(any_page, tmp_path):
    for name in ("rules", "references", ".claude/skills", "project/.cursor/rules", "project/AGENTS.md"):
        (tmp_path / name).mkdir(parents=True)
    for block in any_page.blocks("toml"):
        file = tmp_path / "config.toml"
        file.write_text(block, encoding="utf-8")
        load(file, environ=environ(tmp_path))


def test_toml_snippets_load_with_every_comment_sign_removed(any_page, tmp_path):
    for block in any_page.blocks("toml"):
        text = re.sub(r"(?m)^# (?=\[|[a-z_]+ = )", "", block)
        assert tomllib.loads(text)
        if "documents" not in text:
            file = tmp_path / "config.toml"
            file.write_text(text, encoding="utf-8")
            load(file, environ=environ(tmp_path))


def test_commands_are_ones_the_program_has(any_page, understood):
    for line in any_page.commands("mcp-context-proxy"):
        understood(shlex.split(line)[1:])


def test_the_changelog_has_this_version(changelog):
    assert f"## [{__version__}]" in changelog.text
