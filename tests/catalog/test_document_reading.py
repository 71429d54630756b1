"""Documents are read by sections and pages, and skills by their files, never outside of their folder."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.documents import Write, by_both_ways
from support.growth import costs_more

from mcp_context_proxy.catalog.document_reading import (
    OUTLINED,
    PAGE_CHARACTERS,
    divide,
    files_line,
    headings,
    outline,
    paged,
    sections_with,
)
from mcp_context_proxy.catalog.files import SKILL_FILES, UnsafePathError, read_skill_file, skill_files
from mcp_context_proxy.items import SkillFolder

no_windows = pytest.mark.skipif(sys.platform == "win32", reason="links and FIFOs need rights or do not exist")

TEXT = """Before.

# Guide

## Setup

Do it.

```sh
# no heading
```

### Linux

Here.

## Use

Then.

### Linux

There.

# Annex
End."""


def test_a_section_goes_on_to_the_next_heading_of_its_level() -> None:
    sections = {one.name: TEXT[one.start : one.end].strip() for one in headings(TEXT)}

    assert list(sections) == [
        "Guide",
        "Guide/Setup",
        "Guide/Setup/Linux",
        "Guide/Use",
        "Guide/Use/Linux",
        "Annex",
    ]
    assert sections["Guide/Setup"].endswith("### Linux\n\nHere.")
    assert sections["Guide/Use/Linux"] == "### Linux\n\nThere."
    assert sections["Guide"].endswith("There.")
    assert sections["Annex"] == "# Annex\nEnd."


def test_headings_that_are_repeated_are_numbered() -> None:
    assert [one.name for one in headings("# A\n\n# A\n\n# A\n")] == ["A", "A (2)", "A (3)"]


def test_a_line_that_is_underlined_is_a_heading() -> None:
    others = "---\n\n- item\n---\n\nTwo\nlines\n---\n\n| A |\n---"
    text = f"Guide\n=====\n\nSetup\n-----\n\nDo it.\n\n{others}\n\nUse\n---"

    assert [(one.level, one.name) for one in headings(text)] == [
        (1, "Guide"),
        (2, "Guide/Setup"),
        (2, "Guide/Use"),
    ]
    assert [(one.path, one.heading) for one in divide(text)[0][1:]] == [
        (("Guide",), "Guide\n====="),
        (("Setup",), "Setup\n-----"),
        (("Use",), "Use\n---"),
    ]


@pytest.mark.parametrize(
    ("piece", "sections"),
    [
        ("team: guide: ## Days off\n\nAsk early.", ["## Days off"]),
        ("team: guide: Note: 30 days a year.", ["## Days off"]),
        ("team: guide: 30 days a year.", ["## Days off"]),
        ("team: guide: By train.", ["## Travel"]),
        ("team: guide: # Guide\n\nNote: 30 days a year.\n\nBy train.", ["## Days off", "## Travel"]),
        ("team: guide: By plane.", []),
        ("team: guide: ## Travel\n\n\n\nAsk early.", ["## Travel"]),
        ("team: guide: ## Money\n\nOn the 25th.\n\n### Bonus\n\nIn May.", ["## Money", "### Bonus"]),
    ],
)
def test_the_sections_of_a_piece_are_found_whose_name_stands_before_it(
    piece: str, sections: list[str]
) -> None:
    days_off = "## Days off\n\nAsk early.\n\nNote: 30 days a year."
    money = "## Money\n\nOn the 25th.\n\n### Bonus\n\nIn May."
    text = f"# Guide\n\n{days_off}\n\n## Travel\n\nBy train.\n\nAsk early.\n\n{money}"

    assert [one.partition("\n")[0] for one in sections_with(text, piece)] == sections


def test_an_outline_has_the_share_of_each_section() -> None:
    text = f"# One\n\n{'word ' * 300}\n\n# Two\n\n{'word ' * 100}\n"

    first, second = outline(text, 1000)
    assert first.startswith("- One (7")
    assert second.startswith("- Two (2")


def test_an_outline_of_many_headings_leaves_out_the_deepest() -> None:
    text = "\n".join(f"## Part {number}\n\n### Detail {number}\n" for number in range(OUTLINED))

    lines = outline(text, 1000)
    assert len(lines) == OUTLINED
    assert not any("Detail" in line for line in lines)
    assert len(outline("\n".join(f"# {number}" for number in range(5000)), 1000)) == OUTLINED + 1


@given(st.text(alphabet="# ab\n`~/", max_size=300))
def test_every_section_is_a_part_of_the_text_that_begins_with_its_heading(text: str) -> None:
    for one in headings(text):
        assert text[one.start : one.end].lstrip(" ").startswith("#" * one.level)
        assert one.start < one.end <= len(text)


@given(st.lists(st.integers(0, 3 * PAGE_CHARACTERS), max_size=6))
def test_the_pages_of_a_text_are_all_of_it(lengths: list[int]) -> None:
    text = "\n".join("x" * length for length in lengths)

    pages = paged(text)
    assert "".join(pages) == text
    assert all(len(page) <= PAGE_CHARACTERS for page in pages)


def test_a_page_ends_before_a_heading_or_with_a_paragraph() -> None:
    rows = "row\n" * (PAGE_CHARACTERS // 5)

    assert [page.partition("\n")[0] for page in paged(f"# A\n\n{rows}\n# B\n\n{rows}")] == ["# A", "# B"]
    assert paged(f"{rows}\nB\n{rows}")[1].lstrip("\n").startswith("B\n")
    assert not costs_more(20, paged, "\n" * 2_000_000, "x" * 2_000_000)


@no_windows
@by_both_ways
def test_only_visible_regular_files_of_a_skill_are_listed_and_read(write: Write, by_descriptor: bool) -> None:
    root = write(
        {
            "pdf/SKILL.md": "Skill.",
            "pdf/a/b.txt": "B",
            "pdf/.env": "SECRET",
            "other.txt": "SECRET",
            "pdf/c": "C",
        }
    )
    (root / "pdf" / "link.txt").symlink_to(root / "other.txt")
    (root / "pdf" / "up").symlink_to(root)
    skill = SkillFolder(root, ("pdf",))

    assert skill_files(skill, by_descriptor=by_descriptor) == ([("c", 1), ("a/b.txt", 1)], False)
    assert read_skill_file(skill, "a/b.txt", 10, by_descriptor=by_descriptor) == b"B"
    for path in (
        "../other.txt",
        "link.txt",
        "up/other.txt",
        ".env",
        "a/../../other.txt",
        "/etc/passwd",
        "a",
        "",
    ):
        with pytest.raises((UnsafePathError, OSError)):
            read_skill_file(skill, path, 10_000, by_descriptor=by_descriptor)
    with pytest.raises(UnsafePathError, match="over 0 bytes"):
        read_skill_file(skill, "c", 0, by_descriptor=by_descriptor)


@no_windows
@by_both_ways
def test_a_folder_that_became_a_link_is_not_read(write: Write, tmp_path: Path, by_descriptor: bool) -> None:
    root = write({"real/SKILL.md": "Skill.", "real/a.txt": "A"})
    (root / "pdf").symlink_to(root / "real")
    skill = SkillFolder(root, ("pdf",))

    with pytest.raises((UnsafePathError, OSError)):
        read_skill_file(skill, "a.txt", 10, by_descriptor=by_descriptor)
    assert files_line(skill) == f"Folder: {root / 'pdf'}"


def test_the_files_of_a_large_skill_are_counted(write: Write) -> None:
    root = write({f"pdf/{number:04}.txt": "" for number in range(SKILL_FILES + 10)})

    files, more = skill_files(SkillFolder(root, ("pdf",)))
    assert (len(files), more) == (SKILL_FILES, True)
    assert files_line(SkillFolder(root, ("pdf",))).endswith(" and over 170 more")
