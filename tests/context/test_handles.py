"""Context handles: unguessable, bound to who made them, bounded in number, forgotten when idle."""

from support.clocks import Clock

from mcp_context_proxy.context.session import PRINCIPALS, Handles, Sessions


def test_a_handle_has_128_random_bits_that_its_public_id_does_not_reveal() -> None:
    handles = Handles(10, 60, Sessions())

    made = [handles.create() for _ in range(5)]

    assert len({handle.secret for handle in made}) == 5
    assert all(len(handle.secret) * 6 >= 128 and handle.id not in handle.secret for handle in made)


def test_nobody_but_its_principal_may_use_a_handle() -> None:
    handles = Handles(10, 60, Sessions())
    handle = handles.create("alice")

    assert handles.get(handle.secret, "alice") is handle
    assert handles.get(handle.secret, "mallory") is None
    assert handles.get(handle.secret) is None


def test_an_idle_handle_is_forgotten_and_a_used_one_is_not() -> None:
    clock = Clock()
    handles = Handles(10, 60, Sessions(), clock)
    used, idle = handles.create().secret, handles.create().secret
    clock.now = 40
    assert handles.get(used) is not None
    clock.now = 80

    assert handles.get(used) is not None
    assert handles.get(idle) is None


def test_the_handle_that_was_idle_longest_is_evicted_first() -> None:
    handles = Handles(2, 60, Sessions())
    first, second = handles.create().secret, handles.create().secret
    assert handles.get(first) is not None
    handles.create()

    assert handles.get(first) is not None
    assert handles.get(second) is None


def test_whoever_makes_too_many_handles_loses_none_but_their_own() -> None:
    handles = Handles(2, 60, Sessions())
    kept = handles.create("alice").secret
    first, *_, last = [handles.create("mallory").secret for _ in range(10)]

    assert handles.get(kept, "alice") is not None
    assert handles.get(first, "mallory") is None
    assert handles.get(last, "mallory") is not None


def test_the_handles_of_the_principal_that_was_idle_longest_are_evicted_beyond_the_most_principals() -> None:
    handles = Handles(2, 60, Sessions())
    idle, used = handles.create("idle").secret, handles.create("used").secret
    for number in range(PRINCIPALS - 1):
        assert handles.get(used, "used") is not None
        handles.create(str(number))

    assert handles.get(used, "used") is not None
    assert handles.get(idle, "idle") is None


def test_a_forgotten_handle_is_no_longer_listed_as_a_session() -> None:
    sessions = Sessions()
    handles = Handles(1, 60, sessions)
    first = handles.create().id
    second = handles.create().id

    assert [session.id for session in sessions] == [second]
    assert sessions.get(first) is None
