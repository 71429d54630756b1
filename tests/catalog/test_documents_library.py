"""The document library keeps and drops documents when it is reloaded."""

import logging
from pathlib import Path

import pytest
import yaml
from support.documents import Write

from mcp_context_proxy.catalog.documents import FINDINGS_LOGGED, DocumentChanges, DocumentLibrary
from mcp_context_proxy.config import DocumentsConfig, Limits
from mcp_context_proxy.items import Kind


@pytest.fixture
def library(docs: Path) -> DocumentLibrary:
    folders = [
        DocumentsConfig(kind=Kind.RULE, path=docs / "rules"),
        DocumentsConfig(kind=Kind.REFERENCE, path=docs / "references"),
    ]
    return DocumentLibrary(folders, Limits())


def test_the_library_is_empty_until_the_first_reload(write: Write, library: DocumentLibrary) -> None:
    write({"rules/a.md": "x", "references/b.md": "y"})

    assert [source.items for source in library.sources] == [(), ()]
    assert library.reload() == DocumentChanges(added=("reference://b", "rule://a"))
    assert [(s.key, [i.name for i in s.items]) for s in library.sources] == [
        ("rules", ["a"]),
        ("references", ["b"]),
    ]


def test_a_reload_returns_the_uris_of_changed_documents(write: Write, library: DocumentLibrary) -> None:
    write({"rules/stays.md": "x", "rules/changes.md": "x", "rules/goes.md": "x"})
    library.reload()
    (write({"rules/changes.md": "y", "rules/comes.md": "x"}) / "rules/goes.md").unlink()

    changes = library.reload()

    assert changes == DocumentChanges(("rule://comes",), ("rule://goes",), ("rule://changes",))
    assert changes


def test_a_reload_without_changes_keeps_the_same_source_objects(
    write: Write, library: DocumentLibrary
) -> None:
    write({"rules/a.md": "x", "references/b.md": "x"})
    library.reload()
    before = library.sources
    write({"rules/a.md": "x"})

    assert not library.reload()
    assert all(old is new for old, new in zip(before, library.sources, strict=True))


def test_a_change_leaves_the_source_of_other_documents(write: Write, library: DocumentLibrary) -> None:
    write({"rules/changes.md": "x", "references/stays.md": "x"})
    library.reload()
    rules, references = library.sources
    write({"rules/changes.md": "y"})
    library.reload()

    assert library.sources[0] is not rules
    assert library.sources[1] is references


def test_each_finding_is_logged_once_and_further_ones_are_counted(
    write: Write, library: DocumentLibrary, caplog: pytest.LogCaptureFixture
) -> None:
    write({f"rules/{n:03}.md": b"\xff" for n in range(50)})
    (write({"references/a.md": "x"})).exists()
    with caplog.at_level(logging.WARNING):
        library.reload()
        library.reload()

    assert len(library.loaded.findings) == 50
    assert len(caplog.messages) == FINDINGS_LOGGED + 1
    assert caplog.messages[-1] == f"and {50 - FINDINGS_LOGGED} more findings about documents"


def test_a_reload_parses_no_front_matter_of_a_file_that_is_unchanged(
    write: Write, library: DocumentLibrary, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed = []
    compose = yaml.compose

    def counted(*args: object, **more: object) -> object:
        composed.append(args)
        return compose(*args, **more)

    monkeypatch.setattr(yaml, "compose", counted)
    skill = "---\nname: pdf\ndescription: Fills forms\n---\nx"
    write({"references/pdf/SKILL.md": skill, "references/a.md": "---\ntags: [b]\n---\nx"})
    library.reload()
    places, composed[:] = library.loaded.skills, []
    write({"references/c.md": "x"})

    assert library.reload().added == ("reference://c",)
    assert library.loaded.skills == places != ()
    assert composed == []
