"""Skills for hosts (SEP-2640): those of the downstream servers, and the user's own.

A file of a server's skill is passed on byte for byte, but only if it matches the manifest of the skill,
under whichever of its two URIs it is read: that of hosts, or that of its server. Any other content is refused
and becomes a finding. An entry that a host has asked for anew replaces the listed one until the server lists
its skills again.
"""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from mcp_context_proxy.catalog.catalog import Catalog
from mcp_context_proxy.catalog.definitions import UnfitError, fit
from mcp_context_proxy.catalog.documents import DocumentLibrary
from mcp_context_proxy.catalog.files import SUFFIXES
from mcp_context_proxy.catalog.skills import (
    MANIFEST,
    REASON_CHARACTERS,
    SkillPlace,
    UnverifiedError,
    check_content,
    check_listed,
    entry_of,
    own_roots,
    own_skill,
    own_skills,
    parse_skill,
    read_own_file,
)
from mcp_context_proxy.catalog.uri_owners import OWN_SKILLS, SKILL_SCHEME
from mcp_context_proxy.config import Limits
from mcp_context_proxy.downstream.client import DownstreamClient
from mcp_context_proxy.downstream.fleet import Fleet
from mcp_context_proxy.items import Skill, Snapshot
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import INTERNAL_ERROR, INVALID_PARAMS, Members, RequestError
from mcp_context_proxy.protocol.eras import OWN_PREFIX, RESOURCE_NOT_FOUND, SERVER_KEY, SKILLS_EXTENSION, Era
from mcp_context_proxy.protocol.strangers import one_line
from mcp_context_proxy.server import Caller
from mcp_context_proxy.server.forwarding import Forwarder, downstream_errors
from mcp_context_proxy.server.tools_list import encoded_list
from mcp_context_proxy.system.threads import in_thread, keep_latest
from mcp_context_proxy.trust import ACTING, reaches

FOLDER_TYPE: Final = "inode/directory"
MARKDOWN: Final = "text/markdown"
DIRECTORY_READ: Final = "resources/directory/read"

ENTRIES_HELD: Final = 256
"""Entries that hosts asked for one by one, which are kept beside the listed ones."""

CHILDREN, PAGES = 1_000, 20
"""Entries of a folder of a dynamic skill that are passed on, and the pages that are asked for."""


class Skills(Struct, frozen=True, kw_only=True, eq=False):
    """Answers ``skills/list``, ``skills/get`` and ``resources/directory/read``, and reads files of skills."""

    catalog: Catalog
    library: DocumentLibrary
    fleet: Fleet
    forwarder: Forwarder
    _held: OrderedDict[str, tuple[object, Skill]] = field(default_factory=OrderedDict)
    """Entries that hosts asked for, by URI, each with the listing that was current then."""

    async def list(self, params: Members, caller: Caller) -> Members:
        """Return the result of ``skills/list``: the user's own skills, then those of the servers."""
        places = self._places()
        own = await in_thread(lambda: list(own_skills(places))) if places else []
        return {"skills": await encoded_list((), entry_of, [*own, *self.catalog.snapshot.skills.values()])}

    async def get(self, params: Members, caller: Caller) -> bytes:
        """Return the result of ``skills/get``; a server is asked anew, also for a skill it does not list."""
        uri = envelope.text(params["uri"]) or ""
        owner = skill_owner(uri)
        if owner == OWN_SKILLS:
            skill = await self._own(uri.removesuffix(f"/{MANIFEST}"))
            if skill is None or skill.uri != uri:
                raise _no_skill(uri)
        else:
            client = self._serving(owner)
            if client is None or not uri.endswith(f"/{MANIFEST}"):
                raise _no_skill(uri)
            skill = await self._fetch(client, uri, params, caller)
        result = envelope.encode({"skill": entry_of(skill)})
        return eras.fit_result_to_client("skills/get", result, caller.era)

    async def _fetch(self, client: DownstreamClient, uri: str, params: Members, caller: Caller) -> Skill:
        known = self._current(uri)
        path = uri.removeprefix(f"{SKILL_SCHEME}{client.name}/")
        source = SKILL_SCHEME + path if known is None else known.source
        sent, judge = {**params, "uri": envelope.raw(source)}, self._judge(client, _no_skill(uri))
        with downstream_errors(caller.era):
            result = await self.forwarder.forward(client, "skills/get", sent, caller, f"skill {uri!r}", judge)
        try:
            skill = parse_skill(client.name, bytes(envelope.members(result).get("skill", Raw(b"null"))))
            if skill.source != source:
                raise UnfitError("it is the entry of another skill")
        except UnfitError as error:
            why = one_line(str(error), REASON_CHARACTERS)
            text = f"server {client.name!r}: its entry of {uri!r} is refused: {why}"
            raise RequestError(INTERNAL_ERROR, text, {"server": client.name}) from None
        keep_latest(self._held, uri, (client.listing.skills, skill), ENTRIES_HELD)
        return skill

    async def directory(self, params: Members, caller: Caller) -> Members:
        """Return the result of ``resources/directory/read``: the entries directly in a folder of a skill."""
        uri = envelope.text(params["uri"]) or ""
        skills = [await self._own_around(uri)] if skill_owner(uri) == OWN_SKILLS else [*self._around(uri)]
        children: dict[str, dict[str, Any]] = {}
        for skill in skills:
            if skill is None:
                continue
            if skill.files is None:
                return await self._dynamic_directory(skill, uri, params, caller)
            for file in skill.files.values():
                name, slash, _ = file.uri.removeprefix(f"{uri}/").partition("/")
                if not file.uri.startswith(f"{uri}/"):
                    continue
                child = {
                    "uri": f"{uri}/{name}",
                    "name": name,
                    "mimeType": FOLDER_TYPE if slash else _type_of(name),
                }
                if file.uri == skill.uri:
                    child |= {"name": skill.name, "description": skill.description}
                children.setdefault(child["uri"], child if slash else child | {"size": file.size})
        if not children:
            raise RequestError(INVALID_PARAMS, f"{uri!r} is not a folder of a skill", {"uri": uri})
        return {"resources": envelope.raw([children[each] for each in sorted(children)])}

    async def _dynamic_directory(self, skill: Skill, uri: str, params: Members, caller: Caller) -> Members:
        """Ask the server for a folder of a dynamic skill, and put its files under the server's name."""
        client = self._serving(skill.owner)
        introduction = None if client is None else client.introduction
        settings = None if introduction is None else introduction.extension(SKILLS_EXTENSION)
        if client is None or not settings or settings.get("directoryRead") is not True:
            raise RequestError(INVALID_PARAMS, f"server {skill.owner!r} does not list folders of skills")
        if uri != skill.root:
            try:
                check_listed(skill, uri)
            except UnverifiedError as error:
                raise RequestError(INVALID_PARAMS, f"{uri!r} is not a folder of a skill: {error}") from None
        folder = _source_root(skill) + uri.removeprefix(skill.root)
        sent: Members = {**params, "uri": envelope.raw(folder)}
        children: list[Members] = []
        judge = self._judge(client, _no_skill(uri), skill)
        for _ in range(PAGES):
            with downstream_errors(caller.era):
                result = await self.forwarder.forward(
                    client, DIRECTORY_READ, sent, caller, f"folder {uri!r}", judge
                )
            page = envelope.members(result)
            children += _children(page, folder, uri, client.limits)
            cursor = page.get("nextCursor")
            if cursor is None or len(children) >= CHILDREN:
                break
            sent["cursor"] = cursor
        return {"resources": envelope.raw(children[:CHILDREN])}

    async def read(self, uri: str, params: Members, caller: Caller) -> tuple[bytes, str] | None:
        """Return the result of ``resources/read`` of a file of a skill; None if it is not one.

        With it comes the server that gave it; none gave one of the user's own.

        Raises `RequestError` if the file does not exist, or does not match the manifest of its skill.
        """
        owner = skill_owner(uri)
        if owner == OWN_SKILLS:
            return await self._read_own(uri, caller), ""
        around = list(self._around(uri)) if self._serving(owner) is not None else []
        if around:
            source = _source_root(around[0]) + uri.removeprefix(around[0].root)
            return await self._read([(skill, uri) for skill in around], uri, source, params, caller)
        if not (snapshot := self.catalog.snapshot).skills or (found := snapshot.owner_of(uri)) is None:
            return None
        held = [
            (skill, skill.root + uri.removeprefix(_source_root(skill)))
            for skill in self._of(found.server)
            if uri.startswith(f"{_source_root(skill)}/")
        ]
        return await self._read(held, uri, uri, params, caller) if held else None

    async def _read(
        self, held: Sequence[tuple[Skill, str]], uri: str, source: str, params: Members, caller: Caller
    ) -> tuple[bytes, str]:
        """Read a file from its server and check it; return the result with the server.

        ``held`` are the skills with it in their folders, each with the URI of hosts; ``uri`` is the one that
        was asked for, and ``source`` that of the server.
        """
        server = held[0][0].owner
        client = self._serving(server)
        if client is None:
            raise _not_found(uri, caller.era)
        try:
            for skill, each in held:
                check_listed(skill, each)
        except UnverifiedError as error:
            code = eras.error_code(RESOURCE_NOT_FOUND, caller.era)
            advice = "ask skills/get for the current manifest"
            text = f"server {server!r}: {uri!r} of a skill is refused: {error}; {advice}"
            raise RequestError(code, text, {"uri": uri}) from None
        sent = {**params, "uri": envelope.raw(source)}
        judge = self._judge(client, _not_found(uri, caller.era), *(skill for skill, _ in held))
        with downstream_errors(caller.era):
            result = await self.forwarder.read(
                client, "resources/read", sent, caller, f"resource {uri!r}", judge, source
            )
        parts = envelope.members(result)
        if eras.result_type(parts) != "complete":
            return result, server
        try:
            content, data = await in_thread(_content_of, parts)
            for skill, each in held:
                await in_thread(check_content, skill, each, data)
        except UnverifiedError as error:
            client.lists.note_unverified(f"file {uri!r} of a skill is refused: {error}")
            raise RequestError(
                INTERNAL_ERROR,
                f"server {server!r}: file {uri!r} of a skill is refused, nothing of it is given on: {error}. "
                "Ask skills/get for the current manifest; if that changes nothing, the server is at fault.",
                {"server": server, "uri": uri},
            ) from None
        meta = {key: raw for key, raw in eras.meta_of(content).items() if not key.startswith(OWN_PREFIX)}
        content |= {"uri": envelope.raw(uri), "_meta": envelope.raw({**meta, SERVER_KEY: server})}
        if uri.endswith(f"/{MANIFEST}"):
            content["mimeType"] = envelope.raw(MARKDOWN)
        return envelope.encode({**parts, "contents": [content]}), server

    async def _read_own(self, uri: str, caller: Caller) -> bytes:
        roots = own_roots(self._places())
        root = max((root for root in roots if uri.startswith(f"{root}/")), key=len, default=None)
        if root is None:
            raise _not_found(uri, caller.era)
        try:
            data = await in_thread(read_own_file, root, roots[root], uri)
        except UnfitError as error:
            raise _not_found(uri, caller.era, f": {error}") from None
        content = {"uri": uri, "mimeType": _type_of(uri.rpartition("/")[2])}
        try:
            content["text"] = data.decode()
        except UnicodeDecodeError:
            content["blob"] = base64.b64encode(data).decode()
        result = envelope.encode({"contents": [content]})
        return eras.fit_result_to_client("resources/read", result, caller.era)

    async def _own(self, root: str) -> Skill | None:
        place = own_roots(self._places()).get(root)
        try:
            return None if place is None else await in_thread(own_skill, root, place)
        except UnfitError as error:
            raise RequestError(INVALID_PARAMS, f"the skill at {root!r} cannot be served: {error}") from None

    async def _own_around(self, uri: str) -> Skill | None:
        """Return the user's own skill whose folder this is, or is within; the outer one of nested skills."""
        roots = own_roots(self._places())
        root = min((root for root in roots if f"{uri}/".startswith(f"{root}/")), key=len, default=None)
        return None if root is None else await self._own(root)

    def _places(self) -> Sequence[SkillPlace]:
        """Return the places of the user's own skills, those that the principal gets for whom this is done."""
        places = self.library.loaded.skills
        if not places or not ACTING.get().limited:
            return places
        folders = (one.folder for one in self.catalog.snapshot.documents.values() if not one.server)
        seen = {(folder.root, folder.parts) for folder in folders if folder is not None}
        return [place for place in places if (_folder_of(place.root), place.below) in seen]

    def sources(self, snapshot: Snapshot) -> frozenset[tuple[str, str]]:
        """Return server and URI of all files that are listed with the skills of their servers."""
        return frozenset(
            (skill.owner, file.source)
            for skill in snapshot.skills.values()
            for file in (skill.files or {}).values()
        )

    def _serving(self, server: str) -> DownstreamClient | None:
        client = self.fleet.clients.get(server) if reaches(server) else None
        if client is None or client.introduction is None:
            return None
        return client if client.introduction.extension(SKILLS_EXTENSION) is not None else None

    def _judge(self, client: DownstreamClient, gone: RequestError, *skills: Skill) -> Callable[[], None]:
        """Return a function that raises an error if a server, or a skill of it, may not be read any more."""

        def judge() -> None:
            served = all(self._current(skill.uri) is not None for skill in skills)
            if self._serving(client.name) is not client or not served:
                raise gone

        return judge

    def _current(self, uri: str) -> Skill | None:
        """Return the listed entry of a skill, or the one that was asked for since it was listed."""
        listed, held = self.catalog.snapshot.skills.get(uri), self._held.get(uri)
        if held is None:
            return listed
        client = self.fleet.clients.get(held[1].owner)
        return held[1] if client is not None and client.listing.skills is held[0] else listed

    def _of(self, server: str) -> Iterator[Skill]:
        if not reaches(server):
            return iter(())
        uris = dict.fromkeys((*self.catalog.snapshot.skills, *self._held))
        current = (self._current(uri) for uri in uris if skill_owner(uri) == server)
        return (skill for skill in current if skill is not None)

    def _around(self, uri: str) -> Iterator[Skill]:
        """Yield the skills of servers whose folder this is, or in whose folder it is."""
        return (skill for skill in self._of(skill_owner(uri)) if f"{uri}/".startswith(f"{skill.root}/"))


def _folder_of(root: Path) -> Path:
    """Return a configured folder, or that of a configured file, as documents name it."""
    return root.absolute().parent if root.suffix.lower() in SUFFIXES else root.absolute()


def skill_owner(uri: str) -> str:
    """Return the first part of a skill's URI: a server, or the word for the user's own folders."""
    return uri.removeprefix(SKILL_SCHEME).partition("/")[0] if uri.startswith(SKILL_SCHEME) else ""


def _source_root(skill: Skill) -> str:
    """Return the URI of a skill's folder as its server has it."""
    return skill.source.rpartition("/")[0]


def _content_of(result: Members) -> tuple[Members, bytes]:
    """Return the one content of a result, and the bytes of the file in it.

    Raises `UnverifiedError` if there is none, or more than one.
    """
    try:
        (content,) = map(envelope.members, envelope.elements(result.get("contents", Raw(b"[]"))))
        if (text := envelope.text(content.get("text"))) is not None:
            return content, text.encode("utf-8", "surrogatepass")
        return content, base64.b64decode(envelope.text(content["blob"]) or "", validate=True)
    except (msgspec.DecodeError, ValueError, KeyError, binascii.Error):
        raise UnverifiedError("the answer is not the content of one file") from None


def _children(page: Members, folder: str, uri: str, limits: Limits) -> Iterator[Members]:
    """Yield the entries directly in a server's ``folder``, with the URIs of hosts, who call that ``uri``."""
    try:
        entries = envelope.elements(page.get("resources", Raw(b"[]")))[:CHILDREN]
    except msgspec.DecodeError:
        return
    for entry in entries:
        try:
            members = envelope.members(fit(bytes(entry), limits)[0])
        except (UnfitError, ValueError):
            continue
        name = (envelope.text(members.get("uri")) or "").removeprefix(f"{folder}/")
        if _is_plain(name):
            yield {**members, "uri": envelope.raw(f"{uri}/{name}")}


def _type_of(name: str) -> str:
    return mimetypes.guess_type(name)[0] or ("text/plain" if "." not in name else "application/octet-stream")


def _is_plain(name: str) -> bool:
    return name not in ("", ".", "..") and name.isprintable() and not set(name) & set("/\\?#%")


def _no_skill(uri: str) -> RequestError:
    return RequestError(
        INVALID_PARAMS, f"no skill is served at {uri!r}; skills/list names them", {"uri": uri}
    )


def _not_found(uri: str, era: Era, reason: str = "") -> RequestError:
    code = eras.error_code(RESOURCE_NOT_FOUND, era)
    return RequestError(code, f"unknown resource {uri!r}{reason}", {"uri": uri})
