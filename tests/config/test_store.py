"""The place of the store: a file, or a database whose password nobody sees."""

import pytest

from mcp_context_proxy.config.secrets import Redactor, all_secrets_of

URL = 'url = "postgresql://proxy:${DB_PASSWORD}@db.example.com/proxy"'


def test_the_password_of_a_database_is_expanded_and_redacted(load_text):
    config = load_text(f"[store]\n{URL}\n", environ={"DB_PASSWORD": "s3cret-of-the-db"})

    assert config.store.url == "postgresql://proxy:s3cret-of-the-db@db.example.com/proxy"
    said = Redactor(all_secrets_of(config))("proxy cannot log in to proxy with s3cret-of-the-db")
    assert said == "proxy cannot log in to proxy with [redacted password]"
    assert "s3cret" not in repr(config)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (f'path = "a.db"\n{URL}', "store.path: has no effect with store.url"),
        ("pool = 3", "store.pool: has no effect without store.url"),
        ('url = "mysql://db/proxy"', "store.url"),
        (f'{URL}\nnamespace = "a; DROP"', "store.namespace"),
    ],
)
def test_a_mistake_is_named_and_the_store_is_in_memory(load_text, problems, written, told):
    text, environ = f"[store]\n{written}\n", {"DB_PASSWORD": "x"}
    config = load_text(text, environ=environ)

    assert (config.store.url, config.store.path) == (None, "memory")
    assert any(told in problem for problem in problems(text, environ=environ))
