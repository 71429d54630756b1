"""How many tokens a text costs a model: an estimate, with the tokenizer of the packaged embedding model.

Words are counted by a real tokenizer, WordPiece with the vocabulary of BERT (uncased), which is here anyway;
the models that hosts use have others, most of them unpublished. Punctuation is counted in runs: theirs
take ``":{"`` as one token or two and BERT's as four.
"""

from __future__ import annotations

import re
import threading
from functools import lru_cache
from pathlib import Path
from typing import Any

from mcp_context_proxy.embedding.folder import PACKAGED_MODEL, TOKENIZER
from mcp_context_proxy.embedding.model import open_vocabulary

PUNCTUATION = 4
"""Characters of punctuation to a token. Over 1,035 real definitions the whole is then 5 % above Claude's last
published tokenizer, 11 % above cl100k, 8 % above o200k; over markdown 2 to 4 %. With 3 it is 8 % more."""

WORDS_KEPT = 32_768
"""Words whose pieces are remembered, in some 4 MB: definitions share nearly all of theirs."""

WORD_CHARACTERS = 64
"""Of one word; a longer run of letters and digits is counted in parts."""

_WORD = re.compile(rf"\w{{1,{WORD_CHARACTERS}}}|[^\w\s]+")


class TokenCounter:
    """Counts the tokens of texts. Blocking and thread-safe; the vocabulary is read at the first text."""

    def __init__(self, directory: Path = PACKAGED_MODEL) -> None:
        self._file = directory / TOKENIZER
        self._lock = threading.Lock()
        self._tokenizer: Any = None
        self._known = lru_cache(WORDS_KEPT)(self._pieces)

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return sum(map(self._known, _WORD.findall(text)))

    def _pieces(self, word: str) -> int:
        if not (word[0].isalnum() or word[0] == "_"):
            return -(-len(word) // PUNCTUATION)
        return len(self._vocabulary().encode(word, add_special_tokens=False).ids)

    def _vocabulary(self) -> Any:
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = open_vocabulary(self._file)
            return self._tokenizer
