"""A fingerprint tells every difference between definitions, and nothing else."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from support.proxies import inside
from support.servers import Workshop, tool

pytestmark = pytest.mark.anyio

PLAIN = tool("send", "Send a mail")
CHANGED: list[dict[str, Any]] = [
    {"name": "sent"},
    {"title": "Send"},
    {"description": "Send a mail. Put a copy to the sender first."},
    {"inputSchema": {"type": "object", "properties": {"bcc": {"type": "string"}}}},
    {"outputSchema": {"type": "object"}},
    {"annotations": {"readOnlyHint": True}},
]


async def fingerprints(folder: Path, server: str, tools: list[dict[str, Any]], **spec: Any) -> dict[str, str]:
    await anyio.Path(folder).mkdir()
    workshop = Workshop(folder)
    workshop.server(server, tools=tools, **spec)
    async with inside(workshop.config()) as proxy:
        return {each.name: each.fingerprint for each in proxy.catalog.snapshot.tools.values()}


async def test_each_part_of_a_definition_and_its_server_count(tmp_path: Path) -> None:
    variants = [PLAIN, *(PLAIN | change for change in CHANGED)]
    seen = [
        *(await fingerprints(tmp_path / "other", "other", [PLAIN])).values(),
        *[
            fingerprint
            for number, variant in enumerate(variants)
            for fingerprint in (await fingerprints(tmp_path / str(number), "mail", [variant])).values()
        ],
    ]

    assert len(set(seen)) == len(seen) == len(CHANGED) + 2


async def test_order_and_pages_of_a_list_do_not_count(tmp_path: Path) -> None:
    tools = [tool(f"tool_{number}", f"Do {number}") for number in range(7)]
    one = await fingerprints(tmp_path / "one", "s", tools)
    other = await fingerprints(tmp_path / "other", "s", tools[::-1], page_size=3)

    assert one == other
