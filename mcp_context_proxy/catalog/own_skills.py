"""The user's own skills: the folders around the ``SKILL.md`` files of the document library, for hosts.

A skill is served as it is on the disk at the moment: its manifest is made when a host asks for it, and a file
is read when a host reads it, never through a link and never outside of the skill's folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from urllib.parse import quote, unquote

from msgspec import Struct

from mcp_context_proxy.catalog.definitions import UnfitError
from mcp_context_proxy.catalog.files import ANY, Allowance, FolderReader, MarkdownFile, UnsafePathError
from mcp_context_proxy.catalog.front_matter import front_matter_nodes
from mcp_context_proxy.catalog.skills import (
    MANIFEST,
    SKILL_BYTES,
    SKILL_FILES,
    digest_of,
    json_of,
    required_fields,
    text_of,
)
from mcp_context_proxy.catalog.uri_owners import OWN_SKILLS, SKILL_SCHEME
from mcp_context_proxy.items import Skill, SkillFile
from mcp_context_proxy.protocol import envelope


class SkillPlace(Struct, frozen=True):
    """Place of a skill on the disk."""

    root: Path
    """The configured folder, or the configured file."""
    below: tuple[str, ...]
    """Folders from there to that of the skill."""
    path: tuple[str, ...]
    """Folders in its URI: as on the disk, but the last one is the name of the skill."""


def place_of(root: Path, file: MarkdownFile) -> SkillPlace:
    """Return the place of the skill with this ``SKILL.md``.

    Raises:
        UnfitError: It breaks the rules of Agent Skills, which hosts check.
    """
    relative = PurePosixPath(file.relative)
    if relative.name != MANIFEST:
        raise UnfitError(f"the file of a skill is called {MANIFEST}")
    name, _ = required_fields(_front_matter(file.data))
    below = relative.parts[:-1]
    return SkillPlace(root, below, (*below[:-1], name))


def _front_matter(content: bytes) -> object:
    try:
        return json_of(front_matter_nodes(text_of(content)))
    except ValueError as error:
        raise UnfitError(str(error)) from None


def own_roots(places: Iterable[SkillPlace]) -> dict[str, SkillPlace]:
    """Return the places by the URI of the skill's folder.

    Of two skills with the same path in two configured folders, the first keeps it; the path of the other
    begins with as many names of the folders above it as tell them apart.
    """
    roots: dict[str, SkillPlace] = {}
    for place in places:
        above, path = list(place.root.absolute().parts), place.path
        while (root := _uri(path)) in roots and above:
            path = (above.pop().strip("/\\") or "root", *path)
        roots.setdefault(root, place)
    return roots


def _uri(parts: Iterable[str]) -> str:
    return f"{SKILL_SCHEME}{OWN_SKILLS}/{'/'.join(quote(part, safe='') for part in parts)}"


def own_skills(places: Iterable[SkillPlace]) -> Iterator[Skill]:
    """Yield the skills with their manifests, made from the files as they are now. Blocks.

    One that cannot be served is left out, for example because its files are over the bounds.
    """
    for root, place in own_roots(places).items():
        try:
            yield own_skill(root, place)
        except UnfitError:
            continue


def own_skill(root: str, place: SkillPlace) -> Skill:
    """Return one skill by the URI of its folder. Blocks.

    Raises:
        UnfitError: It cannot be served as it is now; the text says why.
    """
    # One byte more for a file, so that too much is noticed and not only left out.
    allowance = Allowance(files=SKILL_FILES, file_bytes=SKILL_BYTES + 1, total_bytes=SKILL_BYTES)
    reader = FolderReader(place.root, allowance, below=place.below, suffixes=ANY)
    files: dict[str, SkillFile] = {}
    frontmatter: object = None
    for file in reader.files():
        parts = PurePosixPath(file.relative).parts[len(place.below) :]
        uri = "/".join((root, *(quote(part, safe="") for part in parts)))
        files[uri] = SkillFile(uri, uri, digest_of(file.data), len(file.data))
        if parts == (MANIFEST,):
            frontmatter = _front_matter(file.data)
    if reader.exhausted:
        raise UnfitError(f"it has more than {SKILL_FILES} files, or {SKILL_BYTES:,} bytes together")
    uri = f"{root}/{MANIFEST}"
    if uri not in files:
        raise UnfitError(f"its {MANIFEST} cannot be read")
    name, description = required_fields(frontmatter)
    if name != place.path[-1]:
        raise UnfitError(f"its name has just been changed to {name!r}; try again")
    return Skill(OWN_SKILLS, uri, uri, name, description, envelope.encode(frontmatter), files)


def read_own_file(root: str, place: SkillPlace, uri: str) -> bytes:
    """Return the content of a file of a skill, by its URI. Blocks.

    Raises:
        UnfitError: There is no such file within the skill.
    """
    parts = tuple(unquote(part) for part in uri.removeprefix(f"{root}/").split("/"))
    hidden = any(
        part.startswith(".") or not part or "/" in part or "\\" in part or "\0" in part for part in parts
    )
    below = (*place.below, *parts[:-1])
    canonical = "/".join((root, *(quote(part, safe="") for part in parts)))
    if hidden or canonical != uri:
        raise UnfitError("no file of the skill has such a name")
    allowance = Allowance(files=1, file_bytes=SKILL_BYTES, total_bytes=SKILL_BYTES)
    try:
        return FolderReader(place.root, allowance, below=below, suffixes=ANY).file(parts[-1])
    except UnsafePathError as error:
        raise UnfitError(str(error)) from None
    except (OSError, ValueError):
        raise UnfitError("there is no such file") from None
