"""Opens tokenizers, and estimates how many tokens a text costs a chat model.

Tokens are counted with the tokenizer of the packaged embedding model: WordPiece with the vocabulary of BERT
(uncased). The models that hosts use have other tokenizers, most of them unpublished. Punctuation is counted
in runs: their tokenizers take ``":{"`` as one token or two, BERT's as four.

The tokenizer library is imported when a tokenizer is opened: a proxy that never searches never pays for it.
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

from mcp_context_proxy.embedding.folder import PACKAGED_MODEL, TOKENIZER

PUNCTUATION = 4
"""Characters of punctuation per token. Over 1,035 real definitions the estimate is then 5 % above Claude's
last published tokenizer, 11 % above cl100k, 8 % above o200k; over markdown 2 to 4 %. With 3: 8 % more."""

WORDS_KEPT = 32_768
"""Words with a known count, in about 4 MB: definitions share nearly all of their words."""

WORD_CHARACTERS = 64
"""A longer run of letters and digits is counted in parts."""

_WORD = re.compile(rf"\w{{1,{WORD_CHARACTERS}}}|[^\w\s]+")

_opened: dict[Path, Any] = {}
"""The tokenizers opened, by file."""


def open_tokenizer(path: Path, max_tokens: int) -> Any:
    """Open a tokenizer that cuts a text, or a pair of texts, after ``max_tokens``.

    Raises whatever the library raises.
    """
    from tokenizers import Tokenizer  # noqa: PLC0415 - see the module docstring

    tokenizer = _opened[path] = Tokenizer.from_file(str(path))
    tokenizer.enable_truncation(max_tokens)
    tokenizer.no_padding()
    return tokenizer


class TokenCounter:
    """Counts the tokens of texts. Blocking and thread-safe; the vocabulary is read at the first text."""

    def __init__(self, directory: Path = PACKAGED_MODEL) -> None:
        self._file = directory / TOKENIZER
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._count_word = lru_cache(WORDS_KEPT)(self._pieces)

    def count(self, text: str) -> int:
        """Return the estimated number of tokens of a text."""
        return sum(map(self._count_word, _WORD.findall(text)))

    def _pieces(self, word: str) -> int:
        if not (word[0].isalnum() or word[0] == "_"):
            return -(-len(word) // PUNCTUATION)
        with self._lock:
            if self._tokenizer is None:
                from tokenizers import Tokenizer  # noqa: PLC0415 - see the module docstring

                # The vocabulary is shared with a tokenizer opened from the same file: reading it takes 25 ms,
                # during which no other thread runs. This one neither cuts texts nor adds special tokens.
                known = _opened.get(self._file) or Tokenizer.from_file(str(self._file))
                tokenizer = self._tokenizer = Tokenizer(known.model)
                tokenizer.normalizer, tokenizer.pre_tokenizer = known.normalizer, known.pre_tokenizer
        return len(self._tokenizer.encode(word, add_special_tokens=False).ids)
