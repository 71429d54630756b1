"""Parts of the catalog: the items of a snapshot that a principal with limits may reach."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from mcp_context_proxy.items import Item, Prompt, Resource, Snapshot, Tool, TurnedOffTool, Withheld
from mcp_context_proxy.trust.tokens import Principal

Owned = TypeVar("Owned", Tool, Prompt, Resource, TurnedOffTool, Withheld)


def part_for(principal: Principal, whole: Snapshot) -> Snapshot:
    """Return the part of a snapshot that a principal may reach.

    Documents of the user's own are for everybody. Names of all servers stay known, so that a name that states
    its server never leads to another.
    """

    def of_server(items: Mapping[str, Owned]) -> dict[str, Owned]:
        return {key: item for key, item in items.items() if principal.reaches(item.server)}

    def owner_of(uri: str) -> Resource | None:
        found = whole.owner_of(uri)
        return found if found is not None and principal.reaches(found.server) else None

    def seen(item: Item) -> bool:
        if isinstance(item, Tool):
            return principal.may_call(item)
        return not item.server or principal.reaches(item.server)

    sources = tuple(replace(one, items=tuple(filter(seen, one.items))) for one in whole.sources)
    hidden = [item for source in whole.sources for item in source.items if not seen(item)]
    return replace(
        whole,
        # Unlike that of any whole.
        generation=-next(_parts_made),
        sources=tuple(source for source in sources if source.items),
        tools={name: tool for name, tool in whole.tools.items() if principal.may_call(tool)},
        wider={name: tool for name, tool in whole.wider.items() if principal.may_call(tool)},
        documents={uri: one for uri, one in whole.documents.items() if seen(one)},
        other_uris={uri: one for uri, one in whole.other_uris.items() if seen(one)},
        resources=of_server(whole.resources),
        templates=of_server(whole.templates),
        owner_of=owner_of,
        prompts=of_server(whole.prompts),
        turned_off=of_server(whole.turned_off),
        withheld=of_server(whole.withheld),
        withheld_prompts=of_server(whole.withheld_prompts),
        first_seen={key: seen for key, seen in whole.first_seen.items() if principal.reaches(key)},
        skills={uri: skill for uri, skill in whole.skills.items() if principal.reaches(skill.owner)},
        findings=(),
        unlisted=tuple(filter(principal.reaches, whole.unlisted)),
        part_of=whole,
        hidden=frozenset(
            (item.kind, item.exposed_name if isinstance(item, Tool) else item.name) for item in hidden
        ),
    )


_parts_made = itertools.count(1)
