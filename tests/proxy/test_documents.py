"""Rules and references as resources: listed, read, found, and served anew when their file changes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.proxies import command, http_proxy
from support.raw_client import PATIENCE, RawClient, RpcError
from support.servers import Workshop, tool
from support.wires import http, stdio

RULE = "---\ndescription: How commits are worded\npriority: 900\n---\n# Commits\n\nSay why.\n"


@pytest.fixture
def config(workshop: Workshop) -> Path:
    for kind, name, text in (
        ("rules", "commits.md", RULE),
        ("references", "billing.md", "# Billing\n\nHow an invoice is numbered.\n"),
    ):
        (workshop.folder / kind).mkdir()
        (workshop.folder / kind / name).write_text(text, encoding="utf-8")
    workshop.server("work", tools=[tool("echo")], resources=[{"uri": "note://1", "name": "one"}])
    documents = [{"kind": "rule", "path": "rules"}, {"kind": "reference", "path": "references"}]
    return workshop.config(documents=documents)


async def test_documents_are_listed_and_read_beside_the_resources_of_servers(config: Path, era: str) -> None:
    async with stdio(command(config), era) as client:
        await client.until_listed("work__echo")
        listed = (await client.request("resources/list"))["resources"]
        read = await client.request("resources/read", {"uri": "rule://commits"})
        with pytest.raises(RpcError) as refused:
            await client.request("resources/read", {"uri": "rule://../secrets"})

    by_uri = {entry["uri"]: entry for entry in listed}
    assert list(by_uri) == [
        "reference://billing",
        "rule://commits",
        "context://current",
        "context://requests",
        "note://1",
    ]
    assert by_uri["rule://commits"]["description"] == "How commits are worded"
    assert by_uri["rule://commits"]["mimeType"] == "text/markdown"
    (content,) = read["contents"]
    assert content["text"].strip() == "# Commits\n\nSay why."
    assert refused.value.code == (-32602 if era == "modern" else -32002)


async def test_a_document_is_read_by_a_uri_without_escapes_too(
    config: Path, workshop: Workshop, era: str
) -> None:
    for name in ("on call", "規程"):
        (workshop.folder / "rules" / f"{name}.md").write_text(f"# {name}\n\nBe there.\n", encoding="utf-8")
    read = {}
    async with stdio(command(config), era) as client:
        await client.until_listed("work__echo")
        for uri in ("rule://on call", "rule://on%20call", "rule://規程", "rule://%E8%A6%8F%E7%A8%8B"):
            (content,) = (await client.request("resources/read", {"uri": uri}))["contents"]
            read[content["uri"]] = content["text"].partition("\n")[0]
        for uri in ("rule://nobody", "rule://"):
            with pytest.raises(RpcError):
                await client.request("resources/read", {"uri": uri})

    assert read == {
        "rule://on call": "# on call",
        "rule://on%20call": "# on call",
        "rule://規程": "# 規程",
        "rule://%E8%A6%8F%E7%A8%8B": "# 規程",
    }


async def test_a_changed_document_is_served_anew_and_announced_to_subscribers(
    config: Path, workshop: Workshop
) -> None:
    async with stdio(command(config)) as client:
        await client.until_listed("work__echo")
        await client.request("resources/subscribe", {"uri": "rule://commits"})
        file = workshop.folder / "rules" / "commits.md"
        file.write_text(RULE.replace("Say why.", "Say why, in one line."), encoding="utf-8")

        (updated,) = await client.until(lambda client: client.notified("notifications/resources/updated"))
        read = await client.request("resources/read", {"uri": "rule://commits"})

    assert updated == {"uri": "rule://commits"}
    assert "in one line" in read["contents"][0]["text"]


async def test_a_new_file_is_listed_found_and_announced(config: Path, workshop: Workshop) -> None:
    async with stdio(command(config)) as client:
        await client.until_listed("work__echo")
        file = workshop.folder / "rules" / "reviews.md"
        file.write_text("# Code reviews\n\nTwo people read each change.\n", encoding="utf-8")

        listed: list[str] = []
        # The servers that were ready first are announced as well.
        while "rule://reviews" not in listed:
            await client.until(lambda client: client.notified("notifications/resources/list_changed"))
            client.notifications.clear()
            listed = [entry["uri"] for entry in (await client.request("resources/list"))["resources"]]
        found = await client.data(
            "search_available_tools", {"query": "who reviews a code change", "kinds": ["rule"]}
        )

    assert found["results"][0]["uri"] == "rule://reviews"
    assert json.dumps(found)


async def test_the_first_list_has_very_many_documents(workshop: Workshop) -> None:
    """Many hosts list once, and reading may take longer than a host waits for the introduction."""
    folder = workshop.folder / "many"
    folder.mkdir()
    for number in range(2_000):
        (folder / f"{number}.md").write_text(f"# {number}\n\nAll there is to know of it.\n", encoding="utf-8")
    workshop.server("work", tools=[tool("echo")])
    config = workshop.config(
        documents=[{"kind": "reference", "path": "many"}], limits={"first_list_seconds": PATIENCE}
    )
    async with stdio(command(config)) as client:
        entries = (await client.request("resources/list"))["resources"]

    assert sum(entry["uri"].startswith("reference://") for entry in entries) == 2_000


ALWAYS = "---\ninclude: always\npriority: 900\n---\nBe polite to everybody.\n"


@asynccontextmanager
async def connected(config: Path, era: str, front: str) -> AsyncIterator[RawClient]:
    if front == "stdio":
        async with stdio(command(config), era) as client:
            yield client
    else:
        with http_proxy(config) as proxy:
            async with http(proxy.base, era) as client:
                yield client


def text_of(result: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"])


@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_the_rules_of_a_session_are_in_the_instructions_and_in_no_answer(
    config: Path, workshop: Workshop, era: str, front: str
) -> None:
    (workshop.folder / "rules" / "tone.md").write_text(ALWAYS, encoding="utf-8")
    async with connected(config, era, front) as client:
        await client.until_listed("work__echo")
        answer = text_of(await client.call("search_available_tools", {"query": "how are commits worded"}))
        wanted = {"query": "say something", "kinds": ["tool"]}
        found = await client.data("search_available_tools", wanted)
        uri = f"context://requests/{found['request_id']}"
        (content,) = (await client.request("resources/read", {"uri": uri}))["contents"]
        read = text_of(await client.call("read_document", {"name": "rule://tone"}))

    instructions = client.introduction["instructions"]
    delivered = {one["name"]: one["delivered"] for one in json.loads(content["text"])["items"]}
    assert "Rule tone:\n  Be polite to everybody." in instructions
    assert len(instructions.encode()) <= 2048
    assert "rule://commits (rule):" in answer
    assert "Be polite" not in answer
    # Nothing connects modern requests over HTTP, so it is not known what their model was given.
    assert delivered["tone"] == (None if (era, front) == ("modern", "http") else "instructions")
    assert read == "rule://tone:\n\nBe polite to everybody."


@pytest.mark.parametrize(("name", "given"), [("continue-cli-client", True), ("cursor-vscode", False)])
async def test_rules_come_with_the_first_answer_where_a_host_keeps_instructions_from_its_model(
    config: Path, workshop: Workshop, name: str, given: bool
) -> None:
    (workshop.folder / "rules" / "tone.md").write_text(ALWAYS, encoding="utf-8")
    async with stdio(command(config), "handshake", opened=False) as client:
        hello = {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": name, "version": "1"},
        }
        instructions = (await client.request("initialize", hello))["instructions"]
        await client.notify("notifications/initialized")
        await client.until_listed("work__echo")
        answers = [
            text_of(await client.call("search_available_tools", {"query": query}))
            for query in ("say something", "say something else")
        ]
    assert "Be polite to everybody." in instructions
    assert ["Be polite to everybody." in answer for answer in answers] == [given, False]


@pytest.mark.parametrize("front", ["stdio", "http"])
async def test_rules_that_the_instructions_have_no_room_for_come_with_the_first_answer(
    config: Path, workshop: Workshop, era: str, front: str
) -> None:
    long = ALWAYS + "And keep to the style of the house. " * 60
    (workshop.folder / "rules" / "tone.md").write_text(long, encoding="utf-8")
    async with connected(config, era, front) as client:
        await client.until_listed("work__echo")
        first = text_of(await client.call("set_context", {"query": "how are commits worded"}))
        context = {"context_id": first.rpartition(" ")[2]}
        second = text_of(await client.call("search_available_tools", {"query": "say something", **context}))

    instructions = client.introduction["instructions"]
    assert "Be polite" not in instructions
    assert "read_document" in instructions
    assert "rule://tone" in instructions
    assert len(instructions.encode()) <= 2048
    assert "Be polite to everybody." in first
    assert "Be polite" not in second
