"""UTF-8 is checked piece by piece, and a character may begin in one piece and end in the next."""

from support.tables import each

from mcp_context_proxy.protocol.envelope import PIECE_BYTES, is_utf8


@each("before", range(PIECE_BYTES - 4, PIECE_BYTES + 1))
@each("character", ["é", "☃", "\U0001f600"])
def test_valid_characters_are_accepted_at_any_position(before: int, character: str) -> None:
    assert is_utf8(b"x" * before + character.encode())
    assert is_utf8(b"x" * before + character.encode() + b"x" * PIECE_BYTES)


@each("before", [0, 1, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES])
@each(
    "wrong",
    [b"\xff", b"\x80", b"\xc3", b"\xf0\x9f\x98", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"],
)
def test_invalid_bytes_are_found_at_any_position(before: int, wrong: bytes) -> None:
    assert not is_utf8(b"x" * before + wrong)
    assert not is_utf8(b"x" * before + wrong + b"x" * PIECE_BYTES)


@each("text", [b"", b"x", b"\x00", b"x" * (2 * PIECE_BYTES)])
def test_ascii_is_utf8(text: bytes) -> None:
    assert is_utf8(text)
