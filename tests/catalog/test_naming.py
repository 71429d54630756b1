"""Names that hosts see: valid, bounded, and never the same for two tools."""

import re

from hypothesis import example, given
from hypothesis import strategies as st
from support.servers import real_lists
from support.tables import each

from mcp_context_proxy.catalog.names import bare_names, exposed_name, is_altered_name
from mcp_context_proxy.config.host_profiles import NAME_CHARACTERS

VALID = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*")
SERVERS = st.from_regex(r"[a-zA-Z0-9_-]{1,40}", fullmatch=True).filter(lambda name: "__" not in name)
NEAR = st.text(alphabet="ab_-. é", min_size=1, max_size=6)
"""Few characters, so that pairs come near each other."""
TOOLS = st.text(min_size=1, max_size=80) | NEAR
LENGTHS = st.integers(min_value=16, max_value=128)


@given(SERVERS, TOOLS, LENGTHS)
def test_every_name_is_valid_and_within_its_length(server: str, tool: str, length: int) -> None:
    name = exposed_name(server, tool, length)

    assert VALID.fullmatch(name)
    assert len(name) <= length


NEAR_SERVERS = st.text(alphabet="ab_-", min_size=1, max_size=4).filter(lambda name: "__" not in name)


@given(st.tuples(NEAR_SERVERS, NEAR), st.tuples(NEAR_SERVERS, NEAR))
@example(("a", "_b"), ("a_", "b"))
@example(("a", "b__c"), ("a_b", "c"))
@example(("a", "b.c"), ("a", "b_c"))
@example(("-a", "b"), ("_-a", "b"))
@example(("a", "b c"), ("a", "b.c"))
def test_two_tools_never_share_a_name(first: tuple[str, str], second: tuple[str, str]) -> None:
    if first != second:
        assert exposed_name(*first, 50) != exposed_name(*second, 50)


def test_a_plain_name_is_the_server_and_the_tool() -> None:
    assert exposed_name("github", "create_issue", 50) == "github__create_issue"


@each("tool", ["x" * 60, "x" * 30 + "." + "y" * 30, "naïve.tool", "名前"])
def test_an_altered_name_says_so_by_a_hash_and_is_stable(tool: str) -> None:
    name = exposed_name("server", tool, 50)

    assert re.search(r"_[0-9a-f]{6}(_|$)", name)
    assert name == exposed_name("server", tool, 50)


def test_a_long_name_keeps_both_its_ends() -> None:
    name = exposed_name("server", "create_" + "x" * 60 + "_from_template", 50)

    assert name.startswith("server__create_")
    assert name.endswith("_template")
    assert 48 <= len(name) <= 50


@each("server", ["s", "server", "s" * 20, "s" * 21, "long-name-of-a-server", "s" * 32])
def test_the_server_of_a_shortened_name_stays_whole(server: str) -> None:
    name = exposed_name(server, "x" * 60, NAME_CHARACTERS)

    assert re.fullmatch(rf"{server}__(x*_)?[0-9a-f]{{6}}(_x+)?", name)
    assert len(name) <= NAME_CHARACTERS


@given(SERVERS, TOOLS, LENGTHS)
def test_an_altered_name_is_known_as_one_of_its_tool_whatever_the_length(
    server: str, tool: str, length: int
) -> None:
    name = exposed_name(server, tool, length)

    assert name == f"{server}__{tool}" or is_altered_name(name, server, tool)


@each(
    "name",
    [
        "linear__linear_rotateManaged_c548d1_nWebhookSecret",  # as listed by versions up to 0.1.0
        "linear__linear_rotateManagedOA_c548d1_nWebhookSecret",
        "linear__linear_rotateM_c548d1_bhookSecret",
    ],
)
def test_only_the_tool_with_the_digest_has_an_altered_name(name: str) -> None:
    own = [tool["name"] for tool in real_lists()["linear"]]

    (found,) = [each for each in own if is_altered_name(name, "linear", each)]
    assert found.startswith("linear_rotateManaged")
    assert not is_altered_name(name, "other", found)


def test_bare_names_are_kept_where_they_are_valid_unique_and_free() -> None:
    pairs = [("a", "one"), ("a", "same"), ("b", "same"), ("b", "call_tool"), ("b", "x.y"), ("c", "z" * 60)]

    names = bare_names(pairs, {"call_tool"}, 50)

    assert names["a", "one"] == "one"
    assert names["a", "same"] == "a__same"
    assert names["b", "same"] == "b__same"
    assert names["b", "call_tool"] == "b__call_tool"
    assert names["b", "x.y"] == exposed_name("b", "x.y", 50)
    assert names["c", "z" * 60] == exposed_name("c", "z" * 60, 50)


@given(st.lists(st.tuples(NEAR_SERVERS, NEAR), unique=True, max_size=12))
@example([("a", "b"), ("c", "a__b"), ("d", "b")])
def test_names_with_and_without_a_prefix_never_collide(pairs: list[tuple[str, str]]) -> None:
    names = bare_names(pairs, (), 50)

    assert len(set(names.values())) == len(pairs)


@given(st.lists(st.tuples(SERVERS, TOOLS), unique=True, max_size=12), LENGTHS)
def test_a_name_leads_back_to_its_server_and_tool(pairs: list[tuple[str, str]], length: int) -> None:
    encoded = {exposed_name(*pair, length): pair for pair in pairs}

    assert [encoded[exposed_name(*pair, length)] for pair in pairs] == pairs


LIKE_OTHERS = [
    "search-available-tools",
    "Search_Available_Tools",
    "searchAvailableTools",
    "cal1_tool",
    "ca11-too1",
    "create-issue",
    "Create_Issue",
    "create_1ist",
]


@each("name", LIKE_OTHERS)
def test_no_name_without_its_prefix_is_taken_for_that_of_another(name: str) -> None:
    own = {"search_available_tools", "call_tool"}
    pairs = [("github", "create_issue"), ("github", "create_list"), ("evil", name), ("evil", "other")]

    names = bare_names(pairs, own, 50)

    assert names["evil", name] == exposed_name("evil", name, 50)
    assert names["evil", "other"] == "other"
