"""Servers and documents for tests of the API and the pages.

There are all include modes, a hostile text, and a tool that is turned off.
"""

import os
from typing import Any

from support.documents import Documents
from support.servers import Workshop, tool

TOKEN = "a-token-for-tests"

HOSTILE = '<img src=x onerror="document.title=\'taken\'"><script>document.title="taken"</script> reads a page'


PRIORITY = {"tone": 7, "mailing": 900, "secrets": 500, "addresses": 40}
"""Priorities of the documents."""


def shop(workshop: Workshop) -> dict[str, Any]:
    """Make the servers and documents; return the tables of their configuration."""
    documents = Documents(workshop.folder)
    documents.add(
        "rule", "tone", "always", "Be polite and brief in everything that is written.", PRIORITY["tone"]
    )
    documents.add("rule", "mailing", "agent", "Mail to customers: never mention prices.", PRIORITY["mailing"])
    documents.add("rule", "secrets", "manual", "Never send a password by mail.", PRIORITY["secrets"])
    documents.add(
        "reference",
        "addresses",
        "agent",
        "Addresses for mail: the team is team@example.com.",
        PRIORITY["addresses"],
    )
    workshop.server(
        "post",
        tools=[
            tool("send_mail", "Send a mail to somebody"),
            tool("list_mail", "List the mails in a mailbox"),
            tool("clock", "Tell the time"),
            tool("wipe", "Delete everything for good"),
            tool("forward_mail", "Send a mail on to somebody"),
        ],
        settings={
            "tools": {"clock": {"include": "always"}, "wipe": {"include": "manual"}},
            "deny": ["forward_*"],
        },
    )
    workshop.server("archive", tools=[tool("find_mail", "Find an old mail"), tool("browse", HOSTILE)])
    return {
        "documents": documents.table,
        "expose": {"list_all_below": 0},
        "interactions": {"enabled": True},
    }


def environment() -> dict[str, str]:
    """The environment of the tests, with the token."""
    return {**os.environ, "MCP_CONTEXT_PROXY_TOKEN": TOKEN}
