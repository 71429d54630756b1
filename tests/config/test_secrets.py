from support.tables import each

from mcp_context_proxy.config import ServerConfig
from mcp_context_proxy.config.secrets import Redactor, secrets_of

KEY = "Zk9xQ2mP7vT4wB8nR1yL"


def server(**settings: object) -> ServerConfig:
    secrets = settings.pop("secrets", ())
    return ServerConfig.of({"command": "run", **settings}, name="s", secrets=secrets)


@each(
    ("settings", "said", "shown"),
    [
        ({"secrets": (("GITHUB_TOKEN", "s3cr3t-value"),)}, "no s3cr3t-value!", "no [redacted GITHUB_TOKEN]!"),
        ({"env": {"API_KEY": "abcdef123"}}, "bad abcdef123", "bad [redacted API_KEY]"),
        ({"env": {"REGION": "eu-central"}}, "in eu-central", "in eu-central"),
        ({"env": {"DATABASE": "postgres://me:lit-12345@db/x"}}, "no lit-12345", "no [redacted password]"),
        ({"headers": {"Authorization": "Bearer tok-123456"}}, "no tok-123456", "no [redacted Authorization]"),
        ({"command": None, "url": "http://me:pass-word@host/mcp"}, "no pass-word", "no [redacted password]"),
        ({"command": None, "url": "http://host/mcp?token=tok-123456"}, "tok-123456", "[redacted token]"),
        ({"args": ["--api-key", "lit-12345"]}, "bad lit-12345", "bad [redacted --api-key]"),
        ({"args": ["--token=lit-12345"]}, "bad lit-12345", "bad [redacted --token]"),
        ({"args": ["Authorization: Bearer lit-12345"]}, "Bearer lit-12345", "[redacted Authorization]"),
        ({"args": ["postgres://me:lit%4012345@db/x"]}, "no lit@12345", "no [redacted password]"),
        ({"args": ["https://lit-12345@host/x"]}, "no lit-12345", "no [redacted password]"),
        ({"args": ["https://host/x?api_key=lit-12345&region=eu-central"]}, "lit-12345", "[redacted api_key]"),
        ({"args": ["https://host/x?api_key=lit-12345&region=eu-central"]}, "in eu-central", "in eu-central"),
        ({"args": ["--region", "eu-central", "--verbose"]}, "in eu-central", "in eu-central"),
        ({"args": ["--token-from-keyring", "--verbose"]}, "not --verbose", "not --verbose"),
        ({"command": None, "url": f"https://host/s/{KEY}/mcp"}, f"/s/{KEY}/mcp", "/s/[redacted url]/mcp"),
        ({"command": None, "url": f"https://host/x?profile={KEY}"}, f"bad {KEY}", "bad [redacted url]"),
        ({"args": [f"Authorization: Bearer {KEY}"]}, f"bad {KEY}", "bad [redacted args]"),
        ({"env": {"PAT": KEY}}, f"bad {KEY}", "bad [redacted PAT]"),
        ({"env": {"HOOK": f"https://host/T0/{KEY}"}}, f"bad {KEY}", "bad [redacted HOOK]"),
        ({"env": {"DB": f"Server=x;Account={KEY}/{KEY}==;"}}, f"bad {KEY}/{KEY}==", "bad [redacted DB]=="),
        ({"headers": {"X-Team": KEY}}, f"bad {KEY}", "bad [redacted X-Team]"),
        ({"args": ["--header", f"X-Team: {KEY}"]}, f"bad {KEY}", "bad [redacted args]"),
        ({"args": ["-e", f"PAT={KEY}"]}, f"bad {KEY}", "bad [redacted args]"),
        ({"args": [f"/home/a b/{KEY}/c"]}, f"in {KEY}/c", f"in {KEY}/c"),
        ({"env": {"DB": f"{KEY}.eu.rds.example.com:5432"}}, f"no {KEY}.eu", f"no {KEY}.eu"),
        ({"args": [f"--db=data/{KEY}.sqlite"]}, f"in {KEY}", f"in {KEY}"),
        ({"args": [f"https://host/{KEY}.json"]}, f"{KEY}.json", "[redacted args]"),
        ({"args": [f"image@sha256:{KEY}"]}, f"in {KEY}", f"in {KEY}"),
        ({"args": [f"git+https://host/me/x@{KEY}"]}, f"in {KEY}", f"in {KEY}"),
        (
            {"args": ["@scope/server-sequential-thinking"]},
            "in server-sequential-thinking",
            "in server-sequential-thinking",
        ),
    ],
)
def test_a_value_is_a_secret_by_its_variable_its_name_its_place_in_a_url_or_its_look(
    settings: dict[str, object], said: str, shown: str
) -> None:
    assert Redactor(secrets_of(server(**settings)))(said) == shown
