from support.tables import each

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.programs import secrets_of
from mcp_context_proxy.config.secrets import Redactor


def server(**settings: object) -> ServerConfig:
    secrets = settings.pop("secrets", ())
    return ServerConfig.of({"command": "run", **settings}, name="s", secrets=secrets)


def test_a_value_from_the_environment_is_replaced_by_its_variable() -> None:
    redact = Redactor(secrets_of(server(secrets=(("GITHUB_TOKEN", "s3cr3t-value"),))))

    assert redact("denied for s3cr3t-value!") == "denied for [redacted GITHUB_TOKEN]!"


def test_a_literal_value_is_a_secret_when_its_name_says_so() -> None:
    redact = Redactor(secrets_of(server(env={"API_KEY": "abcdef123", "REGION": "eu-central"})))

    assert redact("abcdef123 in eu-central") == "[redacted API_KEY] in eu-central"


def test_the_token_of_an_authorization_header_is_redacted_without_its_scheme_too() -> None:
    redact = Redactor(secrets_of(server(headers={"Authorization": "Bearer tok-123456"})))

    assert redact("sent tok-123456") == "sent [redacted Authorization]"


@each(
    ("args", "said", "shown"),
    [
        (["--api-key", "lit-12345"], "bad lit-12345", "bad [redacted --api-key]"),
        (["--token=lit-12345"], "bad lit-12345", "bad [redacted --token]"),
        (["Authorization: Bearer lit-12345"], "Bearer lit-12345", "[redacted Authorization]"),
        (["postgres://me:lit%4012345@db/x"], "no lit@12345", "no [redacted password]"),
        (["https://lit-12345@host/x"], "no lit-12345", "no [redacted password]"),
        (["https://host/x?api_key=lit-12345&region=eu-central"], "lit-12345", "[redacted api_key]"),
        (["https://host/x?api_key=lit-12345&region=eu-central"], "in eu-central", "in eu-central"),
        (["--region", "eu-central", "--verbose"], "in eu-central", "in eu-central"),
        (["--token-from-keyring", "--verbose"], "not --verbose", "not --verbose"),
    ],
)
def test_arguments_that_are_named_like_secrets_and_passwords_of_urls_are_secrets(
    args: list[str], said: str, shown: str
) -> None:
    assert Redactor(secrets_of(server(args=args)))(said) == shown


def test_the_password_in_a_url_of_a_variable_is_a_secret_by_itself() -> None:
    redact = Redactor(secrets_of(server(env={"DATABASE": "postgres://me:lit-12345@db/x"})))

    assert redact("wrong: lit-12345") == "wrong: [redacted password]"


def test_user_info_and_query_of_a_servers_url_are_secrets() -> None:
    redact = Redactor(secrets_of(server(command=None, url="http://me:pass-word@host/mcp?token=tok-123456")))

    assert redact("tok-123456 pass-word") == "[redacted token] [redacted password]"
