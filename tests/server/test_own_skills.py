"""Skills of the user's own folders, for clients of both eras."""

import os
import re
from pathlib import Path

import pytest
from support.proxies import Host, host_of, inside
from support.raw_client import text_of
from support.servers import Workshop, tool
from support.skills import digest, listed, manifest_file, read, refusal, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "skills"


def own(workshop: Workshop, *folders: Path) -> Path:
    workshop.server("other", tools=[tool("one")])
    return workshop.config(documents=[{"path": str(each)} for each in folders])


OWN = "skill://own.folders/review"
REVIEW = manifest_file("review", "Reviews a change", more="license: MIT\nversion: 2\n")


async def test_skills_of_the_users_folders_are_served_with_all_their_files(
    workshop: Workshop, folder: Path, era: str
) -> None:
    files: dict[str, str | bytes] = {
        "SKILL.md": REVIEW,
        "scripts/run me.sh": "echo\r\n",
        "logo.png": b"\x89PNG\x00\xff",
    }
    write(folder / "review", {**files, ".secret": "no"})
    write(folder, {"note.md": "A plain reference."})
    async with host_of(own(workshop, folder), era) as host:
        (skill,) = (await listed(host)).values()
        got = (await host.request("skills/get", {"uri": f"{OWN}/SKILL.md"}))["skill"]
        contents = {path: await read(host, f"{OWN}/{path.replace(' ', '%20')}") for path in files}
        inner = (await host.request("resources/directory/read", {"uri": OWN}))["resources"]
        by_model = await host.call("call_read_only_tool", {"name": f"{OWN}/SKILL.md"})

    assert by_model["content"] == [{"type": "text", "text": REVIEW}]
    assert skill == got
    assert skill["frontmatter"] == {
        "name": "review",
        "description": "Reviews a change",
        "license": "MIT",
        "version": 2,
    }
    assert {file["uri"]: (file["digest"], file["size"]) for file in skill["resources"]} == {
        f"{OWN}/{path.replace(' ', '%20')}": (
            digest(content),
            len(content.encode() if isinstance(content, str) else content),
        )
        for path, content in files.items()
    }
    assert contents["SKILL.md"]["text"] == REVIEW
    assert contents["SKILL.md"]["mimeType"] == "text/markdown"
    assert contents["scripts/run me.sh"]["text"] == "echo\r\n"
    assert contents["logo.png"]["blob"] == "iVBORwD/"
    assert [(one["name"], one["mimeType"]) for one in inner] == [
        ("review", "text/markdown"),
        ("logo.png", "image/png"),
        ("scripts", "inode/directory"),
    ]


async def test_nothing_outside_of_a_skill_is_read_from_the_disk(
    workshop: Workshop, folder: Path, tmp_path: Path, era: str
) -> None:
    write(tmp_path, {"outside.txt": "outside"})
    write(folder / "review", {"SKILL.md": REVIEW, ".env": "TOKEN"})
    (folder / "review" / "link.txt").symlink_to(tmp_path / "outside.txt")
    (folder / "review" / "up").symlink_to(tmp_path)
    os.mkfifo(folder / "review" / "pipe")
    async with host_of(own(workshop, folder), era) as host:
        (skill,) = (await listed(host)).values()
        assert [file["uri"] for file in skill["resources"]] == [f"{OWN}/SKILL.md"]
        paths = (
            "../../outside.txt",
            "%2e%2e/%2e%2e/outside.txt",
            "link.txt",
            "up/outside.txt",
            ".env",
            "pipe",
        )
        for path in (*paths, "..%2f..%2foutside.txt", "", "none", "//outside.txt", "a%00b", "./SKILL.md"):
            error = await refusal(host, "resources/read", f"{OWN}/{path}")
            assert error.code == (-32602 if era == "modern" else -32002)


async def test_own_skills_with_one_path_in_two_folders_are_both_served(
    workshop: Workshop, folder: Path, tmp_path: Path
) -> None:
    write(folder / "review", {"SKILL.md": REVIEW})
    write(tmp_path / "team" / "review", {"SKILL.md": REVIEW})
    async with inside(own(workshop, folder, tmp_path / "team")) as proxy:
        skills = await listed(Host(proxy, "modern"))

    assert set(skills) == {f"{OWN}/SKILL.md", "skill://own.folders/team/review/SKILL.md"}


async def test_a_nested_skill_has_its_own_entry_and_is_content_of_the_outer_one(
    workshop: Workshop, folder: Path
) -> None:
    write(
        folder / "review",
        {"SKILL.md": REVIEW, "deep/SKILL.md": manifest_file("deep", "Looks deeper")},
    )
    async with inside(own(workshop, folder)) as proxy:
        skills = await listed(Host(proxy, "modern"))

    assert set(skills) == {f"{OWN}/SKILL.md", f"{OWN}/deep/SKILL.md"}
    assert f"{OWN}/deep/SKILL.md" in [file["uri"] for file in skills[f"{OWN}/SKILL.md"]["resources"]]


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [
        ("Not Right", "", "needs a 'name' of up to 64 small letters"),
        ("right", "? [a]\n: b\n", "has a key that is no text"),
    ],
)
async def test_an_own_skill_that_breaks_the_rules_stays_a_reference_with_a_finding(
    workshop: Workshop, folder: Path, name: str, more: str, reason: str
) -> None:
    write(folder / "wrong", {"SKILL.md": manifest_file(name, "x", more=more)})
    async with inside(own(workshop, folder)) as proxy:
        assert await listed(Host(proxy, "modern")) == {}
        (found,) = map(str, proxy.library.loaded.findings)
        assert [one.name for one in proxy.catalog.snapshot.documents.values()] == [name]

    assert f"not as a skill: its front matter {reason}" in found


async def test_an_own_skill_is_found_by_its_name_whatever_its_folder_is_called(
    workshop: Workshop, folder: Path
) -> None:
    write(folder / "wrong", {"SKILL.md": REVIEW, "a.md": "more"})
    async with host_of(own(workshop, folder), "modern") as host:
        assert set(await listed(host)) == {f"{OWN}/SKILL.md"}
        assert (await read(host, f"{OWN}/a.md"))["text"] == "more"


async def test_an_own_skill_over_the_bounds_is_left_out(workshop: Workshop, folder: Path) -> None:
    write(folder / "review", {"SKILL.md": REVIEW, **{f"{i}.txt": "" for i in range(512)}})
    async with host_of(own(workshop, folder), "modern") as host:
        assert await listed(host) == {}
        assert "more than 512 files" in (await refusal(host, "skills/get", f"{OWN}/SKILL.md")).message


PDF = (
    "---\nname: pdf\ndescription: Fills in the forms of PDF files\n---\n# PDF forms\n\nSee forms.md first.\n"
)


@pytest.fixture
def skill(folder: Path, tmp_path: Path) -> Path:
    write(tmp_path, {"secret.txt": "SECRET"})
    write(
        folder,
        {
            "pdf/SKILL.md": PDF,
            "pdf/forms.md": "# Forms\n\n## Fields\n\nNames of fields.\n\n## Flattening\n\nLast.\n",
            "pdf/scripts/fill.py": "print('fill')\n",
            "pdf/logo.png": b"\x89PNG\0\xff",
            "pdf/.env": "SECRET",
            "pdf/huge.txt": "x" * 2_000_000,
            "other/notes.txt": "OTHER",
        },
    )
    (folder / "pdf" / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "pdf" / "out").symlink_to(tmp_path)
    os.mkfifo(folder / "pdf" / "pipe")
    return folder / "pdf"


async def said(host: Host, name: str, **more: str) -> str:
    return text_of(await host.call("read_document", {"name": name, **more}))


async def test_a_skill_tells_its_folder_and_its_files(workshop: Workshop, skill: Path, era: str) -> None:
    async with host_of(own(workshop, skill.parent), era) as host:
        answer = text_of(await host.call("search_available_tools", {"query": "fill in a form of a PDF file"}))
        read = await said(host, "pdf")

    size = (skill / "forms.md").stat().st_size
    for text in (answer, read):
        assert f"Folder: {skill}" in text
        assert (
            f"forms.md ({size} bytes), huge.txt (2,000.0 kB), logo.png (6 bytes), scripts/fill.py (14 bytes)"
            in text
        )
        assert ".env" not in text
        assert "link.txt" not in text
        assert "read_document" in text


async def test_the_files_of_a_skill_are_read_by_its_name_and_their_path(
    workshop: Workshop, skill: Path, era: str
) -> None:
    async with host_of(own(workshop, skill.parent), era) as host:
        script = await said(host, "reference://pdf/scripts/fill.py")
        by_name = await said(host, "pdf/scripts/fill.py")
        section = await said(host, "reference://pdf/forms.md", section="Fields")
        typed_wrong = await said(host, "pdf/scripts/fil.py")

    assert script == by_name == "reference://pdf/scripts/fill.py:\n\nprint('fill')"
    assert section.endswith("## Fields\n\nNames of fields.")
    assert "did you mean scripts/fill.py?" in typed_wrong


UNREADABLE = [
    "../other/notes.txt",
    "../../secret.txt",
    "scripts/../../other/notes.txt",
    "./../other/notes.txt",
    "link.txt",
    "out/secret.txt",
    ".env",
    "pipe",
    "huge.txt",
    "logo.png",
    "scripts",
    "/etc/passwd",
    "..\\other\\notes.txt",
    "scripts/%2e%2e/%2e%2e/other/notes.txt",
    "",
    "a/" * 40,
]


async def test_nothing_but_visible_text_files_of_a_skill_is_read(workshop: Workshop, skill: Path) -> None:
    async with host_of(own(workshop, skill.parent), "modern") as host:
        results = {
            path: await host.call("read_document", {"name": f"reference://pdf/{path}"}) for path in UNREADABLE
        }

    for path, result in results.items():
        text = result["content"][0]["text"]
        assert re.search("SECRET|OTHER|root:", text) is None, path
        assert len(text) < 600, path
        assert result.get("isError") is True or path == "", path


async def test_what_a_skills_file_says_hides_nothing(workshop: Workshop, skill: Path) -> None:
    (skill / "notes.txt").write_text("Seen.\x1b[2J\u202e\U000e0041 Hidden?", encoding="utf-8")
    async with host_of(own(workshop, skill.parent), "modern") as host:
        text = await said(host, "pdf/notes.txt")

    assert text == "reference://pdf/notes.txt:\n\nSeen. Hidden?"
