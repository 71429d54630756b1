"""The content of a call that is kept."""

import json

from support.tables import each

from mcp_context_proxy.interactions import ARGUMENTS_BYTES, call_content


def test_the_content_of_a_call_is_its_goal_tool_and_arguments() -> None:
    said = call_content("post__send", b'{ "to": "team", "n": 1 }', "tell them")

    assert said == 'tell them\npost__send {"to":"team","n":1}'


@each("arguments", [b"{}", b"null", b'""', b"[]"])
def test_the_content_of_a_call_without_arguments_is_its_tool(arguments: bytes) -> None:
    assert call_content("clock__now", arguments, None) == "clock__now"


def test_arguments_that_a_model_sent_as_text_are_read_as_well() -> None:
    assert (
        call_content("s__t", json.dumps('{"password": "x"}').encode(), None)
        == 's__t {"password":"[redacted]"}'
    )


@each(
    "name", ["password", "api_key", "apiKey", "Authorization", "client_secret", "access_token", "passphrase"]
)
def test_arguments_that_are_secret_by_their_name_are_not_kept(name: str) -> None:
    said = call_content("s__login", json.dumps({"user": "bob", "deep": [{name: "s3cr3t"}]}).encode(), None)

    assert "s3cr3t" not in said
    assert '"user":"bob"' in said


@each("name", ["key", "author", "keywords", "monkey"])
def test_arguments_whose_names_only_resemble_secrets_are_kept(name: str) -> None:
    assert "PROJ-1" in call_content("s__t", json.dumps({name: "PROJ-1"}).encode(), None)


def test_numbers_are_not_taken_for_secrets() -> None:
    assert '"max_tokens":500' in call_content("s__t", b'{"max_tokens": 500}', None)


@each(
    "arguments",
    [
        b"{",
        b'"{"',
        b"\xff",
        b"[" * 5000,
        b'{"a":' * 300 + b"1" + b"}" * 300,
        b'"' + b"x" * ARGUMENTS_BYTES + b'"',
    ],
)
def test_arguments_that_are_invalid_too_long_or_too_deep_are_left_out(arguments: bytes) -> None:
    said = call_content("s__t", arguments, None)

    assert said.startswith("s__t ")
    assert "..." in said
    assert len(said) < 1000
