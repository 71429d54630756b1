"""Messages of servers reach the client in the form of the protocol, even if the server made a mistake."""

from contextlib import AsyncExitStack

import anyio
import pytest
from support.ledger import until
from support.proxies import Host, host_of, inside
from support.questions import as_shown
from support.raw_client import RpcError, text_of
from support.servers import Workshop, tool
from support.skills import entry, manifest_file

from mcp_context_proxy.server.resources import RESOURCES_COMPARED

URI = "note://work/1"
RESOURCES = [{"uri": URI, "name": "one"}]


async def test_decreasing_progress_is_left_out_but_still_extends_the_timeout(
    workshop: Workshop, era: str
) -> None:
    calls = {"report": [{"progress": [1, 3, 2, 3, "4", 4.5]}]}
    workshop.server("work", tools=[tool("report")], calls=calls)
    async with host_of(workshop.config(), era) as host:
        await host.call("work__report", progressToken="mine")

    assert [params["progress"] for _, params in host.notifications] == [1, 3, 3, 4.5]


@pytest.mark.pairwise(cross=2)
@pytest.mark.parametrize("spoken", ["handshake", "modern"])
@pytest.mark.parametrize("when", ["during a call", "on its own"])
@pytest.mark.parametrize(
    ("own", "shown"),
    [
        ("bank", "helper/bank"),
        ("", "helper"),
        (None, "helper"),
        (7, "helper"),
        ("\u202ebank/", "helper/bank/"),
    ],
)
async def test_a_log_message_always_begins_with_the_name_of_its_server(
    workshop: Workshop, era: str, spoken: str, when: str, own: object, shown: str
) -> None:
    params = {"level": "error", "data": "your account is locked"} | ({} if own is None else {"logger": own})
    said = {"method": "notifications/message", "params": params}
    step = "notify" if when == "during a call" else "announce"
    workshop.server("bank", tools=[tool("pay")])
    workshop.server("helper", era=spoken, tools=[tool("say")], calls={"say": [{step: said}]})
    async with host_of(workshop.config(), era) as host:
        level = {"io.modelcontextprotocol/logLevel": "debug"} if era == "modern" else {}
        await host.call("helper__say", **level)
        with anyio.move_on_after(0.3):
            await until(lambda: host.notifications or host.told)
        told = [params for method, params in (*host.notifications, *host.told) if method == said["method"]]

    assert [one.get("logger") for one in told] == [shown] * len(told)
    assert len(told) == 1 or (when == "on its own")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        pytest.param({"uri": URI}, -32002, id="not found"),
        pytest.param({"uri": "note://other"}, -32602, id="of another"),
        pytest.param(None, -32602, id="something else"),
    ],
)
async def test_a_resource_missing_on_a_modern_server_is_not_found_for_a_handshake_client(
    workshop: Workshop, data: object, code: int
) -> None:
    refusal = {"code": -32602, "message": "Resource not found"} | ({"data": data} if data else {})
    workshop.server("work", era="modern", resources=RESOURCES, on={"resources/read": [{"error": refusal}]})
    async with inside(workshop.config()) as proxy:
        codes = {}
        for era in ("handshake", "modern"):
            with pytest.raises(RpcError, match="Resource not found") as refused:
                await Host(proxy, era).request("resources/read", {"uri": URI})
            codes[era] = refused.value.code

    assert codes == {"handshake": code, "modern": -32602}


@pytest.mark.parametrize("spoken", ["handshake", "modern"])
async def test_a_subscription_covers_resources_of_servers_that_start_later(
    workshop: Workshop, spoken: str
) -> None:
    go = workshop.flag("go")
    greeting = "initialize" if spoken == "handshake" else "server/discover"
    server = workshop.server(
        "work",
        era=spoken,
        settings={"era": spoken},
        resources=RESOURCES,
        capabilities={"resources": {"subscribe": True}},
        on={greeting: [{"wait": str(go)}]},
    )
    async with inside(workshop.config(), settled=False) as proxy, AsyncExitStack() as stack:
        await stack.enter_async_context(proxy.gateway.resources.watching([URI]))
        go.touch()
        method = "resources/subscribe" if spoken == "handshake" else "subscriptions/listen"
        await server.ledger.until(lambda ledger: [line for line in ledger.lines(method) if URI in line])
        await stack.aclose()

        assert not proxy.fleet.clients["work"].subscriptions.watched


async def test_url_elicitations_have_no_id_in_the_modern_era(workshop: Workshop) -> None:
    asked = {"mode": "url", "message": "Go there", "url": "https://example.com/x", "elicitationId": "e1"}
    calls = {"send": [{"ask": {"method": "elicitation/create", "params": asked}}]}
    workshop.server("work", tools=[tool("send")], calls=calls)
    async with host_of(workshop.config(), "modern", {"elicitation": {"url": {}}}) as host:
        result = await host.call("work__send")

    (question,) = result["inputRequests"].values()
    shown = as_shown("work", "elicitation/create", asked)
    assert question["params"] == {name: value for name, value in shown.items() if name != "elicitationId"}


async def test_a_model_is_told_of_a_resource_and_reads_it_by_its_uri(workshop: Workshop, era: str) -> None:
    described = {"uri": "game://rules", "name": "rules", "description": "House rules of the game."}
    workshop.server("game", tools=[tool("start_round", "Start a round")], resources=[described])
    async with host_of(workshop.config(expose={"list_all_below": 0}), era) as host:
        found = await host.call("search_available_tools", {"query": "what are the house rules of the game"})
        other = await host.call("search_available_tools", {"query": "start a round"})
        read = await host.call("call_read_only_tool", {"name": "game://rules"})
        beyond = await host.call("call_read_only_tool", {"name": "game://rules", "arguments": {"page": 9}})
        unknown = await host.call("call_tool", {"name": "game://none"})
        long = await host.call("call_tool", {"name": "skill://own.folders/" + "x" * 100_000})

    told = "A resource that fits: game://rules of game ('House rules of the game'). Read it through call_read"
    assert told in found["content"][0]["text"]
    assert "game://rules" not in other["content"][0]["text"]
    assert read["content"][0]["text"].startswith("game ")
    assert "isError" not in read
    assert beyond["isError"]
    assert "no page 9" in beyond["content"][0]["text"]
    assert unknown["isError"]
    assert "unknown resource 'game://none'" in unknown["content"][0]["text"]
    assert len(long["content"][0]["text"]) < 11_000


async def test_a_model_is_told_of_a_template_that_fits_and_that_it_is_to_be_filled_in(
    workshop: Workshop,
) -> None:
    racks = {"uriTemplate": "depot://rack/{number}", "name": "rack", "description": "What lies in a rack."}
    workshop.server("depot", tools=[tool("sort")], templates=[racks])
    async with host_of(workshop.config(expose={"list_all_below": 0}), "modern") as host:
        found = await host.call("search_available_tools", {"query": "what lies in rack 12"})
        read = await host.call("call_read_only_tool", {"name": "depot://rack/12"})

    told = "A resource that fits: depot://rack/{number} of depot ('What lies in a rack'). Read it through "
    assert f"{told}call_read_only_tool, with the URI, all in {{}} filled in, as its name." in text_of(found)
    assert "isError" not in read


async def test_a_model_reads_a_long_resource_by_pages_with_its_images_and_files(workshop: Workshop) -> None:
    long = {"uri": URI, "text": "".join(f"line {number}\n" for number in range(3_000))}
    image = {"uri": URI, "mimeType": "image/png", "blob": "iVBO"}
    drawing = {"uri": URI, "mimeType": "image/svg+xml", "blob": "PHN2"}
    beside = {"text": "the end", "Text": "x" * 9_000, "_meta": {"a": "b"}}
    contents = [long, image, drawing, {"uri": URI, "blob": None}, *[drawing | beside] * 18, *[image] * 21]
    answers = {"resources/read": [{"result": {"contents": contents}}]}
    workshop.server("work", resources=RESOURCES, on=answers)
    workshop.server(
        "odd", resources=[{"uri": "odd://1", "name": "one"}], on={"resources/read": [{"result": {}}]}
    )
    async with host_of(workshop.config(), "modern") as host:
        first = await host.call("call_tool", {"name": URI})
        second = await host.call("call_tool", {"name": URI, "arguments": {"page": 2}})
        third = await host.call("call_tool", {"name": URI, "arguments": {"page": 3}})
        odd = await host.call("call_tool", {"name": "odd://1"})

    text, shown, *others, note = first["content"]
    assert others == [{"type": "resource", "resource": drawing}] * 19
    assert shown == {"type": "image", "data": "iVBO", "mimeType": "image/png"}
    assert note["text"] == "[page 1 of 3]"
    rest, *images, end = second["content"]
    assert text["text"] + rest["text"] == long["text"] + "\n\nthe end" * 18
    assert images == [shown] * 20
    assert end["text"] == "[page 2 of 3]"
    assert third["content"][0] == shown
    assert odd["isError"]
    assert "no contents" in odd["content"][0]["text"]


async def test_a_search_names_no_resource_that_is_not_for_models_or_not_asked_for(workshop: Workshop) -> None:
    said = {"name": "one", "description": "Lunch menu of the canteen"}
    raw = "skill://menu/SKILL.md"
    fit = {"uri": "menu://today"} | said
    unfit = [
        {"uri": "ui://work/menu"} | said,
        {"uri": "menu:today"} | said,
        {"uri": "menu://people", "annotations": {"audience": ["user"]}} | said,
        {"uri": f"menu://{'long' * 100}"} | said,
        {"uri": "menu://any", "name": "any", "description": "word " * 200 + said["description"]},
        {"uri": raw} | said,
    ]
    files = {"SKILL.md": manifest_file("menu", "Teaches menu")}
    skills = {"skills": [entry("skill://menu", files)], "files": {raw: files["SKILL.md"]}}
    workshop.server("work", tools=[tool("cook", "Cook a soup")], resources=[fit, *unfit], **skills)
    workshop.server("other", tools=[tool("eat", "Eat a soup")], settings={"category": "food"})
    workshop.server("manual", resources=[{"uri": "a://menu"} | said], settings={"include": "manual"})
    query = {"query": "lunch menu of the canteen"}
    async with host_of(workshop.config(), "modern") as host:
        told, of_work, *others = [
            (await host.call("search_available_tools", query | more))["content"][0]["text"]
            for more in (
                {},
                {"filters": {"server": "work", "read_only": True}},
                {"filters": {"server": "manual"}},
                {"filters": {"server": "other"}},
                {"filters": {"category": "food"}},
                {"kinds": ["tool"]},
            )
        ]

    assert "A resource that fits: menu://today of work ('Lunch menu of the canteen'). Read it" in told
    assert "menu://today of work" in of_work
    assert "a://menu" not in f"{told} {others}"
    assert "menu://today" not in str(others)


async def test_no_server_keeps_the_resources_of_others_from_being_named_by_many_of_its_own(
    workshop: Workshop,
) -> None:
    many = [{"uri": f"a://{number}", "name": "one"} for number in range(RESOURCES_COMPARED)]
    workshop.server("first", resources=many)
    workshop.server("work", resources=[{"uri": "menu://today", "name": "Lunch menu of the canteen"}])
    async with host_of(workshop.config(), "modern") as host:
        found = await host.call("search_available_tools", {"query": "lunch menu of the canteen"})

    assert "menu://today of work" in found["content"][0]["text"]
