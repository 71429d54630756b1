"""Rules and references: read from the configured folders, served, and kept up to date.

A file is one document; a file for coding agents (``AGENTS.md``) is one document for each of its sections. A
problem in a file becomes a finding; the usable part of the file is served, and no file stops another.

A name that two folders have gets that of its folder as a prefix, where it comes second. Every document is
known by its name with the prefix as well, so that this URI stays valid when other folders come and go.

The watcher looks at exactly the folders and files that were read, so that it enters no link and no hidden
tree, and at the configured ones, whether they exist or not. It reloads the library at its start and at every
change.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

import anyio
from msgspec import Struct, field
from msgspec.structs import replace

from mcp_context_proxy.catalog.definitions import UnfitError
from mcp_context_proxy.catalog.document_reading import SECTIONS_LIMIT, divide, overview, with_code_marked
from mcp_context_proxy.catalog.files import SUFFIXES, Allowance, Finding, FolderReader, MarkdownFile, is_utf8
from mcp_context_proxy.catalog.front_matter import (
    DESCRIPTION_LIMIT,
    NAME_LIMIT,
    Format,
    FrontMatter,
    Problem,
    default_name,
    format_of,
    patterns_text,
    read_front_matter,
    shorten,
)
from mcp_context_proxy.catalog.skills import SkillPlace, place_of
from mcp_context_proxy.config import DocumentsConfig, Limits
from mcp_context_proxy.config.reload import changes, mark_of
from mcp_context_proxy.items import (
    DOCUMENT_KINDS,
    SEARCHED_CHARACTERS,
    Document,
    IncludeMode,
    Kind,
    SkillFolder,
    Source,
    uri_of,
)
from mcp_context_proxy.protocol.strangers import clean, normalized, one_line
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)

PRIORITY: Final = 500
"""Default priority of a document: in the middle."""

HIDDEN_TOLERATED: Final = 10
"""Unseen characters that are removed without a finding: text from the web has a few; more are put there."""

_IMPORT: Final = pattern(r"@([\w./~-]+)[ \t]*")
"""A line that has an agent read another file in its place."""

IMPORTS_DEPTH: Final = 5
"""Files through which an import leads to further ones, as in Claude Code."""

_WORD: Final = pattern(r"[^\W_]+")

Parsed: TypeAlias = tuple[list[Document], list[Finding], SkillPlace | None]
"""The documents of a file, findings about it, and the skill that hosts get whole."""


class Loaded(Struct, frozen=True):
    """The result of reading all folders once."""

    documents: tuple[Document, ...]
    """Rules before references; within a kind by priority, lowest number first, then by name."""
    findings: tuple[Finding, ...]
    paths: tuple[str, ...] = ()
    """Every folder and file that was looked into: where a change can be."""
    skills: tuple[SkillPlace, ...] = ()
    """Where the skills are that hosts get whole, in the order of folders and paths."""
    parsed: Mapping[bytes, Parsed] = field(default_factory=dict)
    """Every file that was read, by a hash of its content and its folder's settings."""


def load_documents(
    folders: Sequence[DocumentsConfig], limits: Limits, known: Mapping[bytes, Parsed] | None = None
) -> Loaded:
    """Read all folders. Blocks: call it in a worker thread. Every problem becomes a finding.

    Of several documents of one kind and name the first keeps it, in the order of folders and paths. Files
    that are ``known`` from an earlier call (`Loaded.parsed`) are not parsed again.
    """
    allowance = Allowance(files=limits.documents, file_bytes=limits.document_bytes)
    known = known or {}
    parsed: dict[bytes, Parsed] = {}
    by_name: dict[tuple[Kind, str], Document] = {}
    claims = _Claims()
    findings: list[Finding] = []
    paths: list[str] = []
    skills: list[SkillPlace] = []
    entries = Counter(path.name for path in {folder.path for folder in folders})
    covered = {folder.path.absolute() for folder in folders}
    for folder, label in zip(folders, _labels([folder.path for folder in folders]), strict=True):
        reader, before = FolderReader(folder.path, allowance), allowance.files
        others = _of_others(folder.path.absolute(), covered)
        if left := _left_by_link(folder):
            findings.append(Finding(folder.path, None, f"left out: a link leads out of {left}"))
        for file in () if left else reader.files():
            if format_of(file.relative) is Format.AGENTS:
                imports = _Imports(file, reader, covered)
                findings.extend(imports.findings)
                if imports.lines and not imports.text.strip():
                    continue
                file = imports.file  # noqa: PLW2901
            place = repr((folder.kind, folder.include, folder.path, file.path, folder.roots, others)).encode()
            key = hashlib.sha256(place + file.data).digest()
            documents, own_findings, skill = parsed[key] = known.get(key) or _parse(file, folder, others)
            findings.extend(own_findings)
            skills.extend([] if skill is None else [skill])
            room = limits.documents - len(by_name)
            if len(documents) > room:
                message = f"only {room} of its {len(documents)} sections fit into the limit 'documents'"
                findings.append(Finding(file.path, None, message))
            # Two files of one name, each configured, are of two projects, and neither is the plain one.
            is_shared = folder.path == file.path and entries[folder.path.name] > 1
            named, message = claims.named(documents[:room], file, label, is_shared=is_shared)
            by_name |= {(document.kind, document.name): document for document in named}
            if message:
                findings.append(Finding(file.path, None, message))
        if before == allowance.files and not (left or reader.findings):
            message = f"no file in it is markdown ({', '.join(SUFFIXES)}); give each that you want an entry"
            findings.append(Finding(folder.path, None, message))
        findings.extend(reader.findings)
        paths.extend(map(str, reader.paths or [folder.path]))
    ordered = sorted(
        by_name.values(),
        key=lambda document: (document.kind is not Kind.RULE, document.priority, document.name),
    )
    return Loaded(tuple(ordered), tuple(findings), tuple(paths), tuple(skills), parsed)


def _left_by_link(folder: DocumentsConfig) -> Path | None:
    """Return the project that a path within it leads out of: its author may have put a link there."""
    projects = [*folder.roots]
    with suppress(OSError):
        projects += [Path.cwd()] if folder.cwd else []
    path, real = Path(os.path.normpath(folder.path)), Path(os.path.realpath(folder.path))
    within = (one for one in projects if path.is_relative_to(os.path.normpath(one)))
    return next((one for one in within if not real.is_relative_to(os.path.realpath(one))), None)


def _of_others(path: Path, paths: Iterable[Path]) -> tuple[str, ...]:
    """Return patterns that leave out files of packages beside the one whose hidden folder a path is in.

    Rules in the home directory are for every package.
    """

    def package(one: Path) -> Path | None:
        hidden = [at for at, part in enumerate(one.parts) if part.startswith(".")]
        return Path(*one.parts[: hidden[-1]]) if hidden else None

    own = package(path)
    if own is None or own == Path("~").expanduser():
        return ()
    packages = sorted({found for one in paths if (found := package(one)) is not None})
    beside = (one for one in packages if not (own.is_relative_to(one) or one.is_relative_to(own)))
    names = ("/".join(one.parts[-2:]).lstrip("/") for one in beside)
    # In another copy of a project, a package has the name of one here; some names would be patterns.
    return tuple(
        f"!{name}/**"
        for name in names
        if f"/{name}/" not in f"{own.as_posix()}/" and not set("*?[]{}").intersection(name)
    )


def _labels(paths: Sequence[Path]) -> list[str]:
    """Return the name of each folder, after the names of those above it where other folders have that name.

    For a file it is that of the folder that it is in.
    """
    files = (path.suffix.lower() in SUFFIXES or format_of(path.name) is Format.AGENTS for path in paths)
    folders = [path.parent if is_file else path for path, is_file in zip(paths, files, strict=True)]
    parts = [folder.absolute().parts[1:] or ("root",) for folder in folders]
    distinct, labels = set(parts), []
    for own in parts:
        size = 1
        while size < len(own) and sum(other[-size:] == own[-size:] for other in distinct) > 1:
            size += 1
        name = "/".join(own[-size:]).encode("utf-8", "replace").decode()
        labels.append(normalized("NFC", one_line(name)) or "documents")
    return labels


class _Claims:
    """The names that documents have got, with the files that they come from."""

    def __init__(self) -> None:
        self._names: dict[tuple[Kind, str], Path] = {}
        self._full_names: set[tuple[Kind, str]] = set()
        self._files: set[tuple[Kind, Path]] = set()

    def named(
        self, documents: Sequence[Document], file: MarkdownFile, label: str, *, is_shared: bool = False
    ) -> tuple[list[Document], str]:
        """Return the documents of a file under names that are free, and a message for a person, if any.

        All of them get the same prefix: a section belongs to its file. With a shared name each file has one.
        """
        if not documents:
            return [], ""
        kind, path = documents[0].kind, file.path.absolute()
        if (kind, path) in self._files:
            return [], f"left out: it is read as a {kind} of another folder already"
        self._files.add((kind, path))
        message = ""
        prefixes = ("", f"{label}/", f"{label}/{one_line(file.relative)}/")
        for prefix in prefixes[is_shared:]:
            named = [_renamed(document, prefix, label) for document in documents]
            names = [(kind, document.name) for document in named]
            taken = [self._names[name] for name in names if name in self._names]
            if not taken and not (prefix and self._full_names.intersection(names)):
                self._names |= dict.fromkeys(names, path)
                self._full_names |= {(kind, document.full_name or document.name) for document in named}
                return named, message and f"served as {named[0].name!r}: {message}"
            if taken and taken[0].parent == path.parent:
                message = f"{taken[0]} is a {kind} named {documents[0].name!r} as well; rename one"
        return [], f"left out: {message or 'its names are those of other documents; rename it'}"


def _renamed(document: Document, prefix: str, label: str) -> Document:
    """Return a document under its name with a prefix, or else with the one that it is known by as well."""
    if not prefix:
        return replace(document, full_name=f"{label}/{document.name}")
    name = f"{prefix}{document.name}"
    fingerprint = hashlib.sha256(f"{document.fingerprint} {name}".encode()).hexdigest()
    return replace(document, name=name, fingerprint=fingerprint)


def _parse(file: MarkdownFile, folder: DocumentsConfig, others: tuple[str, ...]) -> Parsed:
    def unusable(line: int | None, message: str) -> Parsed:
        return [], [Finding(file.path, line, f"left out: {message}")], None

    form = format_of(file.relative)
    try:
        raw = _decoded(file.data)
    except UnicodeDecodeError as error:
        line = file.data.count(b"\n", 0, error.start) + 1
        return unusable(line, "it is not UTF-8; save it as UTF-8")
    text = clean(raw)
    front = read_front_matter(text, form)
    is_rule = form is Format.CURSOR or (form is Format.MARKDOWN and front.is_rule)
    kind = Kind(folder.kind or (Kind.RULE if is_rule else Kind.REFERENCE))
    name = front.name
    if name is None:
        name = default_name(file.relative, file.path.absolute().parent.name)
        if not is_utf8(name):
            return unusable(None, "its file name is not UTF-8; rename it")
        name = one_line(name) or "document"
    body = front.body.strip()
    description = _titled(front.title or "", front.description or overview(body))
    if told := patterns_text(front.patterns):
        description = f"{description} (for files: {told})".lstrip()
    patterns = front.patterns and (*front.patterns, *others)
    parts, undivided = [(name, description, body)], 0
    # A rule is followed as a whole; a reference for agents is looked up by its sections.
    if form is Format.AGENTS and kind is Kind.REFERENCE:
        sections, undivided = _sections(name, body, front)
        parts = sections or parts
    if not any(description or part for _, description, part in parts):
        return unusable(None, "it has no text")
    include = front.include or folder.include or IncludeMode.AGENT
    priority = PRIORITY if front.priority is None else front.priority
    skill = _skill_folder(file, folder) if form is Format.SKILL else None
    documents = list[Document]()
    for name, description, part in parts:
        facts = (kind, normalized("NFC", name), description, part)
        # As a JSON array, in which no two different lists look alike.
        identity = json.dumps((*facts, include, priority, front.tags, *patterns), ensure_ascii=True)
        fingerprint = hashlib.sha256(identity.encode()).hexdigest()
        bound = tuple(map(str, folder.roots))
        more = (include, priority, front.tags, skill)
        documents.append(Document(*facts, fingerprint, *more, roots=bound, patterns=patterns))
    longest, hidden = max(len(one.text) for one in documents), len(raw) - len(text)
    problems, place = [*front.problems, *_problems(form, front, undivided, longest, hidden)], None
    if form is Format.SKILL:
        try:
            place = place_of(folder.path, file)
        except UnfitError as error:
            if not problems:  # or else that one is to be mended first
                problems.append((None, f"hosts get it as a reference and not as a skill: {error}"))
    return documents, [Finding(file.path, *problem) for problem in problems], place


def _problems(
    form: Format, front: FrontMatter, undivided: int, longest: int, hidden: int
) -> Iterator[Problem]:
    """Yield remarks on a usable file: sections left together, characters of a document, those removed."""
    if form is Format.SKILL and not front.description:
        yield 1, "the front matter of a skill needs a 'description'; its first words are used"
    if undivided:
        yield None, f"it has over {SECTIONS_LIMIT} sections; {undivided} more are left in the last one"
    if longest > SEARCHED_CHARACTERS:
        yield None, f"search looks at its first {SEARCHED_CHARACTERS:,} characters; divide it"
    if hidden > HIDDEN_TOLERATED:
        yield None, f"{hidden} control or unseen characters were removed; check where they come from"


def _decoded(data: bytes) -> str:
    """Return the text of a file with plain line ends; raises `UnicodeDecodeError`."""
    # Editors of Windows write UTF-16, which its byte order mark tells.
    is_utf16 = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    text = data.decode("utf-16" if is_utf16 else "utf-8-sig")
    return text.replace("\r\n", "\n").replace("\r", "\n")


class _Imports:
    """The imports of a file for coding agents: lines such as ``@AGENTS.md``.

    A file of an entry of its own has the text of what it imports from its folder. What another entry covers
    is read there, and anything else becomes a finding: a file must not have others read that nobody named.
    """

    def __init__(self, file: MarkdownFile, reader: FolderReader, covered: Set[Path]) -> None:
        self._reader, self._covered = reader, covered
        self._seen = {os.path.abspath(file.path)}  # noqa: PTH100 - `..` is taken out, no link is followed
        self.findings: list[Finding] = []
        self.file, self.text, self.lines = file, "", 0
        try:
            self.text = self._expanded(_decoded(file.data), file.path, 0)
        except UnicodeDecodeError:
            return
        if self.lines:
            self.file = replace(file, data=self.text.encode("utf-8", "replace"))

    def _expanded(self, text: str, path: Path, depth: int) -> str:
        lines = []
        for number, (line, code) in enumerate(with_code_marked(text), 1):
            match = None if code else _IMPORT.fullmatch(line)
            lines.append(line if match is None else self._imported(match[1], path, number, depth))
        return "\n".join(lines)

    def _imported(self, name: str, path: Path, line: int, depth: int) -> str:
        """Return the text that stands in place of an import."""
        self.lines += 1
        target = os.path.abspath(path.parent / os.path.expanduser(name))  # noqa: PTH100, PTH111 - for any name
        if target in self._seen:
            return ""
        self._seen.add(target)
        above = Path(target)
        if not self._covered.isdisjoint((above, *above.parents)):
            return ""
        if depth < IMPORTS_DEPTH and (data := self._reader.beside(above)) is not None:
            try:
                return self._expanded(read_front_matter(_decoded(data)).body, above, depth + 1)
            except UnicodeDecodeError:
                pass
        reason = f"{one_line(name)} is not imported; give it an entry of its own"
        self.findings.append(Finding(path, line, reason))
        return ""


def _titled(title: str, description: str) -> str:
    """Return a description that has the title of its document, which search would not know otherwise."""
    told, said = (_WORD.findall(text.casefold()) for text in (title, description))
    if {*told} <= {*said}:
        return description
    # A heading such as "RefundPolicy" is the title without its spaces.
    is_same = not said or "".join(told) == "".join(said)
    return title if is_same else shorten(f"{title}: {description}", DESCRIPTION_LIMIT)


def _skill_folder(file: MarkdownFile, folder: DocumentsConfig) -> SkillFolder:
    if folder.path.suffix.lower() in SUFFIXES:
        return SkillFolder(folder.path.absolute().parent, ())
    return SkillFolder(folder.path.absolute(), PurePosixPath(file.relative).parent.parts)


def _sections(whole: str, body: str, front: FrontMatter) -> tuple[list[tuple[str, str, str]], int]:
    """Return name, description and text of each section with a text, and the headings beyond the limit."""
    parts: list[tuple[str, str, str]] = []
    names: Counter[str] = Counter()
    sections, undivided = divide(body)
    for section in sections:
        if not section.body:
            continue
        name = shorten(one_line("/".join((whole, *section.path))), NAME_LIMIT)
        names[name] += 1
        if names[name] > 1:
            name = f"{name} ({names[name]})"
        description = overview(section.body) or one_line(section.path[-1] if section.path else whole)
        if not section.path and front.description:
            description = front.description
        parts.append((name, description, f"{section.heading}\n\n{section.body}".strip()))
    return parts, undivided


FINDINGS_LOGGED: Final = 20
"""Findings logged at one reload; the others are kept, and counted in the log."""

LOOK_SECONDS: Final = 1.0
"""Time between two looks at the files, which takes as long as they are many."""

PAUSE_FACTOR: Final = 3.0
"""Pause after a reload, times the processor time that it took: a file that grows all the time must not have
thousands of others read all the time. Its waits for others do not count."""

_KEYS: Final = {kind: f"{kind}s" for kind in Kind if kind in DOCUMENT_KINDS}
"""Key of the documents of each kind among the sources of a snapshot."""


class DocumentChanges(Struct, frozen=True):
    """Documents that a reload changed, by URI, sorted; false when there are none."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class DocumentLibrary:
    """Owns the documents of the configured folders. Empty until the first reload."""

    def __init__(self, folders: Sequence[DocumentsConfig], limits: Limits) -> None:
        self.folders = tuple(folders)
        self._limits = limits
        self._reloading = threading.Lock()
        self.loaded = Loaded((), ())
        """The documents, findings and folders of the last reload."""
        self.unread = bool(folders)
        """True until the folders were read once."""
        self.sources = tuple(Source(key, ()) for key in _KEYS.values())
        """One source for the rules, one for the references; the same objects until their documents change."""

    def configure(self, folders: Sequence[DocumentsConfig], limits: Limits) -> None:
        """Change folders and bounds, from the next reload on."""
        with self._reloading:
            self.folders, self._limits = tuple(folders), limits

    def reload(self) -> DocumentChanges:
        """Read all folders again and publish their documents. Blocks: call it in a worker thread."""
        with self._reloading:
            loaded = load_documents(self.folders, self._limits, self.loaded.parsed)
            changes = _changes(self.loaded.documents, loaded.documents)
            known = set(self.loaded.findings)
            new = [finding for finding in loaded.findings if finding not in known]
            for finding in new[:FINDINGS_LOGGED]:
                logger.warning("%s", finding)
            if len(new) > FINDINGS_LOGGED:
                logger.warning("and %d more findings about documents", len(new) - FINDINGS_LOGGED)
            if changes:
                by_kind = [tuple(item for item in loaded.documents if item.kind is kind) for kind in _KEYS]
                self.sources = tuple(
                    source if items == source.items else Source(source.key, items)
                    for source, items in zip(self.sources, by_kind, strict=True)
                )
            self.loaded, self.unread = loaded, False
            return changes


def _changes(before: Iterable[Document], after: Iterable[Document]) -> DocumentChanges:
    # By name, as the URIs of thousands of documents take longer than all the rest.
    old, new = ({(one.kind, one.name): one.fingerprint for one in these} for these in (before, after))
    changed = (name for name in new.keys() & old.keys() if new[name] != old[name])
    sets = (new.keys() - old.keys(), old.keys() - new.keys(), changed)
    return DocumentChanges(*(tuple(sorted(uri_of(*name) for name in names)) for names in sets))


OnChange: TypeAlias = Callable[[DocumentChanges], Awaitable[None]]


async def watch(library: DocumentLibrary, on_change: OnChange) -> None:
    """Reload the library whenever its files change, and report changed documents. Runs until cancelled."""
    if not library.folders:
        return

    def reloaded() -> tuple[DocumentChanges, float]:
        began = time.thread_time()
        return library.reload(), time.thread_time() - began

    async for _ in changes(partial(_marks, library), LOOK_SECONDS):
        try:
            changed, took = await in_thread(reloaded)
            if changed:
                await on_change(changed)
            await anyio.sleep(PAUSE_FACTOR * took)
        except Exception:  # boundary: one failed reload or callback; the next change is a new try
            logger.exception("rules and references could not be reloaded")


def _marks(library: DocumentLibrary) -> int:
    """Return a hash of the identities of everything that is configured or was read."""
    configured = (str(folder.path) for folder in library.folders)
    return hash(tuple(map(mark_of, (*configured, *library.loaded.paths))))
