"""Write the packaged words by which queries are corrected: `words.txt` and `known_words.npy`.

    python scripts/build_words.py TOOLS WORDS

TOOLS has a tool on each line, gzipped JSON with its server, name and description; WORDS is a list of English
words, one on each line. `WORDS-PROVENANCE.md` beside the results says which files were used.
"""

from __future__ import annotations

import argparse
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from mcp_context_proxy.embedding.folder import PACKAGED_MODEL, TOKENIZER
from mcp_context_proxy.retrieval.spelling import LONGEST, WORDS
from mcp_context_proxy.retrieval.text import KNOWN_WORDS, stem, words

SHORTEST = 3
"""Letters of the shortest word of the lists."""

FIRST_PIECE = 1_996
"""Number of the first word of the tokenizer's vocabulary; before it are marks and single characters."""

FREQUENT = 10_000
"""Words of the vocabulary, the most frequent first, that a misspelled word may have meant."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tools", type=Path)
    parser.add_argument("words", type=Path)
    arguments = parser.parse_args()
    with gzip.open(arguments.tools, "rt", encoding="utf-8") as lines:
        servers = servers_with(map(json.loads, lines))
    pieces = vocabulary()
    written = [word for word in arguments.words.read_text(encoding="utf-8").split() if is_plain(word.lower())]
    # A capital letter begins a name: it is known, and no word that anybody means.
    english = {word for word in written if word.islower()}
    meant = meant_words(servers, pieces, english)
    WORDS.write_text("\n".join(meant) + "\n", encoding="ascii")
    known = {stem(word.lower()) for word in (*written, *pieces, *used_by(servers, KNOWN_SERVERS))}
    numbers = [zlib.crc32(word.encode()) for word in known]
    np.save(KNOWN_WORDS, np.unique(np.array(numbers, np.uint32)), allow_pickle=False)
    print(f"{len(meant):,} words that may be meant, {len(known):,} stems of known ones")
