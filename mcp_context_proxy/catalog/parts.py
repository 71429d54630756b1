"""Parts of the catalog: the items of a snapshot that a principal with limits may reach."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TypeVar

from msgspec.structs import replace

from mcp_context_proxy.items import Item, Prompt, Resource, Snapshot, Tool, ToolKey, TurnedOffTool, Withheld
from mcp_context_proxy.trust.tokens import Principal

Owned = TypeVar("Owned", Tool, Prompt, Resource, TurnedOffTool, Withheld)


def part_for(principal: Principal, whole: Snapshot) -> Snapshot:
    """Return the part of a snapshot that a principal may reach.

    Documents of the user's own are for everybody whose profile and project have them. Names of all servers
    stay known, so that a name that states its server never leads to another.
    """

    def of_server(items: Mapping[str, Owned]) -> dict[str, Owned]:
        return {key: item for key, item in items.items() if principal.reaches(item.server)}

    def owner_of(uri: str) -> Resource | None:
        found = whole.owner_of(uri)
        return found if found is not None and principal.reaches(found.server) else None

    def seen(item: Item) -> bool:
        return principal.may_call(item) if isinstance(item, Tool) else principal.sees(item)

    profile, fitted = principal.profile, dict[ToolKey, Tool]()
    if profile is not None:
        # Only the tools about which its clients alone are asked; the others stay the same objects.
        asked = ((tool, profile.asked_by(tool)) for tool in whole.tools.values() if not tool.asked_by)
        fitted = {tool.key: replace(tool, asked_by=by) for tool, by in asked if by}

    def tools(named: Mapping[str, Tool]) -> dict[str, Tool]:
        return {name: fitted.get(one.key, one) for name, one in named.items() if principal.may_call(one)}

    sources = tuple(replace(one, items=tuple(filter(seen, one.items))) for one in whole.sources)
    hidden = [item for source in whole.sources for item in source.items if not seen(item)]
    return replace(
        whole,
        # Unlike that of any whole.
        generation=-next(_parts_made),
        sources=tuple(source for source in sources if source.items),
        tools=tools(whole.tools),
        wider=tools(whole.wider),
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
