"""The file with the bearer token: nobody else may have read it, nobody else may have written it."""

import logging
import stat
from pathlib import Path

import pytest
from support.tables import each

from mcp_context_proxy.config import HttpConfig
from mcp_context_proxy.errors import ConfigError
from mcp_context_proxy.trust.tokens import TOKEN_VARIABLE, credentials_for

TOKEN = "a-token-that-somebody-made-32-long"


def credentials(path: Path) -> str | None:
    return credentials_for(HttpConfig(token_file=path), environ={}).token


def file(folder: Path, mode: int, content: bytes = TOKEN.encode() + b"\n") -> Path:
    path = folder / "token"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folders_of_a_new_token_are_private(tmp_path: Path) -> None:
    assert credentials(tmp_path / "a" / "b" / "token")

    assert [mode(tmp_path / name) for name in ("a", "a/b", "a/b/token")] == [0o700, 0o700, 0o600]


@pytest.mark.parametrize("rights", [0o644, 0o640, 0o660, 0o604])
def test_a_token_file_that_others_can_read_is_made_private_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rights: int
) -> None:
    path = file(tmp_path, rights)

    assert credentials(path) == TOKEN
    assert mode(path) == 0o600
    assert "other users could read the token" in caplog.text
    assert TOKEN not in caplog.text


@pytest.mark.parametrize("rights", [0o600, 0o400])
def test_a_private_token_file_is_not_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, rights: int
) -> None:
    path = file(tmp_path, rights)
    with caplog.at_level(logging.DEBUG):
        assert credentials(path) == TOKEN

    assert mode(path) == rights
    assert caplog.text == ""


def test_a_token_file_that_everyone_may_write_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="everyone can write to it"):
        credentials(file(tmp_path, 0o666))


def test_a_token_file_that_everyone_may_replace_is_refused(tmp_path: Path) -> None:
    path = file(tmp_path, 0o600)
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="everyone can write to it"):
        credentials(path)

    # As in a folder for all, where each may take away only what is theirs.
    tmp_path.chmod(0o1777)
    assert credentials(path) == TOKEN


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"one\ntwo\n", b"\xff\xfe", "schlüssel".encode(), b"two words"]
)
def test_an_invalid_token_is_refused_with_the_reason(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigError, match="delete"):
        credentials(file(tmp_path, 0o600, content))


def test_a_short_token_in_a_file_is_refused_with_its_length_and_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least 16 characters, and this one 15") as refused:
        credentials(file(tmp_path, 0o600, b"short-0123456-x\n"))

    assert "short-0123456-x" not in str(refused.value)


@each("token", ["a", "short-0123456-x", "two words that are long", "schl\u00fcssel-schl\u00fcssel"])
def test_a_weak_token_in_the_environment_is_refused_with_a_remedy(token: str) -> None:
    with pytest.raises(ConfigError, match=r"make one with: python3 -c .*token_urlsafe") as refused:
        credentials_for(HttpConfig(), environ={TOKEN_VARIABLE: token})

    assert len(token) == 1 or token not in str(refused.value)


def test_a_token_of_sixteen_characters_is_accepted(tmp_path: Path) -> None:
    token = "0123456789abcdef"

    assert credentials(file(tmp_path, 0o600, token.encode())) == token
    assert credentials_for(HttpConfig(), environ={TOKEN_VARIABLE: token}).token == token


def test_a_folder_in_place_of_the_token_file_is_refused_and_not_changed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a file"):
        credentials(tmp_path)

    assert mode(tmp_path) == 0o700
