"""Text of strangers costs time in proportion to its length, and keeps nobody else waiting."""

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import islice, permutations
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import msgspec
import pytest
from support.catalogs import tool
from support.growth import costs_more
from support.tables import each

from mcp_context_proxy.catalog import definitions, document_reading, names, skills, uri_owners
from mcp_context_proxy.catalog.definitions import taken_by_models
from mcp_context_proxy.catalog.document_reading import divide, overview
from mcp_context_proxy.catalog.front_matter import Format, read_front_matter
from mcp_context_proxy.config import Config, Limits, ServerConfig, source
from mcp_context_proxy.config.secrets import Redactor, secret_arguments
from mcp_context_proxy.config.tables import matches
from mcp_context_proxy.config.variables import expand
from mcp_context_proxy.context.session import result_text
from mcp_context_proxy.downstream.fleet import redacted
from mcp_context_proxy.downstream.stdio import Output
from mcp_context_proxy.errors import ConfigError, ContextProxyError, nearest_names
from mcp_context_proxy.front import issuer
from mcp_context_proxy.front.issuer import IssuedTokens
from mcp_context_proxy.interactions import agent_named, plain
from mcp_context_proxy.items import IncludeMode, SearchFilters, Tool
from mcp_context_proxy.protocol import (
    envelope,
    has_more_entries,
    headers,
    holds_more,
    strangers,
    without_depths,
)
from mcp_context_proxy.protocol.envelope import MalformedError, RequestError, nests_deeper
from mcp_context_proxy.protocol.framing import EventFramer, LineFramer
from mcp_context_proxy.protocol.strangers import LogFormatter, in_words, unmarked, url_refusal
from mcp_context_proxy.retrieval import forms, links, needs, queries, text
from mcp_context_proxy.retrieval.forms import WordList
from mcp_context_proxy.retrieval.keyword_stuffing import suspicion
from mcp_context_proxy.retrieval.next_steps import CallResult
from mcp_context_proxy.retrieval.reranker import numbers_in
from mcp_context_proxy.server import Profiles, UnknownProfileError
from mcp_context_proxy.server.arguments import DETAIL_OF_MISFIT
from mcp_context_proxy.server.consent import described_arguments
from mcp_context_proxy.server.questions import secret_field
from mcp_context_proxy.server.signatures import ToolSignature
from mcp_context_proxy.trust import THE_USER, verb_of
from mcp_context_proxy.trust.decisions import changed_lines
from mcp_context_proxy.trust.fingerprints import sign_in
from mcp_context_proxy.trust.guard import KnownSecrets, decoded

UNITS = {
    "one letter": "a",
    "capitals": "A",
    "camel case": "aB",
    "digits": "1",
    "spaces": " ",
    "newlines": "\n",
    "lines of spaces": " \n  ",
    "quotes": ' "',
    "single quotes": " '",
    "opening quotes": " “",
    "brackets": "[",
    "braces": "{",
    "commas": ",",
    "marks of servers": "[ server ",
    "marks of servers with accents": "[server\u0301\u0301",
    "backslashes": "\\",
    "escaped quotes": '\\"',
    "headings": " #",
    "fences": "`",
    "words as code": "`a` ",
    "comments": "<!--",
    "sentences": ".)",
    "needs": ", and",
    "marks out of order": "\u0301\u0323",
    "marks of kana": "\u0301" * 20 + "\uff9e",
    "joiners": "a\u200d",
    "ideographs": "漢",
    "halves": "\\ud800",
    "URLs": "://",
    "secrets in URLs": "://[redacted ",
    "other escapes": "\\u0041",
    "beginnings of tokens": "-eyJ",
    "keys": "a:\n",
    "data lines": "data:\n",
    "first person": "I 'me ",
    "orders": ", then get it",
    "carried texts": " file that: about ",
    "e-mail addresses": "@a.",
    "folders": "a/.",
    "values": " a@b.c #1 1.2 ",
    "unknown words": " xqzvk",
    "names of secrets": "auth",
    "words for failures": "fail",
}
"""Parts that are repeated, because an expression may try each of them anew."""

LIMITS = Limits()


def of(description: str) -> Tool:
    """A tool with a description."""
    definition = json.dumps({"description": description}).encode()
    return Tool("evil", "x", "evil__x", definition, description[:9], IncludeMode.AGENT, (), None)


def fit(written: str) -> None:
    schema = {"type": "object", "pattern": written}
    definition = json.dumps({"name": "x", "title": "é", "inputSchema": schema}, ensure_ascii=False)
    with suppress(definitions.UnfitError):
        definitions.fit(definition.encode(), LIMITS)


def decode(written: str) -> None:
    with suppress(MalformedError):
        envelope.decode(b'{"result":{"a":"%b"}}' % written.encode())


def read_events(written: str) -> None:
    list(EventFramer(1 << 20).feed(written.encode()))


def read_lines(written: str) -> None:
    framer, data = LineFramer(1 << 20), written.encode()
    for start in range(0, len(data), 512):
        list(framer.feed(data[start : start + 512]))


CATALOG = WordList(["search", "issue"])

SECRETS = KnownSecrets(
    Config(servers={"a": ServerConfig(name="a", command="x", env={"A_TOKEN": "t0k3n-of-another-9f8e"})})
)


def no_term(term: str) -> bool:
    del term
    return False


def understood(written: str) -> None:
    queries.read_query(written, no_term, lambda: CATALOG, {"k9": "dog"})


PROFILES = Profiles(Config.of({"clients": {"a": {"client": ["*a*a*1*.*b", "x*"], "agent": ["*a*a*1*.*b"]}}}))
NUMBERED = {"properties": {"n": {"type": "integer", "x-mcp-header": "N"}}}


def refused(read: Callable[..., object], *arguments: object) -> None:
    """Read something that may be refused."""
    with suppress(ContextProxyError, ConfigError, definitions.UnfitError, UnknownProfileError, RequestError):
        read(*arguments)


def skill(written: str) -> None:
    files = [{"uri": f"skill://{written[:1000]}/{at}", "digest": "x", "size": 1} for at in range(9)]
    front = {"name": written, "description": written}
    skills.parse_skills(
        "evil",
        [
            json.dumps(
                {"uri": f"skill://{written}/SKILL.md", "frontmatter": front, "resources": files}
            ).encode()
        ],
    )


def stderr(written: str) -> None:
    output = Output(server="evil", limits=LIMITS)
    output.feed_stderr(written.encode())
    output.add_stray(written.encode())
    output.stderr_lines()


def stderr_in_pieces(written: str) -> None:
    output = Output(server="evil", limits=LIMITS)
    output.on_address = lambda: None
    for start in range(0, len(written), 200):
        output.feed_stderr(f"server {written[start : start + 200]} http://".encode())


def mistake(written: str) -> None:
    try:
        msgspec.convert({written: written, "server": 1}, SearchFilters)
    except msgspec.ValidationError as error:
        in_words(error, SearchFilters)


QUERY_PARTS = [
    '"', "'", " 'a", "“a", '"a b" ', ",", "and ", ", and ", ", then get the file", ":", " : a", " that ",
    "@", "a@", ".", "a.", "a.b ", "/", "a/", "../", "\\", "1", "1.", "#1 ", "2020-", "a", "A", "aB", "xqzvk ",
    " ", "\n", "file a bug that ", "get the file and read the mail and ", "$1,", "-", "f",
    "1. ", " - ", "if so, ", "so that I can ", "and let a ", "and for each a ", " & ",
    "step a, ", "and is it ",
    "2 + ", "(", "1 times ", "* ", "1,111", "SELECT a FROM ", "+1 (23) ",
]  # fmt: skip
"""Parts of hostile queries."""

FUNCTIONS: dict[str, Callable[[str], object]] = {
    "secret arguments": lambda written: list(secret_arguments([written, written])),
    "terms": text.terms,
    "sentences": text.sentences,
    "places of telling words": text.telling_places,
    "known words": text.is_known,
    "needs of a query": needs.needs_of,
    "order and what it carries": lambda written: understood(f"file a bug {written} that: {written}"),
    "value": forms.value_kind,
    "values of several words": lambda written: forms.long_values(written, [(0, len(written))]),
    "words of names": lambda written: WordList([written, *written.split()]).nearest("serch"),
    "misspelled words": lambda written: understood(f"xq{written} {written}"),
    "query": understood,
    "name key": text.name_key,
    "words of an identifier": text.identifier_words.__wrapped__,
    "content words": text.content_words,
    "chunks": text.chunks,
    "suspicion": lambda written: suspicion([of(f"I need it. {written}")] * 3),
    "sections": divide,
    "heading": lambda written: divide(f"# {written}!"),
    "overview": overview,
    "front matter": lambda written: read_front_matter(f"---\n{written}\n: [\n---\n", Format.CURSOR),
    "patterns of files": lambda written: read_front_matter(f"---\nglobs: a{written}\n---\n", Format.CURSOR),
    "definition": fit,
    "lookalikes": lambda written: list(names.lookalikes([written, written + "б"])),
    "exposed name": lambda written: names.exposed_name("evil", written, 64),
    "differences for a person": lambda written: changed_lines(
        json.dumps({"description": written[: len(written) // 8]}).encode(),
        json.dumps({"description": written[len(written) // 8 :: -1]}).encode(),
    ),
    "escapes and percent-encoding": lambda written: decoded(f"%41\\u0041{written}"),
    "params that may have a secret": lambda written: SECRETS.in_params(
        "evil", {"arguments": msgspec.Raw(json.dumps([written, f"%41{written}"]).encode())}
    ),
    "fingerprint": lambda written: definitions.fingerprint("evil", json.dumps([written]).encode()),
    "envelope": decode,
    "id of a broken message": lambda written: envelope.salvage_id(written.encode(), written.encode()),
    "lines": read_lines,
    "events": read_events,
    "marks": unmarked,
    "depths": lambda written: without_depths(json.dumps([written]).encode()),
    "nesting": lambda written: nests_deeper(json.dumps([written]).encode(), 0),
    "number of values": lambda written: holds_more(json.dumps([written]).encode(), 0),
    "number of entries": lambda written: has_more_entries(json.dumps([written]).encode(), 0),
    "secrets": Redactor(()),
    "URLs for a person": lambda written: redacted(ServerConfig(name="evil", command="x"), written),
    "words of an error": lambda written: strangers.stranger_text(written, str),
    "data of an error": lambda written: strangers.stranger_data(
        json.dumps([written, {written: 1}]).encode(), bytes
    ),
    "failed result": lambda written: strangers.stranger_json(json.dumps([written]).encode(), bytes),
    "line of a table": strangers.one_line,
    "form": lambda written: secret_field({"properties": {written: {"title": written}}}, written),
    "URL of a question": url_refusal,
    "arguments in a question": lambda written: described_arguments(
        json.dumps({written: [written]}).encode(), str
    ),
    "URI": lambda written: refused(uri_owners.check_uri, f"a:{written}"),
    "template": lambda written: refused(uri_owners.UriTemplate.parse, f"a:{written}"),
    "root of a skill": lambda written: refused(skills.exposed_root, "evil", f"skill://{written}/SKILL.md"),
    "path in a skill": lambda written: refused(skills.checked_parts, written),
    "skill of a server": skill,
    "headings": document_reading.headings,
    "outline": lambda written: document_reading.outline(f"# {written}\n\n## {written}", 1_000),
    "pages": document_reading.paged,
    "file of a host": lambda written: refused(source.parse, Path("mcp.json"), f'{{"a":/* {written}'),
    "value in a file of a host": lambda written: refused(
        source.parse, Path("mcp.json"), f'{{"a":"{written}",}}'
    ),
    "configuration": lambda written: refused(source.parse, Path("config.toml"), f"a = {written}"),
    "variables": lambda written: expand(written, {}),
    "configured pattern": lambda written: matches(f"*{written}*b", written),
    "name for a configured pattern": lambda written: matches("*a*a*1*.*b", written),
    "synonyms": lambda written: queries.read_query("a dog", no_term, lambda: CATALOG, {written: written}),
    "answer of a reranker": numbers_in,
    "remembered text": lambda written: plain(written, str, 1_000),
    "name of an agent": agent_named,
    "stderr": stderr,
    "stderr in pieces": stderr_in_pieces,
    "line of a log": lambda written: LogFormatter().format(
        logging.makeLogRecord({"msg": written, "name": "root"})
    ),
    "text of a result": lambda written: result_text(
        json.dumps({"content": [{"type": "text", "text": written}]}).encode(), 2_000
    ),
    "owner of a name": lambda written: names.owner(f"git__{written}", ["git", "github"]),
    "mistake in an argument": mistake,
    "result of a call": lambda written: CallResult.of(of("Reads."), written),
    "sign of an attack": sign_in,
    "sign in letters of another script": lambda written: sign_in(f"{written}\u0430"),
    "verb in a name": verb_of,
    "names in a document": links.mentions,
    "prohibitions": links.allowing,
    "names of files": links.files_named,
    "clauses": lambda written: links.units_of(f"x{written}y"),
    "repeated argument": lambda written: headers.decoded(f"=?base64?{written}?="),
    "argument as a number": lambda written: refused(
        headers.check_arguments,
        headers.HeaderFields([(b"mcp-param-n", written.encode())]),
        NUMBERED,
        {"n": msgspec.Raw(b"1")},
    ),
    "claims of a token": lambda written: list(issuer.values({"roles": written}, "roles")),
    "form of a token": IssuedTokens.may_be,
    "name of a client": lambda written: PROFILES.of_client(THE_USER, envelope.raw({"name": written})),
    "name of a profile": lambda written: refused(PROFILES.of_request, THE_USER, written, written),
    "nearest names": lambda written: nearest_names(written, [written + str(at) for at in range(30)]),
}
"""Everything that reads text of strangers, by what it finds in it."""

LENGTHS = [
    pytest.param(1_000, marks=pytest.mark.smaller),
    pytest.param(2_000, marks=pytest.mark.full_cross),
]
GROWTH = 8
"""Multiple of the length. The time may grow by twice as much; where it is the square, it grows by 64."""


@pytest.mark.parametrize("characters", LENGTHS)
@each("name", FUNCTIONS)
def test_time_grows_with_the_length_of_a_text_and_not_with_its_square(name: str, characters: int) -> None:
    function = FUNCTIONS[name]
    slow = []
    for unit, part in UNITS.items():
        short = (part * characters)[:characters]
        long = (part * characters * GROWTH)[: characters * GROWTH]
        if costs_more(2 * GROWTH, function, long, short):
            slow.append(unit)

    assert slow == []


def test_a_query_of_spaces_is_divided_at_once() -> None:
    query = "find the note,  and  then  close the note"
    assert [query[start:end] for start, end in needs.needs_of(query)] == ["find the note", "close the note"]
    assert not costs_more(40, needs.needs_of, "a" + " " * 80_000 + "b", "a" + " " * 8_000 + "b")


@each("part", QUERY_PARTS)
def test_the_longest_query_is_read_at_once(part: str) -> None:
    """Half of it gives the time to compare with, so that no machine is too slow for this test."""
    written = (part * queries.QUERY_LIMIT)[: queries.QUERY_LIMIT]

    assert not costs_more(3, understood, written, written[: len(written) // 2])


def test_a_word_of_a_query_is_compared_with_few_of_many_that_are_made_of_its_letters() -> None:
    letters = "abcdefghijkl"
    words = ["a" + "".join(word) for word in islice(permutations(letters[1:]), 40_000)]
    asked = "a" + letters[:0:-1]

    assert not costs_more(4, lambda known: known.nearest(asked), WordList(words), WordList(words[:4_000]))


def test_only_a_few_unknown_words_of_a_query_are_compared() -> None:
    asked = list[int]()

    def words() -> WordList:
        asked.append(1)
        return CATALOG

    queries.read_query(
        " ".join(f"x{a}{b}q" for a in ascii_lowercase for b in ascii_lowercase), no_term, words, {}
    )

    assert len(asked) == queries.MOST_COMPARED


def test_descriptions_made_of_quotation_marks_are_read_at_once() -> None:
    def hostile(times: int) -> list[Tool]:
        return [of(f"I need it {part * times}") for part in (' "', " '", " “") for _ in range(100)]

    assert not costs_more(40, suspicion, hostile(4_000), hostile(400))


def test_a_heap_of_marks_costs_no_more_than_as_many_letters() -> None:
    marks = "a" + "\u0301" * 60_000 + "\u0323" * 60_000

    assert not costs_more(20, text.terms, marks, "é" * 120_000)


def test_half_characters_are_mended_beside_megabytes_of_other_escapes() -> None:
    short, long = (
        b'{"result":{"a":"%b\\ud800\\\\ud800"}}' % (rb"\u0041" * escapes) for escapes in (50_000, 500_000)
    )

    assert not costs_more(40, envelope.decode, long, short)
    result = envelope.decode(long).result
    assert isinstance(result, msgspec.Raw)
    assert bytes(result).endswith(rb"\ufffd\\ud800" + b'"}')


@each("part", ["[", "{", "[a,", "- [", "{a: "])
def test_front_matter_of_brackets_is_refused_at_once(part: str) -> None:
    written, shorter = (f"---\n{part * times}\n---\ntext" for times in (3_000, 300))
    found = read_front_matter(written)

    assert [message for _, message in found.problems] == [
        "the front matter has over 200 brackets and is ignored"
    ]
    assert not costs_more(40, read_front_matter, written, shorter)


def test_a_thousand_texts_in_another_order_are_compared_at_once() -> None:
    words = [str(word) for word in range(149)]

    def versions(texts: int) -> list[bytes]:
        return [
            json.dumps({str(at): {"description": " ".join(order)} for at in range(texts)}).encode()
            for order in (words, words[::-1])
        ]

    assert not costs_more(6, lambda pair: changed_lines(*pair), versions(150), versions(15))


@pytest.mark.parametrize("number", ["9" * 5_000, "1e999"])
def test_a_number_beyond_all_bounds_withholds_its_definition(number: str) -> None:
    definition = f'{{"name":"x","description":"a\u200b","inputSchema":{{"maximum":{number}}}}}'

    with pytest.raises(definitions.UnfitError, match="number"):
        definitions.fit(definition.encode(), LIMITS)


@each("part", [1, 2, 3, 5, 1_000])
def test_entries_are_counted_in_parts_as_in_one(part: int) -> None:
    written = json.dumps({'a"\\': [1, {"b": "],[,"}, 3], "\\\\": "\\", "c,": 1}).encode()

    assert has_more_entries(written, 2, part)
    assert not has_more_entries(written, 3, part)


def test_the_nearest_of_many_equal_names_are_found_at_once() -> None:
    known = ["a" * 60 + str(at) for at in range(10_000)]

    assert len(nearest_names("a" * 1_000_000, known)) == 3
    assert not costs_more(10, lambda asked: nearest_names(asked, known), "a" * 1_000_000, "a" * 100)


EIGHT = [{"$ref": "#/$defs/many"}] * 8
MANY = {"properties": {f"p{at}": {"const": 1} for at in range(2_000)}}
BRANCHING = {
    "parameters": {"type": "object", "allOf": EIGHT, "anyOf": EIGHT},
    "choices": {"type": "object", "allOf": [{"$ref": "#/$defs/one"}] * 8, "anyOf": [True] * 9_000},
    "types": {"type": ["a"] * 500, **{f"k{at}": 1 for at in range(500)}},
    "values": {"enum": [{"a": ["x"] * 9_000}]},
}


@each("name", BRANCHING)
def test_a_schema_that_leads_to_the_same_thousands_of_things_again_and_again_is_told_at_once(
    name: str,
) -> None:
    def told(names: list[str]) -> None:
        schemas = [
            {
                "type": "object",
                "properties": {one: {"$ref": f"#/$defs/{of}"} for one in names},
                "required": names,
            }
            for of in ("inner", "one")
        ]
        defined = {"$defs": {"inner": schemas[1], "one": BRANCHING[name], "many": MANY}}
        ToolSignature(tool("x", schema=schemas[0] | defined)).text("x", DETAIL_OF_MISFIT)

    assert not costs_more(20, told, [f"r{at}" for at in range(40)], [])


@each("told", [{"required": [f"p{at}" for at in range(9_000)]}, {"$ref": "#" + "/a" * 100_000}])
def test_what_many_references_at_the_root_of_a_schema_lead_to_is_listed_at_once(told: dict[str, Any]) -> None:
    def listed(references: int) -> None:
        schema = {"anyOf": [{"$ref": "#/$defs/told"}] * references, "$defs": {"told": told}}
        taken_by_models(msgspec.Raw(json.dumps(schema).encode()))

    assert not costs_more(20, listed, 480, 1)
