"""The general requests whose vectors tell whether a query fits anything at all."""

from pathlib import Path

FILE = Path(__file__).parents[2] / "scripts" / "general_requests.txt"

GENERAL_REQUESTS = FILE.read_text(encoding="utf-8").splitlines()
