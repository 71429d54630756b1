"""Which model the configuration means: the packaged one, one in a folder, or one behind an endpoint."""

from __future__ import annotations

from pathlib import Path

from mcp_context_proxy.config import Config
from mcp_context_proxy.embedding.embedder import Embedder
from mcp_context_proxy.embedding.folder import PACKAGED_MODEL, read_folder
from mcp_context_proxy.embedding.model import load_model


def look_at_model(config: Config) -> None:
    """Read the files of the configured model, and open nothing. Blocking.

    Raises:
        ModelError: they are missing or damaged.
    """
    settings = config.embedding
    if settings.endpoint is None:
        read_folder(PACKAGED_MODEL if settings.model is None else Path(settings.model), settings)


def open_model(config: Config) -> Embedder:
    """The configured model. Blocking, where it is on disk; an endpoint is asked at the first use.

    Raises:
        ModelError: its files cannot be used.
    """
    settings = config.embedding
    if settings.endpoint is not None:
        # The HTTP client, which nobody else needs that early.
        from mcp_context_proxy.embedding.endpoint import EndpointModel  # noqa: PLC0415

        return EndpointModel(settings, config.limits)
    return load_model(None if settings.model is None else Path(settings.model), settings)
