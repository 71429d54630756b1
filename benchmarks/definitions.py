"""Tool definitions and queries for measuring speed: made up, deterministic, of realistic size.

Standard library only, because the measured servers start with ``python -S``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

VERBS = (
    "create",
    "update",
    "delete",
    "list",
    "get",
    "search",
    "archive",
    "restore",
    "move",
    "copy",
    "assign",
    "label",
    "export",
    "import",
    "approve",
    "reject",
    "schedule",
    "share",
    "merge",
    "validate",
)

NOUNS = (
    "issue",
    "pull_request",
    "branch",
    "release",
    "invoice",
    "payment",
    "customer",
    "order",
    "calendar_event",
    "contact",
    "message",
    "document",
    "spreadsheet",
    "dashboard",
    "backup",
)

PLACES = (
    "tracker",
    "ledger",
    "warehouse",
    "mailbox",
    "registry",
    "workspace",
    "cluster",
    "archive",
    "pipeline",
    "library",
)

PARAMETERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("id", {"type": "string", "description": "Identifier as returned by the list and search tools."}),
    ("title", {"type": "string", "maxLength": 200, "description": "Short title, shown in overviews."}),
    (
        "state",
        {"type": "string", "enum": ["open", "closed", "all"], "description": "Which ones to consider."},
    ),
    (
        "limit",
        {"type": "integer", "minimum": 1, "maximum": 100, "description": "Most to return; 20 if absent."},
    ),
    (
        "tags",
        {"type": "array", "items": {"type": "string"}, "description": "Labels that must all be present."},
    ),
    (
        "since",
        {"type": "string", "format": "date-time", "description": "Only those changed after this moment."},
    ),
    ("notify", {"type": "boolean", "description": "Whether the people concerned are told by e-mail."}),
)

MOST = len(VERBS) * len(NOUNS)
"""Tools that one server can have under different names."""


def name_of(index: int) -> str:
    """The name of the tool at a position below `MOST`; no two are the same."""
    row, column = divmod(index, len(NOUNS))
    return f"{VERBS[(row + column) % len(VERBS)]}_{NOUNS[column]}"


def tool(server: int, index: int) -> dict[str, Any]:
    """One definition with three to five parameters, about 800 bytes."""
    name, place = name_of(index), PLACES[server % len(PLACES)]
    verb, _, noun = name.partition("_")
    noun = noun.replace("_", " ")
    chosen = [PARAMETERS[(server + index + offset) % len(PARAMETERS)] for offset in range(3 + index % 3)]
    return {
        "name": name,
        "description": (
            f"{verb.capitalize()} one or more {noun}s in the {place} of team {server}. Returns every {noun}"
            f" with its identifier and state. Fails when the {noun} is locked by somebody else."
        ),
        "inputSchema": {
            "type": "object",
            "properties": dict(chosen),
            "required": [chosen[0][0]],
            "additionalProperties": False,
        },
        "annotations": {"title": f"{verb.capitalize()} {noun}", "readOnlyHint": verb in {"get", "list"}},
    }


def tools(server: int, count: int) -> list[dict[str, Any]]:
    """The tools of one server."""
    return [tool(server, index) for index in range(count)]


def queries() -> Iterator[str]:
    """Requests as a model words them; no two are the same, so that no cached embedding answers."""
    number = 0
    while True:
        name, place = name_of(number % MOST), PLACES[number % len(PLACES)]
        verb, _, noun = name.partition("_")
        yield f"please {verb} the {noun.replace('_', ' ')} number {number} for our customer in the {place}"
        number += 1
