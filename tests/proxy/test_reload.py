"""A changed configuration is followed at run time: only changed parts are touched, and nothing is lost."""

import json
import os
import shutil
import signal
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from msgspec.structs import replace
from support.ledger import until
from support.proxies import command, http_proxy
from support.raw_client import PATIENCE, RawClient
from support.servers import Server, Workshop, tool
from support.shop import TOKEN, environment
from support.wires import http, stdio

from mcp_context_proxy.config import Config, load
from mcp_context_proxy.config.reload import Reloader, changes, connection_key
from mcp_context_proxy.config.settings import OAuthConfig, ServerConfig, TlsConfig

CHANGED = "notifications/tools/list_changed"
EDITS = [pytest.param(25, marks=pytest.mark.smaller), pytest.param(50, marks=pytest.mark.full_cross)]

KNOWN = {"authorization": f"Bearer {TOKEN}"}
"""Headers of somebody who may know the problems."""


def starts(server: Server) -> int:
    return len(server.ledger.entries("start"))


async def until_gone(client: RawClient, name: str) -> None:
    with anyio.fail_after(PATIENCE):
        while name in await client.names():  # noqa: ASYNC110 - another process
            await anyio.sleep(0.01)


def two_servers(workshop: Workshop) -> tuple[Server, Server]:
    return workshop.server("one", tools=[tool("first")]), workshop.server("two", tools=[tool("second")])


def said(log: Path, text: str) -> Any:
    return lambda: text in log.read_text(encoding="utf-8")


async def test_a_new_server_is_started_and_announced_and_the_others_keep_their_processes(
    workshop: Workshop, era: str
) -> None:
    one, two = two_servers(workshop)
    async with stdio(command(workshop.config())) as client:
        await client.until_listed("one__first", "two__second")
        client.notifications.clear()
        three = workshop.server("three", tools=[tool("third")])
        workshop.config()
        await client.until(lambda client: client.notified(CHANGED))
        await client.until_listed("three__third")

        assert [starts(server) for server in (one, two, three)] == [1, 1, 1]


async def test_clients_that_come_after_a_change_get_the_instructions_of_the_changed_proxy(
    workshop: Workshop, era: str
) -> None:
    two_servers(workshop)
    with http_proxy(workshop.config()) as proxy:
        async with http(proxy.base, era) as client:
            await client.until_listed("one__first", "two__second")
            assert "three" not in client.introduction["instructions"]
            workshop.server("three", tools=[tool("third")])
            workshop.config()
            await client.until_listed("three__third")
        async with http(proxy.base, era) as client:
            assert "one, two, three" in client.introduction["instructions"]


class Written:
    """A configuration file that is written in pieces, a pause after each, while a reloader follows it."""

    def __init__(self, file: Path) -> None:
        self.file, self.applied = file, list[Config]()
        self._reloader = Reloader(load(file, environ={}), lambda: load(file, environ={}))

    async def apply(self, config: Config) -> None:
        self.applied.append(config)

    @property
    def problems(self) -> tuple[str, ...]:
        return self._reloader.standing.problems

    async def reloaded(self) -> None:
        await self.write(pause=0)

    async def write(self, *pieces: str, pause: float) -> None:
        """Write in place, as `echo >` and most editors do, and return once the last has been looked at."""
        async with anyio.create_task_group() as group:
            group.start_soon(self._reloader.run, self.apply)
            for number, piece in enumerate(pieces):
                with self.file.open("a" if number else "w", encoding="utf-8") as file:
                    file.write(piece)
                self._reloader.ask()
                await anyio.sleep(pause)
            await self._reloader.reload(PATIENCE)
            group.cancel_scope.cancel()


GUARDED = """\
[servers.one]
command = "true"
deny = ["danger"]
call_timeout = 600

[guards]
results = "redact"
"""


@pytest.mark.parametrize("rest", [GUARDED, "[guards]", "deny", "00\n\n"])
async def test_a_file_that_is_written_in_pieces_is_taken_only_as_a_whole(tmp_path: Path, rest: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(GUARDED)
    followed = Written(file)
    at = GUARDED.index(rest)
    await followed.write(GUARDED[:at], GUARDED[at:] + "\n[search]\ntop_n = 3\n", pause=0.5)

    (config,) = followed.applied
    assert config.servers["one"].deny == ("danger",)
    assert (config.search.top_n, config.guards.results, config.servers["one"].call_timeout) == (
        3,
        "redact",
        600,
    )


async def test_a_setting_that_is_gone_for_good_is_gone_a_moment_later(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text(GUARDED)
    followed = Written(file)
    await followed.write(GUARDED[: GUARDED.index("[guards]")], pause=0)

    assert [config.guards.results for config in followed.applied] == ["off"]


async def test_a_file_that_is_emptied_while_it_is_read_is_read_again(tmp_path: Path) -> None:
    (file := tmp_path / "config.toml").write_text(GUARDED, encoding="utf-8")
    started, reads, applied = load(file, environ={}), count(), list[Config]()
    without_guard = GUARDED.replace('deny = ["danger"]', "")

    def read() -> Config:
        is_second = next(reads) == 1
        if is_second:
            file.write_text("", encoding="utf-8")
        config = load(file, environ={})
        if is_second:
            file.write_text(without_guard + "# saved again", encoding="utf-8")
        return config

    async def apply(config: Config) -> None:
        applied.append(config)

    reloader = Reloader(started, read)
    async with anyio.create_task_group() as group:
        group.start_soon(reloader.run, apply)
        file.write_text(without_guard, encoding="utf-8")
        await reloader.reload(PATIENCE)
        group.cancel_scope.cancel()

    assert [[*config.servers] for config in applied] == [[*started.servers]]


async def test_mistakes_that_were_told_at_the_start_are_not_told_again_by_the_first_look(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config.toml"
    file.write_text("[search]\ntop = 3\n\n[servers.one]\nkommand = 'x'\n")
    followed = Written(file)
    told = followed.problems
    await followed.reloaded()

    assert (followed.problems, caplog.messages, followed.applied) == (told, [], [])


async def test_a_pipe_is_read_once_and_one_in_place_of_the_file_keeps_nobody_waiting(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, GUARDED.encode())
    os.close(writing)
    piped = Reloader(load(Path(f"/dev/fd/{reading}"), environ={}), Config)
    (file := tmp_path / "config.toml").write_text(GUARDED, encoding="utf-8")
    written = Written(file)
    file.unlink()
    os.mkfifo(file)
    with anyio.fail_after(PATIENCE):
        # A second look would find it empty.
        await piped.watch(anyio.lowlevel.checkpoint)
        await written.reloaded()
        problems = written.problems
        file.unlink()
        await written.reloaded()
    os.close(reading)

    assert written.applied == []
    assert "is not a regular file" in problems[0]
    assert "the file does not exist; correct the path" in written.problems[0]


async def test_a_removed_server_is_stopped_and_its_tools_are_gone(workshop: Workshop) -> None:
    one, two = two_servers(workshop)
    async with stdio(command(workshop.config())) as client:
        await client.until_listed("one__first", "two__second")
        del workshop.servers["two"]
        workshop.config()
        await until_gone(client, "two__second")
        await two.ledger.until(lambda ledger: ledger.entries("end of input"))

        refused = await client.call("two__second")
        assert refused["isError"]
        assert "isError" not in await client.call("one__first")
        assert starts(one) == 1
        assert one.ledger.entries("end of input") == []


async def test_a_server_whose_environment_changed_is_restarted_alone_and_serves_all_the_while(
    workshop: Workshop,
) -> None:
    one, two = two_servers(workshop)
    ready = workshop.flag("ready")
    config = workshop.config()
    async with stdio(command(config), env={"COLOUR": "red"}) as client:
        await client.until_listed("one__first", "two__second")
        two.respecify(on={"initialize": [{"wait": str(ready)}]})
        two.settings["env"] = {"HUE": "${COLOUR}"}
        workshop.config()
        await until(lambda: starts(two) == 2)

        assert "isError" not in await client.call("two__second")
        assert two.ledger.entries("end of input") == []
        ready.touch()
        await two.ledger.until(lambda ledger: ledger.entries("end of input"))
        assert "isError" not in await client.call("two__second")
        first, second = (entry["pid"] for entry in two.ledger.entries("start"))
        assert [entry["pid"] for entry in two.ledger.entries("call")] == [first, second]
        assert "HUE" in two.ledger.entries("start")[1]["environment"]
        assert starts(one) == 1


async def test_a_call_under_way_in_a_removed_server_gets_its_answer(workshop: Workshop) -> None:
    go = workshop.flag("go")
    workshop.server("stays", tools=[tool("stay")])
    slow = workshop.server("slow", tools=[tool("wait")], calls={"wait": [{"wait": str(go)}]})
    async with stdio(command(workshop.config())) as client:
        await client.until_listed("slow__wait", "stays__stay")
        _, answer = await client.start("tools/call", {"name": "slow__wait", "arguments": {}})
        await slow.ledger.until(lambda ledger: ledger.calls())
        del workshop.servers["slow"]
        workshop.config()
        await until_gone(client, "slow__wait")

        assert slow.ledger.entries("end of input") == []
        go.touch()
        assert "isError" not in await answer
        await slow.ledger.until(lambda ledger: ledger.entries("end of input"))


async def test_a_call_that_outlasts_the_drain_timeout_of_its_server_fails(workshop: Workshop) -> None:
    slow = workshop.server(
        "slow", tools=[tool("wait")], calls={"wait": [{"wait": str(workshop.flag("never"))}]}
    )
    async with stdio(command(workshop.config(limits={"drain_seconds": 0.1}))) as client:
        await client.until_listed("slow__wait")
        _, answer = await client.start("tools/call", {"name": "slow__wait", "arguments": {}})
        await slow.ledger.until(lambda ledger: ledger.calls())
        del workshop.servers["slow"]
        workshop.config(limits={"drain_seconds": 0.1})

        with anyio.fail_after(20):
            assert "may or may not have run" in (await answer)["content"][0]["text"]


async def until_resources(client: RawClient, *uris: str) -> None:
    """Documents are read after the tools that a configuration lists are."""
    with anyio.fail_after(20):
        while True:
            listed = (await client.request("resources/list"))["resources"]
            if [entry["uri"] for entry in listed] == list(uris):
                return
            await anyio.sleep(0.01)


async def test_exposed_items_change_without_a_restart(workshop: Workshop, tmp_path: Path) -> None:
    one, two = two_servers(workshop)
    (tmp_path / "rules").mkdir()
    (tmp_path / "rules" / "tone.md").write_text("Be kind.")
    async with stdio(command(workshop.config(expose={"mode": "search"}))) as client:
        await client.until(lambda client: starts(one) and starts(two))
        assert "two__second" not in await client.names()
        two.settings["include"] = "always"
        workshop.config(expose={"mode": "search"})
        await client.until_listed("two__second")
        workshop.config(expose={"mode": "all"}, documents=[{"kind": "rule", "path": "rules"}])
        await client.until_listed("one__first", "two__second")
        await until_resources(client, "rule://tone", "context://current", "context://requests")

        (tmp_path / "rules" / "style.md").write_text("Be brief.")
        await until_resources(
            client, "rule://style", "rule://tone", "context://current", "context://requests"
        )
        assert [starts(one), starts(two)] == [1, 1]


async def test_an_edit_without_visible_changes_announces_nothing(workshop: Workshop) -> None:
    flag = workshop.flag("ready")
    one = workshop.server("one", tools=[tool("first")], on={"tools/list": [{"wait": str(flag)}]})
    log = workshop.folder / "stderr"
    with log.open("w") as stderr:
        config = workshop.config()
        async with stdio(command(config, "--log-level", "info"), stderr=stderr) as client:
            flag.touch()
            await client.until(lambda client: client.notified(CHANGED))
            client.notifications.clear()
            workshop.config(search={"top_n": 3})
            await until(said(log, "the changed configuration is in use: 1 unchanged"))
            await client.call("search_available_tools", {"query": "first"})

            assert client.notified(CHANGED) == []
            assert starts(one) == 1


async def test_a_mistake_or_an_invalid_file_changes_nothing_and_is_reported_with_file_line_and_key(
    workshop: Workshop,
) -> None:
    one, two = two_servers(workshop)
    config = workshop.config()
    good = config.read_text()
    with http_proxy(config, auth=True, env=environment()) as proxy:
        log = config.with_suffix(".log")
        await until(lambda: starts(one) and starts(two))
        config.write_text(good.replace("[servers.two]", "[servers.two]\nkommand = 'x'"))
        line = good[: good.index("[servers.two]")].count("\n") + 2
        place = f"{config}:{line}: servers.two.kommand"
        await until(said(log, place))
        async with httpx2.AsyncClient(headers=KNOWN) as http:
            health = (await http.get(f"{proxy.base}/healthz")).json()
            assert health["status"] == "ok"
            assert place in health["problems"][0]
            config.write_text("[servers.two\n")
            await until(said(log, f"{config}:1"))
            config.write_text(good)
            await until(said(log, "has no mistakes any more"))
            assert (await http.get(f"{proxy.base}/healthz")).json() == {"status": "ok"}

        assert [starts(one), starts(two)] == [1, 1]
        assert two.ledger.entries("end of input") == []


@pytest.mark.parametrize("auth", [True, False])
async def test_without_the_token_nobody_learns_what_is_wrong_with_the_configuration(
    workshop: Workshop, auth: bool
) -> None:
    two_servers(workshop)
    config = workshop.config()
    good = config.read_text()
    with http_proxy(config, auth=auth, env=environment()) as proxy:
        broken = "[servers.two]\nheaders = { X = '${A_SECRET_VARIABLE}' }"
        config.write_text(good.replace("[servers.two]", broken))
        await until(said(config.with_suffix(".log"), "A_SECRET_VARIABLE"))
        async with httpx2.AsyncClient(base_url=proxy.base) as http:
            anybody = await http.get("/healthz")
            guessed = await http.get("/healthz", headers={"authorization": "Bearer wrong"})
            known = await http.get("/healthz", headers=KNOWN)

    assert anybody.json() == {"status": "ok"}
    assert guessed.status_code == (401 if auth else 200)
    assert ("A_SECRET_VARIABLE" in known.text) == auth


async def test_settings_that_need_a_restart_are_named_in_one_line(workshop: Workshop) -> None:
    two_servers(workshop)
    config = workshop.config()
    with http_proxy(config, auth=True, env=environment()) as proxy:
        limits = {"http_connections": 7, "call_seconds": 5.0}
        workshop.config(http={"host": "127.0.0.2"}, store={"path": "elsewhere.db"}, limits=limits)
        log = config.with_suffix(".log")
        await until(
            said(log, "these changes need a restart: store.path, http.host, limits.http_connections\n")
        )
        async with httpx2.AsyncClient(headers=KNOWN) as http:
            told = (await http.get(f"{proxy.base}/healthz")).json()["needs_restart"]
            (problem,) = (await http.get(f"{proxy.base}/api/v1/status")).json()["problems"]

    assert "not in use yet: store.path, http.host, limits.http_connections: restart it" in problem
    assert told == ["store.path", "http.host", "limits.http_connections"]


async def test_changes_to_a_host_file_are_followed_too(workshop: Workshop) -> None:
    one, two = two_servers(workshop)
    path = workshop.folder / "claude_desktop_config.json"
    path.write_text(json.dumps({"mcpServers": {"one": one.settings}}))
    async with stdio(command(path)) as client:
        await client.until_listed("one__first")
        path.write_text(json.dumps({"mcpServers": {"one": one.settings, "two": two.settings}}))
        await client.until_listed("one__first", "two__second")

        assert starts(one) == 1


async def test_a_file_that_is_replaced_removed_and_made_again_is_followed(workshop: Workshop) -> None:
    one, _ = two_servers(workshop)
    config = workshop.config()
    both = config.read_text()
    del workshop.servers["two"]
    alone = workshop.config().read_text()
    async with stdio(command(config)) as client:
        await client.until_listed("one__first")
        (workshop.folder / "config.toml.swp").write_text(both)
        (workshop.folder / "config.toml.swp").rename(config)
        await client.until_listed("two__second")
        config.unlink()
        config.write_text(alone)
        await until_gone(client, "two__second")
        shutil.copy(config, workshop.folder / "kept")
        config.unlink()
        await client.call("one__first")
        config.write_text(both)
        await client.until_listed("two__second")

        assert starts(one) == 1


async def test_symbolic_links_swapped_as_by_kubernetes_are_followed(
    workshop: Workshop,
) -> None:
    one, _ = two_servers(workshop)
    config = workshop.config()
    both = config.read_text()
    del workshop.servers["two"]
    alone = workshop.config().read_text()
    mounted = workshop.folder / "mounted"
    for version, text in (("..v1", alone), ("..v2", both)):
        (mounted / version).mkdir(parents=True)
        (mounted / version / "config.toml").write_text(text)
    (mounted / "..data").symlink_to("..v1")
    (mounted / "config.toml").symlink_to(Path("..data") / "config.toml")
    async with stdio(command(mounted / "config.toml")) as client:
        await client.until_listed("one__first")
        (mounted / "..data_tmp").symlink_to("..v2")
        (mounted / "..data_tmp").rename(mounted / "..data")
        await client.until_listed("two__second")

        assert starts(one) == 1


async def test_a_mounted_secret_that_is_renewed_restarts_the_servers_that_get_it(workshop: Workshop) -> None:
    """Kubernetes has a link lead to the folder of the present version."""
    for version in ("first", "second"):
        (workshop.folder / version).mkdir()
        (workshop.folder / version / "token").write_text(f"the-{version}-token-0123456789")
    present = workshop.folder / "present"
    present.symlink_to("first")
    one = workshop.server("one", tools=[tool("first")])
    two = workshop.server("two", tools=[tool("second")], settings={"env": {"T": "${file:present/token}"}})
    async with stdio(command(workshop.config())) as client:
        await client.until_listed("one__first", "two__second")
        (workshop.folder / "next").symlink_to("second")
        (workshop.folder / "next").replace(present)
        await until(lambda: starts(two) == 2)

    assert starts(one) == 1


async def test_a_file_that_is_missing_for_a_moment_beside_others_is_waited_for() -> None:
    """A program deletes the file of a secret before it writes the next one."""
    looks = iter([("settings", "secret"), *[("settings", None)] * 5])
    async with aclosing(changes(lambda: next(looks, ("settings", "next secret")))) as found:
        await anext(found)

    assert next(looks, None) is None


async def test_a_hangup_signal_reloads_the_file(workshop: Workshop) -> None:
    one, _ = two_servers(workshop)
    config = workshop.config()
    async with stdio(command(config)) as client:
        await client.until_listed("one__first", "two__second")
        assert client.process is not None
        before = config.stat()
        # As long as before and as old as before: nothing but the signal tells of it.
        config.write_text(config.read_text().replace("[servers.two]", "[servers.new]"))
        os.utime(config, ns=(before.st_atime_ns, before.st_mtime_ns))
        client.process.send_signal(signal.SIGHUP)
        await client.until_listed("new__second")

        assert "isError" not in await client.call("one__first")
        assert starts(one) == 1


@pytest.mark.slow
@pytest.mark.parametrize("edits", EDITS)
async def test_many_edits_under_load_fail_no_call_and_the_next_valid_one_is_applied(
    workshop: Workshop, edits: int
) -> None:
    one, two = two_servers(workshop)
    config = workshop.config()
    good = config.read_text()
    failed: list[Any] = []
    answered = 0
    async with stdio(command(config)) as client:
        await client.until_listed("one__first", "two__second")

        async def load(name: str) -> None:
            nonlocal answered
            while True:
                result = await client.call(name)
                answered += 1
                if "isError" in result:
                    failed.append(result)
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as group:
            for name in ("one__first", "two__second"):
                group.start_soon(load, name)
            for number in range(edits):
                match number % 5:
                    case 0:
                        config.write_text(good[: len(good) // 2] + "\n[[[")
                    case 1:
                        config.write_text(good + f"\n[search]\ntop_n = {number + 1}\n")
                    case 2:
                        two.settings["env"] = {"NUMBER": str(number)}
                        workshop.config()
                    case 3:
                        config.unlink()
                    case 4:
                        aside = config.with_suffix(".new")
                        aside.write_text(good + f"\n[servers.bad{number}]\n")
                        aside.rename(config)
                before = answered
                await anyio.sleep(0.13)
                await until(lambda before=before: answered > before)
            three = workshop.server("three", tools=[tool("third")])
            workshop.config()
            await client.until_listed("three__third")
            group.cancel_scope.cancel()

    assert failed == []
    assert starts(one) == 1
    assert starts(three) == 1


def test_settings_added_since_0_1_0_make_no_other_connection_where_they_are_not_set() -> None:
    """Lists of a server are stored under this key, also those that an older version has stored."""
    oauth = OAuthConfig(client_id="c", issuer="https://example.com")
    server = ServerConfig(name="s", url="https://example.com/mcp", transport="http", oauth=oauth)

    assert connection_key(server) == "7f01fc3ebc2a2d6b4af5f961cd7a3ac10fe2def67636175e2e87189c01b42d7a"
    assert connection_key(server) != connection_key(replace(server, tls=TlsConfig(ca=Path("/ca.pem"))))
