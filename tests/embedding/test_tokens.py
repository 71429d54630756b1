"""Token estimates: words as a real tokenizer divides them, punctuation in runs."""

import json

import pytest
from tokenizers import Tokenizer

from mcp_context_proxy.config import EmbeddingConfig
from mcp_context_proxy.embedding import TOKENIZER
from mcp_context_proxy.embedding.embeddings import PACKAGED_MODEL, TokenCounter, load_model


@pytest.fixture(scope="module")
def counter() -> TokenCounter:
    return TokenCounter()


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(PACKAGED_MODEL / TOKENIZER))
    tokenizer.no_truncation()
    return tokenizer


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


def test_lines_cost_as_many_tokens_as_the_text_that_they_make(counter: TokenCounter) -> None:
    lines = [
        'list_issues(state: "open" | "closed",',
        ", labels?: string[])",
        "Überraschung 東京",
        "x" * 70,
        "",
    ]

    assert counter.count("\n  ".join(lines)) == sum(map(counter.count, lines))


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
