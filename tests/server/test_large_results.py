"""A result that is too large for a model is shortened, and its session can read every byte of it."""

import contextlib
import json
import os
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from support.host_models import model_sees
from support.proxies import Host, host_of, inside
from support.raw_client import text_of
from support.servers import Workshop, tool

from mcp_context_proxy.config.host_profiles import HOSTS, HostProfile
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.results.result_store import (
    RESULTS_KEPT,
    RESULTS_KEPT_PER_SESSION,
    KeptResults,
    KeptText,
    new_id,
)
from mcp_context_proxy.system.threads import assigned
from mcp_context_proxy.trust import ACTING, Principal, Role

OWN = "io.github.mcp-context-proxy/"
LOG = "\n".join(
    f"line {number}: request {number * 7919 % 1000} took {number % 91} ms" for number in range(5000)
)
ISSUES = [
    {"id": number, "title": f"Issue {number}", "body": "It breaks. " * 40, "user": {"login": f"u{number}"}}
    for number in range(400)
]
IMAGE = {"type": "image", "data": "A" * 200_000, "mimeType": "image/png"}
LINK = {"type": "resource_link", "uri": "note://1", "name": "one"}


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def results(workshop: Workshop, settings: dict[str, Any] | None = None, **given: dict[str, Any]) -> None:
    """A server whose tools have these results."""
    calls = {name: [{"result": result}] for name, result in given.items()}
    tools = [tool(name) for name in given]
    workshop.server("work", tools=tools, calls=calls, settings=settings or {})


def note(result: dict[str, Any]) -> str:
    said: str = result["content"][-1]["text"]
    return said


def id_in(result: dict[str, Any]) -> str:
    return note(result).split('id="')[1].split('"')[0]


async def read(host: Host, result_id: str, **wanted: Any) -> tuple[str, str]:
    """The text of a page, and the note under it."""
    answer = await host.call("read_result", {"id": result_id, **wanted})
    assert not answer.get("isError"), answer
    return answer["content"][0]["text"], answer["content"][1]["text"]


async def pages(host: Host, result_id: str, **wanted: Any) -> AsyncIterator[str]:
    number, following = 1, True
    while following:
        page, under = await read(host, result_id, page=number, **wanted)
        assert len(page) + len(under) <= 20_000
        yield page
        following, number = "The next is" in under, number + 1


async def whole(host: Host, result_id: str, **wanted: Any) -> str:
    return "".join([page async for page in pages(host, result_id, **wanted)])


async def test_a_long_text_is_shortened_at_line_ends_and_every_byte_can_be_read(
    workshop: Workshop, era: str
) -> None:
    results(workshop, log={"content": [text(LOG)]})
    async with host_of(workshop.config(), era) as host:
        shown = await host.call("work__log")
        read_again = await whole(host, id_in(shown))

    first, last = shown["content"]
    lines = first["text"].split("\n")
    assert set(lines) - set(LOG.split("\n")) == {line for line in lines if "left out here" in line}
    assert (lines[0], lines[-1]) == (LOG.split("\n")[0], LOG.split("\n")[-1])
    assert len(json.dumps(shown["content"])) < len(LOG) / 10
    assert "5,000 lines" in last["text"]
    assert f"{len(LOG):,} bytes" in last["text"]
    assert read_again == LOG


async def test_a_long_list_of_json_is_shortened_to_whole_elements_and_its_shape(workshop: Workshop) -> None:
    results(workshop, issues={"content": [text(json.dumps(ISSUES))]})
    async with inside(workshop.config()) as proxy:
        shown = await Host(proxy, "handshake").call("work__issues")

    said, _, shape = shown["content"][0]["text"].partition("\n\n")
    *elements, more = json.loads(said)
    assert elements == ISSUES[: len(elements)] != []
    assert more == f"... {400 - len(elements)} more elements"
    assert "array of 400 {id: number, title: string, body: string, user: {login: string}}" in shape


async def test_parts_of_json_are_read_by_a_path(workshop: Workshop) -> None:
    results(workshop, issues={"content": [text(json.dumps({"items": ISSUES}))]})
    async with host_of(workshop.config(), "handshake") as host:
        result_id = id_in(await host.call("work__issues"))
        one, _ = await read(host, result_id, path="items[7].user.login")
        titles, under = await read(host, result_id, path="$.items[*].title")
        fields, _ = await read(host, result_id, path="items[2:4][id,title]")
        wrong = await host.call("read_result", {"id": result_id, "path": "items[0].author"})

    assert one == "u7"
    assert [json.loads(line) for line in titles.split("\n")] == [issue["title"] for issue in ISSUES]
    assert under == "[400 lines; this is all]"
    assert [json.loads(line) for line in fields.split("\n")] == [
        {"id": number, "title": f"Issue {number}"} for number in (2, 3)
    ]
    assert wrong["isError"]
    assert "no member 'author'" in wrong["content"][0]["text"]
    assert "user: {login: string}" in wrong["content"][0]["text"]


async def test_lines_that_match_a_pattern_are_found_with_numbers_and_what_surrounds_them(
    workshop: Workshop,
) -> None:
    results(workshop, log={"content": [text(LOG)]})
    async with host_of(workshop.config(), "handshake") as host:
        result_id = id_in(await host.call("work__log"))
        found, under = await read(host, result_id, pattern="LINE 4321:")
        none = await host.call("read_result", {"id": result_id, "pattern": "line [0-9]"})
        _, many = await read(host, result_id, pattern="line 1*:")

    lines = LOG.split("\n")
    expected = [f"{at + 1}{':' if at == 4321 else '-'} {lines[at]}" for at in range(4319, 4324)]
    assert found.split("\n") == expected
    assert under == "[1 place matches; this is all]"
    assert none["isError"]
    assert (
        "* stands for anything in a line, | for or, and nothing else is special" in none["content"][0]["text"]
    )
    # Each line has its number in the whole; the page says how many places there are instead.
    assert "match, of which the first 1,000 are shown. The next is page=2]" in many
    assert "lines" not in many


async def test_images_links_and_the_mark_of_an_error_stay_as_they_are(workshop: Workshop, era: str) -> None:
    content = [IMAGE, text(LOG), LINK]
    results(
        workshop, fail={"content": content, "isError": True, "_meta": {"x": 1}}, draw={"content": [IMAGE]}
    )
    async with host_of(workshop.config(), era) as host:
        failed, drawn = await host.call("work__fail"), await host.call("work__draw")

    assert failed["isError"] is True
    assert failed["_meta"]["x"] == 1
    assert [failed["content"][0], failed["content"][2]] == [IMAGE, LINK]
    assert len(failed["content"][1]["text"]) < len(LOG) / 10
    assert drawn["content"] == [IMAGE]


async def test_the_text_of_an_embedded_resource_is_shortened_in_its_place(workshop: Workshop) -> None:
    resource = {"uri": "file:///log", "mimeType": "text/plain", "text": LOG}
    results(workshop, log={"content": [{"type": "resource", "resource": resource}]})
    async with host_of(workshop.config(), "handshake") as host:
        shown = await host.call("work__log")
        again = await whole(host, id_in(shown))

    inside_it = shown["content"][0]["resource"]
    assert {**inside_it, "text": ""} == {**resource, "text": ""}
    assert len(inside_it["text"]) < len(LOG) / 10
    assert again == LOG


@pytest.mark.parametrize(
    ("settings", "meta", "told"),
    [
        ({"results": {"max_tokens": 0}}, {}, {}),
        ({}, {OWN + "whole": True}, {}),
        ({}, {}, {"anthropic/maxResultSizeChars": 400_000}),
    ],
    ids=["the server is exempt", "the caller asks for everything", "the tool states a limit"],
)
async def test_a_long_result_stays_whole_where_that_is_asked_for(
    workshop: Workshop, era: str, settings: dict[str, Any], meta: dict[str, Any], told: dict[str, Any]
) -> None:
    calls = {"log": [{"result": {"content": [text(LOG)]}}]}
    workshop.server("work", tools=[tool("log", _meta=told)], calls=calls, settings=settings)
    async with inside(workshop.config()) as proxy:
        shown = await Host(proxy, era).call("work__log", **meta)

    assert shown["content"] == [text(LOG)]


async def test_a_tool_may_state_a_smaller_limit_than_the_general_one(workshop: Workshop) -> None:
    said = LOG[:30_000]
    calls = {"log": [{"result": {"content": [text(said)]}}]}
    tools = [tool("log", _meta={"anthropic/maxResultSizeChars": 20_000})]
    workshop.server("work", tools=tools, calls=calls)
    async with host_of(workshop.config(), "handshake") as host:
        assert await whole(host, id_in(await host.call("work__log"))) == said


LIMITED = [host for host in HOSTS.values() if host.results.value and host.clients.value]


@pytest.mark.parametrize("host", LIMITED, ids=lambda host: host.name)
@pytest.mark.parametrize("spotlight", [False, True], ids=["plain", "spotlight"])
async def test_no_result_or_page_is_longer_than_what_the_host_gives_to_its_model(
    workshop: Workshop, host: HostProfile, spotlight: bool
) -> None:
    limit = host.results.value
    assert limit is not None
    long = LOG * (limit.characters // len(LOG) + 1)
    data = {"items": ISSUES * (limit.characters // len(json.dumps(ISSUES)) + 1)}
    results(
        workshop,
        {"spotlight": spotlight},
        log={"content": [text(long)]},
        both={"content": [text(long)], "structuredContent": data},
        fits={"content": [text(LOG[: min(35_000, limit.characters * 8 // 10)])]},
    )
    async with host_of(workshop.config(), "handshake") as client:
        client.client_info = envelope.raw({"name": host.clients.value[0], "version": "1"})
        shown = {name: await client.call(f"work__{name}") for name in ("log", "both", "fits")}
        page = await client.call("read_result", {"id": id_in(shown["log"])})

    for result in (shown["log"], shown["both"]):
        assert "Nothing is lost" in model_sees(host, result)
    assert "The next is page=2" in model_sees(host, page)
    assert "read_result" not in json.dumps(shown["fits"])


async def test_results_are_shortened_and_read_through_call_tool_as_well(workshop: Workshop, era: str) -> None:
    results(workshop, log={"content": [text(LOG)]})
    async with host_of(workshop.config(), era) as host:
        shown = await host.call("call_tool", {"name": "work__log"})
        arguments = {"id": id_in(shown), "pattern": "line 77:"}
        found = await host.call("call_tool", {"name": "read_result", "arguments": arguments})

    assert "78: line 77:" in found["content"][0]["text"]


async def test_read_result_is_listed_once_something_was_shortened_for_the_session(
    workshop: Workshop, era: str
) -> None:
    results(workshop, log={"content": [text(LOG)]})
    async with inside(workshop.config()) as proxy:
        host, other = Host(proxy, era, principal="a"), Host(proxy, era, principal="b")
        before = await host.names()
        await host.call("work__log")
        after, of_other = await host.names(), await other.names()

    assert "read_result" not in before
    assert after == [*before, "read_result"]
    assert of_other == before


async def test_the_result_of_another_session_is_unknown(workshop: Workshop, era: str) -> None:
    results(workshop, log={"content": [text(LOG)]})
    async with inside(workshop.config()) as proxy:
        host, other = Host(proxy, era, principal="a"), Host(proxy, era, principal="b")
        result_id = id_in(await host.call("work__log"))
        refused = await other.call("read_result", {"id": result_id})
        invented = await other.call("read_result", {"id": "x"})

    assert refused["isError"]
    assert refused["content"] == invented["content"]


async def test_a_model_that_has_forgotten_an_id_is_told_those_of_its_session_and_no_others(
    workshop: Workshop, era: str
) -> None:
    results(workshop, log={"content": [text(LOG)]})
    async with inside(workshop.config()) as proxy:
        host, other = Host(proxy, era), Host(proxy, era)
        ids = [id_in(await one.call("work__log")) for one in (host, host, other)]
        told = text_of(await host.call("read_result", {"id": "the log"}))

    # In the modern era nothing but the id tells the one from the other.
    assert [one in told for one in ids] == [era == "handshake"] * 2 + [False]
    assert (f"latest first: {ids[1]} ({len(LOG):,} bytes of work), {ids[0]}" in told) == (era == "handshake")


async def test_results_are_forgotten_with_their_session(workshop: Workshop) -> None:
    results(workshop, log={"content": [text(LOG)]})
    async with inside(workshop.config()) as proxy:
        host = Host(proxy, "handshake")
        result_id = id_in(await host.call("work__log"))
        assert host.session is not None
        host.leave()

        assert not proxy.results.kept.owns(host.session.id)
        assert (await host.call("read_result", {"id": result_id}))["isError"]


def open_files(size: int) -> list[os.stat_result]:
    """The open files of this process that have a size."""
    found = []
    for number in range(1024):
        with contextlib.suppress(OSError):
            found.append(os.fstat(number))
    return [status for status in found if status.st_size == size]


def files_in(folder: Path) -> set[str]:
    """The names of all files but those of the audit, which begins with the first call."""
    return {path.name for path in folder.iterdir() if not path.name.startswith((".audit", "audit"))}


async def test_what_does_not_fit_in_memory_is_in_files_without_a_name_that_only_the_user_can_read(
    workshop: Workshop,
) -> None:
    large = "\n".join(f"{number} " + "x" * 99 for number in range(100_000))
    results(workshop, log={"content": [text(large)]})
    folder = workshop.folder / "data"
    folder.mkdir()
    async with host_of(workshop.config(store={"path": str(folder / "store.sqlite3")}), "handshake") as host:
        before = files_in(folder)
        ids = [id_in(await host.call("work__log")) for _ in range(3)]
        nameless = open_files(len(large))
        assert {stat.S_IMODE(status.st_mode) for status in nameless} == {0o600}
        assert {status.st_nlink for status in nameless} == {0}
        assert files_in(folder) == before
        found = [await read(host, each, path=None, page=500) for each in ids]

    assert len({page for page, _ in found}) == 1
    assert found[0][0] in large


async def test_a_result_that_cannot_be_kept_is_not_shortened(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    large = "secret line\n" * 1_500_000
    results(workshop, log={"content": [text(large)]})
    # In memory only, and larger than what is kept there.
    async with inside(workshop.config(limits={"message_bytes": 1 << 25})) as proxy:
        shown = await Host(proxy, "handshake").call("work__log")

    assert shown["content"] == [text(large)]
    assert "a result of tool 'log' of server 'work' was not shortened" in caplog.text
    assert "secret line" not in caplog.text


async def test_results_are_kept_for_a_while_and_in_a_bounded_number() -> None:
    now = 0.0
    kept = KeptResults(None, 10.0, lambda: now)
    for number in range(RESULTS_KEPT_PER_SESSION + 1):
        await kept.put("one", f"a{number}", KeptText(b"x", "work"))
    await kept.put("two", "b", KeptText(b"x", "work"))

    assert await kept.get("one", "a0") is None
    assert await kept.get("one", "a1") is not None
    now = 9.0
    assert await kept.get("one", "a2") is not None
    now = 11.0
    assert await kept.get("two", "b") is None
    assert await kept.get("one", "a3") is not None


async def test_nobody_loses_kept_results_for_those_of_another() -> None:
    kept = KeptResults(None, 10.0, lambda: 0.0)
    with assigned(ACTING, Principal("ben", Role.USE)):
        await kept.put("bens", "b", KeptText(b"x", "work"))
    with assigned(ACTING, Principal("anna", Role.USE)):
        for number in range(2 * RESULTS_KEPT):
            await kept.put(f"session {number}", f"a{number}", KeptText(b"x" * 1000, "work"))

    assert await kept.get("bens", "b") is not None
    assert await kept.get("session 0", "a0") is None
    assert len(kept.all()) == RESULTS_KEPT


async def test_a_team_of_200_people_finds_the_latest_result_of_each(tmp_path: Path) -> None:
    kept, text = KeptResults(tmp_path / "results", 10.0, lambda: 0.0), KeptText(b"x" * 200_000, "work")
    people = [Principal(f"person{number}", Role.USE) for number in range(200)]
    for _ in range(2):
        for person in people:
            with assigned(ACTING, person):
                await kept.put(str(person.name), new_id(), text)

    latest = dict(reversed(kept.all()))
    assert len(latest) == 200
    assert [await kept.get(*each) for each in latest.items()] == [text] * 200
    kept.close()


async def test_many_results_at_once_are_kept_in_the_same_bounded_number(
    tmp_path: Path,
) -> None:
    kept = KeptResults(tmp_path / "results", 10.0, lambda: 0.0)
    text = b"x" * (1 << 18)

    async def keep(number: int) -> None:
        await kept.put(f"session {number}", f"a{number}", KeptText(text, "work"))

    async with anyio.create_task_group() as group:
        for number in range(2 * RESULTS_KEPT):
            group.start_soon(keep, number)

    assert len(kept.all()) == RESULTS_KEPT
    assert len(open_files(len(text))) <= RESULTS_KEPT
    assert [await kept.get(*each) for each in kept.all()] == [KeptText(text, "work")] * RESULTS_KEPT
    kept.close()


async def test_the_result_of_a_session_that_ends_while_it_is_written_is_forgotten(tmp_path: Path) -> None:
    kept = KeptResults(tmp_path / "results", 10.0, lambda: 0.0)
    async with anyio.create_task_group() as group:
        group.start_soon(kept.put, "one", "a", KeptText(b"x" * (17 << 20), "work"))
        await anyio.wait_all_tasks_blocked()
        kept.forget("one")

    assert not kept.owns("one")
    assert not open_files(17 << 20)


async def test_an_untrusted_text_is_marked_also_where_it_is_shortened_and_read(workshop: Workshop) -> None:
    results(workshop, {"spotlight": True}, log={"content": [text(LOG)]})
    async with host_of(workshop.config(), "handshake") as host:
        shown = await host.call("work__log")
        page, under = await read(host, id_in(shown))

    assert shown["content"][0]["text"].startswith("\u27e6untrusted data from work")
    assert page.startswith("\u27e6untrusted data from work")
    assert "\u27e6" not in note(shown) + under


DECLARED = {"type": "object", "properties": {"items": {"type": "array", "items": {"type": "object"}}}}


def declared(workshop: Workshop, schema: dict[str, Any], result: dict[str, Any]) -> None:
    workshop.server(
        "work", tools=[tool("issues", outputSchema=schema)], calls={"issues": [{"result": result}]}
    )


async def test_structured_content_that_a_client_checks_is_shortened_within_its_schema(
    workshop: Workshop, era: str
) -> None:
    data = {"items": ISSUES, "total": 400}
    declared(workshop, DECLARED, {"content": [text(json.dumps(data))], "structuredContent": data})
    async with host_of(workshop.config(), era) as host:
        shown = await host.call("work__issues")
        again = await whole(host, id_in(shown))
        through = await host.call("call_tool", {"name": "work__issues"})

    structured = shown["structuredContent"]
    assert structured["items"] == ISSUES[: len(structured["items"])] != []
    assert structured["total"] == 400
    assert id_in(shown) in structured["shortened"]
    assert len(json.dumps(structured)) < len(json.dumps(data)) / 10
    assert json.loads(again) == data
    assert "structuredContent" not in through


@pytest.mark.parametrize(
    "more", [{"additionalProperties": False}, {"minProperties": 2}], ids=["no further member", "a minimum"]
)
async def test_structured_content_stays_whole_where_its_schema_may_refuse_less(
    workshop: Workshop, more: dict[str, Any]
) -> None:
    data = {"items": ISSUES}
    declared(workshop, DECLARED | more, {"content": [text("400 issues")], "structuredContent": data})
    async with host_of(workshop.config(), "handshake") as host:
        shown = await host.call("work__issues")
        through = await host.call("call_tool", {"name": "work__issues"})
        again = await whole(host, id_in(through))

    assert shown["structuredContent"] == data
    assert shown["content"] == [text("400 issues")]
    assert through["content"][0] == text("400 issues")
    assert json.loads(again) == data


async def test_a_client_that_passes_on_text_and_data_gets_one_of_two_equal_forms(
    workshop: Workshop, era: str
) -> None:
    data = {"id": 7, "title": "Größe"}
    same = {"content": [text(json.dumps(data, indent=2))], "structuredContent": data}
    other = {"content": [text('{"id": 8}')], "structuredContent": data}
    results(workshop, same=same, other=other)
    async with inside(workshop.config()) as proxy:
        plain, both = Host(proxy, era), Host(proxy, era)
        both.client_info = envelope.raw({"name": "copilot-cli", "version": "1"})
        once, whole_, different = [
            await host.call(name)
            for host, name in ((both, "work__same"), (plain, "work__same"), (both, "work__other"))
        ]

    assert once["content"] == same["content"]
    assert "structuredContent" not in once
    assert whole_["structuredContent"] == different["structuredContent"] == data


async def test_a_text_that_is_the_only_member_of_the_structured_content_is_sent_once(
    workshop: Workshop,
) -> None:
    results(
        workshop,
        file={"content": [text("short")], "structuredContent": {"content": "short"}},
        other={"content": [text("short")], "structuredContent": {"content": "short", "lines": 1}},
    )
    async with host_of(workshop.config(), "handshake") as host:
        host.client_info = envelope.raw({"name": "copilot-cli", "version": "1"})
        file, other = await host.call("work__file"), await host.call("work__other")

    assert file["content"] == [text("short")]
    assert "structuredContent" not in file
    assert other["structuredContent"] == {"content": "short", "lines": 1}


@pytest.mark.parametrize(("wanted", "once"), [("drop", True), ("keep", False)])
async def test_the_configuration_says_whether_both_forms_are_sent(
    workshop: Workshop, wanted: str, once: bool
) -> None:
    data = {"items": ISSUES[:2]}
    declared(workshop, DECLARED, {"content": [text(json.dumps(data))], "structuredContent": data})
    async with host_of(workshop.config(results={"duplicates": wanted}), "handshake") as host:
        host.client_info = envelope.raw({"name": "copilot-cli", "version": "1"})
        shown = await host.call("work__issues")

    assert shown["structuredContent"] == data
    assert (shown["content"][0]["text"] != json.dumps(data)) is once


async def test_statistics_count_the_size_that_a_result_had(workshop: Workshop) -> None:
    results(workshop, log={"content": [text(LOG)]})
    async with inside(workshop.config()) as proxy:
        usage = proxy.statistics.usage
        assert usage is not None
        host = Host(proxy, "handshake")
        await host.call("work__log")
        await usage.flush()
        counted = [row.result_bytes for row in proxy.store.statistics.tools()]

    assert counted == [len(json.dumps({"content": [text(LOG)]}, separators=(",", ":")))]
