"""A program that uses every public name of the library. It is not run: type checkers read it."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

from mcp_context_proxy import (
    Catalog,
    Config,
    ContextEngine,
    ContextItem,
    DomainOverrides,
    Embeddings,
    IncludeMode,
    Interaction,
    Interactions,
    Item,
    Kind,
    MessageTable,
    Mode,
    Overrides,
    RequestContext,
    SelectedItem,
    Session,
    __version__,
    reference,
    rule,
    tool,
)

assert_type(__version__, str)

SEND = tool("send_mail", "Send a mail", {"type": "object"}, server="post", include="agent")
TONE = rule("tone", "Be kind.", description="How to write", include="always", priority=900)
STYLE = reference("style", "Short sentences.", include="manual")
ITEMS: list[Item] = [SEND, TONE, STYLE]


async def select(store: Path) -> list[str]:
    with ContextEngine(Catalog(ITEMS), store=store) as engine:
        found = await engine.search_context_items(
            "write to Anna", ITEMS, top_k=20, top_n=5, include_score=0.7
        )
        assert_type(found, list[SelectedItem])

        overrides = Overrides(tools=DomainOverrides(preset="aggressive", top_n=3), max_tokens=2000)
        session = Session(overrides=overrides)
        engine.add(session, Kind.REFERENCE, "style")
        engine.remove(session, Kind.RULE, "tone")
        context = await engine.build("write to Anna", session, overrides)
        assert_type(context, RequestContext)
        assert_type(await engine.items(session), tuple[ContextItem, ...])
        assert_type(await engine.requests(session.id, limit=10), list[RequestContext])
        assert_type(await engine.request(context.id), RequestContext | None)
        await engine.explain("write to Anna", Kind.TOOL, SEND.exposed_name)
        await engine.related(Kind.TOOL, SEND.exposed_name)
        return [described(item) for item in context.items]


def described(item: ContextItem) -> str:
    assert_type(item.type, Kind)
    assert_type(item.include_mode, Mode)
    assert_type(item.score, float | None)
    assert_type(item.server, str | None)
    return f"{item.name}: {item.tokens} tokens, {item.why}"


def manual(catalog: Catalog) -> None:
    assert_type(TONE.include, IncludeMode)
    catalog.replace(item for item in ITEMS if item.include is IncludeMode.MANUAL)


def transfer(old: Path, new: Path) -> int:
    with Interactions(new) as interactions:
        interactions.add([Interaction("planner", "message", "We ship on Friday.", 1_800_000_000.0)])
        done = interactions.import_from(old, MessageTable(name="chat", time="at"))
        assert_type(done.kept, int)
        assert_type(interactions.backfill(batch_size=10).embedded, int)
        return interactions.export(new.with_suffix(".jsonl"), agent_name="planner")


def nearest(texts: list[str]) -> tuple[int, float]:
    with Embeddings(Config.of({"embedding": {"model": "all-MiniLM-L6-v2"}})) as embeddings:
        assert_type(embeddings.dimension, int)
        assert_type(embeddings.cosine("one", "other"), float)
        return embeddings.most_similar("query", texts, top_k=1)[0]


def recall(store: str) -> list[tuple[str, float | None]]:
    with Interactions(store) as interactions:
        kept = interactions.record("planner", "message", "We ship on Friday.", when=1_800_000_000.0)
        assert_type(kept.content, str)
        found = interactions.semantic_search_interactions("when do we ship", agent_name="planner", top_k=1)
        assert_type(interactions.recent("planner", limit=5).known, int)
        return [(one.interaction.content, one.score) for one in found.results]
