import base64
import html
import json
import logging
import re
from random import Random
from string import ascii_letters, ascii_lowercase, digits
from urllib.parse import quote, quote_plus

import pytest
from support.tables import each

from mcp_context_proxy.config.secrets import RedactingFilter, Redactor, is_random


def test_a_secret_that_contains_another_is_replaced_whole() -> None:
    redact = Redactor([("SHORT", "abcdef"), ("LONG", "abcdefghij")])

    assert redact("abcdefghij abcdef") == "[redacted LONG] [redacted SHORT]"


def test_a_value_too_short_to_be_a_secret_is_not_redacted() -> None:
    assert Redactor([("PIN", "1234")])("1234 items") == "1234 items"


def test_a_logged_message_is_redacted_after_its_arguments_are_filled_in() -> None:
    record = logging.LogRecord("n", logging.INFO, "f", 1, "server said %s", ("s3cr3t-value",), None)

    redacting = RedactingFilter()
    redacting.redact.know([("TOKEN", "s3cr3t-value")])

    assert redacting.filter(record)

    assert record.getMessage() == "server said [redacted TOKEN]"


def test_a_secret_is_found_encoded_or_split_into_lines() -> None:
    redact = Redactor([("KEY", "pass word/+1"), ("PEM", "-----BEGIN KEY-----\nabcdef123456\n-----END-----")])

    for form in ("pass%20word/%2B1", "pass+word%2F%2B1", "cGFzcyB3b3JkLysx", "pass word/+1"):
        assert redact(f"<{form}>") == "<[redacted KEY]>"
    assert redact("line abcdef123456") == "line [redacted PEM]"


@each("before", ["", "u:", "me:", "user:"])
@each("after", ["", "x", "xy"])
def test_a_secret_inside_encoded_text_is_found(before: str, after: str) -> None:
    """The password in basic authentication can begin at any of three places between two base64 characters."""
    secret = "s3cr3t-value-123"
    redact = Redactor([("TOKEN", secret)])
    whole = base64.b64encode(f"{before}{secret}{after}".encode()).decode()

    shown = redact(f"Basic {whole}")

    assert "[redacted TOKEN]" in shown
    # What is left is no more than what also depends on the characters beside it.
    assert (
        len(shown.replace("[redacted TOKEN]", "")) <= len("Basic ") + 4 * (len(before) + len(after)) / 3 + 7
    )


@each("secret", ['a"b\\c\td/<é>{x}', "it's \\n here", "s3cr3t-value-123"])
def test_a_secret_quoted_by_a_program_is_found(secret: str) -> None:
    redact = Redactor([("TOKEN", secret)])

    in_hex = secret.encode().hex()
    for form in (json.dumps(json.dumps(secret)), repr(secret), in_hex, in_hex.upper(), json.dumps(secret)):
        assert "[redacted TOKEN]" in redact(form)
        assert "value" not in redact(form)


def test_tokens_of_well_known_services_are_redacted_too() -> None:
    redact = Redactor([])

    beginnings = ("ghp_", "sk-", "glpat-", "npm_", "hf_", "sk_live_", "AIza", "GOCSPX-", "hvs.")
    key = "-----BEGIN RSA PRIVATE KEY-----\nMIIE+a/b=\n-----END RSA PRIVATE KEY-----"
    for token in (*(one + "A1" * 18 for one in beginnings), "xoxb-1234567890-abc", "AKIA" + "A1" * 8, key):
        assert redact(f"tried {token}.") == "tried [redacted]."
    assert redact("at https://a:p%40@b.c:80/d@e") == "at https://[redacted]@b.c:80/d@e"
    assert redact("Bearer abcdefghij0123456789") == "Bearer [redacted]"
    assert redact("a sketch of tokens") == "a sketch of tokens"
    encrypted = key.replace("MIIE", "Proc-Type: 4,ENCRYPTED\n\nMIIE")
    assert redact(f"{encrypted} and {key[:32] + 'MIIE' * 9}") == "[redacted] and [redacted]"


@each(
    "text",
    [
        '{"url":"http://localhost:8080","mail":"me@example.com","id":5}',
        "http://localhost:8080,me@example.com",
        "http://localhost:80?mail=me@example.com",
        "https://example.com?to=mailto:me@example.com",
        "the file begins with -----BEGIN PRIVATE KEY----- and is read by everybody",
    ],
)
def test_a_port_and_words_about_keys_are_no_secrets(text: str) -> None:
    assert Redactor([])(text) == text


def test_json_stays_valid_after_redaction() -> None:
    redact = Redactor([('odd "name"', 'se"cr\\et')])
    data = json.dumps({"a": ['x se"cr\\et y'], "b": 1}).encode()

    assert json.loads(redact.json(data)) == {"a": ['x [redacted odd "name"] y'], "b": 1}


def test_a_traceback_in_the_log_is_redacted() -> None:
    import sys

    try:
        raise ValueError("denied for s3cr3t-value")
    except ValueError:
        record = logging.LogRecord("n", logging.ERROR, "f", 1, "failed", (), sys.exc_info())
    known = RedactingFilter()
    known.redact.remember("work", [("TOKEN", "s3cr3t-value")])

    assert known.filter(record)

    shown = logging.Formatter().format(record)
    assert "s3cr3t-value" not in shown
    assert "denied for [redacted TOKEN]" in shown


HOSTILE = [
    r"a.b*c+(d)[e]$^|\1{2}?",
    "pässwörd-Ω-密码",
    'it\'s "quoted" \\ back\\\\slash/x',
    "first-line\n\tsecond-line",
    "100%s%20%(x)d%zz",
    " before and after ",
    "🔑key🔒value",
    "zero\u200bwidth",
    "ctl\x1b[31mred",
    "<b>&\"secret'</b>",
]
"""Values that mean something to whatever they are written into."""

WRITTEN = {
    "plain": str,
    "cleaned": lambda value: "".join(filter(str.isprintable, value)),
    "JSON": json.dumps,
    "JSON in JSON": lambda value: json.dumps(json.dumps(value)),
    "repr": repr,
    "ascii": ascii,
    "bytes": lambda value: repr(value.encode()),
    "HTML": html.escape,
    "a form": quote_plus,
    "a path": quote,
    "encodeURIComponent": lambda value: quote(value, "!'()*"),
    "encodeURI": lambda value: quote(value, ";,/?:@&=+$#!'()*"),
    "lower case": lambda value: re.sub("%..", lambda found: found[0].lower(), quote(value, "")),
    "hex": lambda value: value.encode().hex(),
    "base64": lambda value: base64.b64encode(value.encode()).decode(),
}


@each("written", WRITTEN)
@each("secret", HOSTILE)
def test_any_secret_is_found_however_it_is_written(secret: str, written: str) -> None:
    redact, text = Redactor([("TOKEN", secret)]), WRITTEN[written](secret)

    shown = redact(f"<{text}>")
    told = json.loads(redact.json(json.dumps({"said": f"<{text}>"}).encode()))["said"]

    # Quotes, and what pads base64, tell nothing.
    assert set(shown.replace("[redacted TOKEN]", "")) <= set("<>b=\\\"'")
    assert "[redacted TOKEN]" in shown
    assert told == shown


@pytest.mark.parametrize("secret", ["half \ud83d of one", "no utf-8 \udcff at all"])
def test_a_secret_that_is_not_valid_unicode_is_found(secret: str) -> None:
    """A configuration in JSON can hold such a secret, and the environment another."""
    redact = Redactor([("TOKEN", secret)])

    assert redact(f"<{secret}>") == "<[redacted TOKEN]>"
    assert redact.json(json.dumps([secret]).encode()) == b'["[redacted TOKEN]"]'


def test_a_secret_that_is_the_beginning_of_another_is_found_too() -> None:
    redact = Redactor([("SHORT", "prefix-secret"), ("LONG", "prefix-secret-longer")])

    assert redact("prefix-secret-longer prefix-secret-long") == "[redacted LONG] [redacted SHORT]-long"


@each(
    ("value", "counts"),
    [
        ("gho_16C7e42F292c6912E7710c838347Ae178B4a", True),
        ("550e8400-e29b-41d4-a716-446655440000", True),
        ("eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", True),
        ("1|qVxk2ZpWn7RtYb4cLmD9sKf3HgJ6uTaE", True),
        ("d41d8cd98f00b204e9800998ecf8427e", True),
        ("ya29.a0AfH6SMBx7z-KQ", True),
        ("4VyKkpTkxtCNkcfXkhhuMjgbgrQCQDEy", True),
        ("qzjvwkpxhtbgmrnd", True),
        ("KRUGS4ZANFZSAYJAORSXG5A", True),
        ('{"query":', False),
        ('"limit":10', False),
        ("tools/call", False),
        ("create_pull_request", False),
        ("pullRequestReviewId", False),
        ("modelcontextprotocol", False),
        ("oauth2_client_settings", False),
        ("2026-11-30T00:00:00", False),
        ("https://api.example.com/v1/pages", False),
        ("repository and branch", False),
    ],
)
def test_a_token_counts_for_others_only_if_it_occurs_nowhere_by_chance(value: str, counts: bool) -> None:
    assert is_random(value) is counts


def test_nearly_no_token_that_is_made_at_random_is_taken_for_a_word() -> None:
    source = Random(7)
    for characters in ("0123456789abcdef", ascii_lowercase + digits, ascii_letters + digits, ascii_letters):
        tokens = ["".join(source.choices(characters, k=32)) for _ in range(500)]
        assert sum(is_random(token) for token in tokens) >= 490, characters


def tokens_of(server: str, renewal: int) -> list[tuple[str, str]]:
    return [(name, f"{server}-{renewal}-{name}") for name in ("access", "refresh")]


def test_tokens_that_are_often_renewed_push_out_none_of_another_server_and_no_lasting_secret() -> None:
    kept, lasting = Redactor(()), ("client secret", "of-the-client-of-often")
    for number in range(20):
        kept.remember(f"quiet{number}", tokens_of(f"quiet{number}", 0))
    for renewal in range(1_000):
        kept.remember("often", [*tokens_of("often", renewal), lasting])

    used = [*tokens_of("often", 999), *tokens_of("often", 998), lasting]
    used += [one for number in range(20) for one in tokens_of(f"quiet{number}", 0)]
    shown = kept(" ".join(value for _, value in used))
    assert not [value for _, value in used if value in shown]
    assert tokens_of("often", 900)[0][1] in kept(tokens_of("often", 900)[0][1]), "without end"


def test_a_redactor_of_a_server_knows_its_lasting_secret_between_two_renewals_and_tells_it_again() -> None:
    told = list[list[tuple[str, str]]]()
    redact = Redactor((), server="work")
    redact.on_learned = lambda secrets: told.append(list(secrets))
    for renewal in range(100):
        redact.learn([*tokens_of("work", renewal), ("client secret", "0f-th3-cl13nt-5g7h")])
        assert redact("0f-th3-cl13nt-5g7h") == "[redacted client secret]"

    assert all(one[-1] == ("client secret", "0f-th3-cl13nt-5g7h") for one in told)
