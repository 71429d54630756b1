"""Search filters as a caller sets them; `context.search_filters` applies them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Final

from msgspec import Meta, Struct

from mcp_context_proxy.items import JSON

MIN_CALLS: Final = 5
"""Below this number of calls a success rate means little: one failure in four is still a bad day."""

LATENCY_MOST: Final = 1e9
"""Milliseconds: eleven days."""

Name = Annotated[str, Meta(min_length=1, max_length=1000)]
Latency = Annotated[float, Meta(gt=0, le=LATENCY_MOST)]
Share = Annotated[float, Meta(ge=0, le=1)]


def _meta(description: str, *, model: str | None = None, off: str | None = None) -> Meta:
    """Describe a filter for the command line and the OpenAPI document.

    ``model`` is a shorter description for the meta tool, ``off`` the option of the command line for False.
    """
    return Meta(description=description, extra={"model": model, "off": off})


class SearchFilters(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Filters of one search; the defaults allow everything.

    The schema of the meta tool, the parameters of the REST API and the options of the CLI follow from these
    fields.
    """

    server: Annotated[Name | None, _meta("Only tools of this server.", model="Search only this server")] = (
        None
    )
    category: Annotated[Name | None, _meta("Only items of this category.")] = None
    tags: Annotated[tuple[str, ...], _meta("Only items with all of these tags.", model="All of them")] = ()
    any_tags: Annotated[tuple[str, ...], _meta("Only items with at least one of these tags.")] = ()
    language: Annotated[Name | None, _meta("Only items with this programming language as a tag.")] = None
    read_only: Annotated[bool, _meta("Only tools that say they change nothing.")] = False
    exclude_destructive: Annotated[
        bool, _meta("Only tools that say they neither delete nor overwrite anything.")
    ] = False
    open_world: Annotated[
        bool | None,
        _meta("Only tools that reach beyond their server, or only those that do not.", off="closed-world"),
    ] = None
    max_latency_ms: Annotated[
        Latency | None, _meta("Only tools that end 95 % of their calls within this time.")
    ] = None
    min_success_rate: Annotated[
        Share | None, _meta("Only tools with at least this share of successful calls.")
    ] = None
    min_calls: Annotated[
        int, Meta(ge=1, le=1_000_000_000), _meta("Fewer calls than this say nothing about the success rate.")
    ] = MIN_CALLS
    strict: Annotated[bool, _meta("Also leave out tools with too few calls to tell.")] = False

    def applied(self) -> dict[str, JSON]:
        """Return the filters that are set, by name, without those that mean nothing alone."""
        found = {name: getattr(self, name) for name in SearchFilters.__struct_fields__}
        asked = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in found.items()
            if value != getattr(NO_FILTERS, name)
        }
        if not self.needs_figures:
            asked.pop("strict", None)
        if self.min_success_rate is None:
            asked.pop("min_calls", None)
        return asked

    @property
    def needs_figures(self) -> bool:
        """True where it matters how earlier calls went."""
        return self.max_latency_ms is not None or self.min_success_rate is not None

    def each(self) -> Iterator[tuple[str, SearchFilters]]:
        """Yield each filter that is set alone, with its name."""
        for name in self.applied():
            if name not in ("min_calls", "strict"):
                alone: dict[str, Any] = {name: getattr(self, name)}
                yield name, SearchFilters(min_calls=self.min_calls, strict=self.strict, **alone)


NO_FILTERS: Final = SearchFilters()
