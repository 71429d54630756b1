"""Named tokens: hashed, limited, revoked and expired, and followed by a running front."""

import json
import math
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from support.ledger import until

from mcp_context_proxy.config.tables import RoleName
from mcp_context_proxy.front.auth import Guard, policy, principal_of, rights_of
from mcp_context_proxy.items import Tool, ToolClass
from mcp_context_proxy.trust import Principal, Reach, Role
from mcp_context_proxy.trust.tokens import MOST_TOKENS, OWNER, TokenBook, TokenError, TokenFile, digest

OWN_TOKEN = "correct-horse-battery"


@pytest.fixture
def file(tmp_path: Path) -> TokenFile:
    return TokenFile(tmp_path / "state" / "tokens.json")


class Front:
    """A guarded application that says who asks, and has a stream that never ends by itself."""

    def __init__(self, file: TokenFile, now: float | None = None) -> None:
        self.now = time.time() if now is None else now
        self.book = TokenBook(file, lambda: self.now)
        self.book.load()
        self.refused = list[str]()
        self.streaming = anyio.Event()
        allowed = policy("127.0.0.1", 80, (), OWN_TOKEN)
        named = {"named": self.book, "refused": self.refused.append}
        app = Starlette(routes=[Route("/who", self.who)])
        self.guard = Guard(app, type(allowed)(allowed.hosts, allowed.token, **named))
        guarding = type(allowed)(allowed.hosts, allowed.token, **named)
        self.streams = Guard(self.stream, guarding, most_of_one=2)

    async def who(self, request: Request) -> Response:
        return PlainTextResponse(f"{principal_of(request.scope)} {rights_of(request.scope).may(Role.ADMIN)}")

    async def stream(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.streaming.set()
        await anyio.sleep_forever()

    async def ask(self, token: str, guard: Guard | None = None) -> list[dict[str, Any]]:
        """Send a request; the messages of the response."""
        sent = list[dict[str, Any]]()

        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"host", b"localhost:80"), (b"authorization", f"Bearer {token}".encode())]
        scope = {"type": "http", "http_version": "1.1", "method": "GET", "path": "/who", "headers": headers}
        scope |= {"query_string": b"", "client": ("192.0.2.1", 1), "root_path": "", "raw_path": b"/who"}
        await (guard or self.guard)(scope, receive, send)
        return sent

    async def says(self, token: str) -> tuple[int, str]:
        begin, *parts = await self.ask(token)
        return begin["status"], b"".join(part["body"] for part in parts).decode()


async def test_the_file_has_no_token_and_is_for_its_owner_alone(file: TokenFile) -> None:
    token = file.add("anna")

    assert token not in file.path.read_text()
    assert len(token) >= 43
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_what_a_killed_command_has_left_is_removed_an_hour_later(file: TokenFile) -> None:
    file.add("anna")
    old, new = (file.path.with_name(f".{file.path.name}-{name}") for name in ("old", "new"))
    for left in (old, new):
        left.write_text("{", encoding="utf-8")
    os.utime(old, (0, 0))
    file.add("berta")

    assert not old.exists()
    assert new.exists(), "another command may be writing it"


async def test_a_principal_is_the_name_of_its_token(file: TokenFile) -> None:
    anna, ben = file.add("anna"), file.add("ben", role="admin")
    front = Front(file)

    assert await front.says(anna) == (200, "anna False")
    assert await front.says(ben) == (200, "ben True")
    assert await front.says(OWN_TOKEN) == (200, f"{OWNER} True")
    assert (await front.says("not-a-token-of-anybody"))[0] == 401
    assert front.refused == ["192.0.2.1"]


async def test_the_streams_of_one_principal_leave_room_for_those_of_others(file: TokenFile) -> None:
    anna, ben = file.add("anna"), file.add("ben")
    front, answered = Front(file), list[int]()

    async def listen(token: str) -> None:
        answered.append((await front.ask(token, front.streams))[0]["status"])

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            for token in (anna, anna, anna, ben, OWN_TOKEN, OWN_TOKEN, OWN_TOKEN):
                group.start_soon(listen, token)
            await anyio.wait_all_tasks_blocked()
            assert answered == [503]
            group.cancel_scope.cancel()
        async with anyio.create_task_group() as group:
            group.start_soon(listen, anna)
            await anyio.wait_all_tasks_blocked()
            assert answered == [503]
            group.cancel_scope.cancel()


async def test_a_token_that_replaces_another_of_the_same_name_is_the_same_principal(file: TokenFile) -> None:
    old = file.add("anna")
    file.revoke("anna")
    new = file.add("anna")
    front = Front(file)

    assert await front.says(new) == (200, "anna False")
    assert (await front.says(old))[0] == 401


def test_tokens_of_a_person_are_refused_up_to_the_time_at_which_they_were_revoked(file: TokenFile) -> None:
    person = "jwt:" + "5f" * 32
    file.revoke(person, now=100.0)
    file.revoke(person, now=200.0)
    (book := TokenBook(file)).load()

    assert [book.refuses(person, made) for made in (-math.inf, 200.0, 201.0)] == [True, True, False]
    assert [book.refuses("jwt:" + "60" * 32, made) for made in (-math.inf, 150.0)] == [False, False]
    with pytest.raises(TokenError, match="there is no token"):
        file.renew(person, 60.0)


def test_nobody_knows_whose_tokens_were_revoked_until_the_file_is_read(file: TokenFile) -> None:
    person = "jwt:" + "5f" * 32
    file.revoke(person)
    right = file.path.read_bytes()
    file.path.write_bytes(b"{")
    (book := TokenBook(file)).load()
    before = book.refuses(person, 0.0)
    file.path.write_bytes(right)
    book.load()
    file.path.write_bytes(b"{")
    book.load()

    assert (before, book.refuses(person, 0.0)) == (None, True)


async def test_an_expired_token_is_refused(file: TokenFile) -> None:
    front_time = 1_000_000.0
    token = file.add("anna", expires=front_time + 10)
    front = Front(file, front_time)

    assert (await front.says(token))[0] == 200
    front.now += 10
    assert (await front.says(token))[0] == 401


async def test_a_renewed_token_has_the_rights_and_lifetime_of_the_former_which_is_accepted_for_a_while(
    file: TokenFile,
) -> None:
    now = time.time()
    old = file.add("anna", servers=["one"], role="view", expires=now + 90, now=now)
    (before,) = file.read()
    front, sent = Front(file, now), list[dict[str, Any]]()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                sent.extend(await front.ask(old, front.streams))

            group.start_soon(listen)
            await front.streaming.wait()
            new = file.renew("anna", 30, now=now + 10)
            following = anyio.CancelScope()

            async def follow() -> None:
                with following:
                    await front.book.run()

            group.start_soon(follow)
            await until(lambda: front.book.find(new) is not None)
            front.now += 39
            assert [await front.says(token) for token in (old, new)] == [(200, "anna False")] * 2
            assert not sent, "what is open with the former token goes on"
            front.now += 1
            await until(lambda: bool(sent))
            following.cancel()

    assert [(await front.says(token))[0] for token in (old, new)] == [401, 200]
    (after,) = file.read()
    assert (after.role, after.servers, after.created) == (before.role, before.servers, now + 10)
    assert after.expires == now + 100


async def test_a_former_token_ends_when_it_would_have_anyway_or_the_token_is_revoked(file: TokenFile) -> None:
    now = time.time()
    first = file.add("anna", expires=now + 5, now=now)
    second = file.renew("anna", 60, now=now)
    front = Front(file, now + 4)
    assert [(await front.says(token))[0] for token in (first, second)] == [200, 200]
    front.now += 1
    assert (await front.says(first))[0] == 401

    file.revoke("anna")
    assert [(await Front(file, now).says(token))[0] for token in (first, second)] == [401, 401]
    with pytest.raises(TokenError, match="there is no token 'anna'"):
        file.renew("anna", 60)


@pytest.mark.parametrize("how", ["revoked", "expired", "limited anew"])
async def test_an_open_stream_ends_when_its_token_is_no_longer_accepted(file: TokenFile, how: str) -> None:
    now = time.time()
    token = file.add("anna", expires=now + 60)
    file.add("ben")
    front, sent = Front(file, now), list[dict[str, Any]]()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:

            async def listen() -> None:
                sent.extend(await front.ask(token, front.streams))

            following = anyio.CancelScope()

            async def follow() -> None:
                with following:
                    await front.book.run()

            group.start_soon(listen)
            group.start_soon(follow)
            await front.streaming.wait()
            if how == "expired":
                front.now += 60
            else:
                file.revoke("anna")
            if how == "limited anew":
                file.add("anna", servers=["one"])
            await until(lambda: bool(sent))
            following.cancel()

    assert [message["type"] for message in sent] == ["http.response.start", "http.response.body"]
    assert sent[-1].get("more_body", False) is False


async def test_a_running_front_takes_over_what_is_added_and_revoked(file: TokenFile) -> None:
    front = Front(file)
    async with anyio.create_task_group() as group:
        group.start_soon(front.book.run)
        token = file.add("anna")
        with anyio.fail_after(30):
            await until(lambda: front.book.find(token) is not None)
            added = await front.says(token)
            file.revoke("anna")
            await until(lambda: front.book.find(token) is None)
            revoked = await front.says(token)
        group.cancel_scope.cancel()

    assert added == (200, "anna False")
    assert revoked[0] == 401


def torn(path: Path) -> None:
    path.write_text("{")


def deep(path: Path) -> None:
    path.write_text('{"more": ' + "[" * 100_000 + "]" * 100_000 + "}", "utf-8")


@pytest.mark.parametrize("instead", [torn, os.mkdir, getattr(os, "mkfifo", os.mkdir), deep])
async def test_a_file_that_cannot_be_read_accepts_no_named_token_and_is_said_once(
    file: TokenFile, caplog: pytest.LogCaptureFixture, instead: Callable[[Path], None]
) -> None:
    token = file.add("anna")
    front = Front(file)
    file.path.unlink()
    instead(file.path)
    for _ in range(3):
        front.book.load()

    assert (await front.says(token))[0] == 401
    assert (await front.says(OWN_TOKEN))[0] == 200
    assert [record.message.count("no named token is accepted") for record in caplog.records] == [1]


@pytest.mark.parametrize("name", ["", "owner", "a b", "-x", "x" * 65, "a\n", "ä", "../x"])
def test_a_name_that_cannot_stand_in_a_log_is_refused(file: TokenFile, name: str) -> None:
    with pytest.raises(TokenError, match="cannot be named"):
        file.add(name)


BAD_ENTRIES: dict[str, dict[str, Any]] = {
    "cannot be named 'a\\nb'": {"name": "a\nb"},
    "cannot be named 'owner'": {"name": OWNER, "role": "admin"},
    "another one is named 'anna'": {"name": "anna", "role": "admin"},
    "reaches everything": {"name": "limited", "role": "admin", "servers": ["one"]},
    "Invalid enum value 'root'": {"name": "ruler", "role": "root"},
    "Expected `float`": {"name": "dated", "created": "today"},
    "Invalid enum value 'any'": {"name": "classed", "classes": ["any"]},
}


@pytest.mark.parametrize("reason", BAD_ENTRIES)
async def test_an_entry_that_no_command_would_write_is_left_out_and_said_once(
    file: TokenFile, caplog: pytest.LogCaptureFixture, reason: str
) -> None:
    token = file.add("anna")
    written = json.loads(file.path.read_bytes())
    bad = {"sha256": digest("bad"), "created": 1.0, **BAD_ENTRIES[reason]}
    file.path.write_text(json.dumps({"tokens": [*written["tokens"], bad]}), encoding="utf-8")
    front = Front(file)
    for _ in range(3):
        front.book.load()

    assert await front.says(token) == (200, "anna False")
    assert (await front.says("bad"))[0] == 401
    (message,) = [record.message for record in caplog.records]
    assert "token 2 is not accepted: " in message
    assert reason in message
    assert "\n" not in message
    file.add("berta")
    assert bad in json.loads(file.path.read_bytes())["tokens"]


def test_tokens_have_different_names_and_are_bounded_in_number(file: TokenFile) -> None:
    for number in range(MOST_TOKENS):
        file.add(f"t{number}")

    with pytest.raises(TokenError, match="already; revoke"):
        file.add("one-more")
    file.revoke("t0")
    with pytest.raises(TokenError, match="there is a token 't1' already"):
        file.add("t1")
    with pytest.raises(TokenError, match="there is no token 't0'"):
        file.revoke("t0")


@pytest.mark.parametrize(("role", "reached"), [("admin", "everything"), ("metrics", "the metrics alone")])
def test_some_roles_have_no_limits(file: TokenFile, role: RoleName, reached: str) -> None:
    with pytest.raises(TokenError, match=f"reaches {reached}"):
        file.add("anna", role=role, servers=["one"])


def test_a_principal_may_call_what_both_its_servers_and_its_classes_allow() -> None:
    def tool(server: str, tool_class: ToolClass) -> Tool:
        return Tool(server, "t", f"{server}__t", b"{}", "f", tool_class=tool_class)

    limited = Principal("anna", Role.USE, (Reach(frozenset({"one"}), frozenset({ToolClass.READ})),))
    allowed = [
        (server, each.value)
        for server in ("one", "two")
        for each in ToolClass
        if limited.may_call(tool(server, each))
    ]
    assert allowed == [("one", "read")]
    assert limited.limited
    assert not Principal("anna", Role.USE).limited
