"""Documents that are bound to a project are for those who have it open; presets outlive a restart."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from support.ledger import until
from support.proxies import Host, inside
from support.raw_client import RpcError
from support.servers import Workshop, tool

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.app.serve import web_routes
from mcp_context_proxy.config import load
from mcp_context_proxy.context.presets import PresetError
from mcp_context_proxy.front.http import LocalApi
from mcp_context_proxy.items import Kind
from mcp_context_proxy.system.threads import assigned
from mcp_context_proxy.trust import ACTING, THE_USER, Principal

QUERY = {"query": "how are commits written"}


def projects(workshop: Workshop) -> dict[str, Path]:
    """Two projects, each with its own file for agents, and a configuration with both."""
    workshop.server("work", tools=[tool("commit", "Record changes in git")])
    folders = {}
    for name in ("red", "blue"):
        folders[name] = workshop.folder / name
        (folders[name] / "src").mkdir(parents=True)
        text = f"# Commits\n\nCommits of the {name} project are written in {name} ink.\n"
        (folders[name] / "AGENTS.md").write_text(text)
    return folders


def bound(folders: dict[str, Path]) -> list[dict[str, Any]]:
    return [{"path": str(one / "AGENTS.md"), "roots": [str(one)]} for one in folders.values()]


def host_in(proxy: Proxy, era: str, roots: list[Path] | None, launched: Path | None = None) -> Host:
    """A host that was started in a folder, or names its roots."""
    rights = proxy.gateway.profiles.started(None, (), None if launched is None else str(launched))
    answers: Any = (
        {}
        if roots is None
        else {
            "roots/list": lambda _params: {
                "roots": [{"uri": "file://["}, *({"uri": root.as_uri()} for root in roots)]
            }
        }
    )
    able = None if roots is None else {"roots": {}}
    return Host(proxy, era, able, answers, rights=rights)


async def seen_by(host: Host) -> str:
    listed = await host.request("resources/list")
    found = await host.call("search_available_tools", QUERY)
    prompt = await host.request("prompts/get", {"name": "with_context", "arguments": QUERY})
    return json.dumps([listed, found, prompt["messages"][:-1]])


async def test_a_project_has_its_own_file_for_agents_and_none_of_another(workshop: Workshop) -> None:
    folders = projects(workshop)
    async with inside(workshop.config(documents=bound(folders))) as proxy:
        red = await seen_by(host_in(proxy, "handshake", [folders["red"]]))
        below = await seen_by(host_in(proxy, "handshake", None, folders["red"] / "src"))
        modern = await seen_by(host_in(proxy, "modern", None, folders["blue"]))
        # Roots say more than the folder in which the host was started.
        moved = await seen_by(host_in(proxy, "handshake", [folders["blue"]], folders["red"]))
        both = await seen_by(host_in(proxy, "handshake", list(folders.values())))
        nowhere = await seen_by(host_in(proxy, "handshake", None, workshop.folder))
        document = next(one for one in proxy.catalog.whole.snapshot.documents.values() if "red" in one.text)
        with pytest.raises(RpcError):
            await host_in(proxy, "modern", None, folders["blue"]).request(
                "resources/read", {"uri": document.uri}
            )

    for text, words in ((red, "red"), (below, "red"), (modern, "blue"), (moved, "blue")):
        other = "blue" if words == "red" else "red"
        assert f"{words} ink" in text
        assert f"{other} ink" not in text
    assert "red ink" in both
    assert "blue ink" in both
    assert " ink" not in nowhere


async def test_a_client_that_changes_its_roots_is_asked_again_and_told_to_list_again(
    workshop: Workshop,
) -> None:
    folders = projects(workshop)
    async with inside(workshop.config(documents=bound(folders))) as proxy:
        host = host_in(proxy, "handshake", [folders["red"]])
        before = await seen_by(host)
        host.answers["roots/list"] = lambda _params: {"roots": [{"uri": folders["blue"].as_uri()}]}
        assert host.session is not None
        host.told.clear()
        await proxy.gateway.notified("notifications/roots/list_changed", host.session)
        await until(lambda: ("notifications/resources/list_changed", {}) in host.told)
        after = await seen_by(host)

    assert "red ink" in before
    assert "blue ink" in after
    assert "red ink" not in after


async def test_the_hook_has_the_documents_of_its_folder(workshop: Workshop) -> None:
    folders = projects(workshop)
    async with inside(workshop.config(documents=bound(folders))) as proxy:
        profiles = proxy.gateway.profiles
        rights = profiles.of_prompt("claude-code", str(folders["red"] / "src"))

    assert rights.projects == (str(folders["red"]),)


@pytest.mark.parametrize("name", ["AGENTS/Commits", "reference://AGENTS%2FCommits", "agents/commits"])
async def test_a_document_that_one_visible_name_ends_with_is_read(workshop: Workshop, name: str) -> None:
    folders = projects(workshop)
    async with inside(workshop.config(documents=bound(folders))) as proxy:
        read = [
            await host_in(proxy, "handshake", roots).call("read_document", {"name": name})
            for roots in ([folders["red"]], list(folders.values()))
        ]
    one, several = (result["content"][0]["text"] for result in read)

    assert "red ink" in one
    assert " ink" not in several
    assert "red%2FAGENTS" in several
    assert "blue%2FAGENTS" in several


async def test_a_text_for_a_prompt_has_the_documents_of_its_folder(workshop: Workshop) -> None:
    folders = projects(workshop)
    async with inside(workshop.config(documents=bound(folders))) as proxy:
        api = LocalApi(web_routes(proxy), proxy.health, proxy.config.limits)
        transport = httpx2.ASGITransport(app=api.app)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost/api/v1") as client:
            texts = [
                (await client.post("/context/text", json=QUERY | {"folder": folder})).json()["text"]
                for folder in (str(folders["red"] / "src"), str(workshop.folder), None)
            ]

    assert ["red ink" in text for text in texts] == [True, False, True]
    assert ["blue ink" in text for text in texts] == [False, False, True]


def test_a_path_from_the_launch_folder_needs_no_file(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = projects(workshop)
    config = workshop.config(documents=[{"path": "AGENTS.md", "cwd": "launch"}])
    for folder in (folders["red"], folders["red"] / "src"):
        monkeypatch.chdir(folder)
        loaded = load(config, environ={})
        assert loaded.documents[0].path == folder / "AGENTS.md"
        assert not loaded.mistakes


async def test_a_preset_outlives_the_proxy_and_begins_other_sessions(workshop: Workshop, era: str) -> None:
    workshop.server(
        "work", tools=[tool("commit"), tool("wipe")], settings={"tools": {"wipe": {"include": "manual"}}}
    )
    config = workshop.config(
        store={"path": str(workshop.folder / "store.db")},
        clients={"reviewer": {"client": ["review*"], "presets": ["reviews"]}},
        expose={"list_all_below": 0},
    )
    async with inside(config) as proxy:
        person = Host(proxy, "handshake")
        assert person.session is not None
        proxy.contexts.add(person.session, Kind.TOOL, "work__wipe")
        proxy.contexts.add(person.session, Kind.TOOL, "work__commit", by_model=True)
        proxy.contexts.presets.save("reviews", proxy.contexts.presets.choices_of(person.session))
    async with inside(config) as proxy:
        named = proxy.gateway.profiles.started(None, ("reviews", "aggressive", "lost"), None)
        begun = Host(proxy, "handshake", rights=named).session
        assert begun is not None
        assert (await proxy.contexts.state(begun)).presets == ("reviews", "aggressive")
        by_option = Host(proxy, era, rights=named)
        by_profile = Host(proxy, era, rights=proxy.gateway.profiles.named(THE_USER, "reviewer"))
        for host in (by_option, by_profile):
            await host.call("search_available_tools", {"query": "anything"})
            record = next(proxy.records.recent())
            assert "work__wipe" in {one.name for one in record.items if one.include_mode == "manual"}
            assert "work__commit" not in {one.name for one in record.items if one.include_mode == "manual"}
        plain = Host(proxy, era)
        await plain.call("search_available_tools", {"query": "anything"})

        assert "work__wipe" not in {one.name for one in next(proxy.records.recent()).items}
        first = await proxy.records.latest_of(None, 2)
        assert {one.options.tools.top_n for one in first} == {3, 5}


async def test_a_list_has_what_a_preset_adds_and_lacks_what_it_removes(workshop: Workshop, era: str) -> None:
    switches = {"wipe": {"include": "manual"}, "push": {"include": "always"}}
    workshop.server("work", tools=[tool("commit"), *map(tool, switches)], settings={"tools": switches})
    config = workshop.config(
        clients={"reviewer": {"client": ["review*"], "presets": ["reviews"]}}, expose={"mode": "search"}
    )
    async with inside(config) as proxy:
        person = Host(proxy, "handshake").session
        assert person is not None
        proxy.contexts.add(person, Kind.TOOL, "work__wipe")
        proxy.contexts.remove(person, Kind.TOOL, "work__push")
        proxy.contexts.presets.save("reviews", proxy.contexts.presets.choices_of(person))
        by_option = Host(proxy, era, rights=proxy.gateway.profiles.started(None, ("reviews",), None))
        by_profile = Host(proxy, era, rights=proxy.gateway.profiles.named(THE_USER, "reviewer"))
        listed = [
            {name for name in await host.names() if name.startswith("work__")}
            for host in (by_option, by_profile, Host(proxy, era))
        ]

    assert listed == [{"work__wipe"}, {"work__wipe"}, {"work__push"}]


async def test_a_session_is_not_introduced_to_a_rule_that_its_preset_removes(workshop: Workshop) -> None:
    workshop.server("work", tools=[tool("commit")])
    folder = workshop.folder / "rules"
    folder.mkdir()
    for name in ("tone", "commits"):
        (folder / f"{name}.md").write_text(f"---\ninclude: always\n---\nThe rule of {name}.\n", "utf-8")
    async with inside(workshop.config(documents=[{"kind": "rule", "path": str(folder)}])) as proxy:
        person = Host(proxy, "handshake").session
        assert person is not None
        proxy.contexts.remove(person, Kind.RULE, "tone")
        proxy.contexts.presets.save("quiet", proxy.contexts.presets.choices_of(person))
        with assigned(ACTING, proxy.gateway.profiles.started(None, ("quiet",), None)):
            text = proxy.instructions()

    assert "The rule of commits." in text
    assert "The rule of tone." not in text


@pytest.mark.parametrize("name", ["", "conservative", "a b", "x" * 33])
async def test_a_preset_has_a_plain_name_of_its_own(workshop: Workshop, name: str) -> None:
    async with inside(workshop.config()) as proxy:
        presets, session = proxy.contexts.presets, Host(proxy, "handshake").session
        assert session is not None
        with pytest.raises(PresetError, match="cannot be named"):
            presets.save(name, presets.choices_of(session))


def test_principals_differ_by_what_they_see_alone() -> None:
    assert Principal("a", launched="/x", presets=("y",)) == Principal("a")
