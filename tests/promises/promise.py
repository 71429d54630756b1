"""One promise of a page, with the tests that prove it."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """A passage of a page, and the tests that prove it."""

    sentence: str
    proofs: tuple[str, ...]
    """``file::test``, from the folder of the tests."""
