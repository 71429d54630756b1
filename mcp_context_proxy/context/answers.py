"""What the answer of a call says, for the next selection: its texts, cut. Answers are never learned from."""

from __future__ import annotations

import msgspec

CHARACTERS = 2000
"""Of an answer that are looked at: four chunks, some 10 ms of embedding."""

ANSWER_BYTES = 1_000_000
"""An answer that is longer is not looked at: decoding it would hold up everybody."""


class _Content(msgspec.Struct):
    text: str = ""


class _Answer(msgspec.Struct):
    content: list[_Content] = []
    isError: bool = False  # noqa: N815 - the protocol's word


def text_of(result: bytes) -> str | None:
    """The texts of a call's result; None where it has none, or failed."""
    if len(result) > ANSWER_BYTES:
        return None
    try:
        answer = msgspec.json.decode(result, type=_Answer)
    except msgspec.DecodeError:
        return None
    text = "\n".join(content.text for content in answer.content)[:CHARACTERS]
    return None if answer.isError or not text.strip() else text
