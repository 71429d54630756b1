"""Named tokens that replicas share: added and revoked for all of them, and never by the database alone."""

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import msgspec
import pytest
from support.postgres import PostgresServer, missing, postgres, postgres_server  # noqa: F401 - a fixture

from mcp_context_proxy.config import Config, StoreConfig
from mcp_context_proxy.config.tables import ClusterConfig
from mcp_context_proxy.errors import StoreError
from mcp_context_proxy.store.credentials import (
    LOOK_SECONDS,
    TOKEN,
    CredentialStore,
    SealedRow,
    SharedCredentials,
    mark_of,
    shared_credentials,
)
from mcp_context_proxy.store.opening import Store, open_store
from mcp_context_proxy.trust.tokens import MOST_TOKENS, SharedTokens, TokenBook, TokenError, TokenFile, digest

KEY, NEXT_KEY = "0123456789abcdef" * 4, "fedcba9876543210" * 4
_names = (f"tokens{number}" for number in itertools.count())


class Replica:
    """The named tokens of one replica, which has a folder of its own."""

    def __init__(self, place: StoreConfig, folder: Path, key: str = KEY, *others: str) -> None:
        self.store: Store = open_store(place)
        settings = ClusterConfig(key=key, other_keys=others)
        found = shared_credentials(Config(store=place, cluster=settings), self.store)
        assert found is not None
        self.shared: SharedCredentials = found
        self.file = TokenFile(folder / "tokens.json")
        self.tokens = SharedTokens(self.shared, self.file)
        self.book = TokenBook(self.tokens)

    def accepts(self, token: str) -> bool:
        """Whether a token is accepted, once this replica has looked at the store, as it does every second."""
        self.shared.look(now=True)
        self.book.load()
        return self.book.find(token) is not None


Join = Callable[..., Replica]


@pytest.fixture(params=["file", pytest.param("postgres", marks=pytest.mark.cluster)])
def join(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Join]:
    """Opens the same store once more, as another replica."""
    place = StoreConfig(path=str(tmp_path / "store.sqlite3"))
    if request.param == "postgres":
        place = StoreConfig(url=request.getfixturevalue("postgres").url, namespace=next(_names))
    replicas = list[Replica]()

    def joined(*keys: str) -> Replica:
        folder = tmp_path / f"replica{len(replicas)}"
        folder.mkdir(exist_ok=True)
        replicas.append(Replica(place, folder, *keys))
        return replicas[-1]

    yield joined
    for replica in replicas:
        replica.store.close()


def test_a_token_that_is_added_or_revoked_at_one_replica_counts_at_all(join: Join) -> None:
    one, other = join(), join()
    anna, ben = one.tokens.add("anna"), other.tokens.add("ben", servers=["desk"])

    assert [replica.accepts(token) for replica in (one, other) for token in (anna, ben)] == [True] * 4
    with pytest.raises(TokenError, match="there is a token 'anna' already"):
        other.tokens.add("anna")
    other.tokens.revoke("anna")
    assert [replica.accepts(token) for replica in (one, other) for token in (anna, ben)] == [False, True] * 2
    with pytest.raises(TokenError, match="there is no token 'anna'; there are: ben"):
        one.tokens.revoke("anna")
    again = one.tokens.add("anna")
    assert (other.accepts(again), other.accepts(anna)) == (True, False)
    renewed = other.tokens.renew("anna", 3600)
    assert [replica.accepts(token) for replica in (one, other) for token in (again, renewed)] == [True] * 4


def test_tokens_of_a_person_that_are_revoked_at_one_replica_are_refused_at_all(join: Join) -> None:
    one, other = join(), join()
    one.tokens.revoke(person := "jwt:" + "5f" * 32)

    for replica in (one, other):
        replica.accepts("any")
        assert replica.book.refuses(person, 0.0)


def test_a_running_replica_notices_by_itself_within_a_second(join: Join) -> None:
    one = join()
    now = [0.0]
    shared = SharedCredentials(
        CredentialStore(one.store.database), one.store.leases, one.shared._seal, lambda: now[0]
    )
    book = TokenBook(SharedTokens(shared, one.file))
    book.load()
    token = one.tokens.add("anna")
    found = []
    for _ in range(2):
        book.load()
        found.append(book.find(token) is not None)
        now[0] += LOOK_SECONDS

    assert found == [False, True]


def test_whoever_can_write_the_database_makes_no_token(join: Join) -> None:
    replica = join()
    anna = replica.tokens.add("anna", servers=["desk"])
    store, forged = CredentialStore(replica.store.database), "a token that somebody has thought up"
    ((row),) = store.all()
    record = {"name": "eve", "sha256": digest(forged), "created": 1.0, "role": "admin"}
    store.put(SealedRow(TOKEN, "eve", msgspec.json.encode(record), mark_of(KEY.encode()), 0))
    # That of somebody else, under another name.
    store.put(SealedRow(TOKEN, "mallory", row.sealed, row.key_mark, 0))

    assert not replica.accepts(forged)
    found = replica.book.find(anna)
    assert found is not None
    assert (found.name, found.servers) == ("anna", ("desk",))
    assert digest(anna).encode() not in row.sealed
    for name in ("eve", "mallory"):
        replica.tokens.revoke(name)


def test_the_tokens_of_files_are_taken_over_once_and_those_that_were_revoked_stay_so(join: Join) -> None:
    one = join()
    anna, ben = one.file.add("anna"), one.file.add("ben")
    content = one.file.path.read_bytes()
    assert (one.accepts(anna), one.accepts(ben)) == (True, True)
    one.tokens.revoke("ben")
    other = join()
    other.file.path.write_bytes(content)
    carla = other.file.add("carla")

    assert [other.accepts(token) for token in (anna, ben, carla)] == [True, False, True]
    assert [one.accepts(token) for token in (anna, ben, carla)] == [True, False, True]
    for replica in (one, other):
        assert not replica.file.path.exists()
        assert replica.file.path.with_name("tokens.json.taken-over").exists()


def test_a_replica_with_another_key_accepts_no_token_adds_none_and_can_revoke(join: Join) -> None:
    one, wrong = join(), join(NEXT_KEY)
    anna = one.tokens.add("anna")

    assert not wrong.accepts(anna)
    with pytest.raises(TokenError, match="sealed with another key than this configuration has"):
        wrong.tokens.add("ben")
    with pytest.raises(TokenError, match="sealed with another key than this configuration has"):
        wrong.tokens.renew("anna", 60)
    one.tokens.add("carla")
    wrong.tokens.revoke("carla")
    assert one.accepts(anna)
    assert [token.name for token in one.tokens.read()] == ["anna"]
    assert join(NEXT_KEY, KEY).accepts(anna)


def test_tokens_are_bounded_in_number(join: Join) -> None:
    one = join()
    for number in range(MOST_TOKENS):
        one.tokens.add(f"n{number}")

    with pytest.raises(TokenError, match="revoke one that is not needed"):
        join().tokens.add("more")


@pytest.mark.cluster
def test_tokens_that_are_known_are_accepted_while_the_database_is_away(tmp_path: Path) -> None:
    if reason := missing():
        pytest.skip(reason)
    with postgres_server() as server:
        place = StoreConfig(url=server.url, namespace="away", timeout_seconds=0.5)
        join = partial(Replica, place, tmp_path)
        one = join()
        token = one.tokens.add("anna")
        assert one.accepts(token)
        server.kill()
        late = join()
        for replica in (one, late):
            replica.book.load()

        assert one.book.find(token) is not None
        assert late.book.find(token) is None
        with pytest.raises(TokenError, match="nothing was changed"):
            one.tokens.add("ben")
        with pytest.raises(StoreError):
            one.shared.look(now=True)
        one.book.load()
        assert one.book.find(token) is not None
        for replica in (one, late):
            replica.store.close()
