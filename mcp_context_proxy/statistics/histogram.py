"""Latencies as counts by bucket: bounded memory, added up by adding counts, percentiles within a known error.

The buckets grow by a constant factor (as in DDSketch, Masson, Rim and Lee, VLDB 2019), so that the error of
every percentile is relative: the same for a microsecond and for a minute.
"""

from __future__ import annotations

import math
from typing import Final

from mcp_context_proxy.store.usage import Counts

ERROR: Final = 0.02
"""Of a percentile, relative and at most: nobody decides by less."""

FASTEST_MS: Final = 0.01
SLOWEST_MS: Final = 3_600_000.0
"""What is faster or slower is counted as if it were not: under it a clock tells nothing, and no call may take
longer. That makes at most some 670 buckets, and a few tens for a real tool."""

_GROWTH: Final = (1 + ERROR) / (1 - ERROR)
_PER_BUCKET: Final = math.log(_GROWTH)


def bucket_of(ms: float) -> int:
    """The bucket that a duration is counted in."""
    return math.ceil(math.log(min(max(ms, FASTEST_MS), SLOWEST_MS)) / _PER_BUCKET)


def percentile(counts: Counts, share: float) -> float:
    """The duration that a share of all does not exceed, in milliseconds; 0 where nothing was counted."""
    rank = math.ceil(share * sum(counts.values()))
    for bucket in sorted(counts):
        rank -= counts[bucket]
        if rank <= 0:
            # The value whose relative distance to both ends of the bucket is the same.
            return 2 * _GROWTH**bucket / (_GROWTH + 1)
    return 0.0
