"""Values that count as secrets, the forms in which they are found, and the cost of finding them."""

import json
import secrets
import tracemalloc
from functools import partial
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from support.tables import each

from mcp_context_proxy.config import Config, ServerConfig
from mcp_context_proxy.config.secrets import LONG_CHARACTERS, LONG_FORMS_KEPT, Redactor
from mcp_context_proxy.system.threads import assigned
from mcp_context_proxy.trust import ACTING, Principal, Reach, Role
from mcp_context_proxy.trust.guard import KnownSecrets, decoded, is_secret, unescaped


@each(
    ("name", "value", "counts"),
    [
        pytest.param("GITHUB_TOKEN", "ghp_16C7e42F292c6912E7", True, id="token"),
        pytest.param("ANYTHING", "ghp_16C7e42F292c6912E7", True, id="token under any name"),
        pytest.param("PASSWORD", "hunter2x", True, id="eight characters"),
        pytest.param("PASSWORD", "hunter2", False, id="seven characters"),
        pytest.param("PASSWORD", "administrator", False, id="word"),
        pytest.param("PASSWORD", "correct horse battery staple", True, id="pass phrase"),
        pytest.param("MAIL_PASSWORD", "abcd efgh ijkl mnop", True, id="letters in groups"),
        pytest.param("keyring:x", "abcdefghijklmnopqrst", True, id="letters from the keyring"),
        pytest.param("TEAM", "correct horse battery staple", False, id="words under another name"),
        pytest.param("GIT_AUTHOR_NAME", "Anna Maria Schmidt-Huber", False, id="author"),
        pytest.param("HOME", "/home/anna", False, id="home"),
        pytest.param("SSH_KEY_FILE", "/home/anna/.ssh/id_ed25519", False, id="path"),
        pytest.param(
            "AWS_SECRET_ACCESS_KEY", "/wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY1x", True, id="slashes"
        ),
        pytest.param("AUTH_URL", "https://login.example.com/realm1/x9", False, id="URL"),
        pytest.param("PROJECT", "my-project-12345678", False, id="words and numbers"),
        pytest.param("DATE", "2026-11-23", False, id="date"),
    ],
)
def test_values_that_occur_by_chance_do_not_count(name: str, value: str, counts: bool) -> None:
    assert is_secret(name, value) is counts


@given(st.text(max_size=40))
def test_unescaped_json_has_the_text_itself(text: str) -> None:
    for ascii_only in (True, False):
        assert unescaped(json.dumps(text, ensure_ascii=ascii_only)) == f'"{text}"'


SERVERS = {
    name: ServerConfig(name=name, command="x", env={"API_TOKEN": f"{number:04x}-t0k3n-of-{name}-9f8e7d6c5b"})
    for number, name in enumerate(["a", "b", *(f"s{number}" for number in range(200))])
}


@given(before=st.text(max_size=60), after=st.text(max_size=60))
def test_a_secret_is_found_in_whatever_text_it_stands(before: str, after: str) -> None:
    known = KnownSecrets(Config(servers={name: SERVERS[name] for name in ("a", "b")}))
    text = before + SERVERS["a"].env["API_TOKEN"] + after
    for ascii_only in (True, False):
        params = {"arguments": Raw(json.dumps({"text": text}, ensure_ascii=ascii_only).encode())}
        found = known.in_params("b", params)

        assert found is not None
        assert str(found) == "API_TOKEN, which is a secret of server 'a'"
        assert known.in_params("a", params) is None


def test_a_secret_is_found_in_the_name_of_a_param_too() -> None:
    known = KnownSecrets(Config(servers={name: SERVERS[name] for name in ("a", "b")}))

    assert known.in_params("b", {SERVERS["a"].env["API_TOKEN"]: Raw(b"1")}) is not None


def test_a_secret_is_found_below_four_encodings_for_links() -> None:
    text = "k3y/of+a=server/9f8e7d"
    known = KnownSecrets(Config(servers={"a": ServerConfig(name="a", command="x", env={"TOKEN": text})}))
    for _ in range(4):
        text = quote(text, safe="")

    assert known.in_params("b", {"arguments": Raw(json.dumps(text).encode())}) is not None


def test_a_refusal_names_no_server_that_its_principal_does_not_reach() -> None:
    known = KnownSecrets(Config(servers={name: SERVERS[name] for name in ("a", "b")}))
    found = known.in_params("b", {"arguments": Raw(json.dumps(SERVERS["a"].env["API_TOKEN"]).encode())})
    with assigned(ACTING, Principal("anna", Role.USE, (Reach(frozenset({"b"})),))):
        assert str(found) == "a secret that is not for it"


@given(st.text(alphabet="\\\\u00x%4aZ/n\n ", max_size=60))
def test_no_text_is_too_broken_to_be_decoded(text: str) -> None:
    assert len(decoded(text)) <= len(text)


def test_a_secret_of_the_proxy_itself_goes_to_no_server() -> None:
    known = KnownSecrets(Config(servers=SERVERS))
    known.know_own(("the bearer token", "b34r3r-t0k3n-of-the-proxy"))
    params = {"arguments": Raw(b'{"text":"b34r3r-t0k3n-of-the-proxy"}')}

    assert str(known.in_params("a", params)) == "the bearer token, which is a secret of the proxy itself"


def test_what_only_looks_like_a_key_may_be_an_id_that_several_servers_are_asked_about() -> None:
    servers = {"a": ServerConfig(name="a", command="x", env={"VPC": "vpc-0a1b2c3d4e5f67890"})}
    known = KnownSecrets(Config(servers=servers))

    assert known.in_params("b", {"arguments": Raw(b'{"vpc": "vpc-0a1b2c3d4e5f67890"}')}) is None


def test_the_keys_of_model_services_go_to_no_server() -> None:
    embedding = {"endpoint": "http://127.0.0.1/", "model": "m", "api_key": "k3y-of-the-embeddings"}
    known = KnownSecrets(Config.of({"embedding": embedding}))
    found = known.in_params("a", {"arguments": Raw(b'["k3y-of-the-embeddings"]')})

    assert found is not None
    assert found.name == "embedding.api_key"


def test_the_key_of_a_cluster_and_the_password_of_a_database_go_to_no_server() -> None:
    cluster = {"enabled": True, "key": "0123456789abcdef-k3y-of-the-replicas"}
    store = {"url": "postgresql://proxy:p4ssw0rd-0f-the-store@db.example/all"}
    known = KnownSecrets(Config.of({"cluster": cluster, "store": store}))
    found = [
        known.in_params("a", {"arguments": Raw(f'["{value}"]'.encode())})
        for value in (cluster["key"], "p4ssw0rd-0f-the-store")
    ]

    assert [one is not None and one.name for one in found] == ["cluster.key", "password"]


def test_tokens_that_are_renewed_again_and_again_fill_no_memory_however_long_they_are() -> None:
    known, redact = KnownSecrets(), Redactor((), server="evil")
    redact.on_learned = partial(known.learn, "evil")

    def renew(times: int) -> int:
        for _ in range(times):
            redact.learn([("access token", secrets.token_hex(LONG_CHARACTERS // 2 + 10))])
            assert redact("nothing") == "nothing"
            assert known.in_params("other", {"text": Raw(b'"nothing"')}) is None
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        # As many as are remembered for redaction, and then some.
        before = renew(LONG_FORMS_KEPT + 6)
        assert renew(30) < before * 1.2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("change", ["learned", "configured"])
def test_a_secret_is_known_that_comes_up_while_forms_of_others_are_made(
    change: str,
) -> None:
    known, further = KnownSecrets(), Config(servers={name: SERVERS[name] for name in ("a", "b")})
    (value,) = SERVERS["b"].env.values()

    class Meanwhile:
        """Names of public secrets, which are looked at when the forms are made."""

        def __contains__(self, _name: str) -> bool:
            if change == "learned":
                known.learn("b", [("API_TOKEN", value)])
            else:
                known.config = further
                known.without("")
            return False

    guards = replace(further.guards, public=Meanwhile())
    known.config = Config(servers={"a": SERVERS["a"]}, guards=guards)
    params = {"text": Raw(json.dumps(value).encode())}
    known.in_params("a", params)

    assert known.in_params("a", params) is not None
