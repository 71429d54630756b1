"""Some seconds of everything at once, longer with the full cross and twelve minutes in each night.

The seed that is printed repeats a run.
"""

import random
from dataclasses import asdict
from pathlib import Path

import pytest
from faults.soak import soak

pytestmark = pytest.mark.slow(times=10)

SECONDS = [pytest.param(3.0, marks=pytest.mark.smaller), pytest.param(8.0, marks=pytest.mark.full_cross)]
CALLS = 50
"""Calls of the callers and of the neighbour, at least: a slow machine takes longer for them."""


@pytest.mark.parametrize("shared", [False, True], ids=["http", "shared"])
@pytest.mark.parametrize("seconds", SECONDS)
async def test_nothing_is_lost_doubled_repeated_or_left_behind(
    tmp_path: Path, seconds: float, shared: bool
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    figures = await soak(tmp_path, seconds, seed, CALLS, shared)

    print(asdict(figures))
    assert (figures.lost, figures.doubled, figures.wrong) == (0, 0, 0), figures
    assert (figures.repeated, figures.orphans, figures.bystander_errors) == (0, 0, 0), figures
    assert figures.exit_code == 0, figures
    assert figures.calls >= CALLS, figures
    assert figures.bystander_calls >= CALLS, figures
