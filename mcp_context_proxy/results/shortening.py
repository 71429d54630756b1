"""Shortens results that are too large for a model, and sends only once anything that a result says twice.

A result is measured by its bytes before anything of it is decoded, and is taken apart in a worker thread
only if it is over its limit. Texts, also those of embedded resources, and structured content are shortened:
JSON to its first elements and its shape, other text to its beginning and its end. A note says how much there
is, and how to read it. Everything else in the result stays as it came: images, links, `isError`, `_meta`.

Structured content of a tool that declares an output schema has to fit it, because clients check it. It is
shortened only where a copy with the same members and types does, and a member may be added for the note.
Elsewhere it is left out of a shortened result, since many hosts show a model nothing else (`content` says the
same); see docs/results.md.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable
from functools import lru_cache
from itertools import accumulate
from typing import Final

import msgspec
from msgspec import Raw, Struct

from mcp_context_proxy.config import ResultsConfig, ServerConfig
from mcp_context_proxy.config.host_profiles import HostProfile, host_named
from mcp_context_proxy.items import Tool
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members
from mcp_context_proxy.protocol.strangers import bounded
from mcp_context_proxy.results import FAILED, ending_of, json_values
from mcp_context_proxy.results.json_values import NoSmallerCopyError, character_start, cut
from mcp_context_proxy.results.result_store import PAGE_BYTES, KeptResults, KeptText, line_count, new_id
from mcp_context_proxy.system.later import pattern
from mcp_context_proxy.system.threads import in_thread, in_thread_if

logger = logging.getLogger(__name__)

READ_RESULT: Final = "read_result"
"""The meta tool that reads what was left out."""

WHOLE_KEY: Final = eras.OWN_PREFIX + "whole"
"""``_meta`` key with which a caller asks for a whole result, of whatever size: ``true``."""

BYTES_PER_TOKEN: Final = 4
"""Bytes in a token, about: results are measured before they are decoded."""

SMALL_BYTES: Final = 4_000
"""Size up to which no result is shortened: what would be saved is not worth a second call."""

HOST_PERCENT: Final = 90
"""Part of the length that a host keeps which is filled, at most."""

SHARE: Final = 10
"""A shortened text has one part in so many of the whole."""

LEAST_EXCERPT_BYTES: Final = 2_000
MOST_EXCERPT_BYTES: Final = 8_000
"""Size of a shortened text with its note: enough to see what it is, and at most what a page of it costs."""

NOTE_BYTES: Final = 600
"""Room for the note in it."""

BLOCK_BYTES: Final = 400
"""Least room for each of several texts; further ones are left out."""

FRAME_BYTES: Final = 40
"""Size of a block of text without the text, which most have."""

COMPARED_BYTES: Final = 1024 * 1024
"""Size up to which the two forms of a result are compared by their values, if not the same byte for byte."""

COMPARED_AT_ONCE: Final = 64 * 1024
"""Size up to which they are compared without a worker thread: a millisecond."""

NOTE_MEMBER: Final = "shortened"
"""Member that is added to shortened structured content."""

_DEMANDING: Final = pattern(
    rb'"(?:min(?:Items|Properties|Length|Contains)|pattern|format|contains|const|not|if|oneOf|prefixItems)"\s*:'
)
"""Keywords by which a schema may refuse fewer elements or shorter texts. Schemas are searched for words, and
never resolved; a property of such a name only keeps a result whole."""

_CLOSED: Final = pattern(rb'"(?:additional|unevaluated)Properties"\s*:\s*(?!true)')
"""Keywords by which a schema may refuse a further member."""

POINTER: Final = "The result is in the structured content."

_canonical = msgspec.json.Encoder(order="deterministic").encode

REMEMBERED_BYTES: Final = 500
"""Size of an introduction whose host is remembered; those of known hosts have some 60 bytes."""


def host_of(client_info: Raw | None) -> HostProfile | None:
    """Return the host that a client says it is; None if it is not known."""
    if client_info is None:
        return None
    introduction = bytes(client_info)
    return (_known_host if len(introduction) <= REMEMBERED_BYTES else _host_in)(introduction)


def _host_in(introduction: bytes) -> HostProfile | None:
    return host_named(eras.name_of(Raw(introduction)) or "")


_known_host: Final = lru_cache(maxsize=64)(_host_in)
"""Remembers hosts, since each result over `SMALL_BYTES` asks for that of its client."""


def bytes_kept_by(host: HostProfile | None) -> int | None:
    """Return how many bytes of our result a host gives to its model; None if no limit is known.

    Some of what it counts is not ours: marks of untrusted texts, and JSON around the texts.
    """
    limit = None if host is None else host.results.value
    return None if limit is None else limit.characters * HOST_PERCENT // 100


class Call(Struct, frozen=True, kw_only=True):
    """Facts of a call that decide about its result."""

    tool: Tool
    server: ServerConfig
    params: Members
    """The params of the request."""
    client_info: Raw | None
    owner: str
    """Key of the session or the principal that may read the whole."""
    direct: bool
    """True if the client called the tool by its own name, and so may check the result against its schema."""


class LargeResults(Struct, eq=False):
    """Shortens results, and keeps them whole."""

    config: ResultsConfig
    kept: KeptResults

    async def fitted(self, call: Call, result: bytes, mark: Callable[[bytes], bytes] | None) -> bytes:
        """Return a result as its caller gets it: whole, or shortened with a note.

        `mark` marks the texts of a server as untrusted; the note is added after it.
        """
        host, wanted = host_of(call.client_info), self.config.duplicates
        most = self._most_bytes(call, host, len(result))
        shows_both = host is not None and host.result.value == "both"
        drops = wanted == "drop" or (wanted == "auto" and shows_both)
        drops = drops and b'"structuredContent"' in result
        if (most is None or len(result) <= most) and not drops:
            return result if mark is None else mark(result)
        schema = _output_schema(call.tool) if call.direct else None
        if drops:
            large = len(result) > COMPARED_AT_ONCE
            result = await in_thread_if(large, without_duplicate, result, schema is not None)
        shortened = None
        if most is not None and len(result) > most:
            shortened = await in_thread(shorten, result, most, schema, self.kept.new_id)
        if shortened is None or not await self._keep(call, shortened):
            return result if mark is None else mark(result)
        return with_note(shortened.result if mark is None else mark(shortened.result), shortened.note)

    def page_bytes(self, client_info: Raw | None) -> int:
        """Return the size of a page for a client: no more than a result may have."""
        limits = [self.config.max_tokens * BYTES_PER_TOKEN, bytes_kept_by(host_of(client_info))]
        return max(SMALL_BYTES, min([PAGE_BYTES, *filter(None, limits)]))

    def _most_bytes(self, call: Call, host: HostProfile | None, size: int) -> int | None:
        """Return the size from which a result of this size is shortened; None for never."""
        own = call.server.results.max_tokens
        tokens = self.config.max_tokens if own is None else own
        if size <= SMALL_BYTES or not tokens:
            return None
        most = call.tool.result_characters
        if not most:
            most = tokens * BYTES_PER_TOKEN
            most = min(most, bytes_kept_by(host) or most)
        if size > most and bytes(eras.meta_of(call.params).get(WHOLE_KEY, b"")) == b"true":
            return None
        return max(most, SMALL_BYTES)

    async def _keep(self, call: Call, shortened: Shortened) -> bool:
        """Keep the whole texts; False if there is no room, and the result has to go out whole."""
        try:
            for result_id, text in shortened.texts:
                await self.kept.put(call.owner, result_id, KeptText(text, call.tool.server))
        except OSError as error:
            logger.warning(
                "a result of tool %r of server %r was not shortened, because it cannot be kept: %s",
                call.tool.name,
                call.tool.server,
                error.strerror or error,
            )
            return False
        return True


def _output_schema(tool: Tool) -> Raw | None:
    if b'"outputSchema"' not in tool.definition:
        return None
    return envelope.members(tool.definition).get("outputSchema")


class Shortened(Struct, frozen=True):
    """A shortened result, and the numbers behind it."""

    result: bytes
    """The result without the note at its end."""
    note: str
    texts: tuple[tuple[str, bytes], ...]
    """The whole texts, each with its id."""


def with_note(result: bytes, note: str) -> bytes:
    """Add a text of the proxy itself to the end of a result's content."""
    parts = envelope.members(result)
    blocks = envelope.elements(parts.get("content", b"[]"))
    parts["content"] = envelope.raw([*blocks, {"type": "text", "text": note}])
    return envelope.encode(parts)


class _Text(Struct):
    """A text in the content of a result, and the block that it is in."""

    block: Members
    text: bytes

    @property
    def is_own(self) -> bool:
        """Return whether it is a text of the block, and not the block as it is written."""
        return self.block.keys() != {"type"}

    def with_text(self, text: bytes) -> Raw:
        written = envelope.raw(text.decode())
        if "resource" in self.block:
            resource = {**envelope.members(self.block["resource"]), "text": written}
            return envelope.raw({**self.block, "resource": resource})
        return envelope.raw({**self.block, "text": written})


def _text_of(raw: Raw) -> _Text | None:
    """Return the text of a block; None of one that is data, such as an image.

    What is no block or has too many members is a text as it is written. So is one that has more beside its
    text and data, such as a link: hosts show models some of that.
    """
    block = json_values.members_of(raw)
    holder = json_values.members_of(block["resource"]) if block is not None and "resource" in block else block
    if block is None or holder is None:
        return _Text({"type": Raw(b'"text"')}, (envelope.text(raw) or bytes(raw).decode()).encode())
    text = envelope.text(holder.get("text"))
    data = sum(len(holder.get(key, b"")) for key in ("data", "blob"))
    own = 0 if text is None else len(holder["text"])
    hidden = len(block.get("_meta", b"")) + len(holder.get("_meta", b"")) * (holder is not block)
    plain = FRAME_BYTES if holder is block and text is not None else 0
    if len(raw) - own - data - hidden > max(own, data, plain):
        return _Text({"type": Raw(b'"text"')}, bytes(raw))
    return None if text is None else _Text(block, text.encode())


def shorten(
    result: bytes, most: int, schema: Raw | None, id_of_kept: Callable[[], str] = new_id
) -> Shortened | None:
    """Shorten a result whose texts or structured content have more than `most` bytes; None if none has.

    `schema` is the output schema that the client knows. Blocks.
    """
    parts = json_values.members_of(result)
    if not parts:
        failed = ending_of(result, len(result))[0] is FAILED
        parts = {"content": Raw(result)} | ({"isError": Raw(b"true")} if failed else {})
    content = parts.get("content", Raw(b"[]"))
    blocks = json_values.elements_of(content)
    if blocks is None:
        blocks = [content]
    texts = [_text_of(block) for block in blocks]
    given = [text for text in texts if text is not None]
    structured = parts.get("structuredContent")
    large = sum(len(text.text) for text in given) > most
    large_structured = structured is not None and len(structured) > most
    if not large and not large_structured:
        return None
    same = structured is not None and _is_same(given, structured)
    if same and schema is None:
        large, structured = True, None
        del parts["structuredContent"]
    # Of two that are different a host may show both.
    most //= 1 + (large and large_structured and not same)
    kept: list[tuple[str, bytes]] = []
    notes: list[str] = []
    if large:
        whole = _joined(given)
        kept.append((id_of_kept(), whole))
        shown = _shortened_blocks(texts, _room(len(whole), most))
        left_out = sum(block is not None and not len(block) for block in shown)
        first = f"these are the first {len(given) - left_out:,} of {len(given):,} texts of"
        notes.append(_note(kept[-1][0], whole, first if left_out else "this is a part of"))
        blocks = [old if new is None else new for old, new in zip(blocks, shown, strict=True)]
        blocks = [block for block in blocks if len(block)]
    if large_structured and structured is not None:
        if not (same and kept):
            kept.append((id_of_kept(), bytes(structured)))
            notes.append(_note(*kept[-1], "this is a part of the structured content of"))
        fitting = None if schema is None else _fitting(structured, schema, notes[-1], most)
        if schema is None:
            del parts["structuredContent"]
            excerpted = _excerpt(bytes(structured), _room(len(structured), most))
            blocks.append(envelope.raw({"type": "text", "text": excerpted.decode()}))
        elif fitting is not None:
            parts["structuredContent"] = fitting
        elif not large:
            return None
    parts["content"] = envelope.raw(blocks)
    return Shortened(envelope.encode(parts), "\n".join(notes), tuple(kept))


def _room(size: int, most: int) -> int:
    """Return the size of the excerpt of a text, where it may have `most` bytes with its note."""
    return min(MOST_EXCERPT_BYTES, most, max(LEAST_EXCERPT_BYTES, size // SHARE)) - NOTE_BYTES


def _joined(texts: list[_Text]) -> bytes:
    """Return all texts as one: an array if each is JSON, else one after the other."""
    if len(texts) > 1 and all(json_values.parsed(text.text) is not None for text in texts):
        return b"[" + b",\n".join(text.text for text in texts) + b"]"
    return b"\n".join(text.text for text in texts)


def _shortened_blocks(texts: list[_Text | None], room: int) -> list[Raw | None]:
    """Return the blocks of shortened texts: None for one that stays, empty for one that is left out."""
    sizes = {at: len(text.text) for at, text in enumerate(texts) if text is not None}
    shares: dict[int, int] = {}
    # Of many small ones the first that fit are shown whole; a few large ones share the room.
    ends = list(accumulate(sizes.values()))
    fitting = bisect_right(ends, room)
    first = list(sizes)[: fitting if fitting > 1 else max(1, room // BLOCK_BYTES)]
    for left, at in enumerate(sorted(first, key=lambda at: sizes[at])):
        shares[at] = min(sizes[at], room // (len(first) - left))
        room -= shares[at]
    shown: list[Raw | None] = []
    for at, text in enumerate(texts):
        if text is None or shares.get(at) == sizes[at]:
            shown.append(None)
        else:
            shown.append(text.with_text(_excerpt(text.text, shares[at])) if at in shares else Raw(b""))
    return shown


def _excerpt(text: bytes, most: int) -> bytes:
    """Return the shown part of a text: of JSON a smaller copy and its shape."""
    value = json_values.parsed(text)
    apart = None if value is None else json_values.members_of(value) or json_values.elements_of(value)
    if value is None or apart is None:
        return excerpt(text, most)
    shape = bounded(json_values.shape(value), most // 4)
    copied = json_values.smaller(value, most - len(shape.encode()) - 30, same_types=False)
    return copied + f"\n\nShape of the whole: {shape}".encode()


def _note(result_id: str, whole: bytes, shown: str) -> str:
    """Return how much there is of a result, and how to get it, in the words of the proxy."""
    lines = line_count(whole)
    size = f"{len(whole):,} bytes" + (f" in {lines:,} lines" if lines > 1 else "")
    value = json_values.parsed(whole) or json_values.parsed_rows(whole[: cut(whole, 0, SMALL_BYTES)])
    ways = ["page=1", 'pattern="words"']
    if value is not None:
        ways[1:] = [
            f"a path such as {json_values.example_paths(value)}",
            ways[1],
            "both: the values of the path with these words",
        ]
    return (
        f"[Shortened by the proxy: {shown} the result, about {len(whole) // BYTES_PER_TOKEN:,} tokens "
        f"({size}). Nothing is lost. To read the rest, call {READ_RESULT} (directly, or through call_tool by "
        f'this name) with id="{result_id}" and one of: {", ".join(ways)}.]'
    )


def _fitting(structured: Raw, schema: Raw, note: str, most: int) -> Raw | None:
    """Return a smaller copy of structured content, with the note, that fits its schema, if there is one."""
    if not envelope.starts_with(structured, b"{") or _DEMANDING.search(bytes(schema)):
        return None
    try:
        copied = json_values.smaller(structured, _room(len(structured), most), same_types=True)
    except NoSmallerCopyError:
        return None
    members = envelope.members(copied)
    if NOTE_MEMBER in members or _CLOSED.search(bytes(schema)):
        return None
    return envelope.raw({**members, NOTE_MEMBER: note})


def without_duplicate(result: bytes, declared: bool) -> bytes:
    """Leave out one of the two forms of a result if both say the same.

    With a `declared` output schema the structured content stays, because the client checks it, and the text
    points to it. Else the text stays, which every host shows. Blocks.
    """
    parts = json_values.members_of(result) or {}
    structured = parts.get("structuredContent")
    blocks = json_values.elements_of(parts.get("content", Raw(b"")))
    if structured is None or blocks is None:
        return result
    texts = [_text_of(block) for block in blocks]
    if not _is_same([text for text in texts if text is not None], structured):
        return result
    if declared:
        shown = [
            text.with_text(POINTER.encode())
            if text and text.is_own and len(text.text) > len(POINTER)
            else block
            for block, text in zip(blocks, texts, strict=True)
        ]
        parts["content"] = envelope.raw(shown)
    else:
        del parts["structuredContent"]
    return envelope.encode(parts)


def _is_same(texts: list[_Text], structured: Raw) -> bool:
    """Return whether the only text says the same as the structured content, or as its only member."""
    texts = [text for text in texts if text.is_own]
    if len(texts) != 1 or "resource" in texts[0].block:
        return False
    text, forms = texts[0].text, [structured]
    members = json_values.members_of(structured)
    if members is not None and len(members) == 1:
        # SDKs wrap what is no object, under a name such as ``result`` or ``content``.
        forms += members.values()
    return any(
        (envelope.text(form) or "").encode() == text
        if envelope.starts_with(form, b'"')
        else _is_same_json(text, form)
        for form in forms
    )


def _is_same_json(text: bytes, form: Raw) -> bool:
    value = json_values.parsed(text)
    if value is None:
        return False
    if bytes(value) == msgspec.json.format(bytes(form), indent=-1):
        return True
    if max(len(value), len(form)) > COMPARED_BYTES:
        return False
    try:
        return _canonical(envelope.value(value)) == _canonical(envelope.value(form))
    except (msgspec.DecodeError, RecursionError):
        return False


TAIL: Final = 3
"""Of an excerpt one part in so many is the end of the text, because logs and traces end with what matters."""


def excerpt(text: bytes, most: int) -> bytes:
    """Return the beginning and the end of a text, in about `most` bytes, and the size of the rest."""
    if len(text) <= most:
        return text
    tail = most // TAIL
    head_end = cut(text, 0, most - tail)
    start = character_start(text, len(text) - tail)
    at = text.find(b"\n", start, start + tail // 2)
    tail_start = at + 1 if at >= 0 else start
    lines, size = line_count(text, head_end, tail_start), tail_start - head_end
    left_out = f"[... {lines:,} lines, {size:,} bytes left out here ...]"
    return text[:head_end].rstrip(b"\n") + f"\n{left_out}\n".encode() + text[tail_start:]
