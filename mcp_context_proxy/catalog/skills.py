"""Skills of downstream servers (SEP-2640) and the user's own: entries, checks, and files for hosts.

A skill is a folder with a ``SKILL.md`` and other files. A server lists an entry for each: the front matter of
its ``SKILL.md``, and a manifest of all files with digest and size. Nothing is fetched before somebody reads
it; then a file must match the manifest, and a ``SKILL.md`` must have the front matter of its entry.

Hosts read ``skill://<server>/<path>``, so that skills of two servers never meet, and none passes for one of
the user's own. Entries and files are not changed, because hosts check them in the same way; what would have
to be changed is withheld. A digest shows that manifest and file agree, not that either is to be trusted.

A skill is served as it is on the disk at the moment: its manifest is made when a host asks for it, and a file
is read when a host reads it, never through a link and never outside of the skill's folder.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final
from urllib.parse import quote, unquote

import msgspec
from msgspec import Struct

from mcp_context_proxy.catalog.definitions import UnfitError
from mcp_context_proxy.catalog.files import ANY, Allowance, FolderReader, MarkdownFile, UnsafePathError
from mcp_context_proxy.catalog.front_matter import (
    DESCRIPTION_LIMIT,
    FRONT_MATTER_LIMIT,
    front_matter_nodes,
    shorten,
)
from mcp_context_proxy.catalog.uri_owners import OWN_SKILLS, SKILL_SCHEME, check_uri
from mcp_context_proxy.items import JSON, Document, Kind, Skill, SkillFile
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.protocol.envelope import nests_deeper
from mcp_context_proxy.protocol.eras import SERVER_KEY
from mcp_context_proxy.protocol.strangers import clean_json, named, one_line, quoted, stranger_json
from mcp_context_proxy.system.later import pattern, yaml
from mcp_context_proxy.trust.fingerprints import is_plain, sign_in_definition

MANIFEST: Final = "SKILL.md"

SKILLS_PER_SERVER: Final = 1_000
"""Skills of one server that are served; a hundred is a large collection."""

SKILL_FILES: Final = 512
"""Files of one skill, the most that a server may serve."""

SKILL_BYTES: Final = 16 * 1024 * 1024
"""Bytes of all files of one skill, the most that a server may serve."""

SKILL_DEPTH: Final = 32
"""Parts of the path of a file."""

NAME_CHARACTERS: Final = 64
"""Longest name of a skill."""

NESTING: Final = 16
"""Deepest front matter."""

VALUES: Final = 2_000
"""Values that are compared with a front matter: an alias repeats what it stands for."""

REASON_CHARACTERS: Final = 300
"""Longest reason for which an entry is refused."""

DYNAMIC: Final = "dynamic"

_NAME: Final = pattern(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_DIGEST: Final = pattern(r"sha256:[0-9a-f]{64}")
_TRUE: Final = frozenset({"true", "yes", "on"})
_FALSE: Final = frozenset({"false", "no", "off"})
_NULL: Final = frozenset({"", "~", "null"})


class UnverifiedError(Exception):
    """A file that does not match the manifest of its skill; the text gives the difference."""


class _SkillEntry(msgspec.Struct):
    uri: str
    frontmatter: msgspec.Raw
    resources: list[_File] | str


class _File(msgspec.Struct):
    uri: str
    digest: str
    size: int


_decode_entry = msgspec.json.Decoder(_SkillEntry).decode


def parse_skill(server: str, entry: bytes) -> Skill:
    """Return the skill that an entry of a server describes.

    Raises `UnfitError` if the entry breaks a rule or a bound, or hides characters.
    """
    try:
        given = _decode_entry(entry)
        if len(given.frontmatter) > FRONT_MATTER_LIMIT:
            raise UnfitError(f"its front matter is over {FRONT_MATTER_LIMIT:,} bytes")
        frontmatter = bytes(given.frontmatter)
        if nests_deeper(frontmatter, NESTING):
            raise UnfitError(f"its front matter nests deeper than {NESTING} levels")
        if clean_json(frontmatter) != frontmatter:
            raise UnfitError("its front matter hides characters")
        if stranger_json(frontmatter, bytes) != frontmatter:
            raise UnfitError("its front matter writes the mark of a server")
        if (sign := sign_in_definition(frontmatter)) is not None:
            raise UnfitError(sign)
        values = envelope.value(frontmatter)
        if not is_plain(frontmatter):
            # A member that is named twice: hosts take one of them, or refuse the whole list.
            frontmatter = envelope.encode(values)
    except msgspec.ValidationError as error:
        raise UnfitError(f"it is no entry of a skill: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UnfitError("it is not an object") from None
    name, description = required_fields(values)
    root = exposed_root(server, given.uri)
    if root.rpartition("/")[2] != name:
        raise UnfitError(f"its URI does not end with its name, /{name}/{MANIFEST}")
    if isinstance(given.resources, str):
        if given.resources != DYNAMIC:
            raise UnfitError(f"its resources are neither a list nor {DYNAMIC!r}")
        files = None
    else:
        files = _files(given, root)
    uri = f"{root}/{MANIFEST}"
    return Skill(server, uri, given.uri, name, description, frontmatter, files)


def required_fields(frontmatter: JSON) -> tuple[str, str]:
    """Return name and description of a front matter.

    Raises `UnfitError` if one of them is missing or breaks the rules of Agent Skills.
    """
    if not isinstance(frontmatter, dict):
        raise UnfitError("its front matter is not an object")
    name, description = frontmatter.get("name"), frontmatter.get("description")
    if not isinstance(name, str) or len(name) > NAME_CHARACTERS or not _NAME.fullmatch(name):
        rule = f"up to {NAME_CHARACTERS} small letters, digits and single hyphens between them"
        raise UnfitError(f"its front matter needs a 'name' of {rule}")
    if not isinstance(description, str) or not description.strip():
        raise UnfitError("its front matter needs a 'description'")
    return name, description


def exposed_root(server: str, source: str) -> str:
    """Return the URI under which hosts find the folder of a skill, by its server's URI of its ``SKILL.md``.

    Raises `UnfitError` if that is no URI of such a file.
    """
    check_uri(source)
    scheme, separator, rest = source.partition("://")
    if not separator:
        raise UnfitError("its uri has no '://'")
    if scheme.lower() + separator != SKILL_SCHEME:
        rest = f"{scheme}/{rest.removeprefix('/')}"
    *folders, last = checked_parts(rest)
    if last != MANIFEST or not folders:
        raise UnfitError(f"its uri does not end with /{MANIFEST} in a folder")
    return f"{SKILL_SCHEME}{server}/{'/'.join(folders)}"


def checked_parts(path: str) -> list[str]:
    """Return the parts of a path.

    Raises:
        UnfitError: One of them leads elsewhere than down, or there are too many.
    """
    parts = path.split("/", SKILL_DEPTH)
    if len(parts) > SKILL_DEPTH:
        raise UnfitError(f"a path has more than {SKILL_DEPTH} parts")
    for part in parts:
        plain = unquote(part)
        if plain in ("", ".", "..") or not plain.isprintable() or not {"/", "\\"}.isdisjoint(plain):
            raise UnfitError("a path has an empty part, '.', '..', or a hidden separator")
        if "?" in part or "#" in part:
            raise UnfitError("a path has a query or a fragment")
    return parts


def _files(given: _SkillEntry, root: str) -> dict[str, SkillFile]:
    if not isinstance(given.resources, list):
        return {}
    if len(given.resources) > SKILL_FILES:
        raise UnfitError(f"it has more than {SKILL_FILES} files")
    folder = given.uri.removesuffix(MANIFEST)
    files: dict[str, SkillFile] = {}
    for file in given.resources:
        if not file.uri.startswith(folder):
            raise UnfitError(f"{quoted(file.uri)} is not within its folder")
        path = file.uri.removeprefix(folder)
        checked_parts(path)
        check_uri(file.uri)
        if not _DIGEST.fullmatch(file.digest):
            raise UnfitError(f"the digest of {quoted(path)} is not sha256: and 64 small hexadecimal digits")
        if file.size < 0:
            raise UnfitError(f"the size of {quoted(path)} is negative")
        uri = f"{root}/{path}"
        if uri in files:
            raise UnfitError(f"it lists {quoted(path)} twice")
        files[uri] = SkillFile(uri, file.uri, file.digest, file.size)
    if f"{root}/{MANIFEST}" not in files:
        raise UnfitError(f"its manifest does not list its {MANIFEST}")
    if (size := sum(file.size for file in files.values())) > SKILL_BYTES:
        raise UnfitError(f"its files have {size:,} bytes; {SKILL_BYTES:,} are allowed")
    return files


def parse_skills(server: str, entries: Iterable[bytes]) -> tuple[dict[str, Skill], list[str]]:
    """Return the skills of a listing by URI, and a finding for each entry that is withheld."""
    skills: dict[str, Skill] = {}
    findings: list[str] = []
    for position, entry in enumerate(entries, 1):
        if len(skills) >= SKILLS_PER_SERVER:
            findings.append(f"{server}: its skills after the first {SKILLS_PER_SERVER:,} are withheld")
            break
        try:
            skill = parse_skill(server, entry)
            if skill.uri in skills:
                raise UnfitError("its uri was listed before")
        except UnfitError as error:
            reason = one_line(str(error), REASON_CHARACTERS)
            findings.append(f"{server}: entry {position} of its skills is withheld: {reason}")
            continue
        skills[skill.uri] = skill
        if skill.files is None:
            findings.append(f"{server}: skill {skill.name!r} is dynamic: its files cannot be checked")
    return skills, findings


def document_of(skill: Skill) -> Document:
    """Return a skill of a server as a reference, by which search finds it; no file is read for that."""
    description = shorten(one_line(skill.description), DESCRIPTION_LIMIT)
    text = (
        f"Skill of server {skill.owner!r}; to use it, read the resource {skill.uri}\n\n"
        f"{named(skill.owner, description)}"
    )
    digest = hashlib.sha256(envelope.encode([skill.uri, text])).hexdigest()
    return Document(Kind.REFERENCE, skill.uri, description, text, digest, server=skill.owner)


def entry_of(skill: Skill) -> dict[str, Any]:
    """Return the entry of a skill for hosts; that of a server's skill names the server in its ``_meta``."""
    resources = [
        {"uri": file.uri, "digest": file.digest, "size": file.size} for file in (skill.files or {}).values()
    ]
    entry: dict[str, Any] = {
        "uri": skill.uri,
        "frontmatter": msgspec.Raw(skill.frontmatter),
        "resources": DYNAMIC if skill.files is None else resources,
    }
    return entry if skill.source == skill.uri else entry | {"_meta": {SERVER_KEY: skill.owner}}


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def check_listed(skill: Skill, uri: str) -> None:
    """Check that a file, by the URI of hosts, belongs to a skill.

    Raises `UnverifiedError` if the manifest does not list it, or it leads out of the folder of a dynamic
    skill.
    """
    if skill.files is None:
        try:
            checked_parts(uri.removeprefix(f"{skill.root}/"))
        except UnfitError as error:
            raise UnverifiedError(str(error)) from None
    elif uri not in skill.files:
        raise UnverifiedError("the manifest of its skill does not list it")


def check_content(skill: Skill, uri: str, content: bytes) -> None:
    """Check a file of a skill, by the URI of hosts, against its manifest and front matter.

    Raises `UnverifiedError` if it differs from them, or the manifest does not list it.
    """
    check_listed(skill, uri)
    if skill.files is not None:
        file = skill.files[uri]
        if len(content) != file.size:
            raise UnverifiedError(f"it has {len(content):,} bytes; its manifest says {file.size:,}")
        if (digest := digest_of(content)) != file.digest:
            raise UnverifiedError(f"its digest is {digest}; its manifest says {file.digest}")
    elif len(content) > SKILL_BYTES:
        raise UnverifiedError(f"it has {len(content):,} bytes; {SKILL_BYTES:,} are allowed")
    if uri == skill.uri:
        try:
            node = front_matter_nodes(text_of(content))
        except ValueError as error:
            raise UnverifiedError(str(error)) from None
        if not _says(node, envelope.value(skill.frontmatter), [VALUES]):
            raise UnverifiedError("its front matter is not that of its entry")


def text_of(content: bytes) -> str:
    """Return the text of a markdown file, with lines that end with a newline alone.

    Raises `ValueError` if it is not UTF-8.
    """
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None


def _says(node: yaml.Node, value: JSON, left: list[int]) -> bool:
    """Return whether a YAML node says the same as a JSON value.

    Programs read a plain text such as ``1.0`` or ``yes`` as values of different kinds; any of them is right.
    """
    left[0] -= 1
    if left[0] < 0:
        return False
    match node:
        case yaml.MappingNode():
            if not isinstance(value, dict) or not all(
                isinstance(key, yaml.ScalarNode) for key, _ in node.value
            ):
                return False
            members = {key.value: item for key, item in node.value}
            return members.keys() == value.keys() and all(
                _says(item, value[key], left) for key, item in members.items()
            )
        case yaml.SequenceNode():
            if not isinstance(value, list) or len(value) != len(node.value):
                return False
            return all(_says(item, one, left) for item, one in zip(node.value, value, strict=True))
        case yaml.ScalarNode():
            return _says_plainly(node.value, value, plain=node.style is None)
    return False


def _says_plainly(written: str, value: JSON, *, plain: bool) -> bool:
    if isinstance(value, str):
        return value == written
    if not plain:
        return False
    if value is None or isinstance(value, bool):
        return written.lower() in (_NULL if value is None else _TRUE if value else _FALSE)
    if isinstance(value, int | float):
        try:
            return float(written) == float(value)
        except (ValueError, OverflowError):
            return False
    return False


def json_of(node: yaml.Node, left: list[int] | None = None) -> JSON:
    """Return YAML nodes as JSON: true, false, null and numbers where they are written plainly, else text.

    Raises `UnfitError` if there are too many values, or a key that is no text.
    """
    left = [VALUES] if left is None else left
    left[0] -= 1
    if left[0] < 0:
        raise UnfitError(f"its front matter has over {VALUES:,} values")
    match node:
        case yaml.MappingNode():
            if not all(isinstance(key, yaml.ScalarNode) for key, _ in node.value):
                raise UnfitError("its front matter has a key that is no text")
            return {key.value: json_of(item, left) for key, item in node.value}
        case yaml.SequenceNode():
            return [json_of(item, left) for item in node.value]
    assert isinstance(node, yaml.ScalarNode)
    written: str = node.value
    if node.style is not None or written in ("true", "false") or written.lower() in _NULL:
        constants: Mapping[str, bool] = {"true": True, "false": False}
        return written if node.style is not None else constants.get(written)
    try:
        number = envelope.value(written.encode())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return written
    return number if isinstance(number, int | float) else written


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

    Raises `UnfitError` if it breaks the rules of Agent Skills, which hosts check.
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

    Raises `UnfitError`, which says why, if it cannot be served as it is now.
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

    Raises `UnfitError` if there is no such file within the skill.
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
