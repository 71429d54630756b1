"""Hooks of the documentation site: adds the pages outside ``docs/``, and turns links that leave the site.

The files stay as they read in the repository. A link to a file that is no page leads to the repository if its
address is known (the variable REPOSITORY), and otherwise becomes plain text.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

OUTSIDE = {
    "README.md": "index.md",
    **{
        name: name
        for name in (
            "SECURITY.md",
            "CONTRIBUTING.md",
            "CHANGELOG.md",
            "benchmarks/README.md",
            "distribution/README.md",
            "distribution/claude-code/README.md",
        )
    },
}
"""Pages outside ``docs/``: place in the repository, and in the site."""

_TARGET = re.compile(r"\]\(([^)\s]+)\)")
_NOWHERE = "](nowhere:)"
_UNLINKED = re.compile(r"\[([^\[\]]*)\]\(nowhere:\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_ELEMENT = re.compile(r"<details(?: open)?>\n<summary>(.*?)</summary>")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside ``docs/``."""
    for source, place in OUTSIDE.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page from places in the repository to places in the site."""
    del files
    here = page.file.src_uri
    folder = posixpath.dirname(_source_of(here))
    parts = _FENCE.split(markdown)
    for at in range(0, len(parts), 2):
        text = _TARGET.sub(lambda found: _turned(found[1], here, folder, config.repo_url), parts[at])
        text = _UNLINKED.sub(r"\1", text)
        # Markdown inside is read as markdown, as the repository's pages are.
        parts[at] = _ELEMENT.sub(r'<details markdown="1">\n<summary>\1</summary>', text)
    return "".join(parts)


def _source_of(place: str) -> str:
    """The place in the repository of a page of the site."""
    return {site: source for source, site in OUTSIDE.items()}.get(place, f"docs/{place}")


def _turned(target: str, here: str, folder: str, repository: str | None) -> str:
    """The end of a link, with its target in the site."""
    path, hash_mark, anchor = target.partition("#")
    if not path or "://" in path:
        return f"]({target})"
    source = posixpath.normpath(posixpath.join(folder, path))
    site = OUTSIDE.get(source) or (source.removeprefix("docs/") if source.startswith("docs/") else None)
    if site is not None:
        return f"]({posixpath.relpath(site, posixpath.dirname(here) or '.')}{hash_mark}{anchor})"
    if repository:
        return f"]({repository.rstrip('/')}/blob/HEAD/{source}{hash_mark}{anchor})"
    return _NOWHERE
