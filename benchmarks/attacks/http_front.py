"""Attacks on the HTTP front: web pages, guesses, sessions of others."""

from __future__ import annotations

import time

import anyio
import anyio.to_thread
import httpx2
from attacked import (
    PATIENCE,
    TOKEN,
    Attacked,
    attack,
)
from support.servers import tool


@attack("A web page loads every GET route into itself (`Sec-Fetch-Site: cross-site`), without a token.")
async def web_page(at: Attacked) -> str:
    at.workshop.server("s", tools=[tool("echo")])
    paths = ("/healthz", "/metrics", "/api/v1/requests", "/api/v1/sessions", "/sse", "/api/v1/openapi.json")
    headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors", "sec-fetch-dest": "script"}
    with at.serving() as base:
        async with httpx2.AsyncClient(base_url=base, headers=headers, timeout=5) as page:
            codes = []
            for path in paths:
                async with page.stream("GET", path) as answer:
                    codes.append(f"{path} {answer.status_code}")
            return ", ".join(codes)


@attack("Somebody without the token asks `/healthz` after a bad edit of the configuration.")
async def healthz(at: Attacked) -> str:
    at.workshop.server("s", tools=[tool("echo")])
    with at.serving(token=TOKEN) as base:
        config = at.folder / "config.toml"
        text = config.read_text() + '\n[servers.bank]\nurl = "https://bank.example"\n'
        config.write_text(text + 'headers = { X = "${BANK_SECRET_NAME}" }\n')
        async with httpx2.AsyncClient(base_url=base) as client:
            said = ""
            for _ in range(30):
                said = (await client.get("/healthz")).text
                if "BANK" in said:
                    break
                await anyio.sleep(0.2)
        told = [word for word in (str(at.folder), "bank", "BANK_SECRET_NAME") if word in said]
        return f"told: {', '.join(told) or 'nothing'}"


@attack("Somebody guesses 500 tokens in a row.")
async def guesses(at: Attacked) -> str:
    with at.serving(token=TOKEN) as base:
        codes: dict[int, int] = {}
        began = time.monotonic()
        async with httpx2.AsyncClient(base_url=base) as client:
            for guess in range(500):
                headers = {"authorization": f"Bearer {guess:020}"}
                code = (await client.get("/api/v1/requests", headers=headers)).status_code
                codes[code] = codes.get(code, 0) + 1
        counts = ", ".join(f"{number} x {code}" for code, number in codes.items())
        return f"in {time.monotonic() - began:.1f} s: {counts}"


@attack("The token is the single letter `a`.")
async def short_token(at: Attacked) -> str:
    try:
        with at.serving(token="a"):
            return "accepted"
    except AssertionError as problem:
        return f"refused: {str(problem)[17:150]}"


@attack("Mallory sends Alice's session id with credentials of her own.")
async def session(at: Attacked) -> str:
    who = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "r", "version": "1"}}
    with at.serving() as base:
        headers = {"accept": "application/json, text/event-stream"}
        async with httpx2.AsyncClient(base_url=base, headers=headers) as client:
            alice, mallory = ({"authorization": f"Bearer {name}"} for name in ("alice", "mallory"))
            message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": who}
            opened = await client.post("/mcp", json=message, headers=alice)
            mallory["mcp-session-id"] = opened.headers["mcp-session-id"]
            ping = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
            answer = await client.post("/mcp", json=ping, headers=mallory)
            return f"status {answer.status_code}"


@attack("The proxy is stopped while a client has an SSE stream open.")
async def open_stream(at: Attacked) -> str:
    with at.serving() as base:
        async with (
            httpx2.AsyncClient(base_url=base, timeout=PATIENCE) as client,
            client.stream("GET", "/sse"),
        ):
            at.process.terminate()
            await anyio.to_thread.run_sync(at.process.wait, PATIENCE)
    return "a traceback in the log" if "Traceback" in at.log.read_text() else "no traceback"
