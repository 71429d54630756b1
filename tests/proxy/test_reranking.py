"""The SDK's own client lets a search ask its model, over the real fronts, in either era."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import CreateMessageResult, TextContent
from support.proxies import command, http_proxy
from support.raw_client import AS_DATA
from support.servers import Workshop, tool

QUERY = "delete a note"


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workshop = Workshop(tmp_path_factory.mktemp("reranking"))
    described = {"delete_note": "Delete a note", "delete_notes": "Delete all the notes of a folder"}
    workshop.server("desk", tools=[tool(*one) for one in described.items()])
    return workshop.config(rerank={"mode": "always"}, limits={"rerank_seconds": 60.0})


@pytest.fixture(scope="module")
def url(config: Path) -> Iterator[str]:
    with http_proxy(config) as proxy:
        yield f"{proxy.base}/mcp"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"], ids=["handshake", "modern"])
@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_a_search_has_the_order_of_the_clients_model(
    front: str, mode: str, config: Path, request: pytest.FixtureRequest
) -> None:
    asked: list[str] = []

    async def sample(context: Any, params: Any) -> CreateMessageResult:
        asked.append(params.messages[0].content.text)
        content = TextContent(type="text", text="2, 1")
        return CreateMessageResult(role="assistant", content=content, model="theirs")

    program, *args = command(config)
    target: Any = StdioServerParameters(command=program, args=args)
    if front == "http":
        target = request.getfixturevalue("url")
    with anyio.fail_after(60):
        async with Client(target, mode=mode, sampling_callback=sample) as client:
            while True:
                answer = await client.call_tool("search_available_tools", {"query": QUERY}, meta=AS_DATA)
                found: Any = answer.structured_content
                if len(found["results"]) == 2:
                    break

    (question,) = asked
    assert question.index('"desk__delete_note"') < question.index('"desk__delete_notes"')
    assert [one["name"] for one in found["results"]] == ["desk__delete_notes", "desk__delete_note"]
    assert found["rerank"]["used"]
