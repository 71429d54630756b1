"""Half a minute of everything at once; the seed that is printed repeats it."""

from __future__ import annotations

import random
from dataclasses import asdict
from pathlib import Path

import pytest
from faults.soak import soak

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

SECONDS = 30.0


async def test_nothing_is_lost_doubled_repeated_or_left_behind(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    figures = await soak(tmp_path, SECONDS, seed)

    print(asdict(figures))
    assert (figures.lost, figures.doubled, figures.wrong) == (0, 0, 0), figures
    assert (figures.repeated, figures.orphans, figures.bystander_errors) == (0, 0, 0), figures
    assert figures.exit_code == 0, figures
    assert figures.calls > 100, figures
    assert figures.bystander_calls > 100, figures
