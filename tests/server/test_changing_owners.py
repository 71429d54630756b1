"""A URI leads to its owner, at every moment of random servers that come, go and overlap."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.listings import INTRODUCED

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.documents import DocumentLibrary
from mcp_context_proxy.config import ExposeConfig, Limits, ServerConfig
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.downstream.inbound import ClientSubscriptions
from mcp_context_proxy.downstream.listing import ServerListing
from mcp_context_proxy.server.notifications import Watches

NAMES = ("a", "b", "c")
URIS = (
    "x://1",
    "x://1/2",
    "x://12",
    "X://1",
    "x://%31",
    "x://1/../2",
    "y:z",
    "rule://x",
    "context://current",
)
FOREIGN = ("x://1", "x://1/2", "X://1", "y:z", "rule://x", "RULE://x", "reference://x", "context://current")
TEMPLATES = (
    "x:{+all}",
    "x://{id}",
    "x://{+id}",
    "x://1{rest}",
    "x://1/{id}",
    "{+all}",
    "{scheme}:{+rest}",
    "rule://{id}",
    "context:{+all}",
    "y:{z}",
)
OWN = re.compile("(rule|reference|context):", re.IGNORECASE)


@dataclass(eq=False)
class Server:
    """The side of a client that the catalog sees: nothing is connected."""

    name: str
    listing: ServerListing = field(default_factory=ServerListing)
    introduction: object = None
    subscriptions: ClientSubscriptions = field(default_factory=ClientSubscriptions)

    def __post_init__(self) -> None:
        self.config = ServerConfig(name=self.name, command="x")

    def can_watch(self, uri: str) -> bool:
        """See `DownstreamClient`; no URI has a secret in it."""
        return bool(uri)


Remembered = dict[str, tuple[tuple[str, ...], tuple[str, ...]]]


class World:
    """A catalog with servers, and the listing of each that is configured."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.fleet = SimpleNamespace(clients=self.servers)
        documents = DocumentLibrary([], Limits())
        self.catalog = Catalog(
            ExposeConfig(),
            Limits(),
            lambda: cast(Any, self.servers.values()),
            documents,
            configured=lambda: frozenset(self.servers),
        )
        self.watches = Watches(self.catalog, cast(Fleet, self.fleet))
        self.listed: Remembered = {}
        self.subscribed: dict[str, str | None] = {}

    def configure(self, names: list[str]) -> None:
        kept = {name: self.servers.get(name) or Server(name) for name in names}
        self.servers.clear()
        self.servers.update(kept)
        self.listed = {name: listed for name, listed in self.listed.items() if name in kept}

    def restart(self, name: str) -> None:
        """Replace a server by one with other settings, which has not started yet."""
        old = self.servers.get(name)
        if old is not None:
            self.servers[name] = new = Server(name)
            new.subscriptions.take_over(old.subscriptions)

    def list(self, name: str, uris: tuple[str, ...], templates: tuple[str, ...]) -> None:
        if name in self.servers:
            self.servers[name].introduction = INTRODUCED
            self.servers[name].listing = ServerListing(
                resources=tuple(json.dumps({"uri": uri}).encode() for uri in uris),
                templates=tuple(json.dumps({"uriTemplate": each}).encode() for each in templates),
            )
            self.listed[name] = uris, templates

    def refresh(self) -> None:
        self.catalog.refresh()
        for changed in self.catalog.changed:
            changed()
        assert set(self.watches.follow()) == set(self.subscribed)

    def expected(self, uri: str) -> str | None:
        """The owner by the rules, found slowly."""
        if OWN.match(uri):
            return None
        found: list[tuple[int, int, str]] = []
        for place, name in enumerate(self.servers):
            uris, templates = self.listed.get(name, ((), ()))
            if uri in uris:
                found.append((-1000, place, name))
            for template in templates:
                literal = template.partition("{")[0]
                pattern = re.sub(
                    r"\\{(\\\+)?\w+\\}", lambda part: ".*" if part[1] else "[^/?#]*", re.escape(template)
                )
                if ":" in literal and re.fullmatch(pattern, uri):
                    found.append((-len(literal), place, name))
        return min(found)[2] if found else None


LISTED = st.tuples(
    st.just("list"),
    st.sampled_from(NAMES),
    st.lists(st.sampled_from(FOREIGN), unique=True, max_size=3).map(tuple),
    st.lists(st.sampled_from(TEMPLATES), unique=True, min_size=1, max_size=4).map(tuple),
)
STEPS = st.one_of(
    LISTED,
    LISTED,
    LISTED,
    st.tuples(st.just("configure"), st.lists(st.sampled_from(NAMES), unique=True, min_size=1)),
    st.tuples(st.just("restart"), st.sampled_from(NAMES)),
    st.tuples(st.just("subscribe"), st.sampled_from(URIS)),
    st.tuples(st.just("subscribe"), st.sampled_from(URIS)),
    st.tuples(st.just("unsubscribe"), st.sampled_from(URIS)),
)
"""Most servers list something most of the time."""


@pytest.mark.hypothesis
@given(st.lists(STEPS, min_size=20, max_size=60))
def test_a_uri_and_its_subscriptions_belong_to_their_owner_at_every_moment(steps: list[Any]) -> None:
    world = World()
    world.configure(list(NAMES))
    watcher = object()
    for name, *arguments in steps:
        if name == "subscribe":
            world.watches.add(watcher, *arguments)
            world.subscribed.setdefault(arguments[0], None)
        elif name == "unsubscribe":
            world.watches.remove(watcher, *arguments)
            world.subscribed.pop(arguments[0], None)
        else:
            do: Callable[..., None] = getattr(world, name)
            do(*arguments)
        world.refresh()
        for uri in URIS:
            owner = world.catalog.snapshot.owner_of(uri)
            assert (owner and owner.server) == world.expected(uri), uri
        for uri in world.subscribed:
            last = world.subscribed[uri]
            at = world.expected(uri) or (last if last in world.servers else None)
            world.subscribed[uri] = at
            watched = [each for each, server in world.servers.items() if uri in server.subscriptions.watched]
            assert watched == ([] if at is None else [at])
            assert not OWN.match(uri) or at is None
        for server in world.servers.values():
            assert server.subscriptions.watched <= set(world.subscribed)
            for uri in URIS:
                if world.watches.accepts(server.name, uri):
                    assert world.expected(uri) in (server.name, None)
                    assert not OWN.match(uri)
    for entry in world.catalog.snapshot.resources.values():
        assert entry.uri in world.listed[entry.server][0]
        assert not OWN.match(entry.uri)
