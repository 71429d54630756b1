"""The file of the saved presets, which several proxies may write."""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mcp_context_proxy.context.presets import PresetBook, PresetError, SavedPreset


@pytest.fixture
def books(tmp_path: Path) -> tuple[PresetBook, PresetBook]:
    """Those of two proxies of one configuration, which have both read the file."""
    both = PresetBook(tmp_path / "presets.json"), PresetBook(tmp_path / "presets.json")
    for book in both:
        book.load()
    return both


def test_what_two_proxies_save_and_forget_is_all_in_the_file(books: tuple[PresetBook, PresetBook]) -> None:
    one, other = books

    one.save("first", SavedPreset())
    other.save("second", SavedPreset())
    assert other.names == ["first", "second"]
    one.forget("second")
    other.save("third", SavedPreset())

    assert other.names == ["first", "third"]


def test_a_proxy_knows_at_once_what_another_one_has_saved_or_forgotten(
    books: tuple[PresetBook, PresetBook],
) -> None:
    one, other = books

    one.save("first", SavedPreset())
    assert other.names == ["first"]
    assert other.unknown(["first", "gone"]) == ["gone"]

    one.forget("first")
    assert other.unknown(["first"]) == ["first"]
    assert other.as_data() == {}


def test_what_is_known_stays_while_the_file_cannot_be_read(
    books: tuple[PresetBook, PresetBook], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    books[0].save("mine", SavedPreset())
    assert books[1].names == ["mine"]

    (tmp_path / "presets.json").write_text('{"presets": {"mi', encoding="utf-8")

    assert books[1].names == books[1].names == ["mine"]
    assert caplog.text.count("cannot be used") == 1


def test_of_presets_that_are_saved_at_once_none_is_lost(books: tuple[PresetBook, PresetBook]) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: books[number % 2].save(f"n{number}", SavedPreset()), range(24)))

    books[0].load()
    assert len(books[0].names) == 24


def test_a_file_that_cannot_be_read_is_not_replaced(
    books: tuple[PresetBook, PresetBook], tmp_path: Path
) -> None:
    (tmp_path / "presets.json").write_text('{"presets": {"mine": ', encoding="utf-8")

    with pytest.raises(PresetError, match="cannot be used"):
        books[0].save("new", SavedPreset())
    with pytest.raises(PresetError, match="cannot be used"):
        books[0].forget("mine")

    assert (tmp_path / "presets.json").read_text(encoding="utf-8") == '{"presets": {"mine": '


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


def deep(path: Path) -> None:
    path.write_text('{"more": ' + "[" * 100_000 + "]" * 100_000 + "}", "utf-8")


@pytest.mark.parametrize("instead", [os.mkdir, getattr(os, "mkfifo", os.mkdir), sparse, deep])
def test_something_else_in_place_of_the_file_keeps_nobody_waiting(
    books: tuple[PresetBook, PresetBook], tmp_path: Path, instead: Callable[[Path], None]
) -> None:
    books[0].save("mine", SavedPreset())
    (tmp_path / "presets.json").unlink()
    instead(tmp_path / "presets.json")

    books[0].load()
    with pytest.raises(PresetError, match="cannot be used"):
        books[0].save("new", SavedPreset())

    assert books[0].names == ["mine"]
