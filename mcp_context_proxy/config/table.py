"""What each table of ``config.toml`` is: frozen, strict in its types, and without keys that nobody reads."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

Flag = Annotated[bool, Field(strict=True)]
Amount = Annotated[int, Field(strict=True, ge=0)]
Score = Annotated[float, Field(strict=True, ge=0, le=1, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]

TAG_CHARACTERS: Final = 64
"""Of a category or a tag: a word or two."""


def _is_tag(text: str) -> str:
    if not 1 <= len(text) <= TAG_CHARACTERS or text != text.strip() or set(text) & {",", "\n"}:
        message = "must be 1 to {most} characters, without commas, and without spaces at its ends"
        raise PydanticCustomError("tag", message, {"most": TAG_CHARACTERS})
    return text


Tag = Annotated[str, AfterValidator(_is_tag)]
"""A category or tag: no commas, which divide several of them where they are asked for."""


class Table(BaseModel):
    """One table of the file: frozen, and no key but those it declares."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    derived: ClassVar[frozenset[str]] = frozenset()
    """Fields that are computed while loading and cannot be written in a file."""

    @classmethod
    def keys(cls) -> list[str]:
        """The keys a person may write."""
        return [name for name in cls.model_fields if name not in cls.derived]
