"""A token is used as long as it is good, renewed once, and kept for its owner alone."""

import errno
import gzip
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
import httpx2
import pytest
from msgspec.structs import replace
from support.authorization import MACHINE_ID, MACHINE_SECRET, Protected
from support.commands import forked_program

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.errors import AuthorizationError, LoginRequiredError
from mcp_context_proxy.oauth import CredentialFile, OAuthCredentials, token_endpoint
from mcp_context_proxy.oauth.bearer import PAUSE_SECONDS, REREAD_SECONDS, BearerAuth

from .conftest import fetched, logged_in, server_config


def is_there(path: Path) -> bool:
    return path.exists()


def occupy(path: Path) -> None:
    path.write_text("not a folder")


async def token_sent(auth: BearerAuth) -> str | None:
    """The authorization on the next request."""
    flow = auth.async_auth_flow(httpx2.Request("POST", "http://127.0.0.1/mcp"))
    try:
        return (await anext(flow)).headers.get("authorization")
    finally:
        await flow.aclose()


async def test_a_token_that_expires_is_renewed_before_it_is_used(protected: Protected) -> None:
    config = server_config(protected)
    first = await logged_in(config)
    soon = BearerAuth(config, clock=lambda: (first.expires_at or 0) - 31)
    assert await fetched(config, soon) != 401
    assert protected.issuer.granted == ["authorization_code"]
    sooner = BearerAuth(config, clock=lambda: (first.expires_at or 0) - 29)

    assert await fetched(config, sooner) != 401
    kept = CredentialFile(config).read()
    assert kept is not None
    assert kept.access_token != first.access_token
    assert protected.issuer.granted == ["authorization_code", "refresh_token"]


@pytest.mark.skipif(sys.platform == "win32", reason="file modes are POSIX")
async def test_a_login_that_others_could_read_is_made_private_with_a_warning(
    protected: Protected, caplog: pytest.LogCaptureFixture
) -> None:
    credentials = await logged_in(server_config(protected))
    file = CredentialFile(server_config(protected))
    file.path.chmod(0o644)

    assert file.read() == credentials
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert "other users could read the login" in caplog.text


async def test_a_token_that_is_refused_is_renewed_and_the_request_sent_again(protected: Protected) -> None:
    config = server_config(protected)
    await logged_in(config)
    protected.issuer.expire_all()

    assert await fetched(config) != 401
    assert protected.issuer.granted[-1] == "refresh_token"


BOMB = gzip.compress(b" " * 4_000_000)
JSON = {"content-type": "application/json"}
BAD_ANSWERS = {
    "no JSON": (200, b"<html>leaked-tok3n\x1b[2J", {"content-type": "text/html"}),
    "no object": (200, b'["leaked-tok3n"]', JSON),
    "no token": (200, b'{"token_type": "bearer", "note": "leaked-tok3n"}', JSON),
    "no header": (200, b'{"access_token": "leaked-tok3n\\r\\nx: y", "token_type": "bearer"}', JSON),
    "no ASCII": (200, b'{"access_token": "leaked-tok3n\xe2\x80\xae", "token_type": "bearer"}', JSON),
    "empty": (200, b'{"access_token": "", "token_type": "bearer"}', JSON),
    "too long": (
        200,
        b'{"access_token": "leaked-tok3n' + b"x" * 20_000 + b'", "token_type": "bearer"}',
        JSON,
    ),
    "too long to renew": (
        200,
        b'{"access_token": "a", "refresh_token": "leaked-tok3n' + b"x" * 900_000 + b'", "token_type": "b"}',
        JSON,
    ),
    "no text as token": (200, b'{"access_token": {"a": "leaked-tok3n"}, "token_type": "bearer"}', JSON),
    "endless": (200, b'{"leaked-tok3n": "' + b"x" * 3_000_000 + b'"}', JSON),
    "compressed": (200, BOMB, {**JSON, "content-encoding": "gzip"}),
    "compressed three times": (200, gzip.compress(BOMB), {**JSON, "content-encoding": "gzip, gzip, gzip"}),
    "nothing": (204, b"", {}),
    "refused by a gateway": (400, b"<html>Bad Request", {"content-type": "text/html"}),
    "refused without a word": (401, b"", {}),
    "refused for now": (400, b'{"error": "temporarily_unavailable"}', JSON),
}


@pytest.mark.parametrize("answer", BAD_ANSWERS)
async def test_a_bad_answer_instead_of_a_token_is_reported_in_words_and_keeps_the_login(
    protected: Protected, answer: str, caplog: pytest.LogCaptureFixture
) -> None:
    config = server_config(protected)
    before = await logged_in(config)
    protected.issuer.expire_all()
    protected.issuer.answer = BAD_ANSWERS[answer]
    with pytest.raises(AuthorizationError) as failed:
        await fetched(config)

    assert not isinstance(failed.value, LoginRequiredError)
    said = str(failed.value) + caplog.text
    assert "leaked-tok3n" not in said
    assert "\x1b" not in said
    assert len(said) < 1000
    assert CredentialFile(config).read() == before


@pytest.mark.parametrize("status", [202, 302, 400, 500])
@pytest.mark.parametrize("renewing", [False, True], ids=["login", "renewal"])
async def test_a_refusal_that_repeats_the_request_tells_no_secret_of_it(
    protected: Protected, caplog: pytest.LogCaptureFixture, status: int, renewing: bool
) -> None:
    config = server_config(protected)
    if renewing:
        await logged_in(config)
        protected.issuer.expire_all()
    protected.issuer.repeats = status
    with pytest.raises(AuthorizationError) as failed:
        await (fetched(config) if renewing else logged_in(config))

    sent = {name: value for name, (value,) in parse_qs(protected.issuer.sent).items()}
    secret = {"refresh_token"} if renewing else {"code", "code_verifier"}
    told = str(failed.value) + caplog.text
    for name in secret | {"client_secret"}:
        # A form of it, or what is left of one that was cut.
        assert sent[name][:12] not in told


@pytest.mark.parametrize(
    "beside", [b'"expires_in": 1%s' % (b"0" * 400), b'"error": ""'], ids=["endless", "empty error"]
)
async def test_a_token_is_used_whatever_stands_beside_it(protected: Protected, beside: bytes) -> None:
    config = server_config(protected)
    before = await logged_in(config)
    protected.issuer.expire_all()
    token = protected.issuer.issue(before.client_id, [], protected.url).access_token
    answer = b'{"access_token": "%s", "token_type": "bearer", %s}' % (token.encode(), beside)
    protected.issuer.answer = 200, answer, JSON

    assert await fetched(config) != 401
    assert (CredentialFile(config).read() or before).access_token == token


async def test_many_requests_at_once_refresh_a_token_once(protected: Protected) -> None:
    config = server_config(protected)
    await logged_in(config)
    protected.issuer.expire_all()
    protected.issuer.refresh_seconds = 0.1
    auth, statuses = BearerAuth(config), []

    async def fetch() -> None:
        statuses.append(await fetched(config, auth))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(fetch)

    assert 401 not in statuses
    assert protected.issuer.granted.count("refresh_token") == 1
    assert protected.issuer.failed == []


PROXY = """
import sys, anyio, httpx2
from pathlib import Path
from urllib.parse import parse_qs
from mcp_context_proxy.oauth.bearer import BearerAuth
from mcp_context_proxy.config import ServerConfig
async def main(url):
    config = ServerConfig(name="locked", url=url)
    async with httpx2.AsyncClient(auth=BearerAuth(config), timeout=120) as client:
        for _ in range(3):
            print((await client.get(url)).status_code, flush=True)
anyio.run(main, sys.argv[1])
"""


async def test_two_proxies_never_use_a_refresh_token_twice(protected: Protected) -> None:
    config = server_config(protected)
    await logged_in(config)
    protected.issuer.expire_all()
    protected.issuer.refresh_seconds = 0.3
    outputs: list[bytes] = []

    async def run() -> None:
        done = await anyio.run_process(forked_program(PROXY, protected.url), env=dict(os.environ))
        outputs.append(done.stdout)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(run)

    assert b"401" not in b"".join(outputs)
    assert protected.issuer.granted.count("refresh_token") == 1
    assert protected.issuer.failed == []


async def test_a_running_proxy_follows_a_new_login_and_a_logout(
    protected: Protected,
) -> None:
    config, now = server_config(protected), [time.time()]
    auth = BearerAuth(config, clock=lambda: now[0], steady=lambda: now[0])
    first, sent = await logged_in(config), []
    sent.append(await token_sent(auth))
    second = await logged_in(config)
    sent.append(await token_sent(auth))
    now[0] += REREAD_SECONDS
    sent.append(await token_sent(auth))
    CredentialFile(config).delete()
    now[0] += REREAD_SECONDS
    sent.append(await token_sent(auth))

    bearer = [f"Bearer {each.access_token}" for each in (first, first, second)]
    assert sent == [*bearer, None]


async def test_a_clock_that_is_set_back_delays_neither_a_new_login_nor_the_next_attempt(
    protected: Protected,
) -> None:
    config, now, passed = server_config(protected), [time.time()], [0.0]
    first = await logged_in(config)
    CredentialFile(config).write(replace(first, token_endpoint="http://127.0.0.1:9/token"))
    protected.issuer.expire_all()
    auth = BearerAuth(config, clock=lambda: now[0], steady=lambda: passed[0])
    with pytest.raises(AuthorizationError):
        await fetched(config, auth)
    CredentialFile(config).write(first)
    now[0] -= 3600
    passed[0] += PAUSE_SECONDS
    assert await fetched(config, auth) != 401
    second = await logged_in(config)
    now[0] -= 3600
    passed[0] += REREAD_SECONDS

    assert await token_sent(auth) == f"Bearer {second.access_token}"


async def test_a_logout_leaves_no_token_that_a_killed_proxy_was_writing(protected: Protected) -> None:
    config = server_config(protected)
    await logged_in(config)
    file = CredentialFile(config)
    left = file.path.with_name(f".{file.path.name}-killed")
    left.write_bytes(file.path.read_bytes())
    file.delete()

    assert not left.exists()


@pytest.mark.parametrize("answer", [None, (200, b'{"error": "bad_refresh_token"}', JSON)])
async def test_a_revoked_login_names_the_command_and_is_tried_once(
    protected: Protected, answer: tuple[int, bytes, dict[str, str]] | None
) -> None:
    config = server_config(protected)
    await logged_in(config)
    await protected.issuer.revoke_token(None)  # type: ignore[arg-type]
    protected.issuer.answer = answer
    auth = BearerAuth(config)
    for _ in range(3):
        with pytest.raises(LoginRequiredError, match="run: mcp-context-proxy login locked"):
            await fetched(config, auth)

    assert protected.issuer.failed == ([] if answer else ["refresh_token"])


async def test_a_secret_that_is_changed_at_the_issuer_and_in_the_configuration_needs_no_login(
    protected: Protected,
) -> None:
    config = server_config(protected)
    before = await logged_in(config)
    (client,) = protected.issuer.clients.values()
    client.client_secret = "the-next-secret-0123456789"
    protected.issuer.expire_all()
    known = {"client_id": before.client_id, "issuer": before.issuer}
    former = server_config(protected, **known, client_secret=before.client_secret)
    with pytest.raises(AuthorizationError, match="invalid_client"):
        await fetched(former)

    assert await fetched(server_config(protected, **known, client_secret=client.client_secret)) != 401


async def test_a_temporarily_failing_refresh_keeps_the_login(protected: Protected) -> None:
    config = server_config(protected)
    credentials = await logged_in(config)
    await_gone = "http://127.0.0.1:9/token"
    broken = {name: getattr(credentials, name) for name in credentials.__struct_fields__}
    CredentialFile(config).write(OAuthCredentials(**broken | {"token_endpoint": await_gone}))
    protected.issuer.expire_all()
    with pytest.raises(AuthorizationError) as failed:
        await fetched(config)

    assert not isinstance(failed.value, LoginRequiredError)
    kept = CredentialFile(config).read()
    assert kept is not None
    assert kept.refresh_token == credentials.refresh_token


async def test_the_first_error_after_a_lost_answer_to_a_refresh_advises_a_login(protected: Protected) -> None:
    async def hang_up(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()

    config = server_config(protected)
    credentials = await logged_in(config)
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    address = f"http://127.0.0.1:{listener.extra(anyio.abc.SocketAttribute.local_port)}/token"
    CredentialFile(config).write(replace(credentials, token_endpoint=address))
    protected.issuer.expire_all()
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, hang_up)
        with pytest.raises(
            AuthorizationError, match="if this goes on, run: mcp-context-proxy login locked"
        ) as failed:
            await fetched(config)
        group.cancel_scope.cancel()

    assert not isinstance(failed.value, LoginRequiredError)
    kept = CredentialFile(config).read()
    assert kept is not None
    assert kept.refresh_token == credentials.refresh_token


async def test_a_refresh_that_is_never_answered_advises_a_login(protected: Protected) -> None:
    config = server_config(protected)
    credentials = await logged_in(config)
    protected.issuer.refresh_seconds = 30
    with pytest.raises(AuthorizationError, match="if this goes on, run: mcp-context-proxy login locked"):
        await token_endpoint.refresh(config, credentials, seconds=0.5)


async def test_credentials_for_another_issuer_url_or_name_are_not_used(protected: Protected) -> None:
    await logged_in(server_config(protected))
    file = CredentialFile(server_config(protected))
    other_issuer = CredentialFile(server_config(protected, issuer="https://mine.example"))
    moved = ServerConfig(name="locked", url=protected.url + "/elsewhere")
    (file.path.parent / CredentialFile(moved).path.name).write_bytes(file.path.read_bytes())

    assert file.read() is not None
    assert other_issuer.path == file.path
    assert other_issuer.read() is None
    assert CredentialFile(moved).read() is None


async def test_without_a_login_nothing_is_written(protected: Protected, data_home: Path) -> None:
    with pytest.raises(LoginRequiredError):
        await fetched(server_config(protected))

    assert not is_there(data_home)


async def test_without_a_writable_folder_a_login_lasts_until_the_proxy_stops(
    protected: Protected, data_home: Path
) -> None:
    occupy(data_home)
    settings = {"grant": "client_credentials", "client_id": MACHINE_ID, "client_secret": MACHINE_SECRET}
    config = server_config(protected, **settings, issuer=protected.issuer.url)
    auth = BearerAuth(config)

    assert await fetched(config, auth) != 401
    assert await fetched(config, auth) != 401
    assert protected.issuer.granted == ["client_credentials"]


class FullDisk(CredentialFile):
    """A login whose file can be read, and written only while there is room."""

    full = True

    def write(self, new: OAuthCredentials, instead_of: OAuthCredentials | None = None) -> bool:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(new, instead_of)


async def test_no_refresh_token_is_used_twice_while_the_disk_is_full(protected: Protected) -> None:
    config = server_config(protected)
    await logged_in(config)
    disk = FullDisk(config)
    auth = BearerAuth(config, login=disk)
    for _ in range(3):
        protected.issuer.expire_all()
        assert await fetched(config, auth) != 401

    assert protected.issuer.failed == []
    assert protected.issuer.granted.count("refresh_token") == 3


async def renewed_on_a_full_disk(
    protected: Protected,
) -> tuple[ServerConfig, list[float], FullDisk, BearerAuth]:
    """Return a login whose renewed tokens could not be stored, with its clock and its disk."""
    config, now = server_config(protected), [time.time()]
    await logged_in(config)
    disk = FullDisk(config)
    auth = BearerAuth(config, login=disk, steady=lambda: now[0])
    protected.issuer.expire_all()
    await fetched(config, auth)
    return config, now, disk, auth


async def test_new_tokens_are_stored_once_the_disk_has_room(protected: Protected) -> None:
    config, now, disk, auth = await renewed_on_a_full_disk(protected)
    disk.full = False
    now[0] += REREAD_SECONDS
    sent = await token_sent(auth)

    kept = CredentialFile(config).read()
    assert kept is not None
    assert sent == f"Bearer {kept.access_token}"
    assert protected.issuer.failed == []


async def test_a_login_while_new_tokens_wait_for_room_is_not_replaced_by_them(protected: Protected) -> None:
    config, now, disk, auth = await renewed_on_a_full_disk(protected)
    second = await logged_in(config)
    disk.full = False
    now[0] += REREAD_SECONDS
    sent = await token_sent(auth)

    kept = CredentialFile(config).read()
    assert kept is not None
    assert sent == f"Bearer {second.access_token}" == f"Bearer {kept.access_token}"


@pytest.mark.parametrize(
    "content", [b'{"access_token": 7', b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"]
)
async def test_a_damaged_file_counts_as_no_login(protected: Protected, content: bytes) -> None:
    config = server_config(protected)
    await logged_in(config)
    CredentialFile(config).path.write_bytes(content)

    with pytest.raises(LoginRequiredError):
        await fetched(config)


def test_tokens_are_renewed_without_loading_the_sdk() -> None:
    code = "import sys, mcp_context_proxy.oauth.token_endpoint; print({'mcp', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "set()"


async def test_servers_that_wait_for_a_login_take_no_threads_from_others() -> None:
    """More of them wait than there are threads, and each login is seen when it comes."""
    url = "https://server.example/mcp"

    def log_in(token: str) -> list[CredentialFile]:
        files = []
        for number in range(45):
            name = f"server-{number}"
            files.append(CredentialFile(ServerConfig(name=name, url=url)))
            files[-1].write(
                OAuthCredentials(
                    server=name,
                    resource=url,
                    issuer="https://issuer.example",
                    token_endpoint="https://issuer.example/token",
                    client_id="client",
                    access_token=token,
                )
            )
        return files

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            for file in log_in("refused"):
                group.start_soon(file.replaced)
            await anyio.sleep(3)
            with anyio.fail_after(20):
                await anyio.to_thread.run_sync(lambda: None)
            log_in("new")
