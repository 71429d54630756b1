"""Word pieces, which are those of the tokenizer library, and token estimates, with punctuation in runs."""

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.servers import TOOLS
from tokenizers import Tokenizer

from mcp_context_proxy.config import EmbeddingConfig
from mcp_context_proxy.embedding.embeddings import load_model
from mcp_context_proxy.embedding.models import PACKAGED_MODEL, TOKENIZER
from mcp_context_proxy.embedding.tokens import Ids, TokenCounter, open_ids, open_tokenizer


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    return TokenCounter()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(PACKAGED_MODEL / TOKENIZER))
    tokenizer.no_truncation()
    return tokenizer


@pytest.fixture(scope="module")
def ids() -> Ids:
    return open_ids(PACKAGED_MODEL / TOKENIZER, 256)


def assert_as_the_library(ids: Ids, text: str) -> None:
    known = open_tokenizer(PACKAGED_MODEL / TOKENIZER, 256)
    assert list(ids(text)) == known.encode(text).ids, repr(text)


def test_definitions_have_the_word_pieces_that_the_library_gives(ids: Ids) -> None:
    library = open_tokenizer(PACKAGED_MODEL / TOKENIZER, 256)
    lists = [gzip.decompress(path.read_bytes()).decode() for path in sorted(TOOLS.glob("*.json.gz"))]
    texts = {line for text in lists for line in text.splitlines()}

    assert len(texts) > 5_000
    assert [text for text in texts if list(ids(text)) != library.encode(text).ids] == []


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("Überraschung ΣΊΣΥΦΟΣ İstanbul naïve 1½ ﬁnd", id="letters with marks, and a last sigma"),
        pytest.param("東京都で 会議room 서울 ไทย हिन्दी", id="scripts without spaces"),
        pytest.param("say [SEP] and [CLS][MASK], not [sep]", id="names of special tokens"),
        pytest.param("a\u200bb \x1cc\x00d\ufffde\tf\u2003g\u00a0h\x85i", id="characters that nobody sees"),
        pytest.param("don't—«quote» a_b-c (x)…", id="punctuation"),
        pytest.param("x" * 100 + " " + "x" * 101, id="words of the greatest length and above it"),
        pytest.param("\U0001f600\U0001f680 zzzzqqqq\u0416", id="what no piece has"),
        pytest.param("word " * 300, id="more than the model reads"),
    ],
)
def test_odd_texts_have_the_word_pieces_that_the_library_gives(ids: Ids, text: str) -> None:
    assert_as_the_library(ids, text)


SCRIPTS = st.one_of(
    st.characters(max_codepoint=0x7FF, exclude_categories=["Cn"]),
    st.characters(min_codepoint=0x3040, max_codepoint=0x30FF, exclude_categories=["Cn"]),
    st.characters(min_codepoint=0x4E00, max_codepoint=0x9FA5),
    st.characters(min_codepoint=0xAC00, max_codepoint=0xD7A3),
    st.characters(min_codepoint=0x1F300, max_codepoint=0x1F64F),
)
"""Characters that the tables of all libraries know: newer ones are read according to their versions."""


@given(st.text(SCRIPTS, max_size=60))
def test_any_text_has_the_word_pieces_that_the_library_gives(text: str) -> None:
    assert_as_the_library(open_ids(PACKAGED_MODEL / TOKENIZER, 256), text)


def test_a_tokenizer_of_another_kind_is_opened_with_its_library(tmp_path: Path) -> None:
    facts = json.loads((PACKAGED_MODEL / TOKENIZER).read_bytes())
    facts["normalizer"]["lowercase"] = False
    (tmp_path / TOKENIZER).write_text(json.dumps(facts), encoding="utf-8")

    cased, uncased = (open_ids(folder / TOKENIZER, 8) for folder in (tmp_path, PACKAGED_MODEL))

    assert list(cased("Paris")) != list(uncased("Paris")) == list(cased("paris"))


@pytest.mark.parametrize(
    "text",
    [
        "create an issue in the repository",
        "electroencephalography",
        "Überraschung 東京 Ελλάδα",
        "word " * 3000,
    ],
    ids=lambda text: text[:20],
)
def test_words_cost_as_many_tokens_as_the_tokenizer_gives(
    counter: TokenCounter, tokenizer: Tokenizer, text: str
) -> None:
    assert counter.count(text) == len(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize(
    ("text", "tokens"), [("", 0), (" \n", 0), ("{", 1), ('":{"', 1), ('":[{"', 2), ("a: b", 3)]
)
def test_punctuation_costs_a_token_for_each_four_of_a_run(
    counter: TokenCounter, text: str, tokens: int
) -> None:
    assert counter.count(text) == tokens


def test_a_definition_costs_less_than_a_token_for_each_two_characters(counter: TokenCounter) -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    text = json.dumps({"name": "forecast", "description": "Forecast for a city", "inputSchema": schema})

    assert len(text) / 6 < counter.count(text) < len(text) / 2


def test_token_counts_are_not_cut_at_the_length_of_the_model(tokenizer: Tokenizer) -> None:
    text = "0123456789abcdef" * 4

    load_model(settings=EmbeddingConfig(max_tokens=8))

    assert TokenCounter().count(text) == len(tokenizer.encode(text, add_special_tokens=False).ids) > 8


def test_text_that_is_no_unicode_is_counted(counter: TokenCounter) -> None:
    assert counter.count("half a pair \ud83d") >= 3


def test_a_word_without_end_is_counted(counter: TokenCounter) -> None:
    assert counter.count("x" * 100_000) > 1000
