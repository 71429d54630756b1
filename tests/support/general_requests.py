"""The texts whose vectors tell whether a query fits anything at all."""

from pathlib import Path

LISTS = Path(__file__).parents[2] / "scripts"

GENERAL_REQUESTS = (LISTS / "general_requests.txt").read_text(encoding="utf-8").splitlines()

UNAIDED = (LISTS / "unaided.txt").read_text(encoding="utf-8").splitlines()
"""Prompts that a model answers without a tool."""
