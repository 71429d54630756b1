"""A proxy in front of tools that are near to each other, and documents of every mode."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.proxies import inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy

Opened: TypeAlias = Callable[..., AbstractAsyncContextManager[Proxy]]

FILES = {
    "read_file": "Read the contents of a file from disk",
    "write_file": "Write the contents of a file to disk",
    "delete_file": "Delete a file from disk",
}
MAIL = {
    "send_mail": "Send an email message to a recipient",
    "read_inbox": "Read the email messages in the inbox",
    "wipe_inbox": "Delete all email messages in the inbox",
}
OTHERS = {
    "forecast": "Forecast of the weather for a city",
    "translate": "Translate a text into another language",
    "search_code": "Search the source code of a repository",
    "play_song": "Play a song of a playlist",
}


def document(folder: Path, name: str, text: str, **front: Any) -> None:
    """Write a rule or reference with front matter."""
    folder.mkdir(exist_ok=True)
    head = "".join(f"{key}: {value}\n" for key, value in front.items())
    (folder / f"{name}.md").write_text(f"---\n{head}---\n{text}\n", encoding="utf-8")


@pytest.fixture
def opened(workshop: Workshop) -> Opened:
    """Opens a proxy with the tools above; keywords are tables of its configuration."""

    @asynccontextmanager
    async def open_it(**tables: Any) -> AsyncIterator[Proxy]:
        def served(tools: dict[str, str]) -> list[dict[str, Any]]:
            return [tool(name, description) for name, description in tools.items()]

        workshop.server("files", tools=served(FILES))
        wiped = {"tools": {"wipe_inbox": {"include": "manual"}}}
        workshop.server("mail", tools=served(MAIL), settings=wiped)
        workshop.server("other", tools=served(OTHERS))
        rules = workshop.folder / "rules"
        document(rules, "tone", "Write politely.", include="always", priority=900)
        document(rules, "mail", "Every email ends with our address.", priority=100)
        document(workshop.folder / "references", "company", "We make bicycles.", include="always")
        documents = [
            {"kind": "rule", "path": str(rules)},
            {"kind": "reference", "path": str(workshop.folder / "references")},
        ]
        expose = {"list_all_below": 0}
        config = workshop.config(**{"documents": documents, "expose": expose, **tables})
        async with inside(config) as proxy:
            yield proxy

    return open_it
