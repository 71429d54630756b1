"""How far back somebody looks: ``24h``, ``30d``."""

from __future__ import annotations

import re
from typing import Final

from mcp_context_proxy.store.usage import DAY, HOUR

PATTERN: Final = "^[1-9][0-9]{0,3}[hd]$"
DEFAULT: Final = "30d"


def seconds_of(period: str) -> int:
    """How long a period is.

    Raises:
        ValueError: it is none.
    """
    if re.fullmatch(PATTERN, period) is None:
        raise ValueError(f"{period!r} is no period; write hours or days, such as 24h or 30d")
    return int(period[:-1]) * (HOUR if period.endswith("h") else DAY)
