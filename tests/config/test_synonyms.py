"""Words of queries are configured with their meanings, and words that could never match are refused."""

import pytest

SERVER = "[servers.good]\ncommand = 'x'\n"


def test_words_are_read_in_lower_case_with_their_meaning(load_text):
    config = load_text(f"{SERVER}[search.synonyms]\nOnCall = ' on-call  schedule '\n'c3po' = 'droid, gold'\n")

    assert config.search.synonyms == {"oncall": "on-call schedule", "c3po": "droid, gold"}


def test_without_a_setting_there_are_none(load_text):
    assert load_text(SERVER).search.synonyms == {}


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("'two words' = 'x'", "must be one word that begins"),
        ("'' = 'x'", "must be one word"),
        ("'(pr)' = 'x'", "begins and ends with a letter or digit"),
        (f"{'a' * 65} = 'x'", "must be one word"),
        ("pr = '  '", "must be 1 to 200 characters"),
        (f"pr = '{'a' * 201}'", "must be 1 to 200 characters"),
        ("pr = 3", "must be text"),
    ],
)
def test_a_word_that_could_never_match_is_left_out_alone_with_its_line(load_text, line, reason):
    config = load_text(
        f"{SERVER}[search]\ntop_n = 3\n[search.synonyms]\nci = 'build'\n{line}\nmr = 'merge'\n"
    )

    (complaint,) = config.complaints()
    assert reason in complaint
    assert ":7: search.synonyms." in complaint
    assert config.search.synonyms == {"ci": "build", "mr": "merge"}
    assert config.search.top_n == 3
    assert list(config.servers) == ["good"]
