"""How much is selected: the agent's settings, overridden by the session's, overridden by the request's.

A `None` in `Overrides` changes nothing. What results is a `ContextOptions`, which the request context keeps.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from math import isinf
from typing import Annotated, Self

from msgspec import Meta

from mcp_context_proxy.config import Config, DomainSearch
from mcp_context_proxy.config.settings import PRESETS, Preset

Count = Annotated[int, Meta(ge=1)]
Amount = Annotated[int, Meta(ge=0, le=100)]
Depth = Annotated[int, Meta(ge=0, le=5)]
Score = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True, slots=True)
class DomainOptions:
    """How much is selected in one domain: tools, or documents (rules and references)."""

    top_k: int
    """Chunk matches considered."""
    top_n: int
    """Items selected."""
    include_score: float | None
    """Items whose cosine is as much are selected even past ``top_n``; None for none."""

    @classmethod
    def of(cls, numbers: DomainSearch) -> Self:
        """As configured."""
        unbounded = isinf(numbers.include_score)
        return cls(numbers.top_k, numbers.top_n, None if unbounded else numbers.include_score)


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """Everything that decides how much is selected for a request."""

    tools: DomainOptions
    documents: DomainOptions
    max_tokens: int | None = None
    """What all items together may cost; None for no bound."""
    expansion_depth: int = 0
    """Steps from what is selected to what is near to it."""
    expansion_threshold: float = 0.75
    """Cosine from which an item is near to another."""
    expansion_top_n: int = 3
    """Items of each step."""
    history: int = 0
    """Earlier queries of the session that join this one."""
    retain_requests: int = 3
    """For how many requests a tool that was used stays selected."""
    expand_results: bool = False
    """Whether the answer of the latest call may bring items."""
    calibrated: bool = True
    """Whether the ``include_score`` of presets means anything: cosines of another model are other numbers."""
    list_tokens: int = 0
    """What a list may hold where a selection is not to be relied on, without ``max_tokens``."""


@dataclass(frozen=True, slots=True)
class DomainOverrides:
    """What a session or a request changes in one domain; numbers beat the preset."""

    preset: Preset | None = None
    top_k: Count | None = None
    top_n: Count | None = None
    include_score: Score | None = None


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a session or a request changes."""

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
    """The agent's options."""
    search, context, calibrated = config.search, config.context, config.embedding.packaged
    return ContextOptions(
        tools=DomainOptions.of(search.resolved("tools", calibrated)),
        documents=DomainOptions.of(search.resolved("documents", calibrated)),
        max_tokens=context.max_tokens,
        expansion_depth=context.expansion_depth,
        expansion_threshold=context.expansion_threshold,
        expansion_top_n=context.expansion_top_n,
        history=context.history,
        retain_requests=context.retain_requests,
        expand_results=context.expand_results,
        calibrated=calibrated,
        list_tokens=config.expose.list_all_below,
    )


def overridden(options: ContextOptions, *levels: Overrides) -> ContextOptions:
    """The options after one level has overridden the one before it."""
    for level in levels:
        if level == NO_OVERRIDES:
            continue
        own = {field.name for field in fields(Overrides)} - {"tools", "documents"}
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
            options = replace(options, include_score=None)
    numbers = {
        name: value
        for name in ("top_k", "top_n", "include_score")
        if (value := getattr(level, name)) is not None
    }
    if level.top_n is not None and level.include_score is None:
        # A number that was asked for is a promise: no score adds to it.
        numbers["include_score"] = None
    options = replace(options, **numbers)
    return replace(options, top_k=max(options.top_k, options.top_n))
