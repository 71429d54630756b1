"""Whatever servers, proxies and people do: only approved definitions are listed or callable."""

import json
from typing import Any, ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.listings import Run, encoded

from mcp_context_proxy.catalog.names import tool_named
from mcp_context_proxy.config.settings import ApprovalMode
from mcp_context_proxy.errors import UnknownItemError
from mcp_context_proxy.store.opening import open_store
from mcp_context_proxy.store.tables import ApprovalStore
from mcp_context_proxy.trust.decisions import decide, hash_of, latest, pending
from mcp_context_proxy.trust.fingerprints import State

NAMES = ("add", "sub", "mul")
TEXTS = ("One.", "Two.", "Three.", "Four.")
VERSIONS = ("", "calc 1", "calc 2", "calc 3")
Definitions = dict[str, str]


class CrashError(Exception):
    """The end of a process in the middle of a decision."""


class CrashingStore(ApprovalStore):
    """A store whose process ends when it is told to."""

    crash: str | None = None

    def decide(self, server: str, decide: Any) -> Any:
        if self.crash == "before":
            raise CrashError
        record = super().decide(server, decide)
        if self.crash == "after":
            raise CrashError
        return record


class Approving(RuleBasedStateMachine):
    """Two proxies in front of one server, on one store, beside a simple model of the served definitions."""

    mode: ClassVar[ApprovalMode]

    @initialize()
    def start(self) -> None:
        self.store = open_store("memory")
        self.store.approvals = self.crashing = CrashingStore(self.store.database)
        self.proxies = [Run(self.store, self.mode), Run(self.store, self.mode)]
        self.approved: set[tuple[str, str]] = set()
        """Names with texts that somebody, or the mode, has approved."""
        self.listed: dict[str, list[str]] = {}
        """Texts that were ever listed, by name."""
        self.distrusted: set[str] = set()
        """Names whose latest decision of a person is a rejection."""
        self.versions: set[str] = set()

    def teardown(self) -> None:
        self.store.close()

    def _expect(self, definitions: Definitions, version: str) -> None:
        """Follow a listing in the model."""
        first, seen = not self.versions, version in self.versions
        for name, text in definitions.items():
            known = (name, text) in self.approved or text in self.listed.get(name, [])
            if self.mode == "notice" and not known:
                new = name not in self.listed
                if first or new or (not seen and name not in self.distrusted and self._was_taken(name)):
                    self.approved.add((name, text))
            self.listed.setdefault(name, []).append(text)
        if definitions:
            self.versions.add(version)

    def _was_taken(self, name: str) -> bool:
        return any(one == name for one, _ in self.approved)

    @rule(
        proxy=st.integers(0, 1),
        definitions=st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TEXTS)),
        version=st.sampled_from(VERSIONS),
        crash=st.sampled_from([None, None, None, "before", "after"]),
    )
    def list(self, proxy: int, definitions: Definitions, version: str, crash: str | None) -> None:
        entries = [
            encoded({"name": name, "description": text, "inputSchema": {}})
            for name, text in definitions.items()
        ]
        run, self.crashing.crash = self.proxies[proxy], crash
        run.approvals.refresh()
        try:
            run.list("calc", version=version, tools=entries)
        except CrashError:
            self.proxies[proxy] = Run(self.store, self.mode)
            if crash == "before":
                return
        finally:
            self.crashing.crash = None
        self._expect(definitions, version)

    @rule(proxy=st.integers(0, 1))
    def restart(self, proxy: int) -> None:
        """A new process, which has the remembered list."""
        before = self.proxies[proxy].clients
        self.proxies[proxy] = Run(self.store, self.mode)
        self.proxies[proxy].clients.update(before)
        self.proxies[proxy].catalog.refresh()

    @rule(proxy=st.integers(0, 1))
    def look(self, proxy: int) -> None:
        """The look at the store that a running proxy takes each second."""
        self.proxies[proxy].approvals.refresh()
        self.proxies[proxy].catalog.refresh()

    @rule()
    def approve(self) -> None:
        waiting = pending(self.store.approvals.record("calc").rows)
        if waiting:
            decide(self.store, "calc", (), State.APPROVED, by="test", expected=hash_of(waiting))
            definitions = self.store.approvals.definitions([row.key for row in waiting])
            for row in waiting:
                text = json.loads(definitions[row.key])["description"]
                self.approved.add((row.name, text))
                self.distrusted.discard(row.name)

    @rule(name=st.sampled_from(NAMES))
    def reject(self, name: str) -> None:
        rows = [row for row in latest(self.store.approvals.record("calc").rows) if row.name == name]
        if rows:
            decide(self.store, "calc", [name], State.REJECTED, by="test")
            definitions = self.store.approvals.definitions([row.key for row in rows])
            text = json.loads(definitions[rows[0].key])["description"]
            self.approved.discard((name, text))
            self.distrusted.add(name)
            for proxy in (0, 1):
                self.look(proxy)

    @invariant()
    def only_what_is_approved_is_listed_and_callable(self) -> None:
        for run in getattr(self, "proxies", ()):
            snapshot = run.catalog.snapshot
            for tool in snapshot.tools.values():
                assert (tool.name, tool.description) in self.approved, (tool.name, tool.description)
            for name in NAMES:
                for written in (name, f"calc__{name}"):
                    try:
                        tool = tool_named(snapshot, written)
                    except UnknownItemError:
                        continue
                    assert (tool.name, tool.description) in self.approved


class InNotice(Approving):
    mode = "notice"


class InChanged(Approving):
    mode = "changed"


class InAll(Approving):
    mode = "all"


THOROUGH = settings().max_examples >= 100
STEPS = settings(max_examples=34, stateful_step_count=100) if THOROUGH else settings(stateful_step_count=20)
"""With the thorough profile, 10,000 steps in all modes together."""

TestInNotice = InNotice.TestCase
TestInNotice.settings = STEPS
TestInChanged = InChanged.TestCase
TestInChanged.settings = STEPS
TestInAll = InAll.TestCase
TestInAll.settings = STEPS
