"""A form that asks for a secret is recognized by its fields and its message; an honest one is passed on."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.questions import form
from support.tables import each

from mcp_context_proxy.protocol.strangers import url_refusal
from mcp_context_proxy.server.questions import secret_field

SECRETS = [
    "password", "user_password", "userPassword", "PASSWORD", "pass-word", "passwd", "pwd", "pass phrase",
    "p.a.s.s.w.o.r.d", "passw0rd", "p\u0430ssword", "\uff50\uff41\uff53\uff53\uff57\uff4f\uff52\uff44",
    "Passwort", "contrase\u00f1a", "mot de passe",
    "api_key", "apiKey", "APIKey", "API-Key", "apikey", "openai api key", "secretKey", "privateKey",
    "ssh_key", "token", "GITHUB_TOKEN", "access-token", "bearerToken", "clientSecret", "credentials",
    "cardNumber", "card_no", "Credit Card", "cvv", "pin", "otp", "verificationCode", "seedPhrase",
    "Wachtwoord", "l\u00f6senord", "has\u0142o", "\u015eifre", "cl\u00e9 API", "tarjeta de cr\u00e9dito",
    "Kreditkartennummer",
]  # fmt: skip

SECRETS_IN_OTHER_LETTERS = [
    "\u043f\u0430\u0440\u043e\u043b\u044c", "\u5bc6\u7801", "\ube44\ubc00\ubc88\ud638",
    "\u30d1\u30b9\u30ef\u30fc\u30c9", "\u0e23\u0e2b\u0e31\u0e2a\u0e1c\u0e48\u0e32\u0e19",
    "\u092a\u093e\u0938\u0935\u0930\u094d\u0921", "\u05e1\u05d9\u05e1\u05de\u05d4",
    "\u03ba\u03c9\u03b4\u03b9\u03ba\u03cc\u03c2 \u03c0\u03c1\u03cc\u03c3\u03b2\u03b1\u03c3\u03b7\u03c2",
]  # fmt: skip


def test_a_field_is_recognized_as_one_for_a_secret() -> None:
    for name in SECRETS + SECRETS_IN_OTHER_LETTERS:
        for params in (form(name), form("x", title=name)):
            assert secret_field(params["requestedSchema"], "Which one?"), params
        # Sentences are read in English; a pin is an everyday word there.
        if name != "pin" and name not in SECRETS_IN_OTHER_LETTERS:
            asked = f"Please enter your {name}!"
            assert secret_field(form("x")["requestedSchema"], asked) == "its message", name


@each(
    "schema",
    [
        form("x", description="Paste the API key of your account")["requestedSchema"],
        form("x", format="password")["requestedSchema"],
        form("pin", type="integer")["requestedSchema"],
        {"properties": {"account": {"type": "object", **form("password")["requestedSchema"]}}},
        {"items": [form("password")["requestedSchema"]]},
        {"properties": {"password": True}},
        {"properties": {"password": {"type": "array", "items": {"type": "string"}}}},
        {"properties": {"password": {"type": "string", "enum": []}}},
        {"properties": {"password": {"anyOf": [{"const": "a"}, {"type": "string"}]}}},
        # Hosts show these as a line to write on: elicitation has no such choices.
        form("password", const="")["requestedSchema"],
        form("password", anyOf=[{"const": ""}])["requestedSchema"],
        form("password", type="number", enum=[1])["requestedSchema"],
        {"title": "Enter your password", **form("x")["requestedSchema"]},
        {"description": "Please paste your API key", **form("x")["requestedSchema"]},
        form("x", **{"$ref": "#/$defs/y"})["requestedSchema"] | {"$defs": {"y": {"title": "Password"}}},
        form("x", allOf=[{"title": "Password"}])["requestedSchema"],
        form("x", Title="Password")["requestedSchema"],
        form("x", DESCRIPTION="Your password")["requestedSchema"],
    ],
)
def test_a_form_is_searched_for_secrets_everywhere(schema: Any) -> None:
    assert secret_field(schema, "")


@each(
    ("name", "more"),
    [
        ("repository", {"title": "Repository", "description": "Owner and name of the repository"}),
        ("max_tokens", {"type": "integer", "description": "Maximum number of tokens to generate"}),
        ("nextPageToken", {}),
        ("token_limit", {}),
        ("secretName", {"description": "A label for it"}),
        ("rememberPassword", {"type": "boolean"}),
        ("secret", {"enum": ["staging", "production"]}),
        ("secret", {"oneOf": [{"const": "a", "title": "A"}]}),
        ("action", {"oneOf": [{"const": "a", "title": "Rotate the API key"}]}),
        ("secrets", {"type": "array", "items": {"enum": ["a", "b"]}}),
        ("secrets", {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}}),
        ("sortKey", {}),
        ("issue_key", {"description": "Key of the issue, such as ABC-1"}),
        ("zipCode", {}),
        ("comment", {"description": "Pin this comment to the top"}),
        ("email", {"format": "email"}),
        ("spinner", {}),
    ],
)
def test_an_honest_form_is_passed_on(name: str, more: dict[str, Any]) -> None:
    schema = form(name, **more)["requestedSchema"]

    assert secret_field(schema, "The password of ada will be reset. Why?") == ""


def test_a_message_about_a_secret_without_a_field_to_write_in_is_passed_on() -> None:
    schema = {"type": "object", "properties": {"sure": {"type": "boolean"}}}

    assert secret_field(schema, "Do you want to send the password to ada?") == ""


@given(st.text(max_size=200), st.recursive(st.none() | st.text(), st.lists))
def test_any_text_and_any_schema_can_be_checked(text: str, schema: Any) -> None:
    secret_field({"properties": {text: schema, "x": {"title": text, "enum": schema}}}, text)
    url_refusal(text)
    url_refusal(f"https://{text}")
