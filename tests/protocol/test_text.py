"""What stays of a text that goes to a model, and what does not."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mcp_context_proxy.protocol.text import clean

HOSTILE = {
    "C0": [chr(c) for c in range(0x20) if chr(c) not in "\n\t"] + ["\x7f"],
    "C1": [chr(c) for c in range(0x80, 0xA0)],
    "bidi": [chr(c) for c in (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))],
    "zero width": [chr(c) for c in (0x200B, 0x2060, 0x2061, 0x2062, 0x2063, 0x2064, 0xFEFF, 0x00AD)],
    "tags": [chr(c) for c in range(0xE0000, 0xE0080)],
    "surrogates": ["\ud800", "\udbff", "\udc00", "\udfff"],
}
ALL_HOSTILE = frozenset(character for characters in HOSTILE.values() for character in characters)

WRITTEN = st.text(
    st.characters(
        exclude_categories=("Cc", "Cf", "Cs", "Cn", "Mn"), exclude_characters="\u115f\u1160\u3164\uffa0"
    )
)


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("characters", [pytest.param(c, id=name) for name, c in HOSTILE.items()])
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
    ],
)
def test_joiners_and_selectors_are_removed_where_nothing_needs_them(text: str, seen: str) -> None:
    assert clean(text) == seen


def test_a_clean_text_is_returned_as_the_same_object() -> None:
    text = "plain ASCII and Zürich, 東京\n" * 100

    assert clean(text) is text
