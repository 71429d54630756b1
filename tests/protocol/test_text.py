"""Characters that are kept in a text for a model, and those that are removed."""

import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.growth import costs_more
from support.tables import each

from mcp_context_proxy.protocol.strangers import clean

HOSTILE = {
    "C0": [chr(c) for c in range(0x20) if chr(c) not in "\n\t"] + ["\x7f"],
    "C1": [chr(c) for c in range(0x80, 0xA0)],
    "bidi": [chr(c) for c in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))],
    "zero width": [chr(c) for c in (0x200B, 0x2060, 0x2061, 0x2062, 0x2063, 0x2064, 0xFEFF, 0x00AD)],
    "tags": [chr(c) for c in range(0xE0000, 0xE0080)],
    "surrogates": ["\ud800", "\udbff", "\udc00", "\udfff"],
    "private use": [chr(c) for c in (0xE000, 0xF8FF, 0xF0000, 0x10FFFD)],
    "unassigned": [chr(c) for c in (0x0378, 0xFFFF, 0xE0FFF, 0x1FFFE, 0x2FFFF)],
    "blanks": list("\u2800\u3164\uffa0\ufffc\u034f\u17b4\U0001d159\U00013441"),
    "music, shorthand, hieroglyphs": [chr(c) for c in (0x1D173, 0x1D17A, 0x1BCA0, 0x13430)],
    "line and paragraph separators": ["\u2028", "\u2029"],
}
ALL_HOSTILE = frozenset(character for characters in HOSTILE.values() for character in characters)

WRITTEN = st.text(
    st.characters(
        exclude_categories=("Cc", "Cf", "Cs", "Cn", "Co", "Mn", "Zl", "Zp"),
        exclude_characters="\u115f\u1160\u3164\uffa0\u2800\ufffc\U0001d159\U00013441\U00013442",
    )
)


@each(
    "text",
    [
        pytest.param("👨‍👩‍👧‍👦 👩🏽‍💻 🏳️‍🌈 ❤️‍🔥 🏴‍☠️ 1️⃣ ☎︎ 🇨🇭", id="emoji"),
        pytest.param("مرحبا بالعالم، كيف الحال؟ مُحَمَّد ١٤٢٠ ه‍", id="Arabic"),
        pytest.param("می‌خواهم کتاب‌ها را بخوانم", id="Persian, with non-joiners"),
        pytest.param("नमस्ते दुनिया क्‍ष र्‍य न्‌न", id="Hindi"),
        pytest.param("ශ්‍රී ලංකා", id="Sinhala"),
        pytest.param("എന്‍", id="Malayalam, with a joiner at the end"),
        pytest.param("สวัสดีชาวโลก น้ำ ที่นี่", id="Thai"),
        pytest.param("葛󠄀城市 神︀", id="Japanese, with ideographic variants"),
        pytest.param("ᠮᠣᠩᠭᠣᠯ ᠬᠡᠯᠡᠨ᠎ᠦ", id="Mongolian"),
        pytest.param("שָׁלוֹם עולם", id="Hebrew"),
        pytest.param("한국어 ᄒᆞᆫ글", id="Korean, with conjoining letters"),
        pytest.param("Tiếng Việt, Zürich, e\u0301, ∩︀", id="Latin, with marks"),
        pytest.param("\tcode\n\tmore\n", id="tabs and newlines"),
    ],
)
def test_ordinary_text_is_unchanged(text: str) -> None:
    assert clean(text) == text


@given(WRITTEN)
def test_text_of_visible_characters_is_unchanged(text: str) -> None:
    assert clean(text) == text


@each("characters", [pytest.param(c, id=name) for name, c in HOSTILE.items()])
def test_each_hostile_character_is_removed_wherever_it_stands(characters: list[str]) -> None:
    for character in characters:
        assert clean(f"ü{character}ö") == "üö", ascii(character)
        assert clean(f"{character}👩{character}") == "👩", ascii(character)


@given(st.text(st.one_of(st.sampled_from(sorted(ALL_HOSTILE)), st.characters(codec=None))))
def test_no_hostile_character_is_left(text: str) -> None:
    assert not ALL_HOSTILE.intersection(clean(text))


@given(st.text(st.characters(codec=None)))
def test_the_result_can_always_be_encoded(text: str) -> None:
    clean(text).encode("utf-8")


CONDITIONAL = "a \n\u200c\u200d\ufe0f\ufe00\U000e0100👩❤क्م葛\u1160\u1100\u1820\u180b\u200b\x1b[1m\u202e"


@given(st.text(st.sampled_from(CONDITIONAL)))
@example("a\ufe0f\u200d👩")
@example("❤\u200d\u202e👩")
def test_cleaning_a_clean_text_changes_nothing(text: str) -> None:
    assert clean(clean(text)) == clean(text)


@given(st.text(st.sampled_from(CONDITIONAL)))
def test_the_visible_part_is_neither_changed_nor_reordered(text: str) -> None:
    remaining = iter(text)

    assert all(character in remaining for character in clean(text))


@each(
    ("text", "seen"),
    [
        pytest.param("\x1b[1;31mred\x1b[0m", "red", id="colour"),
        pytest.param("\x9b31mred", "red", id="colour, with a C1 introducer"),
        pytest.param("\x1b]0;title\x07text", "text", id="window title"),
        pytest.param("\x1b]8;;https://e.example\x1b\\link\x1b]8;;\x1b\\", "link", id="hyperlink"),
        pytest.param("\x1bPpayload\x1b\\text", "text", id="device control string"),
        pytest.param("\x1b(Btext\x1bc", "text", id="character set, reset"),
        pytest.param("a\x1b\nb", "a\nb", id="an escape before a newline takes no line with it"),
        pytest.param("\x1b]0;never ended\nnext", "0;never ended\nnext", id="an unfinished one hides nothing"),
    ],
)
def test_terminal_escapes_are_removed_whole(text: str, seen: str) -> None:
    assert clean(text) == seen


@each(
    ("text", "seen"),
    [
        pytest.param("de\u200dlete", "delete", id="joiner between Latin letters"),
        pytest.param("de\u200clete", "delete", id="non-joiner between Latin letters"),
        pytest.param("👩\u200d text", "👩 text", id="joiner without a second emoji"),
        pytest.param("क्\u200d\u200d\u200d", "क्\u200d", id="run of joiners"),
        pytest.param("a\ufe0fb\ufe00", "ab", id="variation selectors after Latin letters"),
        pytest.param("😀" + "".join(chr(0xE0100 + b) for b in b"secret"), "😀", id="bytes behind an emoji"),
        pytest.param("❤\ufe0f\ufe0f\ufe0e", "❤\ufe0f", id="run of variation selectors"),
        pytest.param("\u1160\u1160", "", id="fillers outside of a syllable"),
        pytest.param("\u1100" + "\u1160" * 9 + "x", "\u1100\u1160x", id="run of fillers in a syllable"),
        pytest.param("de\u180elete", "delete", id="Mongolian separator between Latin letters"),
        pytest.param("\u1820\u180b\u180b\u180e\u180e", "\u1820\u180b\u180e", id="run of Mongolian ones"),
        pytest.param("a\U00016fe4", "a", id="Khitan filler outside of Khitan"),
    ],
)
def test_joiners_and_selectors_are_removed_where_nothing_needs_them(text: str, seen: str) -> None:
    assert clean(text) == seen


def test_a_clean_text_is_returned_as_the_same_object() -> None:
    text = "plain ASCII and Zürich, 東京\n" * 100

    assert clean(text) is text


SIGNS_AROUND_DIGITS = "\u0600\u0601\u0602\u0603\u0604\u0605\u06dd\u070f\u0890\u0891\u08e2\U000110bd\U000110cd"
IGNORABLE = (0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x3164, 0xFFA0, 0x2065, 0xFFF0, 0xE0FFF)
"""Characters that Unicode calls ignorable although their categories do not tell."""


CODES = 0x110000
BLOCK = 64


@pytest.fixture(scope="module")
def changed() -> frozenset[int]:
    """The code points that do not stay as they are between two letters.

    Looked at in blocks, because most stay or go together.
    """
    found = set[int]()
    for first in range(0, CODES, BLOCK):
        codes = range(first, first + BLOCK)
        block = f"x{'x'.join(map(chr, codes))}x"
        cleaned = clean(block)
        if cleaned == "x" * (BLOCK + 1):
            found.update(codes)
        elif cleaned != block:
            found |= {code for code in codes if clean(f"x{chr(code)}x") != f"x{chr(code)}x"}
    return frozenset(found)


def test_every_code_point_is_visible_or_a_space_or_removed(changed: frozenset[int]) -> None:
    for code in range(CODES):
        character = chr(code)
        category = unicodedata.category(character)
        kept = code not in changed
        if category[0] in "LMNPS":
            may_vanish = not character.isascii()
            assert kept or (may_vanish and len(clean(f"x{character}x")) == 2), hex(code)
        elif category == "Zs" or character in "\n\t" or character in SIGNS_AROUND_DIGITS:
            assert kept, hex(code)
        elif category == "Cn" and (0x1F000 <= code < 0x1FB00 or 0x20000 <= code < 0x323B0):
            continue  # a pictograph or an ideograph of a later Unicode
        else:
            assert not kept, hex(code)


def test_only_blank_letters_and_marks_are_removed(changed: frozenset[int]) -> None:
    removed = {
        code
        for code in changed
        if unicodedata.category(chr(code))[0] in "LMNPS" and clean(f"x{chr(code)}x") == "xx"
    }
    selectors = {*range(0x180B, 0x1810), *range(0xFE00, 0xFE10), *range(0xE0100, 0xE01F0), 0x16FE4}
    blanks = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2800, 0x3164, 0xFFA0, 0xFFFC, 0x1D159}

    assert removed - {0x13441, 0x13442} <= selectors | blanks
    assert blanks <= removed


def test_every_ignorable_character_is_removed() -> None:
    assert [hex(code) for code in IGNORABLE if clean(f"x{chr(code)}x") != "xx"] == []


@each(
    "hostile",
    [
        pytest.param("a\ufe0f\u200d", id="selectors and joiners"),
        pytest.param("\u200d", id="joiners"),
        pytest.param("\u2764\ufe0f\u200d", id="hearts and joiners"),
        pytest.param("\u1160", id="fillers"),
        pytest.param("\x1b[", id="unfinished control sequences"),
        pytest.param("\x1b]x", id="unfinished titles"),
        pytest.param("\x1b ", id="unfinished escapes"),
        pytest.param("\x9b;;  ", id="C1 introducers"),
        pytest.param("\ue000\U000e0041", id="removed characters"),
    ],
)
def test_the_time_is_in_proportion_to_the_text(hostile: str) -> None:
    short, long = (hostile * (characters // len(hostile)) for characters in (50_000, 1_000_000))

    assert not costs_more(120, clean, long, short)
