"""Trusted certificates are read once, however many clients ask for them."""

import ssl

import anyio

from mcp_context_proxy.system import threads


async def test_all_clients_share_certificates_that_are_read_once() -> None:
    given: list[ssl.SSLContext] = []

    async def ask() -> None:
        given.append(await threads.trusted_certificates())

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(ask)

    assert all(one is given[0] for one in given)


async def test_a_peer_without_a_trusted_certificate_is_refused() -> None:
    context = await threads.trusted_certificates()

    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname is True
