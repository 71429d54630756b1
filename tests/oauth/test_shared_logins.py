"""Logins that replicas share: sealed in the store, renewed by one of them, given up for all of them."""

import itertools
import json
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec
import pytest
from msgspec.structs import asdict
from support.authorization import MACHINE_ID, MACHINE_SECRET, Protected
from support.commands import forked_command, forked_program
from support.ledger import until
from support.postgres import PostgresServer, missing, postgres_server

from mcp_context_proxy.config import Config, ServerConfig, StoreConfig
from mcp_context_proxy.config.tables import ClusterConfig
from mcp_context_proxy.errors import AuthorizationError, LoginRequiredError, StoreError
from mcp_context_proxy.oauth import CredentialFile, Login, Logins, OAuthCredentials
from mcp_context_proxy.oauth.bearer import BearerAuth
from mcp_context_proxy.store.credentials import SharedCredentials, shared_credentials
from mcp_context_proxy.store.opening import Store, open_store

from .conftest import fetched, logged_in, logged_in_by, server_config

KEY, NEXT_KEY = "0123456789abcdef" * 4, "fedcba9876543210" * 4
ANOTHER_KEY = "sealed with another key than this configuration has: set cluster.key"
_names = (f"logins{number}" for number in itertools.count())


class Replica:
    """The logins of one replica."""

    def __init__(self, place: StoreConfig, key: str = KEY, *others: str) -> None:
        self.store: Store = open_store(place)
        settings = ClusterConfig(key=key, other_keys=others)
        found = shared_credentials(Config(store=place, cluster=settings), self.store)
        assert found is not None
        self.shared: SharedCredentials = found

    def login(self, config: ServerConfig) -> Login:
        return Logins(self.shared).of(config)

    def auth(self, config: ServerConfig, now: float | None = None) -> BearerAuth:
        clock = time.time if now is None else lambda: now
        return BearerAuth(config, clock=clock, login=self.login(config))

    async def look(self) -> None:
        """Look at the store, as a replica does every second."""
        await anyio.to_thread.run_sync(partial(self.shared.look, now=True))


Join = Callable[..., Replica]


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.cluster)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> StoreConfig:
    if request.param == "file":
        return StoreConfig(path=str(tmp_path / "store.sqlite3"))
    return StoreConfig(url=request.getfixturevalue("postgres").url, namespace=next(_names))


@pytest.fixture
def join(place: StoreConfig) -> Iterator[Join]:
    """Opens the store once more, as another replica."""
    with_stores = list[Replica]()

    def joined(*keys: str) -> Replica:
        with_stores.append(Replica(place, *keys))
        return with_stores[-1]

    yield joined
    for replica in with_stores:
        replica.store.close()


@pytest.fixture
def disturbed() -> Iterator[PostgresServer]:
    """A server that a test kills."""
    if reason := missing():
        pytest.skip(reason)
    with postgres_server() as started:
        yield started


async def logged_in_at(replica: Replica, config: ServerConfig) -> OAuthCredentials:
    """Log in as a person would, at one replica."""
    credentials = await logged_in(config)
    CredentialFile(config).delete()
    assert replica.login(config).write(credentials)
    return credentials


def kept(replica: Replica) -> bytes:
    """Everything that the store has of credentials."""
    rows = replica.store.database.rows("SELECT kind, name, sealed, key_mark FROM credentials")
    return b"\n".join(part if isinstance(part, bytes) else part.encode() for row in rows for part in row)


async def test_a_login_at_one_replica_is_used_and_renewed_by_all(protected: Protected, join: Join) -> None:
    one, other, config = join(), join(), server_config(protected)
    auth = other.auth(config)
    with pytest.raises(LoginRequiredError, match="run: mcp-context-proxy login locked"):
        await fetched(config, auth)
    await logged_in_at(one, config)
    await other.look()

    assert await fetched(config, other.auth(config)) != 401
    protected.issuer.expire_all()
    assert await fetched(config, other.auth(config)) != 401
    await one.look()
    assert await fetched(config, one.auth(config)) != 401
    assert protected.issuer.granted == ["authorization_code", "refresh_token"]


async def test_the_store_holds_nothing_that_opens_anything(protected: Protected, join: Join) -> None:
    replica = join()
    login = await logged_in_at(replica, server_config(protected))
    found = kept(replica)

    for secret in (login.access_token, login.refresh_token, login.client_secret, login.client_id, KEY):
        assert secret is not None
        assert secret.encode() not in found
    assert login.issuer.encode() not in found


@pytest.mark.parametrize("how", ["changed", "moved", "cut", "made up"])
async def test_a_row_that_was_changed_in_the_store_is_no_login(
    protected: Protected, join: Join, how: str
) -> None:
    replica, config = join(), server_config(protected)
    await logged_in_at(replica, config)
    elsewhere = ServerConfig(name="elsewhere", url="http://127.0.0.1:9/mcp")
    name = CredentialFile(elsewhere).path.stem
    with replica.store.database.transaction() as transaction:
        ((sealed,),) = transaction.execute("SELECT sealed FROM credentials").fetchall()
        if how == "moved":
            transaction.execute("UPDATE credentials SET name = ?", (name,))
        else:
            changed = {
                "changed": sealed[:-1] + bytes([sealed[-1] ^ 1]),
                "cut": sealed[:20],
                "made up": b"\0" * len(sealed),
            }
            transaction.execute("UPDATE credentials SET sealed = ?", (changed[how],))
    moved = elsewhere if how == "moved" else config

    with pytest.raises(AuthorizationError, match="its login is in the store, sealed with another key"):
        await anyio.to_thread.run_sync(replica.login(moved).read_now)


REPLICA = """
import sys, anyio, httpx2, json
from mcp_context_proxy.config import Config, ServerConfig, StoreConfig
from mcp_context_proxy.config.tables import ClusterConfig
from mcp_context_proxy.oauth.bearer import BearerAuth
from mcp_context_proxy.oauth import Logins
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.credentials import shared_credentials
async def main(url, key, place):
    config, store = ServerConfig(name="locked", url=url), StoreConfig(**json.loads(place))
    with open_store(store) as opened:
        shared = shared_credentials(Config(store=store, cluster=ClusterConfig(key=key)), opened)
        auth = BearerAuth(config, login=Logins(shared).of(config))
        async with httpx2.AsyncClient(auth=auth, timeout=120) as client:
            for _ in range(3):
                print((await client.get(url)).status_code, flush=True)
anyio.run(main, *sys.argv[1:])
"""


async def test_replicas_that_renew_at_once_use_a_refresh_token_once(
    protected: Protected, join: Join, place: StoreConfig
) -> None:
    replica, config = join(), server_config(protected)
    await logged_in_at(replica, config)
    protected.issuer.expire_all()
    protected.issuer.refresh_seconds = 0.3
    outputs, where = list[bytes](), json.dumps(asdict(place))

    async def run() -> None:
        words = forked_program(REPLICA, protected.url, KEY, where)
        done = await anyio.run_process(words, env=dict(os.environ))
        outputs.append(done.stdout)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(run)

    said = b"".join(outputs).split()
    assert len(said) == 9
    assert b"401" not in said
    assert protected.issuer.granted.count("refresh_token") == 1
    assert protected.issuer.failed == []


async def test_a_logout_at_one_replica_counts_at_all_and_no_renewal_undoes_it(
    protected: Protected, join: Join
) -> None:
    one, other, config = join(), join(), server_config(protected)
    await logged_in_at(one, config)
    await other.look()
    protected.issuer.expire_all()
    protected.issuer.refresh_seconds = 0.5
    refused = list[str]()

    async def renew() -> None:
        try:
            await fetched(config, other.auth(config))
        except LoginRequiredError as error:
            refused.append(str(error))

    async with anyio.create_task_group() as group:
        group.start_soon(renew)
        await until(lambda: not protected.issuer.refreshable)
        assert await anyio.to_thread.run_sync(one.login(config).delete)

    assert len(refused) == 1
    assert await anyio.to_thread.run_sync(other.login(config).read_now) is None
    assert protected.issuer.access == {}
    assert not await anyio.to_thread.run_sync(one.login(config).delete)


async def test_a_renewal_that_was_paused_keeps_its_tokens_although_another_was_refused(
    protected: Protected, join: Join
) -> None:
    one, other, config = join(), join(), server_config(protected)
    old = await logged_in_at(one, config)
    new = msgspec.structs.replace(old, access_token="new", refresh_token="newer")
    spent = msgspec.structs.replace(old, refresh_token=None)

    # The other one took over when the lease had ended, and used the same refresh token.
    assert other.login(config).write(spent, old)
    assert one.login(config).write(new, old)
    assert not other.login(config).write(spent, old)
    assert other.login(config).read_now() == new


async def test_a_file_is_taken_over_once_and_does_not_return_after_a_logout(
    protected: Protected, join: Join
) -> None:
    one, other, config = join(), join(), server_config(protected)
    credentials, file = await logged_in(config), CredentialFile(config)

    assert await fetched(config, one.auth(config)) != 401
    assert not file.path.exists()
    assert other.login(config).read_now() == credentials
    # Another replica, on another machine, has a file of its own.
    file.write(msgspec.structs.replace(credentials, access_token="older"))
    assert join().login(config).read_now() == credentials
    assert other.login(config).delete()
    file.write(credentials)
    assert join().login(config).read_now() is None
    with pytest.raises(LoginRequiredError):
        await fetched(config, join().auth(config))


async def test_a_replica_with_another_key_says_what_to_do_and_changes_nothing(
    protected: Protected, join: Join
) -> None:
    one, config = join(), server_config(protected)
    credentials = await logged_in_at(one, config)
    before = kept(one)
    wrong = join(NEXT_KEY)
    await wrong.look()
    elsewhere = ServerConfig(name="elsewhere", url="http://127.0.0.1:9/mcp")

    with pytest.raises(AuthorizationError, match=ANOTHER_KEY):
        await fetched(config, wrong.auth(config))
    assert "the store has a login or named token, sealed with another key" in (wrong.shared.problem or "")
    for server in (config, elsewhere):
        mine = msgspec.structs.replace(credentials, server=server.name, resource=server.url or "")
        with pytest.raises(AuthorizationError, match=ANOTHER_KEY):
            wrong.login(server).write(mine)
    CredentialFile(elsewhere).write(mine)
    assert wrong.login(elsewhere).read_now() is None
    assert CredentialFile(elsewhere).path.exists()
    assert kept(one) == before
    # A key that is lost for good: a logout needs none.
    assert wrong.login(config).delete()
    await wrong.look()
    assert wrong.shared.problem is None


async def test_the_key_is_changed_without_a_new_login(protected: Protected, join: Join) -> None:
    config = server_config(protected)
    credentials = await logged_in_at(join(), config)
    # First every replica accepts the next key, then each is started anew with it.
    accepting = join(KEY, NEXT_KEY)
    await accepting.look()
    changed = join(NEXT_KEY, KEY)
    await changed.look()

    for replica in (accepting, changed, join(NEXT_KEY)):
        assert replica.login(config).read_now() == credentials
        assert replica.shared.problem is None
    with pytest.raises(AuthorizationError, match=ANOTHER_KEY):
        join(KEY).login(config).read_now()


async def until_the_store_is_back(replica: Replica) -> None:
    with anyio.fail_after(30):
        while True:
            try:
                await replica.look()
                return
            except StoreError:
                await anyio.sleep(0.05)


@pytest.mark.cluster
async def test_a_token_is_not_renewed_while_the_database_is_away_and_is_used_as_long_as_it_is_valid(
    protected: Protected, disturbed: PostgresServer
) -> None:
    config = server_config(protected)
    place = StoreConfig(url=disturbed.url, namespace="away", timeout_seconds=0.5)
    one, other = Replica(place), Replica(place)
    first = await logged_in_at(one, config)
    await other.look()
    ends = first.expires_at or 0
    disturbed.kill()

    assert await fetched(config, one.auth(config, ends - 29)) != 401
    assert protected.issuer.granted == ["authorization_code"]
    expired = one.auth(config, ends + 1)
    with pytest.raises(AuthorizationError, match="in the store, which is away") as failed:
        await fetched(config, expired)
    assert not isinstance(failed.value, LoginRequiredError)
    assert protected.issuer.granted == ["authorization_code"]
    await anyio.to_thread.run_sync(disturbed.start)

    await until_the_store_is_back(one)
    assert await fetched(config, one.auth(config, ends - 29)) != 401
    assert await fetched(config, other.auth(config, ends - 29)) != 401
    assert protected.issuer.granted == ["authorization_code", "refresh_token"]
    for replica in (one, other):
        replica.store.close()


@pytest.mark.cluster
async def test_new_tokens_wait_in_memory_if_the_database_goes_away_during_the_renewal(
    protected: Protected, disturbed: PostgresServer
) -> None:
    config = server_config(protected)
    place = StoreConfig(url=disturbed.url, namespace="during", timeout_seconds=0.5)
    one, other = Replica(place), Replica(place)
    await logged_in_at(one, config)
    protected.issuer.expire_all()
    protected.issuer.refresh_seconds = 1.0
    auth, statuses = one.auth(config), list[int]()

    async def fetch() -> None:
        statuses.append(await fetched(config, auth))

    async with anyio.create_task_group() as group:
        group.start_soon(fetch)
        await until(lambda: not protected.issuer.refreshable)
        await anyio.to_thread.run_sync(disturbed.kill)
    # So does a further connection of the same replica.
    await fetch()
    statuses.append(await fetched(config, one.auth(config)))
    assert 401 not in statuses
    await anyio.to_thread.run_sync(disturbed.start)

    await until_the_store_is_back(one)
    assert await fetched(config, other.auth(config)) != 401
    assert protected.issuer.granted == ["authorization_code", "refresh_token"]
    assert protected.issuer.failed == []
    for replica in (one, other):
        replica.store.close()


async def test_without_a_person_a_new_token_needs_no_store(
    protected: Protected, join: Join, tmp_path: Path
) -> None:
    settings = {"grant": "client_credentials", "client_id": MACHINE_ID, "client_secret": MACHINE_SECRET}
    config = server_config(protected, **settings, issuer=protected.issuer.url)
    one, other = join(), join()
    assert await fetched(config, one.auth(config)) != 401
    assert await fetched(config, other.auth(config)) != 401
    assert protected.issuer.granted == ["client_credentials"]
    wrong = join(NEXT_KEY)

    assert await fetched(config, wrong.auth(config)) != 401
    assert protected.issuer.granted == ["client_credentials"] * 2
    assert one.login(config).read_now() is not None


def configured(folder: Path, place: StoreConfig, protected: Protected, key: str) -> Path:
    """The configuration of a replica on a machine of its own."""
    folder.mkdir()
    store = "\n".join(
        f'{name} = "{value}"'
        for name, value in asdict(place).items()
        if value != getattr(StoreConfig(), name)
    )
    path = folder / "config.toml"
    path.write_text(
        f'[store]\n{store}\n[cluster]\nkey = "{key}"\n[servers.locked]\nurl = "{protected.url}"\n'
    )
    path.chmod(0o600)
    return path


async def test_the_commands_log_in_and_out_for_all_replicas(
    protected: Protected, place: StoreConfig, tmp_path: Path, data_home: Path
) -> None:
    one = configured(tmp_path / "one", place, protected, KEY)
    other = configured(tmp_path / "other", place, protected, KEY)
    wrong = configured(tmp_path / "wrong", place, protected, NEXT_KEY)

    async def ran(*words: str, at: Path) -> Any:
        environment = dict(os.environ) | {"XDG_DATA_HOME": str(at.parent / "data")}
        words = (*words, "--config", str(at))
        return await anyio.run_process(forked_command(*words), env=environment, check=False)

    _, said = await logged_in_by(one)
    assert "The token is kept in the store, sealed, for all replicas." in said
    assert not (data_home / "mcp-context-proxy" / "oauth").exists()
    tools = json.loads((await ran("tools", "--json", at=other)).stdout)["tools"]
    assert [tool["name"] for tool in tools] == ["locked__whoami"]
    refused = await ran("login", "locked", "--no-browser", at=wrong)
    assert refused.returncode == 1
    assert ANOTHER_KEY in " ".join(refused.stderr.decode().split())
    assert b"revoked and deleted" in (await ran("logout", "locked", at=other)).stdout
    assert protected.issuer.refreshable == {}
    assert b"There was no login to locked" in (await ran("logout", "locked", at=one)).stdout
