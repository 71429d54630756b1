"""The API and the page on a port of this machine, beside a host that is served over standard streams."""

import re
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from support.ledger import LOOK_SECONDS, PATIENCE, until
from support.proxies import command
from support.raw_client import RawClient
from support.servers import Workshop, tool
from support.shop import TOKEN
from support.wires import stdio

AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
SERVING = re.compile(r"serving (http://127\.0\.0\.1:\d+)/api/v1 and /ui")


@pytest.fixture
def config(workshop: Workshop) -> Path:
    workshop.server("work", tools=[tool("echo", "Say it again")])
    return workshop.config(expose={"list_all_below": 0})


@asynccontextmanager
async def hosted(config: Path, *options: str) -> AsyncIterator[tuple[RawClient, Path]]:
    """A host of the proxy, and where the proxy logs."""
    log = config.with_suffix(".log")
    with log.open("w", encoding="utf-8") as stderr:
        env = {"MCP_CONTEXT_PROXY_TOKEN": TOKEN}
        async with stdio(command(config, "serve", *options), env=env, stderr=stderr) as host:
            yield host, log


async def searched(host: RawClient) -> Any:
    """The result of a search, when the server that is found has been connected and indexed."""
    query = {"query": "say it again"}
    with anyio.fail_after(PATIENCE):
        while True:
            found = await host.data("search_available_tools", query)
            if found["results"]:
                return found
            await anyio.sleep(LOOK_SECONDS)


async def base_of(log: Path) -> str:
    found = await until(lambda: SERVING.search(log.read_text(encoding="utf-8")))
    return str(found[1])


async def test_a_prompt_that_names_a_file_is_told_its_rule_and_the_tools_that_the_rule_names(
    workshop: Workshop,
) -> None:
    names = [f"part_{number}_of_the_column" for number in range(4)]
    schema = {"type": "object", "properties": {one: {"type": "string"} for one in names}, "required": names}
    near = [
        tool(f"rename_{number}", "Rename the column of orders", inputSchema=schema) for number in range(40)
    ]
    workshop.server("work", tools=[*near, tool("echo", "Say it again"), tool("greet", "Say hello")])
    rules = workshop.folder / "rules"
    rules.mkdir()
    (rules / "sql.md").write_text(
        '---\napplyTo: "**/*.sql"\n---\nUse `echo` first.\n\n- Rename nothing.\n', encoding="utf-8"
    )
    door = "---\ninclude: always\n---\nGreet visitors at the door with `greet`.\n"
    (rules / "house.md").write_text(door, encoding="utf-8")
    documents = [{"path": str(rules), "kind": "rule"}]
    config = workshop.config(expose={"mode": "search"}, documents=documents)
    async with hosted(config, "--own", "--api-port", "0") as (host, log):
        await host.until_listed("search_available_tools")
        async with httpx2.AsyncClient(headers=AUTHORIZED, timeout=PATIENCE) as client:
            prompt = {"prompt": "rename the column in orders.sql"}
            url = f"{await base_of(log)}/api/v1/prompt"
            with anyio.fail_after(PATIENCE):
                while "rename" not in (told := (await client.post(url, json=prompt)).json())["text"]:
                    pass

    # It is told though there is no room for the signatures of all five, and one line has the other names.
    assert "rule://sql (rule)\n  Use `echo` first.\n  \n  - Rename nothing.\n\n" in told["text"]
    assert told["text"].count(" more: ") == 1
    assert "work__echo(" in told["text"]
    assert "work__echo" in told["tools"]
    assert "work__greet" not in told["tools"]


async def test_the_record_of_a_prompt_has_the_items_that_its_text_tells_and_no_others(
    workshop: Workshop,
) -> None:
    furnaces = [
        tool(f"heat_{number}", f"Heat up furnace {number} of the table factory") for number in range(9)
    ]
    workshop.server("work", tools=[tool("rename", "Rename the column of a table"), *furnaces])
    (workshop.folder / "rules").mkdir()
    rule = "# Columns\n\nColumns of a table are renamed in small letters."
    (workshop.folder / "rules" / "columns.md").write_text(rule, encoding="utf-8")
    config = workshop.config(expose={"mode": "search"}, documents=[{"path": "rules", "kind": "rule"}])
    async with hosted(config, "--own", "--api-port", "0") as (host, log):
        await host.until_listed("search_available_tools")
        url = f"{await base_of(log)}/api/v1"
        async with httpx2.AsyncClient(headers=AUTHORIZED, timeout=PATIENCE) as client:
            prompt = {"prompt": "rename the column of the orders table"}
            with anyio.fail_after(PATIENCE):
                while (
                    "columns"
                    not in (told := (await client.post(f"{url}/prompt", json=prompt)).json())["text"]
                ):
                    pass
            record = (await client.get(f"{url}/requests/{told['request']}")).json()
            replay = (await client.get(f"{url}/requests/{told['request']}/replay")).json()

    assert "in small letters." in told["text"]
    assert told["tools"] == ["work__rename"]
    assert [(one["name"], one["delivered"]) for one in record["items"]] == [
        ("work__rename", None),
        ("columns", "whole"),
    ]
    assert {one["change"] for one in replay["items"]} == {"same"}


async def test_a_prompt_waits_for_no_server_that_hangs(workshop: Workshop) -> None:
    workshop.server("works", tools=[tool("rename", "Rename the column of a table")])
    workshop.server("hangs", on={"initialize": [{"silent": True}], "server/discover": [{"silent": True}]})
    config = workshop.config(expose={"mode": "search"}, limits={"start_wait_seconds": 2 * PATIENCE})
    async with hosted(config, "--own", "--api-port", "0") as (host, log):
        await host.until_listed("search_available_tools")
        async with httpx2.AsyncClient(headers=AUTHORIZED, timeout=PATIENCE) as client:
            url, prompt = f"{await base_of(log)}/api/v1/prompt", {"prompt": "rename the column of a table"}
            with anyio.fail_after(PATIENCE):
                while "works__rename" not in (await client.post(url, json=prompt)).json()["text"]:
                    pass


async def test_the_hosts_calls_are_counted_and_shown_with_the_token(config: Path) -> None:
    async with hosted(config, "--api-port", "0") as (host, log):
        base = await base_of(log)
        await host.until_listed("search_available_tools")
        await host.call("search_available_tools", {"query": "say it again"})
        await host.call("work__echo")
        async with httpx2.AsyncClient(base_url=base) as client:
            refused = await client.get("/metrics")
            collected = await client.get("/metrics", headers={"authorization": f"Bearer {TOKEN}"})

    assert refused.status_code == 401
    assert 'mcp_context_proxy_calls_total{server="work"} 1.0' in collected.text.splitlines()


async def test_the_hosts_context_is_shown_with_the_token(config: Path) -> None:
    async with hosted(config, "--api-port", "0") as (host, log):
        base = await base_of(log)
        found = await searched(host)
        async with httpx2.AsyncClient(base_url=base) as client:
            page = await client.get("/ui")
            refused = await client.get("/api/v1/sessions")
            rebound = await client.get("/ui", headers={"host": "evil.example"})
            client.headers["authorization"] = f"Bearer {TOKEN}"
            (session,) = (await client.get("/api/v1/sessions")).json()["sessions"]
            served = await client.get(f"/api/v1/requests/{session['latest_request']}")
            elsewhere = await client.post("/mcp")

    assert page.status_code == 200
    assert (refused.status_code, rebound.status_code) == (401, 421)
    assert session["kind"] == "connection"
    assert session["latest_request"] == found["request_id"]
    assert [item["name"] for item in served.json()["items"]] == ["work__echo"]
    assert elsewhere.status_code == 404
    assert TOKEN not in log.read_text(encoding="utf-8")


async def test_a_host_is_served_although_the_api_port_is_in_use(config: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with hosted(config, "--api-port", str(port)) as (host, log):
            found = await searched(host)

    assert found["results"][0]["name"] == "work__echo"
    assert f"the API is not served on port {port}: " in log.read_text(encoding="utf-8")
