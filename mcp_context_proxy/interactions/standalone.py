"""A memory of interactions for programs that have no proxy: a store and a model of its own."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Self

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.secrets import Redactor, all_secrets_of
from mcp_context_proxy.embedding.embeddings import LazyModel, open_model
from mcp_context_proxy.interactions.memory import Interaction, InteractionMemory, InteractionRetention
from mcp_context_proxy.store import IN_MEMORY, open_store
from mcp_context_proxy.system.clock import time_of_day


class Interactions(InteractionMemory):
    """Remembers what agents do. Blocking and thread-safe. Close it, or use it as a context manager."""

    def __init__(self, store: Path | str = IN_MEMORY, config: Config | None = None) -> None:
        """Open a memory.

        Args:
            store: A file that keeps it, such as a proxy's; by default it is gone when it is closed.
            config: Of how much is kept, and of the embedding model; by default what the proxy has.
        """
        config = config or Config()
        self._opened = open_store(IN_MEMORY if store == IN_MEMORY else Path(store))
        self._lazy = LazyModel(partial(open_model, config))
        redact = Redactor(all_secrets_of(config))
        super().__init__(self._lazy, self._opened.interactions, InteractionRetention.of(config), redact)

    def record(
        self, agent_name: str, interaction_type: str, content: str, when: float | None = None
    ) -> Interaction:
        """Keep an interaction and embed it; returns it as it is kept.

        Args:
            agent_name: Who did it.
            interaction_type: Such as ``search``, ``call`` or ``message``.
            content: What it was about.
            when: Seconds since 1970; by default now.

        Raises:
            StoreError: it was not kept.
            ModelError: it was kept, and has no embedding.
        """
        moment = time_of_day() if when is None else when
        (kept,) = self.add([Interaction(agent_name, interaction_type, content, moment)])
        self.embed([kept])
        return kept

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the model and the store."""
        self._lazy.close()
        self._opened.close()
