"""A program with one mistake on each marked line, each of which a type checker has to find."""

from __future__ import annotations

from mcp_context_proxy import Catalog, ContextEngine, Interactions, Kind, rule, tool

tool(1, "A number is no name")  # mistake
rule("tone", "Be kind.", include="sometimes")  # mistake
Catalog(["no item"])  # mistake
Interactions(store=1)  # mistake


async def select(engine: ContextEngine) -> str:
    await engine.explain("query", "tool", "name")  # mistake
    await engine.search_context_items("query", [], top=3)  # mistake
    return await engine.related(Kind.TOOL, "name")  # mistake
