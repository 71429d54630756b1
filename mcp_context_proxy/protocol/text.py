"""Removes characters that a person cannot see from text that a model will read.

Characters are removed, never replaced, so that nothing is added and lines keep their numbers. Joiners and
variation selectors stay where a script or an emoji needs them, because people write with them.
"""

from __future__ import annotations

import re
from typing import Final

_CONTROLS: Final = r"\x00-\x08\x0b-\x1f\x7f-\x9f"
"""C0 and C1 but for tab and newline."""

_BIDI: Final = r"\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Controls that display text in another order than it is read in (CVE-2021-42574)."""

_ZERO_WIDTH: Final = r"\u00ad\u034f\u17b4\u17b5\u200b\u2060-\u2065\u206a-\u206f\ufeff\ufff0-\ufffb"
"""Soft hyphen, zero-width space, word joiner, invisible operators, byte order mark, annotations."""

_BLANKS: Final = r"\u3164\uffa0\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
"""Hangul fillers outside of syllables, and format characters of shorthand and music."""

_TAGS: Final = r"\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"
"""The tag block, an invisible copy of ASCII, and the unassigned, ignorable code points around it."""

_SURROGATES: Final = r"\ud800-\udfff"
"""Halves of characters, which cannot be encoded."""

_ALWAYS: Final = _CONTROLS + _BIDI + _ZERO_WIDTH + _BLANKS + _TAGS + _SURROGATES

_MONGOLIAN: Final = r"\u1820-\u18aa"
_JOINING_SCRIPTS: Final = (
    r"\u0620-\u06ff\u0700-\u074f\u0750-\u077f\u07ca-\u07ff\u0840-\u085f\u0860-\u08ff"  # Arabic and kin
    r"\ufb50-\ufdff\ufe70-\ufefc"  # Arabic presentation forms
    r"\u0900-\u0dff\u0f00-\u0fff\u1000-\u109f\u1780-\u17ff\u1b00-\u1b7f\ua840-\uabff"  # Indic and kin
    r"\U00010a00-\U00010aff\U00011000-\U00011fff\U0001e900-\U0001e95f" + _MONGOLIAN
)
"""Scripts in which a joiner changes the shape of the letter before it, also at the end of a word."""

_PICTOGRAPHS: Final = r"\u2190-\u21ff\u2300-\u23ff\u2600-\u27bf\u2b00-\u2bff\U0001f000-\U0001faff"
_IDEOGRAPHS: Final = r"\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_VARIED: Final = (
    r"#*0-9\u00a9\u00ae\u1000-\u109f\u2010-\u2027\u2030-\u205f\u2070-\u33ff\ua840-\ua87f\uaa60-\uaa7f"
    r"\U00010000-\U0001ffff" + _IDEOGRAPHS
)
"""Characters that have standardized or emoji variants."""

_ESCAPE_SEQUENCE: Final = re.compile(
    rf"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # control sequences: colours, cursor
    rf"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\n{_CONTROLS}]*(?:\x07|\x1b\\|\x9c)"  # titles, hyperlinks
    rf"|\x1b[ -/]*[0-~]"  # two-character escapes
)
"""ECMA-48. No part can run over a control character, so matching stays linear in the text."""

_UNSEEN: Final = re.compile(f"[{_ALWAYS}]+")

_CONDITIONAL: Final = re.compile(
    rf"(?<![{_JOINING_SCRIPTS}])\u200c"
    rf"|(?<![{_JOINING_SCRIPTS}{_PICTOGRAPHS}\ufe0f])\u200d"
    rf"|(?<=[{_PICTOGRAPHS}\ufe0f])\u200d(?![{_PICTOGRAPHS}])"
    rf"|(?<![{_VARIED}])[\ufe00-\ufe0f]"
    rf"|(?<![{_IDEOGRAPHS}])[\U000e0100-\U000e01ef]"
    rf"|(?<![{_MONGOLIAN}])[\u180b-\u180f]"
    r"|(?<![\u1100-\u115e\u1161-\u11ff])[\u115f\u1160](?![\u1100-\u115e\u1161-\u11ff])"
)
"""Joiners, variation selectors and fillers that follow a character they have no effect on.

Each alternative looks only at neighbours that are never removed, or removed as well, so that cleaning a clean
text changes nothing.
"""

_SUSPECT: Final = re.compile(
    rf"[{_ALWAYS}\u115f\u1160\u180b-\u180f\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)


def clean(text: str) -> str:
    """Remove control characters, terminal escapes, bidi controls and invisible characters.

    Newlines and tabs stay, and joiners where a script or an emoji needs them. A clean text is returned as is.
    """
    if _SUSPECT.search(text) is None:
        return text
    return _without_stray_joiners(_UNSEEN.sub("", _ESCAPE_SEQUENCE.sub("", text)))


def _without_stray_joiners(text: str) -> str:
    # More than one pass is needed only when a joiner seemed to follow a selector that was itself stray.
    while (shorter := _CONDITIONAL.sub("", text)) != text:
        text = shorter
    return text
