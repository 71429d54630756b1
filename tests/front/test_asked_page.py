"""A page beside hosts for which no configuration names a port: ``ui`` asks the running proxy to open one."""

import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import httpx2
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from support.commands import real_command
from support.ledger import until
from support.machine import Machine
from support.proxies import inside
from support.raw_client import PATIENCE
from support.servers import Server, Workshop
from support.wires import stdio

from mcp_context_proxy.app.serve import Pages

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Unix sockets")

NOBODY_THERE = {"port": 9}
"""The port "discard", at which nobody serves pages; a person may have a proxy at the usual one."""


async def ui(machine: Machine) -> tuple[str, str, str]:
    """The base and the token that the command prints, and what it says on stderr."""
    done = await anyio.run_process(
        real_command("--config", machine.config, "ui"),
        env=machine.environ,
        check=False,
    )
    address, _, token = done.stdout.decode().strip().partition("#token=")
    return address.removesuffix("/ui"), token, done.stderr.decode()


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def visible_of(process: int) -> bytes:
    """What the list of processes shows of one, and what its servers could read."""
    return b"".join(Path(f"/proc/{process}/{name}").read_bytes() for name in ("cmdline", "environ"))


async def is_closed(base: str) -> bool:
    try:
        stream = await anyio.connect_tcp("127.0.0.1", int(base.rpartition(":")[2]))
    except OSError:
        return True
    await stream.aclose()
    return False


@asynccontextmanager
async def page_beside_a_host(machine: Machine) -> AsyncIterator[tuple[str, str]]:
    """Have `ui` open the page of a proxy that serves a host; yield its address and its token."""
    machine.write(http=NOBODY_THERE)
    async with machine.host() as host:
        await host.until_listed("work__echo")
        base, token, _ = await ui(machine)
        yield base, token


async def test_ui_opens_a_page_beside_hosts_that_asks_for_a_token_of_its_own(
    machine: Machine, server: Server
) -> None:
    async with page_beside_a_host(machine) as (base, token):
        again, same, _ = await ui(machine)
        async with httpx2.AsyncClient(base_url=base, timeout=PATIENCE) as client:
            page = await client.get("/ui")
            without = await client.get("/api/v1/status")
            wrong = await client.get("/api/v1/status", headers=bearer("x" * len(token)))
            status = (await client.get("/api/v1/status", headers=bearer(token))).json()

    assert page.status_code == 200
    assert (without.status_code, wrong.status_code) == (401, 401)
    assert [one["name"] for one in status["servers"]] == ["work"]
    assert (again, same) == (base, token)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
async def test_the_page_that_ui_opens_is_guarded_as_every_other(
    machine: Machine, server: Server, headers: dict[str, str], expected: int
) -> None:
    async with (
        page_beside_a_host(machine) as (base, token),
        httpx2.AsyncClient(base_url=base, timeout=PATIENCE, headers={**bearer(token), **headers}) as client,
    ):
        read = await client.get("/api/v1/status")
        changed = await client.post("/api/v1/stop")
        another = await client.post("/api/v1/page")

    assert {read.status_code, changed.status_code, another.status_code} == {expected}


async def test_the_port_of_the_page_is_asked_for_over_the_socket_alone(
    machine: Machine, server: Server
) -> None:
    async with page_beside_a_host(machine) as (base, token):
        async with httpx2.AsyncClient(base_url=base, headers=bearer(token), timeout=PATIENCE) as client:
            assert (await client.post("/api/v1/page")).status_code == 404
        kept = [*machine.folder.rglob("*.log*"), *machine.workshop.folder.rglob("*.jsonl")]
        assert any(f"serving {base}" in path.read_text(encoding="utf-8") for path in kept)
        assert not any(token in path.read_text(encoding="utf-8") for path in kept)
        if sys.platform == "linux":
            assert token.encode() not in visible_of(*machine.proxies())


async def test_the_page_that_ui_opened_ends_with_the_proxy(machine: Machine, server: Server) -> None:
    machine.write(http=NOBODY_THERE)
    async with machine.host() as host:
        await host.until_listed("work__echo")
        base, _, _ = await ui(machine)
        assert not await is_closed(base)
        (process,) = machine.proxies()
    os.kill(process, signal.SIGTERM)
    with anyio.fail_after(PATIENCE):
        while not await is_closed(base):
            pass


async def test_a_proxy_of_one_session_opens_a_page_as_well(machine: Machine, server: Server) -> None:
    machine.write(http=NOBODY_THERE)
    command = real_command("--config", machine.config, "serve", "--own")
    async with stdio(command, env=machine.told) as host:
        await host.until_listed("work__echo")
        await until(machine.sockets)
        base, token, _ = await ui(machine)
        async with httpx2.AsyncClient(base_url=base, headers=bearer(token), timeout=PATIENCE) as client:
            assert (await client.get("/api/v1/status")).json()["shared"] is False
    with anyio.fail_after(PATIENCE):
        while not await is_closed(base):
            pass


async def test_ui_leads_to_the_port_that_a_proxy_has_already(machine: Machine, server: Server) -> None:
    machine.write(http={**NOBODY_THERE, "api_port": 0})
    async with machine.host(MCP_CONTEXT_PROXY_TOKEN="") as host:
        await host.until_listed("work__echo")
        base, token, _ = await ui(machine)
        again, _, _ = await ui(machine)
        async with httpx2.AsyncClient(base_url=base, headers=bearer(token), timeout=PATIENCE) as client:
            assert (await client.get("/api/v1/status")).status_code == 200

    assert again == base


async def test_without_a_proxy_ui_says_when_there_is_a_page(machine: Machine, server: Server) -> None:
    machine.write(http=NOBODY_THERE)
    base, _, said = await ui(machine)

    assert base == ""
    assert "There is one while a host is connected" in said
    assert machine.proxies() == []


async def test_a_page_at_which_nobody_looks_is_closed(workshop: Workshop) -> None:
    async with inside(workshop.config()) as proxy:
        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                asked = Starlette(routes=[Route("/page", Pages(proxy, group, unused_seconds=0.01).ask)])
                api = httpx2.ASGITransport(asked)
                async with httpx2.AsyncClient(transport=api, base_url="http://localhost") as client:
                    port = (await client.get("/page")).json()["port"]
        assert await is_closed(f"http://127.0.0.1:{port}")
