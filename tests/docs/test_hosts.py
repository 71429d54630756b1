"""docs/hosts.md agrees with the profile of each host."""

import re

import pytest
from support.servers import real_lists

from mcp_context_proxy.catalog.names import exposed_name
from mcp_context_proxy.config.host_profiles import (
    HOSTS,
    NAME_CHARACTERS,
    PLUGIN,
    PLUGIN_SERVER,
    SERVER,
    name_room,
)

from .conftest import page

FORMS = {"text": "the text", "structured": "`structuredContent`, else the text", "both": "both"}
BREACHES = {
    "refused": "the whole list is refused",
    "dropped": "left out",
    "shortened": "shortened by the host",
}
KNOWN = {True: "yes", False: "no", None: "?"}


@pytest.fixture
def rows():
    """The cells of each row, by the heading above its table and its first cell."""
    found: dict[str, dict[str, list[str]]] = {}
    for section in re.split(r"^## ", page("docs/hosts.md").text, flags=re.MULTILINE)[1:]:
        heading, _, text = section.partition("\n")
        cells = [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in text.splitlines()
            if line.startswith("|")
        ]
        found[heading] = {first: rest for first, *rest in cells[2:]}
    return found


def test_every_host_is_in_every_table(rows):
    titles = [host.title for host in HOSTS.values()]

    for heading in ("What the model gets", "Names", "What it can be asked", "Sources"):
        assert [*rows[heading]] == titles, heading


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_the_tables_have_the_values_of_the_profile(rows, host):
    limit, rule = host.results.value, host.names.value
    over = {"in a file": "to a file", "lost": "cut"}
    assert rows["What the model gets"][host.title] == [
        FORMS[host.result.value],
        f"{host.description_bytes.value:,} bytes" if host.description_bytes.value else "whole",
        f"over {limit.most:,} {limit.unit} {over[limit.rest]}" if limit else "?",
        str(host.tools.value or "?"),
        f"{host.first_list_seconds.value:g} s" if host.first_list_seconds.value else "?",
        KNOWN[host.list_changes.value],
    ]
    assert rows["Names"][host.title] == [
        f"`{rule.prefix_with(host.server)}NAME`",
        str(rule.most),
        BREACHES[rule.breach],
        str(host.name_characters),
    ]
    assert rows["What it can be asked"][host.title] == [
        f"`{host.name}`",
        ", ".join(f"`{start}`" for start in host.clients.value) or "-",
        KNOWN[host.elicitation.value],
        KNOWN[host.sampling.value],
    ]


@pytest.mark.parametrize("host", HOSTS.values(), ids=HOSTS)
def test_the_sources_are_those_of_the_profile(rows, host):
    facts = (
        host.result,
        host.names,
        host.description_bytes,
        host.results,
        host.tools,
        host.first_list_seconds,
        host.list_changes,
    )

    assert rows["Sources"][host.title] == [fact.source for fact in facts]


def test_the_example_of_a_shortened_name_is_right():
    tools = [(server, tool["name"]) for server, listed in real_lists().items() for tool in listed]
    cut = [pair for pair in tools if exposed_name(*pair, NAME_CHARACTERS) != "__".join(pair)]
    text = page("docs/hosts.md").text
    full, short = re.findall(r"`(\w+)` becomes `(\w+)`", text)[0]

    assert exposed_name(*full.split("__"), NAME_CHARACTERS) == short
    widest = max(map(name_room, ("opencode", "claude-ai")))
    cut_less = [pair for pair in tools if exposed_name(*pair, widest) != "__".join(pair)]
    assert (
        f"Of {len(tools):,} tools of {len(real_lists())} published servers, {len(cut)} are shortened to "
        f"{NAME_CHARACTERS} characters, and {len(cut_less)} to {widest}." in text
    )


def test_the_recommended_names_are_those_of_the_code():
    text = page("docs/hosts.md").text

    assert f"`{SERVER}`" in text
    assert f"`{PLUGIN}` with a server `{PLUGIN_SERVER}`" in text
    assert f"all of Claude Code gets {NAME_CHARACTERS} characters" in text
