"""A memory of interactions for programs without a proxy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

from mcp_context_proxy.config import Config
from mcp_context_proxy.embedding.embeddings import LazyModel, open_model
from mcp_context_proxy.interactions.memory import InteractionMemory, scope_of
from mcp_context_proxy.interactions.recorder import BATCH, Backfilled, backfill
from mcp_context_proxy.interactions.transfer import Imported, MessageTable, export_lines, import_file
from mcp_context_proxy.store import IN_MEMORY, Interaction, open_store
from mcp_context_proxy.system.process import time_of_day


class Interactions(InteractionMemory):
    """A memory of interactions with a store and a model of its own.

    Blocking and thread-safe. Close it, or use it as a context manager.
    """

    def __init__(self, store: Path | str = IN_MEMORY, config: Config | None = None) -> None:
        """Open a memory.

        Args:
            store: A file that keeps it, such as a proxy's; by default nothing is kept after closing.
            config: Bounds of the interactions kept, and the embedding model; by default as in the proxy.
        """
        config = config or Config()
        self._opened = open_store(IN_MEMORY if store == IN_MEMORY else Path(store))
        self._lazy = LazyModel(partial(open_model, config))
        super().__init__(self._lazy, self._opened.interactions, config)

    def record(
        self, agent_name: str, interaction_type: str, content: str, when: float | None = None
    ) -> Interaction:
        """Keep and embed an interaction; return it as it is kept.

        Args:
            agent_name: Name of the agent.
            interaction_type: Such as ``search``, ``call`` or ``message``.
            content: The text of the interaction.
            when: Seconds since 1970; by default now.

        Raises:
            StoreError: it was not kept.
            ModelError: it was kept, and has no embedding.
        """
        moment = time_of_day() if when is None else when
        (kept,) = self.add([Interaction(agent_name, interaction_type, content, moment)])
        self.embed([kept])
        return kept

    def backfill(
        self, batch_size: int = BATCH, on_progress: Callable[[int, int], None] | None = None
    ) -> Backfilled:
        """Embed the interactions without an embedding, such as those that `add` or `import_from` kept.

        Args:
            batch_size: Interactions that are embedded and stored together, at least 1.
            on_progress: Gets the number of interactions that were tried, and of all.

        Raises:
            ValueError: the batch size is below 1.
            ModelError: there is no model.
            StoreError: the store failed; the embeddings made until then are kept.
        """
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it must be at least 1")
        return backfill(self, batch_size, on_progress)

    def export(
        self, path: Path | str, agent_name: str | None = None, interaction_type: str | None = None
    ) -> int:
        """Write interactions to a file, a line of JSON each, without embeddings; return how many."""
        count, scope = 0, scope_of(agent_name, interaction_type)
        with Path(path).open("wb") as file:
            for line in export_lines(self._opened.interactions, scope):
                file.write(line)
                count += 1
        return count

    def import_from(
        self,
        path: Path | str,
        table: MessageTable | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> Imported:
        """Import a file that `export` wrote, or a table of messages in a SQLite file, without embedding them.

        Interactions that are there already are not imported again.

        Raises:
            DataFileError: the file cannot be read, or it has no such table.
            StoreError: the store failed; the interactions written until then are kept.
        """
        return import_file(self, Path(path), table, on_progress)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the model and the store."""
        self._lazy.close()
        self._opened.close()
