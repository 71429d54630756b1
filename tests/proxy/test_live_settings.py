"""A running proxy that follows a changed setting shows the same as one that was started with it."""

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from msgspec import Raw
from support.proxies import inside
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.config import load

pytestmark = pytest.mark.slow

CHANGES: dict[str, dict[str, Any]] = {
    "expose.mode": {"expose": {"mode": "search"}},
    "expose.prefix": {"expose": {"prefix": False}},
    "expose.list_all_below": {"expose": {"list_all_below": 0}},
    "expose.max_name_length": {"expose": {"max_name_length": 16}},
    "search.top_n": {"search": {"top_n": 1, "include_score": 1.0}},
    "search.synonyms": {"search": {"synonyms": {"read": "ring bell"}}},
    "context.max_tokens": {"context": {"max_tokens": 5}},
    "context.expansion_rules": {
        "context": {"expansion_rules": {"files__read_a_file": ["files__ring_a_bell"]}}
    },
    "context.manage_tool": {"context": {"manage_tool": True}},
    "limits.tools": {"limits": {"tools": 2}},
    "limits.description_shown_bytes": {"limits": {"description_shown_bytes": 10}},
    "documents": {"documents": [{"kind": "rule", "path": "rules"}]},
}
SERVER_CHANGES: dict[str, dict[str, Any]] = {
    "include": {"include": "always"},
    "enabled": {"enabled": False},
    "tags": {"tags": ["archive"]},
    "category": {"category": "office"},
    "trusted": {"trusted": True},
    "confirm": {"confirm": "write"},
    "classes": {"classes": {"write": "never"}},
    "tools": {"tools": {"ring_a_bell": {"include": "manual"}}},
    "tools_off": {"tools": {"ring_a_bell": {"enabled": False}}},
    "tools_described": {"tools": {"ring_a_bell": {"description": "Ring it for dinner."}}},
    "tools_use_cases": {"tools": {"ring_a_bell": {"use_cases": ["call everybody to dinner"]}}},
    "allow": {"allow": ["read_*", "write_*"]},
    "deny": {"deny": ["*_file"]},
}


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    workshop = Workshop(tmp_path_factory.mktemp("office"))
    (workshop.folder / "rules").mkdir()
    (workshop.folder / "rules" / "tone.md").write_text("Be kind to everybody.")
    names = [f"{verb}_a_file" for verb in ("read", "write", "open", "close", "copy", "move", "print")]
    names += ["ring_a_bell"]
    workshop.server("files", tools=[tool(name, description=name.replace("_", " ")) for name in names])
    yield workshop
    workshop.close()


@pytest.fixture(scope="module")
async def running(office: Workshop) -> AsyncIterator[Proxy]:
    """A proxy that goes from its own settings to those of each test and back."""
    async with inside(office.config()) as proxy:
        yield proxy


async def shown(proxy: Proxy) -> dict[str, Any]:
    """Everything that hosts see of the settings."""
    await proxy.reindex(rebuild=False)
    snapshot = proxy.catalog.snapshot
    context = await proxy.contexts.build("read a file")
    return {
        "catalog": [(one.exposed_name, one.description, one.include) for one in snapshot.tools.values()],
        "labels": [
            (one.tags, one.category, one.asked_by.split("(")[0], one.trusted, one.use_cases)
            for one in snapshot.tools.values()
        ],
        "documents": [*snapshot.documents],
        "list": list(map(bytes, proxy.tool_list.definitions(snapshot, proxy.tool_list.base_names(snapshot)))),
        "context": [(item.name, item.type) for item in context.items],
        "dropped": [item.name for item in context.dropped],
        "instructions": proxy.instructions(),
    }


@pytest.mark.parametrize("name", [*CHANGES, *(f"servers.files.{name}" for name in SERVER_CHANGES)])
async def test_a_changed_live_setting_takes_effect_as_if_the_proxy_were_started_with_it(
    office: Workshop, running: Proxy, name: str
) -> None:
    before = await shown(running)
    own = office.config()
    own = own.rename(own.with_name("own.toml"))
    settings = dict(office.servers["files"].settings)
    if name in CHANGES:
        config = office.config(**CHANGES[name])
    else:
        office.servers["files"].settings.update(SERVER_CHANGES[name.rpartition(".")[2]])
        config = office.config()
    office.servers["files"].settings = settings
    await running.apply(load(config, environ={}))
    after = await shown(running)
    await running.apply(load(own, environ={}))
    await running.wait_first_connect()
    again = await shown(running)
    async with inside(config) as proxy:
        started = await shown(proxy)

    assert after == started
    assert after != before
    assert again == before


async def test_a_setting_that_needs_a_restart_changes_nothing_before_it(
    office: Workshop, running: Proxy
) -> None:
    own = office.config()
    own = own.rename(own.with_name("own.toml"))
    live = {"expose": {"mode": "search"}}
    config = office.config(**live, rerank={"mode": "auto"}, interactions={"enabled": True})
    await running.apply(load(config, environ={}))
    after = await shown(running)
    await running.apply(load(own, environ={}))
    async with inside(office.config(**live)) as proxy:
        started = await shown(proxy)

    assert after == started


async def test_the_key_of_a_setting_that_waits_for_a_restart_goes_to_no_server(
    office: Workshop, running: Proxy
) -> None:
    own = office.config()
    own = own.rename(own.with_name("own.toml"))
    keys = [f"k3y-of-the-embeddings-{number}" for number in (1, 2)]
    for key in keys:
        embedding = {"endpoint": "http://127.0.0.1:9/", "model": "m", "api_key": key}
        await running.apply(load(office.config(embedding=embedding), environ={}))
    params = [{"arguments": Raw(json.dumps(key).encode())} for key in keys]
    found = [running.fleet.known.in_params("files", one) for one in params]
    await running.apply(load(own, environ={}))

    assert [one and one.name for one in found] == ["embedding.api_key"] * 2
