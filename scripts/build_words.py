"""Write the packaged words by which queries are corrected: `words.txt` and `known_words.npy`.

    python scripts/build_words.py TOOLS REQUESTS WORDS [RARE ...]

TOOLS has a tool on each line, gzipped JSON with its server, name and description; REQUESTS is a folder of
written requests, in the form that `encoder/pairs.py` describes; WORDS is a list of English words, one on each
line, and each RARE is a larger one. Words written for this project are in `own_words.txt`.
`WORDS-PROVENANCE.md` beside the results says which files were used.
"""

from __future__ import annotations

import argparse
import gzip
import json
import unicodedata
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from mcp_context_proxy.embedding import PACKAGED_MODEL, TOKENIZER
from mcp_context_proxy.protocol.strangers import normalized
from mcp_context_proxy.retrieval.forms import LONGEST, WORDS, WordList
from mcp_context_proxy.retrieval.text import KNOWN_WORDS, stem, words

SHORTEST = 3
"""Letters of the shortest word of the lists."""

FIRST_PIECE = 1_996
"""Number of the first word of the tokenizer's vocabulary; before it are marks and single characters."""

FREQUENT = 20_000
"""Words of the vocabulary, the most frequent first, that a misspelled word may have meant."""

KNOWN_SERVERS = 1
"""Servers whose tools use a known word. A word that none other has is mostly a name."""

MEANT_SERVERS = 2
"""Servers whose tools use a usual word that a misspelled word may have meant."""

COMMON_SERVERS = 4
"""The same for a word that is neither in the vocabulary nor in the list of English words."""

FEWEST_REQUESTS = 3
"""Requests that have an English word from which on a misspelled one may have meant it: people ask for an
"invoice", a "recipe" or a "spreadsheet" where tools speak of records and files."""

LIKELY = 3_000
"""Words, the most likely first, that a rare word must differ from by more than one error to be known:
"wether" is a word, and nearly always meant to be "weather"."""

OWN_WORDS = Path(__file__).with_name("own_words.txt")
"""Words of money, computing, food, medicine and leisure that the lists lack: loan words, and new ones."""


def main() -> None:
    """Write both files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tools", type=Path)
    parser.add_argument("requests", type=Path)
    parser.add_argument("words", type=Path)
    parser.add_argument("rare", type=Path, nargs="*")
    arguments = parser.parse_args()
    with gzip.open(arguments.tools, "rt", encoding="utf-8") as lines:
        servers = servers_with(map(json.loads, lines))
    pieces = vocabulary()
    written = [word for word in listed(arguments.words) if is_plain(word.lower())]
    # A capital letter begins a name: it is known, and no word that anybody means.
    english = {word for word in written if word.islower()}
    meant = meant_words(servers, requests_with(arguments.requests), pieces, english)
    WORDS.write_text("\n".join(meant) + "\n", encoding="ascii")
    own = [word for word in listed(OWN_WORDS) if is_plain(word)]
    unaccented = [word for word in map(without_accents, listed(arguments.words)) if is_plain(word)]
    usual = (*written, *unaccented, *own, *pieces, *used_by(servers, KNOWN_SERVERS))
    known = {stem(word.lower()) for word in usual}
    likely = WordList(meant[:LIKELY])
    for word in sorted({without_accents(word) for path in arguments.rare for word in listed(path)}):
        near = (likely.nearest(form) for form in {word, stem(word)} - known)
        if is_plain(word) and not any(one is not None and one[1] <= 1 for one in near):
            known.add(stem(word))
    numbers = [zlib.crc32(word.encode()) for word in known]
    np.save(KNOWN_WORDS, np.unique(np.array(numbers, np.uint32)), allow_pickle=False)
    print(f"{len(meant):,} words that may be meant, {len(known):,} stems of known ones")


def listed(path: Path) -> list[str]:
    """Return the words of a list."""
    return path.read_text(encoding="utf-8").split()


def without_accents(word: str) -> str:
    """Return a word in lower case as people type it: "matinee"."""
    decomposed = normalized("NFKD", word.lower())
    return "".join(letter for letter in decomposed if not unicodedata.combining(letter))


def servers_with(tools: Iterable[dict[str, str]]) -> Counter[str]:
    """Return in how many servers' names and descriptions of tools each plain word occurs."""
    by_server: dict[str, set[str]] = {}
    for tool in tools:
        text = f"{tool['name']} {tool['description']}"
        by_server.setdefault(tool["server"], set()).update(filter(is_plain, words(text)))
    counted = Counter[str]()
    for found in by_server.values():
        counted.update(sorted(found))
    return counted


def requests_with(folder: Path) -> Counter[str]:
    """Return in how many requests each plain word occurs."""
    counted = Counter[str]()
    for path in sorted(folder.glob("*.txt")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if not line.startswith("#"):
                # Before the colon are the names of tools.
                for request in line.partition(": ")[2].split(" | ") if ": " in line else [line]:
                    counted.update(sorted({word for word in words(request) if is_plain(word)}))
    return counted


def vocabulary() -> list[str]:
    """Return the whole words of the packaged tokenizer, the most frequent first."""
    pieces = json.loads((PACKAGED_MODEL / TOKENIZER).read_bytes())["model"]["vocab"]
    return [
        word for word, number in sorted(pieces.items(), key=lambda piece: int(piece[1]))
        if number >= FIRST_PIECE and is_plain(word)
    ]  # fmt: skip


def meant_words(
    servers: Counter[str], requests: Counter[str], pieces: list[str], english: set[str]
) -> list[str]:
    """Return words that a misspelled one may have meant: of tools, of requests, then frequent ones."""
    usual = english.union(pieces)
    common = {*used_by(servers, COMMON_SERVERS)}
    of_tools = [word for word in used_by(servers, MEANT_SERVERS) if word in usual or word in common]
    of_requests = [word for word in used_by(requests, FEWEST_REQUESTS) if word in english]
    frequent = [word for word in pieces[:FREQUENT] if word in english]
    return list(dict.fromkeys([*of_tools, *of_requests, *frequent]))


def used_by(servers: Counter[str], least: int) -> list[str]:
    """Return the words of so many servers or requests, those of most first."""
    return [word for word, count in servers.most_common() if count >= least]


def is_plain(word: str) -> bool:
    """Return whether a word has only English letters, and is neither too short nor too long."""
    return word.isascii() and word.isalpha() and SHORTEST <= len(word) <= LONGEST


if __name__ == "__main__":
    main()
