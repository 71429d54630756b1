"""A database that dies, stalls or restarts costs no call, no search and nothing that was counted."""

import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest
from support.cutting import CuttingProxy
from support.ledger import until
from support.nobody import as_nobody
from support.postgres import PostgresServer, missing, postgres_server, standby_of
from support.proxies import Host, http_proxy, inside
from support.replicas import until_ready
from support.servers import Workshop, tool

from mcp_context_proxy.config import StoreConfig
from mcp_context_proxy.downstream.lifecycle import ServerState
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.database import StoreUnavailableError
from mcp_context_proxy.store.memory import Interaction, InteractionScope
from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.store.statistics import SearchUsage, ToolUsage, UsageSlot
from mcp_context_proxy.trust.decisions import decide
from mcp_context_proxy.trust.fingerprints import State

psycopg = pytest.importorskip("psycopg")
from mcp_context_proxy.store.migrations import POSTGRES_VERSION  # noqa: E402 - an extra

pytestmark = pytest.mark.cluster

NOW = 1.7e9
SLOT = UsageSlot.of(NOW)
TIMEOUT = 0.5
TOKEN = "an-owner-token-of-these-tests"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server that these tests kill and pause."""
    if reason := missing():
        pytest.skip(reason)
    with postgres_server() as started:
        yield started


def opened(server: PostgresServer, name: str, timeout_seconds: float = TIMEOUT, **more: Any) -> Store:
    return open_store(StoreConfig(url=server.url, namespace=name, timeout_seconds=timeout_seconds, **more))


def count(store: Store, batch: int | None = None) -> None:
    usage = ToolUsage("s", "find", 1, 0, 1, 2.0, 3, NOW, {7: 1})
    store.statistics.add([(SLOT, usage)], {SLOT: SearchUsage(1)}, [], batch)


def calls(store: Store) -> int:
    return sum(tool.calls for tool in store.statistics.tools())


def until_it_works(attempt: Callable[[], None]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            attempt()
            return
        except StoreError:
            assert time.monotonic() < end
            time.sleep(0.05)


def test_a_killed_server_loses_and_doubles_nothing_that_was_counted(server: PostgresServer) -> None:
    """Each batch is sent until it is acknowledged; it is there once, whatever was cut off."""
    with opened(server, "killed") as store:
        acknowledged, stop = [0], threading.Event()

        def write() -> None:
            while not stop.is_set():
                until_it_works(partial(count, store, store.statistics.next_batch()))
                acknowledged[0] += 1

        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(write)
            for _ in range(3):
                before = acknowledged[0]
                while acknowledged[0] < before + 20:
                    assert not writing.done()
                    time.sleep(0.01)
                server.kill()
                server.start()
            stop.set()
            writing.result(60)

        assert calls(store) == acknowledged[0]
        assert store.warning is None


def test_operations_on_a_stalled_server_are_cut_off_and_then_fail_at_once(server: PostgresServer) -> None:
    with opened(server, "stalled") as store:
        count(store)
        server.pause()
        try:
            began = time.monotonic()
            with pytest.raises(StoreUnavailableError, match="did not answer within"):
                count(store)
            first = time.monotonic() - began
            began = time.monotonic()
            for _ in range(50):
                with pytest.raises(StoreUnavailableError):
                    store.requests.latest(1)
            others = time.monotonic() - began
            assert store.warning is not None
            assert "Calls and searches go on" in store.warning
        finally:
            server.resume()
        assert first >= TIMEOUT
        assert others < 10 * first  # waiting, each of the 50 would take as long as the first
        until_it_works(lambda: count(store))

        assert calls(store) == 2
        assert store.warning is None


def test_a_server_that_takes_no_writes_is_told_of_although_it_is_read(
    server: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A standby that was the primary, or a managed database whose disk is full."""
    setting = "ALTER ROLE postgres {} default_transaction_read_only"
    with opened(server, "read_only") as store, psycopg.connect(server.url, autocommit=True) as administrator:
        count(store)
        try:
            administrator.execute(setting.format("SET") + " = on")
            administrator.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid != pg_backend_pid()"
            )
            for _ in range(2):
                with pytest.raises(StoreError):
                    count(store)
            assert calls(store) == 1
            assert store.warning is not None
            assert "read-only" in store.warning
        finally:
            administrator.execute("SET default_transaction_read_only = off")
            administrator.execute(setting.format("RESET"))
        until_it_works(partial(count, store))

        assert calls(store) == 2
        assert store.warning is None
    assert not [one for one in caplog.records if one.name.startswith("psycopg")]


def test_a_replica_that_has_never_reached_the_database_is_not_ready(tmp_path: Path) -> None:
    """It knows no named token and no decision about a definition, so it must get no clients of others."""
    if reason := missing():
        pytest.skip(reason)
    workshop = Workshop(tmp_path)
    workshop.server("work", tools=[tool("echo")])
    with postgres_server() as server:
        server.kill()
        config = workshop.config(store={"url": server.url, "timeout_seconds": TIMEOUT})
        with http_proxy(config) as proxy:
            early = httpx2.get(f"{proxy.base}/readyz", timeout=30)
            assert early.status_code == 503
            assert "the database could not be used since the start" in early.json()["missing"]
            server.start()
            until_ready(proxy.base)
            server.kill()
            assert httpx2.get(f"{proxy.base}/readyz", timeout=30).status_code == 200


async def test_nothing_is_served_whose_decision_cannot_be_read_until_the_database_is_there(
    server: PostgresServer, workshop: Workshop
) -> None:
    """A start without the database must not undo what a person has rejected; what runs then goes on."""
    workshop.server("desk", tools=[tool("send_mail"), tool("wipe")])
    workshop.server("plain", tools=[tool("echo")])
    store = {"url": server.url, "namespace": "decided", "timeout_seconds": TIMEOUT}
    config = workshop.config(store=store)
    async with inside(config) as proxy:
        reject = partial(decide, proxy.store, "desk", ["wipe"], State.REJECTED, by="test")
        await anyio.to_thread.run_sync(reject)
    try:
        async with inside(config) as proxy:
            server.kill()
            (running,) = [client for client in proxy.fleet.clients.values() if client.name == "plain"]
            proxy.fleet.restart("plain")
            await until(lambda: running is not proxy.fleet.clients["plain"])
            await until(lambda: proxy.fleet.clients["plain"].state is ServerState.READY)
            kept = await Host(proxy, "modern").names()
        async with inside(config) as proxy:
            host = Host(proxy, "modern")
            names, called = await host.names(), await host.call("desk__send_mail")
            await anyio.to_thread.run_sync(server.start)
            await until(lambda: proxy.catalog.snapshot.tools)
            after = await host.names()
            refused = await host.call("desk__wipe")
    finally:
        server.kill()
        await anyio.to_thread.run_sync(server.start)

    assert {"plain__echo", "desk__send_mail"} <= {*kept}
    assert [name for name in names if "__" in name] == []
    told = called["content"][0]["text"]
    assert "the database that has the decisions about it cannot be reached; it is tried again" in told
    assert "a person has to look" not in told
    assert [name for name in after if name.startswith("desk__")] == ["desk__send_mail"]
    assert "a person has rejected it" in refused["content"][0]["text"]


def test_nothing_is_doubled_when_the_answer_to_a_commit_is_lost(
    server: PostgresServer, tmp_path: Path
) -> None:
    proxy = CuttingProxy(tmp_path, server)
    with open_store(StoreConfig(url=proxy.url, namespace="cut", timeout_seconds=TIMEOUT, pool=1)) as store:
        for number in range(8):
            proxy.cuts = 1
            batch, row = store.statistics.next_batch(), Interaction("a", "message", f"{number}", NOW)
            until_it_works(partial(count, store, batch))
            proxy.cuts = 1
            until_it_works(
                lambda row=row: store.interactions.put([row], NOW, 100, 0.0, [row.content]) and None  # type: ignore[misc]
            )
            assert proxy.cuts == 0

        assert calls(store) == 8
        assert store.interactions.count(InteractionScope()) == 8
    proxy.close()


def test_writing_goes_on_at_the_standby_that_takes_over_and_nothing_is_lost(server: PostgresServer) -> None:
    spare = PostgresServer(Path(f"{server.folder}-standby"), server.programs)
    hosts = f"{server.folder},{spare.folder}"
    url = f"postgresql://postgres@/postgres?host={hosts}&target_session_attrs=read-write"
    try:
        standby_of(server, spare)
        with open_store(StoreConfig(url=url, namespace="failover", timeout_seconds=TIMEOUT)) as store:
            for _ in range(5):
                count(store, store.statistics.next_batch())
            server.kill()
            with psycopg.connect(spare.url, autocommit=True) as connection:
                connection.execute("SELECT pg_promote()")
            for _ in range(5):
                until_it_works(partial(count, store, store.statistics.next_batch()))
            assert calls(store) == 10
    finally:
        spare.stop()
        shutil.rmtree(spare.folder, ignore_errors=True)
        server.kill()
        server.start()
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")


def test_no_row_of_a_writer_that_is_slow_to_commit_is_skipped(server: PostgresServer) -> None:
    """Another writer of the area waits, so what is committed first has the smaller ids."""
    patient = opened(server, "slow", timeout_seconds=60)  # its transaction is open as long as others look
    with patient as slow, opened(server, "slow") as other, opened(server, "slow") as reader:
        began, late = threading.Event(), threading.Event()

        def write_slowly() -> None:
            with slow.database.transaction("interactions") as transaction:
                transaction.execute(
                    "INSERT INTO interactions "
                    "(agent_name, interaction_type, content, time, recorded, origin) "
                    "VALUES ('a', 'message', 'slow', 0, ?, 'slow')",
                    (NOW,),
                )
                began.set()
                assert late.wait(30)

        row = Interaction("a", "message", "other", NOW)
        with ThreadPoolExecutor(2) as pool:
            writing = pool.submit(write_slowly)
            assert began.wait(30)
            waiting = pool.submit(
                until_it_works, lambda: other.interactions.put([row], NOW, 9, 0.0, ["o"]) and None
            )
            seen = reader.interactions.after(0, 9)
            time.sleep(TIMEOUT / 5)
            seen += reader.interactions.after(0, 9)
            late.set()
            writing.result(60)
            waiting.result(30)

        assert seen == []
        assert [one.content for one in reader.interactions.after(0, 9)] == ["slow", "other"]


def test_a_change_is_heard_of_by_the_other_replicas(server: PostgresServer) -> None:
    with opened(server, "hints") as one, opened(server, "hints") as other:
        end = time.monotonic() + 60
        while other.database.may_have_changed("listings"):  # until it listens
            assert time.monotonic() < end
            time.sleep(0.05)
        assert not other.database.may_have_changed("listings")
        one.listings.put("key", NOW, b"listing")
        while not other.database.may_have_changed("listings"):
            assert time.monotonic() < end
            time.sleep(0.05)


def test_the_schema_is_made_by_one_of_many_replicas_or_by_a_command(server: PostgresServer) -> None:
    patience = 60.0  # all but one wait until the schema is made, however busy the machine is
    with opened(server, "later", patience, migrate="check") as store:
        assert "run mcp-context-proxy store migrate" in str(store.warning)
        with pytest.raises(StoreError, match="run mcp-context-proxy store migrate"):
            count(store)
    stores = list[Store]()
    with ThreadPoolExecutor(6) as pool:
        stores = list(pool.map(lambda _: opened(server, "later", patience), range(6)))
        list(pool.map(count, stores))
    assert [calls(store) for store in stores] == [6] * 6
    for store in stores:
        store.close()
    with opened(server, "later", patience, migrate="check") as store:
        count(store)


def test_replicas_need_no_more_rights_than_the_documentation_gives_their_user(
    server: PostgresServer,
) -> None:
    page = Path(__file__).parents[2].joinpath("docs", "scaling.md").read_text("utf-8")
    rights = page.partition("```sql\n")[2].partition("```")[0]
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE ROLE migrator LOGIN; CREATE ROLE proxy LOGIN")
        connection.execute(rights)
    of_two = [server.url.replace("postgres@", f"{name}@") for name in ("migrator", "proxy")]
    configs = [StoreConfig(url=url, timeout_seconds=60.0, migrate="check") for url in of_two]
    with open_store(configs[0]) as store:
        assert store.database.migrate() == (0, POSTGRES_VERSION)
    with open_store(configs[1]) as store:
        count(store)
        store.interactions.put([Interaction("a", "message", "said", NOW)], NOW, 9, 0.0)
        assert calls(store) == 1


async def test_calls_searches_and_lists_go_on_without_the_store_and_nothing_is_lost(
    server: PostgresServer, workshop: Workshop
) -> None:
    workshop.server("desk", tools=[tool("send_mail", "Send a mail"), tool("read_mail", "Read the mails")])
    store = {"url": server.url, "namespace": "proxy", "timeout_seconds": TIMEOUT}
    config = workshop.config(expose={"mode": "search"}, store=store)
    async with inside(config) as proxy:
        host = Host(proxy, "handshake")

        async def work() -> None:
            assert await host.names()
            found = await host.data("search_available_tools", {"query": "send a mail", "top_n": 1})
            assert found["results"][0]["name"] == "desk__send_mail"
            await host.call("desk__send_mail")

        await work()
        assert proxy.statistics.usage is not None
        await proxy.statistics.usage.flush()
        server.kill()
        try:
            for _ in range(5):
                await work()
            await proxy.statistics.usage.flush()
            # Another write may have begun before, and the problem is known once one of them has failed.
            problems = await until(lambda: proxy.health().get("problems"))
        finally:
            # The tests after this one need it, too.
            await anyio.to_thread.run_sync(server.start)

        async def counted() -> int:
            assert proxy.statistics.usage is not None
            await proxy.statistics.usage.flush()
            try:
                return await anyio.to_thread.run_sync(calls, proxy.store)
            except StoreError:
                return 0

        with anyio.fail_after(30):
            while await counted() < 6:  # noqa: ASYNC110 - another process
                await anyio.sleep(0.05)
        assert await counted() == 6
        assert any("Calls and searches go on" in problem for problem in problems)
        assert "problems" not in proxy.health()
        assert proxy.search.use_recorder is not None
        await proxy.search.use_recorder.flush()
        learned = proxy.search.learned
        assert learned is not None
        await anyio.to_thread.run_sync(learned.refresh)
        (taught,) = await anyio.to_thread.run_sync(proxy.store.learned.all)
        assert (taught.query, taught.uses) == ("send a mail", 1)


async def test_a_running_proxy_takes_another_user_of_its_database_and_loses_nothing(
    server: PostgresServer, workshop: Workshop
) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(
            "CREATE ROLE former LOGIN; CREATE ROLE next LOGIN IN ROLE former; "
            "CREATE SCHEMA renewed AUTHORIZATION former"
        )
    workshop.server("desk", tools=[tool("send_mail")])
    config = workshop.config(store=of_user(server, "former"))
    environment = os.environ | {"MCP_CONTEXT_PROXY_TOKEN": TOKEN}
    with (
        http_proxy(config, auth=True, env=environment) as proxy,
        psycopg.connect(server.url, autocommit=True) as connection,
    ):
        until_ready(proxy.base)
        connection.execute("ALTER ROLE former NOLOGIN")
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'former'")
        order = {"json": {"tool": "desk__send_mail"}, "headers": {"authorization": f"Bearer {TOKEN}"}}

        def call() -> None:
            called = httpx2.post(f"{proxy.base}/api/v1/call", **order, timeout=30)
            assert called.status_code == 200, called.text

        def is_heard() -> bool:
            # One of its connections listens, and tells others of changes.
            users = (
                "SELECT count(*) FROM pg_stat_activity WHERE usename = 'next' AND query ~ 'LISTEN|pg_notify'"
            )
            return connection.execute(users).fetchone() == (1,)

        call()
        workshop.config(store=of_user(server, "next"))
        await until(is_heard)
        call()  # what waits is written with what comes next, and else once a minute
        counted = "SELECT sum(calls) FROM renewed.tool_usage"
        await until(lambda: connection.execute(counted).fetchone() == (2,))
        assert "need a restart" not in config.with_suffix(".log").read_text()


def of_user(server: PostgresServer, name: str) -> dict[str, Any]:
    url = server.url.replace("postgres@", f"{name}@")
    return {"url": url, "namespace": "renewed", "timeout_seconds": TIMEOUT}


def test_a_replica_works_on_the_schema_of_the_next_version_and_on_no_later_one(
    server: PostgresServer,
) -> None:
    with opened(server, "newer") as store:
        count(store)
        with store.database.transaction() as transaction:
            transaction.execute(f"INSERT INTO newer.migrations (version) VALUES ({POSTGRES_VERSION + 1})")
    with opened(server, "newer") as store:
        count(store)
        assert calls(store) == 2
        with store.database.transaction() as transaction:
            transaction.execute(f"INSERT INTO newer.migrations (version) VALUES ({POSTGRES_VERSION + 2})")
    with opened(server, "newer") as store, pytest.raises(StoreError, match="a newer version wrote it"):
        count(store)


@pytest.fixture
def pooler(server: PostgresServer) -> Iterator[str]:
    """The URL of a PgBouncer that gives each transaction another connection."""
    if (program := shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")) is None:
        pytest.skip("needs PgBouncer: pgbouncer was not found")
    file = server.folder / "pgbouncer.ini"
    file.write_text(
        f"[databases]\npostgres = host={server.folder} user=postgres\n[pgbouncer]\n"
        f"unix_socket_dir = {server.folder}\nlisten_port = 6432\nauth_type = any\npool_mode = transaction\n"
        "default_pool_size = 2\n",
    )
    file.chmod(0o644)
    with subprocess.Popen([*as_nobody, program, "--quiet", str(file)], cwd=server.folder) as process:
        url = f"postgresql://postgres@/postgres?host={server.folder}&port=6432"
        try:
            until_it_connects(url)
            yield url
        finally:
            process.kill()


def until_it_connects(url: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            psycopg.connect(url).close()
            return
        except psycopg.OperationalError:
            assert time.monotonic() < end
            time.sleep(0.02)


def test_replicas_share_everything_through_a_pooler_of_transactions(
    server: PostgresServer, pooler: str
) -> None:
    config = StoreConfig(url=pooler, listen_url=server.url, namespace="pooled", timeout_seconds=TIMEOUT)
    with open_store(config) as one, open_store(config) as other:
        stores = (one, other)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda store: [count(store) for _ in range(20)], stores))
        assert calls(one) == calls(other) == 40
        assert [store.database.does_upkeep() for store in stores] == [True, False]
        end = time.monotonic() + 60
        while other.database.may_have_changed("listings"):
            assert time.monotonic() < end
            time.sleep(0.05)
        one.listings.put("key", NOW, b"listing")
        while not other.database.may_have_changed("listings"):
            assert time.monotonic() < end
            time.sleep(0.05)
        assert other.listings.get("key") == (NOW, b"listing")
        assert one.warning is other.warning is None


async def test_two_replicas_learn_from_each_other_and_count_a_session_once(
    server: PostgresServer, workshop: Workshop
) -> None:
    workshop.server("desk", tools=[tool("send_mail", "Send a mail"), tool("read_mail", "Read the mails")])
    store = {"url": server.url, "namespace": "two"}
    config = workshop.config(expose={"mode": "search"}, store=store)
    async with inside(config) as one, inside(config) as other:
        for proxy in (one, other):
            host = Host(proxy, "handshake")
            for _ in range(2):
                await host.data("search_available_tools", {"query": "tell my colleague", "top_n": 2})
                await host.call("desk__read_mail")
            assert proxy.search.use_recorder is not None
            await proxy.search.use_recorder.flush()
        assert one.search.learned is not None
        await until(lambda: [pair.uses for pair in one.search.learned.pairs] == [2])
        assert os.environ.get("PGHOST") is None
