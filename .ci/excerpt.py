"""Checks that the README's excerpt of the demo is in the demo's output, numbers aside.

Numbers are masked: times differ from run to run, and the last digit of a score from processor to processor.
Usage: ``python3 .ci/excerpt.py OUTPUT``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def masked(text: str) -> list[str]:
    """The lines of a text, with every number alike."""
    return [re.sub(r"[0-9][0-9.,]*", "#", line.rstrip()) for line in text.splitlines()]


def main() -> None:
    """Compare."""
    (shown,) = re.findall(r"^```text\n(.*?)^```$", README.read_text(encoding="utf-8"), re.M | re.S)
    printed = masked(Path(sys.argv[1]).read_text(encoding="utf-8"))
    lines = masked(shown)
    missing = [line for line in lines if line not in printed]
    if missing:
        raise SystemExit("README.md shows of the demo what it does not print:\n" + "\n".join(missing))
    sys.stdout.write(f"  {len(lines)} lines of the demo in README.md are as it prints them\n")


if __name__ == "__main__":
    main()
