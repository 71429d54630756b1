"""A fingerprint changes with every difference between definitions, and with nothing else."""

import json
from pathlib import Path
from random import Random
from typing import Any

import anyio
from hypothesis import given
from hypothesis import strategies as st
from support.ledger import until
from support.listings import approve_in
from support.proxies import Host, inside
from support.servers import Workshop, tool
from support.tables import each

from mcp_context_proxy.catalog.definitions import fingerprint
from mcp_context_proxy.downstream.lifecycle import ServerState

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


async def test_every_part_of_a_definition_and_its_server_change_the_fingerprint(tmp_path: Path) -> None:
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


async def test_the_order_and_pages_of_a_list_do_not_change_fingerprints(tmp_path: Path) -> None:
    tools = [tool(f"tool_{number}", f"Do {number}") for number in range(7)]
    one = await fingerprints(tmp_path / "one", "s", tools)
    other = await fingerprints(tmp_path / "other", "s", tools[::-1], page_size=3)

    assert one == other


def shuffled(value: Any, chance: Random) -> Any:
    """The same value, with the members of every object in another order."""
    if isinstance(value, list):
        return [shuffled(item, chance) for item in value]
    if isinstance(value, dict):
        members = [(name, shuffled(item, chance)) for name, item in value.items()]
        chance.shuffle(members)
        return dict(members)
    return value


def reversed_members(value: Any) -> Any:
    if isinstance(value, list):
        return [reversed_members(item) for item in value]
    if isinstance(value, dict):
        return {name: reversed_members(item) for name, item in reversed(value.items())}
    return value


numbers = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
texts = st.text(st.characters(codec="utf-8") | st.sampled_from(':{}[],"\\\u003a'))
objects = st.dictionaries(
    texts,
    st.recursive(
        st.none() | st.booleans() | numbers | texts,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=8,
    ),
)


@given(objects, st.randoms(use_true_random=False), st.booleans(), st.sampled_from([None, 1, "\t"]))
def test_key_order_and_white_space_do_not_change_the_fingerprint(
    value: dict[str, Any], chance: Random, ascii_only: bool, indent: int | str | None
) -> None:
    plain = json.dumps(value, ensure_ascii=False).encode()
    other = json.dumps(shuffled(value, chance), ensure_ascii=ascii_only, indent=indent).encode()

    assert fingerprint("s", plain) == fingerprint("s", other)


@given(objects, objects)
def test_objects_that_differ_have_different_fingerprints(one: dict[str, Any], other: dict[str, Any]) -> None:
    alike = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)

    assert (
        fingerprint("s", json.dumps(one).encode()) == fingerprint("s", json.dumps(other).encode())
    ) == alike


@each(
    ("one", "other"),
    [
        (b'{"name":"a","name":"b"}', b'{"name":"c","name":"b"}'),
        (b'{"name":"a","name":"b"}', b'{"name":"b"}'),
        (b'{"name":"a","name":"b:"}', rb'{"name":"b\u003a"}'),
        (b'{"name":"a","a":1e400}', b'{"name":"a","a":1e401}'),
        (b'{"name":"a","a":18446744073709551617}', b'{"name":"a","a":18446744073709551616}'),
        (b'{"name":"a","a":1}', b'{"name":"a","a":true}'),
        (b'{"name":"a","a":null}', b'{"name":"a"}'),
    ],
)
def test_duplicate_keys_and_number_formats_change_the_fingerprint(one: bytes, other: bytes) -> None:
    assert fingerprint("s", one) != fingerprint("s", other)


async def test_a_reordered_list_is_no_change_and_a_changed_entry_is_one(workshop: Workshop) -> None:
    tools = [tool("say", "Say it", annotations={"readOnlyHint": True, "title": "Say"}), tool("stay")]
    prompts = [{"name": "greet", "description": "Greet", "arguments": [{"name": "whom", "required": True}]}]
    resources = [{"uri": "note://1", "name": "one", "mimeType": "text/plain"}]
    first = {"tools": tools, "prompts": prompts, "resources": resources}
    second = first | {"tools": [tools[0] | {"title": "Say!"}, tools[1]]}
    calls = {"say": [{"set": reversed_members(first)}], "stay": [{"set": second}]}
    server = workshop.server("s", calls=calls, **first)
    async with inside(workshop.config()) as proxy:
        client, host = proxy.fleet.clients["s"], Host(proxy, "handshake")
        await until(lambda: client.state is ServerState.READY)
        before = proxy.catalog.refresh()
        listed = await host.raw("tools/list")
        await host.call("s__say")
        await until(lambda: client.listing.tools[0].startswith(b'{"annotations"'))
        await until(lambda: client.listing.prompts[0].startswith(b'{"arguments"'))
        await until(lambda: client.listing.resources[0].startswith(b'{"mimeType"'))

        assert proxy.catalog.refresh() is before
        assert await host.raw("tools/list") == listed
        await host.call("s__stay")
        await until(lambda: b"Say!" in client.listing.tools[0])

        assert proxy.catalog.refresh() is not before
        # It changed while the server runs, so that it waits for a person.
        assert "s__say" not in await host.names()
        approve_in(proxy, "s")
        assert "Say!" in await host.raw("tools/list")
    assert len(server.ledger.messages("tools/list")) == 3
