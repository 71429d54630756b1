"""Guesses of the bearer token: they become slow, and nobody else does."""

import time
from typing import Any

import anyio
import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from mcp_context_proxy.front import auth
from mcp_context_proxy.front.auth import Guard, Guesses, policy

TOKEN = "correct-horse-battery"


async def served(request: Request) -> Response:
    return PlainTextResponse("in")


class Front:
    """A guarded front, and connections to it."""

    def __init__(self) -> None:
        self.guard = Guard(
            Starlette(routes=[Route("/{path:path}", served)]), policy("127.0.0.1", 80, (), TOKEN)
        )
        self.latest = 0.0
        """Time of the latest request at the guard."""

    async def _arrive(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.latest = time.monotonic()
        await self.guard(scope, receive, send)

    async def ask(
        self, token: str | None, address: str = "192.0.2.1", port: int = 1, path: str = "/mcp"
    ) -> Any:
        transport = httpx2.ASGITransport(app=self._arrive, client=(address, port))
        headers = {"host": "localhost:80"} | ({} if token is None else {"authorization": f"Bearer {token}"})
        async with httpx2.AsyncClient(transport=transport) as client:
            return await client.get(f"http://localhost:80{path}", headers=headers)

    async def guess(self, times: int, address: str = "192.0.2.1") -> list[int]:
        """Send so many wrong tokens at once, each on a connection of its own."""
        found: list[int] = []

        async def once(number: int) -> None:
            found.append((await self.ask(f"wrong-{number}", address, 1000 + number)).status_code)

        async with anyio.create_task_group() as group:
            for number in range(times):
                group.start_soon(once, number)
        return found


async def test_after_too_many_wrong_tokens_an_address_is_refused_with_429_and_retry_after() -> None:
    front, began = Front(), time.monotonic()
    statuses = await front.guess(300)
    again = (time.monotonic() - began) * auth.WRONG_PER_SECOND
    with anyio.fail_after(30):
        while (refused := await front.ask("wrong")).status_code == 401:
            pass  # one that is looked at again after a while

    assert auth.WRONG_AT_ONCE <= statuses.count(401) <= auth.WRONG_AT_ONCE + again
    assert statuses.count(429) == 300 - statuses.count(401)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    assert "wrong" not in refused.text.replace("wrong tokens", "")


async def test_no_more_than_a_few_tokens_a_second_are_looked_at() -> None:
    front = Front()
    await front.guess(100)

    async def hits() -> list[int]:
        found = list[int]()

        async def hit() -> None:
            found.append((await front.ask(TOKEN, port=7)).status_code)

        async with anyio.create_task_group() as group:
            for _ in range(auth.MOST_HELD_OF_ADDRESS + 10):
                group.start_soon(hit)
        return found

    began = time.monotonic()
    found = await hits()
    # On a slow machine, the last came when the first had been looked at already.
    while front.latest - began >= auth.HELD_SECONDS:
        began = time.monotonic()
        found = await hits()

    # Even the right token is looked at only so often: otherwise guesses would not be slower.
    assert found.count(200) == auth.MOST_HELD_OF_ADDRESS
    assert found.count(429) == 10
    assert time.monotonic() - began >= auth.HELD_SECONDS


async def test_the_right_token_is_served_at_once_from_elsewhere_and_a_second_later_from_there() -> None:
    front = Front()
    assert (await front.ask(TOKEN, port=5)).status_code == 200
    await front.guess(60)
    served = list[str]()

    async def ask(name: str, address: str, port: int) -> None:
        assert (await front.ask(TOKEN, address, port)).status_code == 200
        served.append(name)

    async with anyio.create_task_group() as group:
        group.start_soon(ask, "from there", "192.0.2.1", 6)
        await ask("from elsewhere", "192.0.2.2", 1)
        await ask("on a proven connection", "192.0.2.1", 5)

    assert served == ["from elsewhere", "on a proven connection", "from there"]


async def test_requests_without_a_token_are_no_guesses() -> None:
    front = Front()
    statuses = [(await front.ask(None)).status_code for _ in range(50)]

    wrong = await front.ask("wrong")
    assert statuses == [401] * 50
    assert wrong.status_code == 401
    assert wrong.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    assert wrong.text == "The bearer token is not known here, or has expired.\n"


async def test_healthz_is_no_way_to_guess() -> None:
    front = Front()
    for _ in range(auth.WRONG_AT_ONCE):
        assert (await front.ask("wrong", path="/healthz")).status_code == 401

    assert (await front.ask("wrong", path="/healthz")).status_code == 429
    assert (await front.ask(None, path="/healthz")).status_code == 200


def test_guesses_from_many_addresses_are_throttled_together_in_bounded_memory() -> None:
    throttle = Guesses(clock=lambda: 0.0)
    for number in range(5000):
        throttle.wrong((f"10.0.{number // 256}.{number % 256}", 1))
        throttle.right((f"10.1.{number // 256}.{number % 256}", 1))

    assert throttle.delays(("192.0.2.9", 1))
    assert not throttle.delays((f"10.1.{4999 // 256}.{4999 % 256}", 1))
    assert len(throttle._by_address) == auth.ADDRESSES_KEPT
    assert len(throttle._proven) == auth.CONNECTIONS_KEPT


def test_all_addresses_of_an_ipv6_network_are_one() -> None:
    throttle = Guesses(clock=lambda: 0.0)
    for number in range(auth.WRONG_AT_ONCE):
        throttle.wrong((f"2001:db8::{number:x}", 1))

    assert throttle.delays(("2001:db8::ffff", 1))
    assert not throttle.delays(("2001:db8:0:1::1", 1))


def test_a_wrong_token_ends_the_trust_in_a_connection() -> None:
    throttle = Guesses(clock=lambda: 0.0)
    throttle.right(("192.0.2.1", 9))
    for _ in range(auth.WRONG_AT_ONCE):
        throttle.wrong(("192.0.2.1", 9))

    assert throttle.delays(("192.0.2.1", 9))
