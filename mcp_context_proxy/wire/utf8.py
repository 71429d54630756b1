"""Tells whether bytes are UTF-8, with little memory beside theirs."""

from __future__ import annotations

from codecs import getincrementaldecoder

PIECE_BYTES = 256 << 10
"""Looked at at a time. As text, one emoji makes every character of a piece take four bytes."""

_Decoder = getincrementaldecoder("utf-8")


def is_utf8(data: bytes) -> bool:
    """Whether it is all UTF-8."""
    if data.isascii():
        return True
    try:
        if len(data) <= PIECE_BYTES:
            str(data, "utf-8")
            return True
        decode = _Decoder().decode
        for start in range(0, len(data), PIECE_BYTES):
            end = start + PIECE_BYTES
            decode(data[start:end], final=end >= len(data))
    except UnicodeDecodeError:
        return False
    return True
