"""Messages of a single server cost the proxy no more memory than is promised, however large they are."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from faults.harness import SAFE, faulty, nonce, rss, twin
from support.fronts import EVERY_FRONT, opening
from support.ledger import until
from support.proxies import HttpProxy, http_proxy, inside
from support.raw_client import RawClient
from support.servers import Workshop
from support.wires import http

pytestmark = pytest.mark.slow

LARGE_BYTES = 15 << 20
"""Just below what a message may have by default."""

ROUNDS = 3
"""At most: in the first ones, a new proxy may read what it needs but once, as numpy and a vocabulary."""


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workshop, Path]]:
    folder = tmp_path_factory.mktemp("memory")
    workshop = Workshop(folder)
    with pytest.MonkeyPatch.context() as patch, twin(folder / "ledger", size=LARGE_BYTES) as base:
        patch.setenv("MCP_CONTEXT_PROXY_DEBUGGABLE", "1")  # the tests look into the process
        workshop.server("pipe").settings = faulty("huge-result", folder / "ledger", size=LARGE_BYTES)
        workshop.server("url").settings = {"url": f"{base}/huge-result/mcp"}
        # Whole, however large: what shortening takes is another test's subject.
        whole = {"results": {"max_tokens": 0}}
        yield workshop, workshop.config(expose={"mode": "all"}, search={"warm_up": False}, **whole)


@pytest.fixture(scope="module")
def served(setup: tuple[Workshop, Path]) -> Iterator[HttpProxy]:
    with http_proxy(setup[1], real=True) as proxy:
        yield proxy


@pytest.fixture(**EVERY_FRONT)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[RawClient]:
    async with opening(request, real=True) as opened:
        yield opened


@pytest.fixture
def pid(client: RawClient, request: pytest.FixtureRequest) -> int:
    """The process id of the proxy that the client is connected to."""
    process = client.process or request.getfixturevalue("served").process
    return int(process.pid)


def forget_peak(pid: int) -> None:
    """Let the peak of a process's memory begin at its present size (proc(5), clear_refs)."""
    Path(f"/proc/{pid}/clear_refs").write_text("5", encoding="ascii")


def peak(pid: int) -> int:
    """The most resident memory that a process had, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


@pytest.mark.each_value(cross=2)
@pytest.mark.parametrize("server", ["pipe", "url"])
async def test_a_result_of_the_largest_size_is_held_in_memory_twice_at_most(
    client: RawClient, pid: int, server: str
) -> None:
    tool, grown, lengths = f"{server}__tool_000", [], set()
    # At each step, from the pipe or socket through the fitting to the client's era to what is sent, the form
    # that it had and the next one.
    most = 2.4 * LARGE_BYTES
    await client.until_listed(tool)
    for _ in range(ROUNDS):
        before = rss(pid)
        forget_peak(pid)
        result = await client.call(tool, {"nonce": nonce()})
        grown.append(peak(pid) - before)
        lengths.add(len(result["content"][0]["text"]))
        if grown[-1] < most:
            break

    assert lengths == {LARGE_BYTES}
    assert min(grown) < most


async def test_the_largest_result_is_shortened_with_a_few_times_its_size_in_memory(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.server("odd").settings = faulty("huge-result", tmp_path / "ledger", size=LARGE_BYTES)
    config = workshop.config(expose={"mode": "all"}, store={"path": str(tmp_path / "store.sqlite3")})
    most = 5 * LARGE_BYTES  # one of them may still be in memory, the others are in files
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MCP_CONTEXT_PROXY_DEBUGGABLE", "1")
        with http_proxy(config, real=True) as proxy:
            async with http(proxy.base) as client:
                await client.until_listed("odd__tool_000")
                grown = []
                for _ in range(2 * ROUNDS):
                    before = rss(proxy.process.pid)
                    forget_peak(proxy.process.pid)
                    result = await client.call("odd__tool_000", {"nonce": nonce()})
                    grown.append(peak(proxy.process.pid) - before)
                    assert "Nothing is lost" in result["content"][-1]["text"]
                    if grown[-1] < most:
                        break

    assert min(grown) < most


async def test_an_endless_line_is_not_buffered_and_closes_its_connection(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.server("odd").settings = faulty("endless-line", tmp_path / "ledger", size=1 << 30)
    workshop.server("good").settings = faulty("normal", tmp_path / "ledger")
    async with inside(workshop.config(limits={"message_bytes": 1 << 20}), settled=False) as proxy:
        client = proxy.fleet.clients["odd"]
        before = rss(os.getpid())
        await until(lambda: "without a line end" in client.cause)
        grown = rss(os.getpid()) - before
        await proxy.fleet.clients["good"].wait_first_connect()
        result = await proxy.fleet.clients["good"].call("tools/list", {})

    assert grown < 40 << 20
    assert result


async def test_an_answer_over_the_limit_is_not_buffered_and_its_server_goes_on(tmp_path: Path) -> None:
    workshop = Workshop(tmp_path)
    workshop.server("odd").settings = faulty("huge-result", tmp_path / "ledger", size=64 << 20)
    with http_proxy(workshop.config(expose={"mode": "all"}), real=True) as proxy:
        async with http(proxy.base) as client:
            await client.until_listed("odd__tool_000")
            before = rss(proxy.process.pid)
            results = [await client.call("odd__tool_000", {"nonce": nonce()}) for _ in range(2)]
            grown = rss(proxy.process.pid) - before
            after = await client.call(f"odd__{SAFE}", {"nonce": "still"})

    assert all("over the limit of 16,777,216" in result["content"][0]["text"] for result in results)
    assert grown < 40 << 20
    assert after["content"][0]["text"] == "still"
