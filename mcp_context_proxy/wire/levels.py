"""Severities of log messages, as the protocol orders them."""

from __future__ import annotations

from collections.abc import Iterable

LOG_LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""Least severe first."""


def reaches(level: str | None, least: str | None) -> bool:
    """Whether a log message is for who asked for `least` and above; one of an unknown level is."""
    if least not in LOG_LEVELS:
        return False
    return level not in LOG_LEVELS or LOG_LEVELS.index(level) >= LOG_LEVELS.index(least)


def most_verbose(levels: Iterable[str | None]) -> str | None:
    """The level that serves all of these; None of none."""
    known = [level for level in levels if level in LOG_LEVELS]
    return min(known, key=LOG_LEVELS.index, default=None)
