"""What a value in a form of the API may be, where several forms have it."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

LISTED_MOST = 500
"""Request contexts in one answer: more than a person looks through, some 500 kB."""

SELECTED_MOST = 1000
"""Items or chunks that may be asked for; a model reads tens."""

Words = Annotated[str, Meta(min_length=1, pattern=r"\S")]
Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Count = Annotated[int, Meta(ge=1, le=SELECTED_MOST)]
Score = Annotated[float, Meta(ge=0, le=1)]
