"""The danger class of a tool is the strictest that configuration, hints and name give."""

import gzip
import json
from itertools import product
from pathlib import Path
from typing import Any

from support.tables import each

from mcp_context_proxy.catalog.definitions import markers_of
from mcp_context_proxy.items import ToolClass
from mcp_context_proxy.protocol import envelope
from mcp_context_proxy.trust import ORDER, danger_of, verb_of

READ, WRITE, DESTRUCTIVE = ToolClass.READ, ToolClass.WRITE, ToolClass.DESTRUCTIVE
VERBS = {None: "thing", READ: "get_thing", WRITE: "create_thing", DESTRUCTIVE: "delete_thing"}
PAGE = Path(__file__).parents[2] / "docs" / "calls.md"
LISTS = Path(__file__).parents[1] / "data" / "tools"


@each(("hinted", "verb", "configured"), [*product((None, *ORDER), VERBS, (None, *ORDER))])
def test_the_strictest_witness_counts_and_none_loosens_another(
    hinted: ToolClass | None, verb: ToolClass | None, configured: ToolClass | None
) -> None:
    # Without a hint a tool may write, whatever else is said.
    said = [one for one in (hinted or WRITE, verb, configured) if one is not None]

    assert danger_of(VERBS[verb], hinted, configured, "x").tool_class is max(said, key=ORDER.index)


@each(
    ("name", "verb"),
    [
        ("delete_file", "delete"),
        ("jira_delete_issue", "delete"),
        ("API-delete-a-block", "delete"),
        ("linear_removeUserFromTeam", "remove"),
        ("DeleteEverything", "delete"),
        ("kubectl_delete", "delete"),
        ("get_delete_status", "get"),
        ("list_deleted_items", "list"),
        ("find_and_delete", "delete"),
        ("read_or_overwrite", "overwrite"),
        ("delete_and_get", "delete"),
        ("get_and_then_delete", "delete"),
        ("readThenWipe", "wipe"),
        ("list.delete", "delete"),
        ("items/get", "get"),
        ("fetch&drop", "drop"),
        ("deletes_file", "delete"),
        ("list_posts", "list"),
        ("posts", None),
        ("rm_rf", "rm"),
        ("DELETEUser", "delete"),
        ("readAndRMFile", "rm"),
        ("d\u0435lete_all", "delete"),
        ("\uff44\uff45\uff4c\uff45\uff54\uff45All", "delete"),
        ("D\u0415LETE_ALL", "delete"),
        ("de\u0301lete_all", "delete"),
        ("undelete", None),
        ("creation", None),
        ("", None),
        ("削除", None),
    ],
)
def test_the_first_verb_of_a_name_counts_and_what_an_and_joins_to_it(name: str, verb: str | None) -> None:
    assert verb_of(name) == verb


@each(
    ("arguments", "reason"),
    [
        (("x", READ, None, ""), "it says so itself (readOnlyHint)"),
        (("x", DESTRUCTIVE, None, ""), "it says so itself (destructiveHint)"),
        (("x", None, None, ""), "it does not say that it is read-only"),
        (("wipe_disk", READ, None, ""), "its name says 'wipe'"),
        (("x", READ, WRITE, "servers.s.tools.x.danger (c.toml:3)"), "by servers.s.tools.x.danger (c.toml:3)"),
    ],
)
def test_the_reason_is_that_of_the_strictest_witness(arguments: Any, reason: str) -> None:
    assert danger_of(*arguments).reason == reason


def test_the_published_figures_are_those_of_the_lists_of_published_servers() -> None:
    tools = hinted = 0
    raised = dict.fromkeys(((READ, WRITE), (READ, DESTRUCTIVE), ("not destructive", DESTRUCTIVE)), 0)
    unhinted = dict.fromkeys(ORDER, 0)
    for file in sorted(LISTS.glob("*.json.gz")):
        for tool in json.loads(gzip.decompress(file.read_bytes()))["tools"]:
            hints = tool.get("annotations") or {}
            said = markers_of(envelope.members(json.dumps(tool).encode())).hinted
            named = danger_of(tool["name"], READ, None, "").tool_class
            tools += 1
            hinted += "readOnlyHint" in hints or "destructiveHint" in hints
            unhinted[danger_of(tool["name"], None, None, "").tool_class] += said is None
            if said is READ and named is not READ:
                raised[READ, named] += 1
            if said is None and hints.get("destructiveHint") is False and named is DESTRUCTIVE:
                raised["not destructive", DESTRUCTIVE] += 1

    assert (
        f"Of {tools:,} tools of 33 published servers, {hinted:,} have hints about it. Of those that call "
        f"themselves read-only, the name raises {raised[READ, WRITE]} to writing and "
        f"{raised[READ, DESTRUCTIVE] or 'none'} to destructive; of those that say that they are not "
        f"destructive, {raised['not destructive', DESTRUCTIVE]} to destructive; and of those that say "
        f"neither that they read nor that they destroy, {unhinted[DESTRUCTIVE]} to destructive."
    ) in PAGE.read_text(encoding="utf-8")


def test_a_name_that_nobody_reads_to_its_end_is_taken_for_the_worst() -> None:
    found = danger_of("x" * 300 + "_get", READ, None, "")

    assert (found.tool_class, found.reason) == (DESTRUCTIVE, "its name is too long to be read")
