"""What the proxy's own tools are given, checked as it is decoded; nothing is taken that has no name here."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from mcp_context_proxy.context.constraints import Constraints


class SearchArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `search_available_tools`."""

    query: Annotated[str, Meta(min_length=1)]
    top_n: Annotated[int, Meta(ge=1, le=50)] | None = None
    server: str | None = None
    include_schema: bool = True
    kinds: list[Literal["tool", "rule", "reference"]] | None = None
    category: str | None = None
    tags: list[str] | None = None
    any_tags: list[str] | None = None
    language: str | None = None
    read_only: bool | None = None
    exclude_destructive: bool | None = None
    open_world: bool | None = None
    max_latency_ms: Annotated[float, Meta(gt=0)] | None = None
    min_success_rate: Annotated[float, Meta(ge=0, le=1)] | None = None
    strict: bool | None = None
    context_id: str | None = None

    def constraints(self) -> Constraints:
        """As the context layer has them."""
        return Constraints(
            server=self.server,
            category=self.category,
            tags=tuple(self.tags or ()),
            any_tags=tuple(self.any_tags or ()),
            language=self.language,
            read_only=bool(self.read_only),
            exclude_destructive=bool(self.exclude_destructive),
            open_world=self.open_world,
            max_latency_ms=self.max_latency_ms,
            min_success_rate=self.min_success_rate,
            strict=bool(self.strict),
        )


class CallArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `call_tool`."""

    name: Annotated[str, Meta(min_length=1)]
    arguments: Raw | UnsetType = UNSET
    goal: Annotated[str, Meta(max_length=2000)] | None = None
    context_id: str | None = None


class ContextArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `set_context`."""

    query: Annotated[str, Meta(min_length=1)]
    intent: str | None = None
    context_id: str | None = None


class ManageArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `manage_context`."""

    action: Literal["add", "remove", "list"]
    type: Literal["tool", "rule", "reference"] | None = None
    name: str | None = None
    server: str | None = None
    context_id: str | None = None


class RecallArguments(msgspec.Struct, forbid_unknown_fields=True):
    """Of `recall`."""

    query: Annotated[str, Meta(min_length=1)]
    agent_name: str | None = None
    interaction_type: str | None = None
    top_k: Annotated[int, Meta(ge=1, le=50)] = 10
    time_decay_factor: Annotated[float, Meta(gt=0, le=1)] = 0.95
