"""What the API and the page are tested with: tools and documents of all modes, and a hostile text."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from support.servers import Workshop, tool

TOKEN = "a-token-for-tests"

HOSTILE = '<img src=x onerror="document.title=\'taken\'"><script>document.title="taken"</script> reads a page'


PRIORITY = {"tone": 7, "mailing": 900, "secrets": 500, "addresses": 40}
"""Of the documents."""


def document(folder: Path, name: str, include: str, text: str) -> None:
    folder.mkdir(exist_ok=True)
    front = f"---\ninclude: {include}\npriority: {PRIORITY[name]}\n---\n"
    (folder / f"{name}.md").write_text(f"{front}{text}\n", encoding="utf-8")


def shop(workshop: Workshop) -> dict[str, Any]:
    """Servers and documents, and the tables of their configuration."""
    rules, references = workshop.folder / "rules", workshop.folder / "references"
    document(rules, "tone", "always", "Be polite and brief in everything that is written.")
    document(rules, "mailing", "agent", "Mail to customers: never mention prices.")
    document(rules, "secrets", "manual", "Never send a password by mail.")
    document(references, "addresses", "agent", "Addresses for mail: the team is team@example.com.")
    workshop.server(
        "post",
        tools=[
            tool("send_mail", "Send a mail to somebody"),
            tool("list_mail", "List the mails in a mailbox"),
            tool("clock", "Tell the time"),
            tool("wipe", "Delete everything for good"),
        ],
        settings={"tools": {"clock": {"include": "always"}, "wipe": {"include": "manual"}}},
    )
    workshop.server("archive", tools=[tool("find_mail", "Find an old mail"), tool("browse", HOSTILE)])
    return {
        "documents": [{"kind": "rule", "path": str(rules)}, {"kind": "reference", "path": str(references)}],
        "expose": {"list_all_below": 0},
        "interactions": {"enabled": True},
    }


def environment() -> dict[str, str]:
    """That of the tests, with the token."""
    return {**os.environ, "MCP_CONTEXT_PROXY_TOKEN": TOKEN}
