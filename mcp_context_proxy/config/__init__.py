"""The configuration: loaded once from one file, checked whole, frozen afterwards."""

from mcp_context_proxy.config.limits import Limits
from mcp_context_proxy.config.load import load
from mcp_context_proxy.config.locate import default_path, find
from mcp_context_proxy.config.servers import OAuthConfig, ServerConfig, ToolConfig
from mcp_context_proxy.config.settings import (
    Config,
    ContextConfig,
    DocumentsConfig,
    DomainConfig,
    DomainSearch,
    EmbeddingConfig,
    ExposeConfig,
    HttpConfig,
    InteractionsConfig,
    LearningConfig,
    RerankConfig,
    SearchConfig,
    StatisticsConfig,
    StoreConfig,
)

__all__ = [
    "Config",
    "ContextConfig",
    "DocumentsConfig",
    "DomainConfig",
    "DomainSearch",
    "EmbeddingConfig",
    "ExposeConfig",
    "HttpConfig",
    "InteractionsConfig",
    "LearningConfig",
    "Limits",
    "OAuthConfig",
    "RerankConfig",
    "SearchConfig",
    "ServerConfig",
    "StatisticsConfig",
    "StoreConfig",
    "ToolConfig",
    "default_path",
    "find",
    "load",
]
