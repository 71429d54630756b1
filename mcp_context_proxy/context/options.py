"""Options of a selection: the configuration, overridden by the session, overridden by the request.

The resulting `ContextOptions` are part of the request context.
"""

from __future__ import annotations

from math import isinf
from typing import Annotated, Self

from msgspec import Meta, Struct
from msgspec.structs import replace

from mcp_context_proxy.config import Config, DomainSearch
from mcp_context_proxy.config.settings import PRESETS, Preset

Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=0, le=100)]
Depth = Annotated[int, Meta(ge=0, le=5)]
Score = Annotated[float, Meta(ge=0, le=1)]


class DomainOptions(Struct, frozen=True):
    """Limits for one domain: tools, or documents (rules and references)."""

    top_k: int
    """Chunk matches considered."""
    top_n: int
    """Items selected."""
    include_score: float | None
    """Cosine from which items are selected even past ``top_n``; None for no such items."""
    by_fit: bool = False
    """True to select the tools that fit, few or many, instead of ``top_n``."""

    @classmethod
    def of(cls, numbers: DomainSearch) -> Self:
        """Take the limits from the configuration."""
        unbounded = isinf(numbers.include_score)
        include_score = None if unbounded else numbers.include_score
        return cls(numbers.top_k, numbers.top_n, include_score, numbers.by_fit)


class ContextOptions(Struct, frozen=True):
    """All options of one selection."""

    tools: DomainOptions
    documents: DomainOptions
    max_tokens: int | None = None
    """Budget for all items together; None for no limit."""
    expansion_depth: int = 1
    """Number of steps from selected items to those that come with them; 0 for none."""
    expansion_threshold: float | None = None
    """Cosine from which two items count as similar; None for the links of documents and tools."""
    expansion_top_n: int = 6
    """Items added in each step."""
    history: int = 0
    """Number of earlier queries of the session that influence this one."""
    retain_requests: int = 3
    """Number of requests for which a called tool stays selected."""
    expand_results: bool = False
    """True to let the result of the latest call add the tools that fit next."""
    calibrated: bool = True
    """False with another embedding model: its cosines differ, so presets have no ``include_score`` and do not
    select ``by_fit``."""
    document_tokens: int = 1500
    """Budget for the text of the rules and references in one answer."""
    interactions_top_n: int = 0
    """Remembered interactions in one context at most."""
    interaction_tokens: int = 300
    """Budget for the text of them."""
    list_tokens: int = 0
    """Budget, without ``max_tokens``, of a list that is filled because little is known about the request."""
    learned: bool = True
    """False to search without learned pairs, in a comparison (`statistics.trial`)."""


class DomainOverrides(Struct, frozen=True):
    """Changes by a session or a request in one domain; numbers override the preset."""

    preset: Preset | None = None
    top_k: Count | None = None
    top_n: Count | None = None
    include_score: Score | None = None


class Overrides(Struct, frozen=True):
    """Changes by a session or a request; None keeps the value of the level above."""

    tools: DomainOverrides = DomainOverrides()
    documents: DomainOverrides = DomainOverrides()
    max_tokens: Count | None = None
    expansion_depth: Depth | None = None
    expansion_threshold: Score | None = None
    expansion_top_n: Count | None = None
    history: Amount | None = None
    retain_requests: Amount | None = None
    expand_results: bool | None = None


NO_OVERRIDES = Overrides()


def configured(config: Config) -> ContextOptions:
    """Return the options of the configuration."""
    search, context, calibrated = config.search, config.context, config.embedding.packaged is not None
    return ContextOptions(
        tools=DomainOptions.of(search.resolved("tools", calibrated)),
        documents=DomainOptions.of(search.resolved("documents", calibrated)),
        max_tokens=context.max_tokens,
        expansion_depth=context.expansion_depth,
        expansion_threshold=context.expansion_threshold,
        expansion_top_n=context.expansion_top_n,
        history=context.history,
        retain_requests=context.retain_requests,
        expand_results=bool(context.expand_results),
        calibrated=calibrated,
        document_tokens=context.document_tokens,
        interactions_top_n=context.interactions_top_n,
        interaction_tokens=context.interaction_tokens,
        list_tokens=config.expose.list_all_below,
    )


def overridden(options: ContextOptions, *levels: Overrides) -> ContextOptions:
    """Return the options after each level, in order, has overridden the ones before it."""
    for level in levels:
        own = {*Overrides.__struct_fields__} - {"tools", "documents"}
        changed = {name: value for name in own if (value := getattr(level, name)) is not None}
        options = replace(
            options,
            tools=_domain(options.tools, level.tools, options.calibrated),
            documents=_domain(options.documents, level.documents, options.calibrated),
            **changed,
        )
    return options


def _domain(options: DomainOptions, level: DomainOverrides, calibrated: bool) -> DomainOptions:
    if level.preset is not None:
        options = DomainOptions.of(PRESETS[level.preset])
        if not calibrated:
            options = replace(options, include_score=None, by_fit=False)
    numbers = {
        name: value
        for name in ("top_k", "top_n", "include_score")
        if (value := getattr(level, name)) is not None
    }
    if level.top_n is not None:
        # An explicit number is a promise: no score adds to it or takes from it.
        options = replace(options, by_fit=False)
        numbers.setdefault("include_score", None)
    options = replace(options, **numbers)
    return replace(options, top_k=max(options.top_k, options.top_n))
