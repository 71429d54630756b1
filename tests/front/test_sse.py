"""The event stream of HTTP+SSE, when its client leaves and when the proxy stops."""

import anyio
import anyio.to_thread
import httpx2
import pytest
from support.ledger import PATIENCE
from support.proxies import http_proxy
from support.raw_client import INITIALIZE
from support.servers import Workshop, tool
from support.wires import sse

FOREVER = 600.0
"""Time to drain that no test outlasts."""

INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
CALL = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "work__large", "arguments": {}}}

LISTEN = {"notifications": {"toolsListChanged": True}}


async def test_a_subscription_whose_client_has_left_does_not_delay_the_stop(workshop: Workshop) -> None:
    workshop.server("work", tools=[tool("echo")])
    config = workshop.config(limits={"drain_seconds": FOREVER})
    with http_proxy(config) as proxy:
        async with sse(proxy.base, "modern") as client:
            await client.start("subscriptions/listen", LISTEN)
            await client.until(lambda it: it.notified("notifications/subscriptions/acknowledged"))
        proxy.process.terminate()

        assert proxy.process.wait(PATIENCE) == 0


@pytest.mark.parametrize("kind", ["sse", "streamable", "unread"])
async def test_an_open_response_at_the_stop_leaves_no_traceback_in_the_log(
    workshop: Workshop, kind: str
) -> None:
    workshop.server("work", tools=[tool("large")], calls={"large": [{"large": 8_000_000}]})
    with http_proxy(workshop.config(expose={"mode": "all"})) as proxy:
        async with httpx2.AsyncClient(base_url=proxy.base, timeout=PATIENCE) as client:
            headers = {"accept": "application/json, text/event-stream"}
            opened = await client.post("/mcp", json=INITIALIZE, headers=headers)
            headers["mcp-session-id"] = opened.headers["mcp-session-id"]
            await client.post("/mcp", json=INITIALIZED, headers=headers)
            stream = {
                "sse": client.stream("GET", "/sse"),
                "streamable": client.stream("GET", "/mcp", headers=headers),
                "unread": client.stream("POST", "/mcp", json=CALL, headers=headers),
            }[kind]
            async with stream as response:
                assert response.status_code == 200
                proxy.process.terminate()
                await anyio.to_thread.run_sync(proxy.process.wait, PATIENCE)
        told = (proxy.folder / "config.log").read_text(encoding="utf-8")

    assert proxy.process.returncode == 0
    assert not [line for line in told.splitlines() if "serving http" not in line]


@pytest.mark.parametrize(
    ("url", "below"),
    [
        ("https://proxy.example.com/team/mcp", "/team"),
        ("https://proxy.example.com/mcp", ""),
        ("https://proxy.example.com/api", ""),
    ],
)
async def test_messages_of_an_event_stream_and_the_api_are_below_the_path_of_the_public_url(
    workshop: Workshop, url: str, below: str
) -> None:
    with http_proxy(workshop.config(http={"resource_url": url})) as proxy:
        async with (
            httpx2.AsyncClient(base_url=proxy.base, timeout=PATIENCE) as client,
            client.stream("GET", "/sse") as response,
        ):
            lines = response.aiter_lines()
            assert await anext(lines) == "event: endpoint"
            assert (await anext(lines)).startswith(f"data: {below}/messages/?session_id=")
            described = (await client.get("/api/v1/openapi.json")).json()
            assert described["servers"] == [{"url": f"{below}/api/v1"}]
