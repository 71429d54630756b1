"""What whoever starts the proxy has to know although nothing is wrong, such as where it is served."""

from __future__ import annotations

from typing import Final

NOTICE: Final = 35
"""A level of logging: shown wherever warnings are, and not called one."""
