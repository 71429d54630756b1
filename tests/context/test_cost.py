"""What everything costs is counted once at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor

from mcp_context_proxy.context.cost import Costs
from mcp_context_proxy.items import Document, Kind, Snapshot


class Slow:
    """Counts when it is let to."""

    def __init__(self) -> None:
        self.asked, self.let = threading.Event(), threading.Event()

    def count(self, text: str) -> int:
        self.asked.set()
        assert self.let.wait(60)
        return len(text)


def test_who_asks_while_everything_is_counted_does_not_wait() -> None:
    document = Document(Kind.RULE, "a", "", "four", "fingerprint")
    snapshot = Snapshot(1, (), documents={document.uri: document})
    slow = Slow()
    costs = Costs(slow)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(costs.behind, snapshot)
        assert slow.asked.wait(60)
        meanwhile = costs.behind(snapshot)
        slow.let.set()

        assert (meanwhile, first.result()) == (None, 4)
    assert costs.behind(snapshot) == 4
