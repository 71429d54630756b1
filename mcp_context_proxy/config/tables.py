"""Tables of the configuration, and the types of their values: texts, numbers, tags, synonyms."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Flag = Annotated[bool, Field(strict=True)]
Amount = Annotated[int, Field(strict=True, ge=0)]
Score = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]

TAG_CHARACTERS: Final = 64
"""Longest category or tag: a word or two."""

MEANING_CHARACTERS: Final = 200
"""Longest meaning of a word of queries, or use case of a tool: a short phrase."""


KEY_ERROR: Final = "key"
"""Type of an error in the key of an entry, rather than in its value."""


def _is_tag(text: str) -> str:
    if not 1 <= len(text) <= TAG_CHARACTERS or text != text.strip() or set(text) & {",", "\n"}:
        message = "must be 1 to {most} characters, without commas, and without spaces at its ends"
        raise PydanticCustomError("tag", message, {"most": TAG_CHARACTERS})
    return text


Tag = Annotated[str, AfterValidator(_is_tag)]
"""A category or tag, without commas, because commas separate several tags in a search."""


def _is_meaning(text: str) -> str:
    if not text.strip() or len(text) > MEANING_CHARACTERS:
        message = "must be 1 to {most} characters"
        raise PydanticCustomError("meaning", message, {"most": MEANING_CHARACTERS})
    return " ".join(text.split())


Meaning = Annotated[str, AfterValidator(_is_meaning)]
"""A short phrase: words that a word of queries stands for, or a use case of a tool."""


def _is_word(text: str) -> str:
    ends = text[:1].isalnum() and text[-1:].isalnum()
    if len(text) > TAG_CHARACTERS or not ends or len(text.split()) > 1:
        message = "must be one word that begins and ends with a letter or digit, at most {most} characters"
        raise PydanticCustomError(KEY_ERROR, message, {"most": TAG_CHARACTERS})
    return text.lower()


Synonyms = dict[Annotated[str, AfterValidator(_is_word)], Meaning]
"""Words of queries, in lower case, each with the words that it stands for."""


class Table(BaseModel):
    """One table of the file: frozen, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    derived: ClassVar[frozenset[str]] = frozenset()
    """Fields that are computed while loading and cannot be set in a file."""

    @classmethod
    def keys(cls) -> list[str]:
        """Return the keys that a file may set."""
        return [name for name in cls.model_fields if name not in cls.derived]
