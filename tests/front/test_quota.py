"""The rate of calls of a principal holds for all replicas together."""

from __future__ import annotations

from mcp_context_proxy.front.admission import Quota


def admitted(quota: Quota, principal: str, *, spread: bool) -> int:
    return sum(quota.take(principal, spread=spread) for _ in range(100))


def test_each_of_several_replicas_admits_its_share_of_calls_without_a_session() -> None:
    quota = Quota(12.0)
    assert admitted(quota, "alone", spread=True) == 12
    quota.replicas = lambda: 3
    assert admitted(quota, "ada", spread=True) == 4
    # The calls of a session all come to its home.
    assert admitted(quota, "bob", spread=False) == 12


def test_a_low_rate_admits_calls_at_many_replicas() -> None:
    quota = Quota(1.0)
    quota.replicas = lambda: 8
    assert admitted(quota, "ada", spread=True) == 1
