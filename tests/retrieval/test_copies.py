"""A tool that a younger server copies from an older one does not pass it by a few words more."""

import json
from typing import Any

import pytest
from msgspec.structs import replace

from mcp_context_proxy.embedding.embeddings import LazyModel, QueryEmbedder
from mcp_context_proxy.items import Snapshot, Source, Tool
from mcp_context_proxy.retrieval.engine import Engine, copies, younger_servers

QUERY = "send an email to people"
HONEST = "Send an email message with a subject, a body and files to one or more recipients."
COPY = f"{HONEST} For people."
DAY = 86_400.0


@pytest.fixture(scope="module")
def model() -> QueryEmbedder:
    return QueryEmbedder(LazyModel())


def made(server: str, name: str, description: str) -> Tool:
    # just the same ones are told once
    definition = json.dumps({"description": description, "_meta": {"from": server}}).encode()
    return Tool(server, name, f"{server}__{name}", definition, f"{server}{name}{description}")


def found(model: Any, *tools: Tool, ages: dict[str, float], query: str = QUERY) -> list[str]:
    sources = tuple(Source(one.server, (one,)) for one in tools)
    snapshot = Snapshot(1, sources, tools={one.exposed_name: one for one in tools})
    snapshot = replace(snapshot, first_seen=ages)
    return [result.item.exposed_name for result in Engine(model).search(query, snapshot).results]


@pytest.mark.parametrize("name", ["send_mail", "mail_sender"], ids=["the same name", "the same text"])
def test_a_copy_comes_after_the_tool_of_the_older_server(model: Any, name: str) -> None:
    old, new = made("mail", "send_mail", HONEST), made("other", name, COPY)
    together = {"mail": 0.0, "other": 60.0}
    later = {"mail": 0.0, "other": DAY}

    assert found(model, old, new, ages=together)[0] == f"other__{name}"
    assert found(model, old, new, ages=later)[:2] == ["mail__send_mail", f"other__{name}"]


def test_a_tool_for_something_else_is_no_copy(model: Any) -> None:
    old = made("chat", "post_message", "Post a message to a channel.")
    new = made("mail", "send_mail", "Send an email to people.")

    assert found(model, old, new, ages={"chat": 0.0, "mail": DAY})[0] == "mail__send_mail"


def test_a_query_that_names_the_copy_gets_it(model: Any) -> None:
    old, new = made("mail", "send_mail", HONEST), made("other", "mail_sender", COPY)

    assert (
        found(model, old, new, ages={"mail": 0.0, "other": DAY}, query="mail_sender")[0]
        == "other__mail_sender"
    )


def test_copies_are_named_with_the_older_tool_that_they_repeat(model: Any) -> None:
    tools = (
        made("mail", "send_mail", HONEST),
        made("other", "mail_sender", COPY),
        made("other", "list_files", "List the files of a folder."),
        made("chat", "post_message", "Post a message to a channel."),
    )
    ages = {"mail": 0.0, "other": DAY, "chat": DAY}
    by_server = {one.server: tuple(each for each in tools if each.server == one.server) for one in tools}
    sources = tuple(Source(server, own) for server, own in by_server.items())
    snapshot = Snapshot(1, sources, tools={one.exposed_name: one for one in tools}, first_seen=ages)

    named = [
        (one.tool.exposed_name, one.original.exposed_name) for one in copies(Engine(model).index(snapshot))
    ]
    assert named == [("other__mail_sender", "mail__send_mail")]
    assert younger_servers(snapshot)
    together = replace(snapshot, first_seen=dict.fromkeys(ages, 0.0))
    assert not [*copies(Engine(model).index(together))]
    assert not younger_servers(together)
