"""A learned tier whose vectors and clock a test can read."""

import pytest
from support.clocks import Clock
from support.words import Words

DAY = 86_400.0


@pytest.fixture
def words() -> Words:
    return Words()


@pytest.fixture
def clock() -> Clock:
    return Clock(1_000 * DAY)
