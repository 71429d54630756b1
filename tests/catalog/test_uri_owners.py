"""The server that a URI leads to, whatever servers write into URIs and templates."""

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.growth import costs_more
from support.tables import each

from mcp_context_proxy.catalog.definitions import UnfitError
from mcp_context_proxy.catalog.uri_owners import (
    EXPRESSIONS,
    TEMPLATE_BYTES,
    TEMPLATE_BYTES_PER_SERVER,
    TEMPLATES_PER_SERVER,
    URI_BYTES,
    UriOwners,
    UriTemplate,
    check_uri,
    is_own,
)
from mcp_context_proxy.items import Resource

PIECES = st.sampled_from(
    [
        "{a}",
        "{+a}",
        "{/a*}",
        "{?a,b}",
        "{.a}",
        "{;a}",
        "{#a}",
        "{&a}",
        "a",
        "b",
        "ab",
        "/",
        "/a",
        "?",
        "#",
        "é",
    ]
)
TEMPLATES = st.lists(PIECES, max_size=14).map(lambda pieces: "x:" + "".join(pieces))
URIS = st.text("ab/?#é", max_size=14).map("x:{}".format)


def owners(*templates: str, listed: tuple[str, ...] = (), server: str = "s") -> UriOwners:
    return UriOwners(
        {uri: Resource(server, uri, b"{}") for uri in listed},
        {uri: Resource(server, uri, b"{}") for uri in templates},
    )


def slow_pattern(template: str) -> re.Pattern[str]:
    """A regular expression of the expansions of a template: right, and exponential."""
    parts = re.split(r"(\{[^{}]*\})", template)
    gap = {True: "[^/?#]*", False: ".*"}
    return re.compile(
        "".join(
            gap[part[1] in "abcdefghijklmnopqrstuvwxyz.;"] if index % 2 else re.escape(part)
            for index, part in enumerate(parts)
        ),
        re.DOTALL,
    )


@given(TEMPLATES, URIS)
@example("x:{+a}a{b}/{+c}", "x:/aab//a/")
@example("x:{a}/a{b}b{+c}", "x:/ab")
@example("x:", "x:")
def test_a_template_matches_what_a_slow_and_obvious_pattern_matches(template: str, uri: str) -> None:
    found = owners(template)(uri)

    assert (found is not None) == (slow_pattern(template).fullmatch(uri) is not None)


@given(st.lists(TEMPLATES, unique=True, max_size=8), st.lists(URIS, max_size=3), URIS)
def test_a_listed_uri_wins_over_templates_and_then_the_longest_literal_beginning_wins(
    templates: list[str], listed: list[str], uri: str
) -> None:
    fit = [one for one in templates if slow_pattern(one).fullmatch(uri)]
    prefix = max((len(one.partition("{")[0].encode()) for one in fit), default=0)
    expected = next((one for one in fit if len(one.partition("{")[0].encode()) == prefix), None)

    found = owners(*templates, listed=tuple(listed))(uri)

    assert (found and found.uri) == (uri if uri in listed else expected)


HOSTILE = {
    "expressions that take anything": ["x:" + "{+a}" * 40 + "z"],
    "literals of one letter": [
        "x:" + "".join("{}" + "a" * 58 for _ in range(15)) + ("{+}" if n % 2 else "{}") + "a" * (n % 9)
        for n in range(18)
    ],
    "segments without end": ["x:" + ("{}" + "/" * 60) * 14 + f"{{{n}}}/" for n in range(70)],
    "blocks between free expressions": [
        "x:{+p}" + "/{}aaaaaaaaaa" * 11 + f"{{{n}}}/a/{{+z}}b{{z}}" for n in range(TEMPLATES_PER_SERVER)
    ],
    "nested beginnings": ["x:" + "a" * n + "{}a{}" for n in range(0, 360)],
    "many harmless ones": [f"x://item{n}/{{id}}/{{part}}" for n in range(TEMPLATES_PER_SERVER)],
}


@each("name", HOSTILE)
@each("uri", ["x:" + "a" * 8000, "x:" + "/aaaaaaaaaa" * 700 + "b", "x:" + "/" * 8100])
def test_no_permitted_templates_of_a_server_stall_the_proxy(name: str, uri: str) -> None:
    allowed = HOSTILE[name]
    while sum(map(len, allowed)) > TEMPLATE_BYTES_PER_SERVER:
        allowed = allowed[:-1]
    index = owners(*allowed)

    # Twice the URI; with the cube of its length it would be eight times as much.
    assert not costs_more(6, index, uri, uri[: len(uri) // 2])


@each(
    ("template", "reason"),
    [
        ("{+anything}", "begin with a scheme"),
        ("{scheme}://a", "begin with a scheme"),
        ("ru{le}", "begin with a scheme"),
        ("//{a}", "begin with a scheme"),
        ("1x:{a}", "begin with a scheme"),
        ("ruле://{a}", "begin with a scheme"),
        ("rule://{a}", "only the proxy itself uses"),
        ("RULE:{+a}", "only the proxy itself uses"),
        ("Reference:{+a}", "only the proxy itself uses"),
        ("context:{+a}", "only the proxy itself uses"),
        ("x:{a", "a brace without a partner"),
        ("x:a}", "a brace without a partner"),
        ("x:{{a}}", "a brace without a partner"),
        ("x:{a}\n", "control characters"),
        ("x:" + "{a}/" * (EXPRESSIONS + 1), f"more than {EXPRESSIONS} expressions"),
        ("x:" + "a" * TEMPLATE_BYTES, f"over {TEMPLATE_BYTES:,} bytes"),
    ],
)
def test_a_template_without_a_scheme_of_its_own_or_over_a_bound_is_refused(
    template: str, reason: str
) -> None:
    with pytest.raises(UnfitError, match=reason):
        UriTemplate.parse(template)


def test_adjacent_expressions_count_as_one() -> None:
    assert owners("x:" + "{+a}" * 40 + "z")("x:anythingz") is not None


@each(
    "uri", ["rule://a", "RULE://a", "rule:a", " rule://a", "Reference://a", "context:", "context://current"]
)
def test_a_uri_with_a_scheme_of_the_proxy_is_no_uri_of_a_server(uri: str) -> None:
    assert is_own(uri)
    with pytest.raises(UnfitError):
        check_uri(uri)


@each("uri", ["x", "/x", ":x", "", "x y:z", "x:\0", "x:\x1b[0m", "x:" + "é" * URI_BYTES])
def test_what_is_no_uri_or_too_long_is_refused(uri: str) -> None:
    with pytest.raises(UnfitError):
        check_uri(uri)


@each("uri", ["ui://widget/1", "file:///a b", "urn:isbn:0", "rules://a", "a+b-c.d:e", "x:名"])
def test_ordinary_uris_are_accepted(uri: str) -> None:
    check_uri(uri)


@each(
    "uri",
    [
        "FILE:///docs/a",
        "file:///DOCS/a",
        "file:///docs/%61",
        "file:///docs/./a",
        "file:///docs/x/../a",
        "file:///docs//a",
        "file:///docs/a\0",
        " file:///docs/a",
        "file:///docs/a/",
    ],
)
def test_another_spelling_of_a_listed_uri_is_another_uri(uri: str) -> None:
    assert owners(listed=("file:///docs/a",))(uri) is None


def test_a_uri_with_dot_segments_belongs_to_the_template_that_it_begins_with() -> None:
    index = UriOwners(
        {},
        {
            one.uri: one
            for one in (Resource("all", "file:{+p}", b"{}"), Resource("docs", "file:///docs/{+p}", b"{}"))
        },
    )

    found = {uri: index(uri) for uri in ("file:///docs/../etc/passwd", "file:///etc/../docs/a")}

    assert [one.server for one in found.values() if one] == ["docs", "all"]


def test_two_servers_with_templates_that_begin_alike_are_named_once() -> None:
    templates = {
        uri: Resource(server, uri, b"{}")
        for server, uri in (("a", "x:{p}"), ("b", "x:{q}"), ("b", "x:{+r}"), ("a", "x:{s}"), ("c", "x:y{s}"))
    }

    (finding,) = UriOwners({}, templates).overlaps

    assert finding == ("b: resource template 'x:{q}' begins like 'x:{p}' of a: where both match, a answers")
