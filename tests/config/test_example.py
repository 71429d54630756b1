"""``config.example.toml`` works as it is pasted, and names every key with its default."""

import re
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import asdict

from mcp_context_proxy.config import Config, Limits
from mcp_context_proxy.config.host_profiles import NAME_CHARACTERS

EXAMPLE = Path(__file__).parents[2] / "config.example.toml"


@pytest.fixture
def example() -> str:
    return EXAMPLE.read_text(encoding="utf-8")


@pytest.fixture
def uncommented(example: str) -> str:
    return re.sub(r"(?m)^# (?=\[|[a-z_]+ = )", "", example)


def test_the_example_loads_on_a_fresh_machine(load_text, example, tmp_path):
    assert load_text(example) == Config(path=tmp_path / "config.toml")


def test_the_example_loads_with_every_comment_sign_removed(load_text, uncommented, tmp_path):
    (tmp_path / "rules").mkdir()
    (tmp_path / "notes").mkdir()
    secrets = ("GITHUB_TOKEN", "DOCS_TOKEN", "OPENAI_API_KEY", "DB_PASSWORD", "KEY_PASSWORD")
    environ = (
        {"HOME": str(tmp_path)}
        | dict.fromkeys(secrets, "t")
        | dict.fromkeys(("CLUSTER_KEY", "NEXT_CLUSTER_KEY"), 32 * "k")
    )

    # A store has one place, and a cluster's key too.
    text = uncommented.replace('path = "~/somewhere/store.db"', "").replace('key_file = "cluster.key"', "")
    config = load_text(text, environ=environ)

    assert list(config.servers) == ["github", "docs", "tickets", "orders", "ledger", "inbox", "files"]
    assert [document.kind for document in config.documents] == ["rule", "reference"]


def test_the_example_has_every_key(uncommented):
    tables = tomllib.loads(uncommented)

    assert tables.keys() == set(Config.keys())
    for name in (
        "expose", "search", "learning", "statistics", "interactions", "store", "cluster", "http", "embedding",
        "limits",
    ):  # fmt: skip
        assert tables[name].keys() == set(getattr(Config(), name).keys()), name


def test_the_commented_values_are_the_defaults(uncommented):
    tables = tomllib.loads(uncommented)

    assert Limits(**tables["limits"]) == Limits()
    assert tables["expose"].pop("max_name_length") == NAME_CHARACTERS
    assert tables["expose"] == {
        key: value for key, value in asdict(Config().expose).items() if value is not None
    }
    for name in ("learning", "statistics", "interactions"):
        assert tables[name] == asdict(getattr(Config(), name)), name
    defaults = {**asdict(Config().search), **asdict(Config().search.resolved("tools"))}
    for name in ("preset", "top_k", "top_n", "include_score", "warm_up"):
        assert tables["search"][name] == defaults[name]
    for name in ("host", "port"):
        assert tables["http"][name] == getattr(Config().http, name)
