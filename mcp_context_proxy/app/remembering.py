"""What the memory of interactions is made of, in one place: the memory, its writer, the log of hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mcp_context_proxy.config import Config
from mcp_context_proxy.config.redaction import Redactor
from mcp_context_proxy.config.secrets import all_secrets_of
from mcp_context_proxy.interactions.memory import InteractionMemory, Model, Retention
from mcp_context_proxy.interactions.recorder import InteractionRecorder
from mcp_context_proxy.server.interaction_log import InteractionLog

if TYPE_CHECKING:
    from mcp_context_proxy.store import Store


class Remembering:
    """The parts of the memory of interactions, connected."""

    def __init__(self, config: Config, store: Store, model: Model) -> None:
        self._secrets = set(all_secrets_of(config))
        self.memory = memory_of(config, store, model)
        self.recorder = InteractionRecorder(self.memory)
        self.log = InteractionLog(self.recorder)
        self.recall_tool = config.interactions.recall_tool
        """Whether models may search it; as it was at start."""

    def configure(self, config: Config) -> None:
        """Know the secrets of a changed configuration, too; none is ever forgotten."""
        self._secrets.update(all_secrets_of(config))
        self.memory.redact_with(Redactor(self._secrets))


def memory_of(config: Config, store: Store, model: Model) -> InteractionMemory:
    """The memory of interactions of a store, as configured."""
    redact = Redactor(all_secrets_of(config))
    return InteractionMemory(model, store.interactions, Retention.of(config), redact)
