"""The SDK's own client, as most hosts use it, finds nothing to object to, in either era."""

import json
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from mcp import Client, StdioServerParameters
from support.proxies import command, http_proxy
from support.raw_client import AS_DATA
from support.servers import Workshop, real_lists, tool

MODES = {"handshake": "legacy", "modern": "2026-07-28", "discovered": "auto"}


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> str:
    return MODES[request.param]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    workshop = Workshop(tmp_path_factory.mktemp("sdk"))
    # A published server whose list the SDK's client refuses whole.
    workshop.server("gitlab", tools=real_lists()["gitlab"])
    workshop.server(
        "work",
        era="both",
        tools=[tool("echo"), tool("report")],
        calls={"report": [{"progress": 3}]},
        resources=[{"uri": "note://1", "name": "one"}],
        prompts=[{"name": "greet", "arguments": [{"name": "who"}]}],
    )
    return workshop.config(expose={"mode": "all"})


@pytest.fixture(scope="module")
def url(config: Path) -> Iterator[str]:
    with http_proxy(config) as proxy:
        yield f"{proxy.base}/mcp"


async def use(client: Client) -> None:
    names: list[str] = []
    # The proxy's own tools leave the list once no server is awaited any more.
    while not {"gitlab__create_issue", "work__echo"} <= set(names) or "call_tool" in names:
        listed = await client.list_tools(cache_mode="bypass")
        names = [entry.name for entry in listed.tools]
    assert len(names) == 11

    result = await client.call_tool("work__echo", {"text": "hi"})
    assert json.loads(result.content[0].text)["arguments"] == {"text": "hi"}  # type: ignore[union-attr]
    told = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        told.append(progress)

    await client.call_tool("work__report", {}, progress_callback=note)
    assert told == [1, 2, 3]
    found = await client.call_tool(
        "search_available_tools", {"query": "create an issue in a project"}, meta=AS_DATA
    )
    assert found.structured_content is not None
    assert found.structured_content["results"][0]["name"] == "gitlab__create_issue"
    resources = [str(entry.uri) for entry in (await client.list_resources()).resources]
    assert resources == ["context://current", "context://requests", "note://1"]
    assert (await client.read_resource("note://1")).contents
    assert [entry.name for entry in (await client.list_prompts()).prompts] == ["work__greet", "with_context"]
    assert (await client.get_prompt("work__greet", {"who": "you"})).messages


async def test_the_sdk_client_works_over_stdio(config: Path, mode: str) -> None:
    program, *arguments = command(config)
    with anyio.fail_after(30):
        async with Client(StdioServerParameters(command=program, args=arguments), mode=mode) as client:
            await use(client)


async def test_the_sdk_client_works_over_streamable_http(url: str, mode: str) -> None:
    with anyio.fail_after(30):
        async with Client(url, mode=mode) as client:
            await use(client)
