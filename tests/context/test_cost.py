"""The cost of the whole catalog is counted once at a time."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from mcp_context_proxy.catalog.definitions import tool_definition
from mcp_context_proxy.embedding.embeddings import ITEMS_KEPT, Costs
from mcp_context_proxy.items import Document, Kind, Snapshot


class Slow:
    """Counts when it is let to."""

    def __init__(self) -> None:
        self.asked, self.let = threading.Event(), threading.Event()

    def count(self, text: str) -> int:
        self.asked.set()
        assert self.let.wait(60)
        return len(text)


def test_a_request_does_not_wait_while_tokens_are_being_counted() -> None:
    document = Document(Kind.RULE, "a", "", "four", "fingerprint")
    snapshot = Snapshot(1, (), documents={document.uri: document})
    slow = Slow()
    costs = Costs(slow, tool_definition)
    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(costs.behind, snapshot)
        assert slow.asked.wait(60)
        meanwhile = costs.behind(snapshot)
        slow.let.set()

        assert (meanwhile, first.result()) == (None, 4)
    assert costs.behind(snapshot) == 4


class Never:
    """Has nobody count anything."""

    def count(self, text: str) -> int:
        raise AssertionError(text)


def test_token_counts_of_an_earlier_run_are_reused() -> None:
    document = Document(Kind.RULE, "a", "", "four", "fingerprint")
    costs = Costs(Never(), tool_definition)

    costs.know({"fingerprint": 4})

    assert costs.of(document) == 4


def test_reused_token_counts_are_bounded() -> None:
    document = Document(Kind.RULE, "a", "", "four", "one more")
    costs = Costs(Never(), tool_definition)

    costs.know({str(number): 1 for number in range(ITEMS_KEPT)})
    costs.know({"one more": 4})

    with pytest.raises(AssertionError):
        costs.of(document)
