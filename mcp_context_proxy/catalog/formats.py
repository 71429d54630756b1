"""What a file is, by its name alone: plain markdown, or what a host or an editor keeps for its own use."""

from __future__ import annotations

from enum import Enum, auto
from pathlib import PurePosixPath
from typing import Final

from mcp_context_proxy.items import Kind


class Format(Enum):
    """How a file is read."""

    MARKDOWN = auto()
    CURSOR = auto()
    """A rule of Cursor: ``NAME.mdc``, or ``RULE.md`` in a folder called NAME."""
    SKILL = auto()
    """An Agent Skill: ``SKILL.md`` in a folder called as the skill is."""
    AGENTS = auto()
    """What coding agents are told of a project: ``AGENTS.md`` or ``CLAUDE.md``."""


_BY_NAME: Final = {
    "rule.md": Format.CURSOR,
    "skill.md": Format.SKILL,
    "agents.md": Format.AGENTS,
    "claude.md": Format.AGENTS,
}


def format_of(relative: str) -> Format:
    """The format of a file."""
    path = PurePosixPath(relative.lower())
    return Format.CURSOR if path.suffix == ".mdc" else _BY_NAME.get(path.name, Format.MARKDOWN)


def usual_kind(form: Format) -> Kind:
    """What documents of a format are, where the configuration does not say it."""
    return Kind.RULE if form is Format.CURSOR else Kind.REFERENCE


def usual_name(relative: str, folder: str) -> str:
    """The name of a document that gives none: its path without suffix, or that of its folder.

    Args:
        relative: Path of the file from the configured folder, with ``/``.
        folder: Name of the folder that the file is in.
    """
    path = PurePosixPath(relative)
    if path.name.lower() not in ("rule.md", "skill.md"):
        return str(path.with_suffix(""))
    return str(path.parent) if path.parent.name else folder
