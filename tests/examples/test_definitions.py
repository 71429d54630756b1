"""The example servers as a whole: enough well described tools to make ranking a real task."""

import re
import subprocess
import sys
from pathlib import Path

import yaml
from jsonschema import Draft202012Validator
from support.tables import each

from mcp_context_proxy.examples import SERVERS, documents, servers

PACKAGE = "mcp_context_proxy.examples"
MODES = {"always", "agent", "manual"}


async def test_there_are_more_than_sixty_tools_in_one_order_and_no_name_is_used_twice(connect):
    names = []
    for name in servers():
        async with connect(name, "legacy") as client:
            tools = (await client.list_tools()).tools
            assert tools == (await client.list_tools()).tools
        names += [tool.name for tool in tools]

    assert len(names) >= 60
    assert len(set(names)) == len(names)


@each("name", servers())
async def test_every_tool_has_a_description_a_valid_schema_and_hints_in_both_eras(connect, era, name):
    async with connect(name, era) as client:
        tools = (await client.list_tools()).tools

    for tool in tools:
        assert len(tool.description) > 20, tool.name
        assert tool.title, tool.name
        Draft202012Validator.check_schema(tool.input_schema)
        assert tool.input_schema["type"] == "object", tool.name
        assert all(value.get("description") for value in tool.input_schema["properties"].values()), tool.name
        assert tool.output_schema is None or tool.output_schema["type"] == "object", tool.name
        assert tool.annotations.open_world_hint is False, tool.name


async def test_tools_that_lose_data_say_so(connect):
    async with connect("notes") as client:
        hints = {tool.name: tool.annotations for tool in (await client.list_tools()).tools}

    assert hints["delete_note"].destructive_hint
    assert not hints["create_note"].destructive_hint
    assert hints["search_notes"].read_only_hint


@each("name", servers())
def test_a_server_imports_nothing_beyond_the_standard_library_and_its_own_package(name):
    """Start-up time is why they import so little: seven of them must be up before anybody notices."""
    program = f"import sys, {PACKAGE}.{SERVERS[name]}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, encoding="utf-8")
    loaded = set(done.stdout.split())

    assert not loaded & {"mcp", "mcp_types", "pydantic", "anyio", "asyncio", "numpy"}
    ours = {module for module in loaded if module.startswith("mcp_context_proxy.")}
    assert all(module.startswith(PACKAGE) for module in ours)


def test_three_rules_and_four_references_are_shipped():
    folders = documents()

    assert len(list(folders["rule"].glob("*.md"))) == 3
    assert len(list(folders["reference"].glob("*.md"))) == 4


@each(
    "path",
    [path for folder in documents().values() for path in sorted(folder.glob("*.md"))],
)
def test_the_front_matter_of_every_document_is_complete(path: Path):
    match = re.fullmatch(r"---\n(.*?)\n---\n(.+)", path.read_text(encoding="utf-8"), re.DOTALL)
    front = yaml.safe_load(match[1])

    assert front["name"] == path.stem
    assert len(front["description"]) > 20
    assert front["include"] in MODES
    assert 0 <= front["priority"] <= 999
    assert all(isinstance(tag, str) for tag in front["tags"])


def test_exactly_one_document_is_always_included():
    texts = [
        path.read_text(encoding="utf-8") for folder in documents().values() for path in folder.glob("*.md")
    ]

    assert sum("\ninclude: always\n" in text for text in texts) == 1
