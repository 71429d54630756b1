"""A server that sends one kind of message as fast as it can fills no memory and disturbs nobody."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import httpx2
import pytest
from faults.harness import BYSTANDER, SAFE, Bystander, Ledger, faulty, nonce, rss
from support.proxies import HttpProxy, http_proxy
from support.raw_client import RawClient, RpcError
from support.servers import Workshop
from support.wires import http

from mcp_context_proxy.catalog.skills import SKILLS_PER_SERVER
from mcp_context_proxy.downstream.listing import UNVERIFIED_KEPT

pytestmark = pytest.mark.slow

KINDS = (
    "log",
    "large-log",
    "progress",
    "progress-of-nothing",
    "cancelled",
    "tools-changed",
    "prompts-changed",
    "resources-changed",
    "skills-changed",
    "updated",
    "updated-below",
    "updated-unasked",
    "completed",
    "task-status",
    "acknowledged",
    "unknown-notification",
    "ping",
    "sampling",
    "elicitation",
    "roots",
    "task-request",
    "unknown-request",
    "large-id",
    "response",
    "blank-lines",
    "smallest-notifications",
    "smallest-pings",
    "progress-of-megabytes",
    "stderr",
    "stray",
)

NO_MESSAGES = {"large-id", "stray"}
"""Kinds of which a thousand in a row make a server be taken for none: it is started again."""

GROWTH = 96 << 20
"""Bytes by which the memory of the proxy may grow: six of the largest messages. The list of 900,000 lists in
one progress message takes 44 to 50 MB, as objects of 56 bytes, and 75 where a fast machine reads a second one
before the first is given back."""

SECONDS = 0.2
"""Length of a flood: a thousand messages, several times what any bound lets pass."""

ANSWERS = {
    "sampling/createMessage": lambda params: {
        "role": "assistant",
        "model": "none",
        "content": {"type": "text", "text": "no"},
    },
    "elicitation/create": lambda params: {"action": "decline"},
    "roots/list": lambda params: {"roots": []},
}


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return Ledger(tmp_path_factory.mktemp("floods") / "ledger")


@pytest.fixture(scope="module")
def served(ledger: Ledger) -> Iterator[HttpProxy]:
    workshop = Workshop(Path(ledger.path).parent)
    workshop.server("odd").settings = faulty("flood", Path(ledger.path), delay=SECONDS)
    workshop.server(BYSTANDER).settings = faulty("normal", Path(ledger.path))
    config = workshop.config(expose={"mode": "all"}, search={"warm_up": False})
    with http_proxy(config, real=True) as proxy:
        yield proxy


@pytest.fixture(scope="module")
async def client(served: HttpProxy) -> AsyncIterator[RawClient]:
    capabilities = {"sampling": {}, "elicitation": {}, "roots": {"listChanged": True}}
    async with http(served.base, "handshake", capabilities=capabilities, answers=ANSWERS) as opened:
        await opened.until_listed(f"odd__{SAFE}", f"{BYSTANDER}__{SAFE}")
        await opened.request("resources/subscribe", {"uri": "note://1"})
        # The first large messages load modules, which no flood is to blame for.
        for _ in range(4):
            await opened.call(f"odd__{SAFE}", {"nonce": "x" * 3_000_000})
        yield opened


@pytest.mark.parametrize("kind", KINDS)
async def test_a_flood_of_one_kind_of_message_fills_no_memory_and_disturbs_nobody(
    served: HttpProxy, client: RawClient, ledger: Ledger, kind: str
) -> None:
    before = rss(served.process.pid)
    async with http(served.base, "modern") as other, Bystander(other).calling() as bystander:
        # With a call under way the messages may belong to it; without, they belong to nobody.
        for after in (False, True):
            arguments = {"kind": kind, "nonce": nonce(), "after": after}
            await client.call("odd__tool_000", arguments, progressToken="mine")
            await bystander.until_more()
        await ledger.until(lambda them: kind in NO_MESSAGES or len(them.of("flooded", kind=kind)) == 2)
        grown = rss(served.process.pid) - before
        await bystander.until_more()
    said, answer = nonce(), None
    while answer != said:
        result = await client.call(f"odd__{SAFE}", {"nonce": said})
        answer = result["content"][0]["text"]
        assert answer == said or kind in NO_MESSAGES

    assert grown < GROWTH


async def test_a_flood_of_files_that_no_manifest_has_leaves_a_few_findings(
    served: HttpProxy, client: RawClient
) -> None:
    await client.call("odd__tool_000", {"kind": "skills-changed", "nonce": nonce()})
    async with http(served.base, "modern") as other:
        listed: list[str] = []
        with anyio.fail_after(20):
            while not listed:
                listed = [one["uri"] for one in (await other.request("skills/list"))["skills"]]
        before = rss(served.process.pid)
        for uri in listed[:60]:
            with pytest.raises(RpcError, match="manifest"):
                await other.request("resources/read", {"uri": uri})

    assert len(listed) == SKILLS_PER_SERVER
    assert rss(served.process.pid) - before < GROWTH
    async with httpx2.AsyncClient(base_url=served.base) as asking:
        servers = (await asking.get("/api/v1/servers")).json()["servers"]
    findings = next(one["findings"] for one in servers if one["name"] == "odd")
    assert 0 < sum("manifest" in one for one in findings) <= UNVERIFIED_KEPT
