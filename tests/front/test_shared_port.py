"""Where a machine has no Unix sockets, hosts meet at a port."""

import os
import signal
import stat
import sys
from contextlib import suppress
from functools import partial
from typing import Any

import anyio
import pytest
from support.machine import Machine
from support.raw_client import PATIENCE, RpcError
from support.servers import Server

from mcp_context_proxy.bridge import ask, running
from mcp_context_proxy.bridge.meeting import NONCE_BYTES, PORT_VARIABLE, PROOF_BYTES, meeting

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


AT_PORT = {PORT_VARIABLE: "1"}


async def test_hosts_that_meet_at_a_port_start_one_proxy_and_get_their_own_answers(
    machine: Machine, server: Server
) -> None:
    """As on Windows, where there are no Unix sockets."""
    machine.write(limits={"first_list_seconds": 60.0})
    async with anyio.create_task_group() as group:
        done: list[Any] = []

        async def connect(number: int) -> None:
            async with machine.host(**AT_PORT) as client:
                await client.until_listed("work__echo")
                result = await client.call("work__echo", {"text": f"text {number}"})
                done.append((f"text {number}" in str(result), len(machine.proxies())))

        for number in range(8):
            group.start_soon(connect, number)
    assert done == [(True, 1)] * 8


async def test_session_at_a_port_goes_on_after_the_proxy_was_killed(machine: Machine, server: Server) -> None:
    async with machine.host(**AT_PORT) as client:
        await client.until_listed("work__hang")
        _, hanging = await client.start("tools/call", {"name": "work__hang", "arguments": {}})
        await server.ledger.until(lambda ledger: ledger.calls("hang"))
        (killed,) = machine.proxies()
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(RpcError, match="may or may not have run"):
            await hanging
        await client.until_listed("work__echo")
        assert killed not in machine.proxies()
        environ = {**machine.told, **AT_PORT}
        (found,) = await anyio.to_thread.run_sync(running, machine.config, environ)
        status = await anyio.to_thread.run_sync(partial(ask, found, "GET", "/status", seconds=PATIENCE))
        assert (status["pid"], len(status["hosts"])) == (machine.proxies()[0], 1)


async def test_nobody_who_does_not_know_the_key_gets_an_answer_at_a_port(
    machine: Machine, server: Server
) -> None:
    async with machine.host(**AT_PORT) as client:
        await client.until_listed("work__echo")
        (file,) = machine.sockets()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        port = int(file.read_text("ascii").split()[0])
        for said in (
            b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n' + b" " * 200,
            b"0" * (NONCE_BYTES + PROOF_BYTES),
        ):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(said)
                received = b""
                with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                    while True:
                        received += await stream.receive()
                assert len(received) in (0, PROOF_BYTES + NONCE_BYTES)
        assert "isError" not in await client.call("work__echo", {"text": "x"})


async def test_program_that_has_the_port_of_a_proxy_that_has_gone_is_not_taken_for_it(
    machine: Machine, server: Server
) -> None:
    heard = b""

    async def listen(stream: anyio.abc.SocketStream) -> None:
        nonlocal heard
        async with stream:
            heard += await stream.receive()
            await stream.send(b"0" * (PROOF_BYTES + NONCE_BYTES))
            with suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                heard += await stream.receive()

    environ = {**machine.environ, **AT_PORT}
    arguments = ["--config", str(machine.config), "serve"]
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, listen)
        async with machine.host(**AT_PORT) as client:
            (file,) = machine.sockets()
            key = file.read_text("ascii").split()[1]
            file.write_text(f"{listener.extra(anyio.abc.SocketAttribute.local_port)} {key}\n", "ascii")
            before = machine.proxies()
            async with machine.host(**AT_PORT) as other:
                await other.until_listed("work__echo")
                assert len(machine.proxies()) == len(before) + 1
            await client.until_listed("work__echo")
        group.cancel_scope.cancel()
    assert heard
    assert key.encode() not in heard
    assert b"jsonrpc" not in heard
    assert meeting(arguments, environ).socket in running(machine.config, environ)
