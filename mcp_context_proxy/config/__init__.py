"""Configuration: loaded from one file, validated as a whole, frozen afterwards."""

from mcp_context_proxy.config.limits import Limits
from mcp_context_proxy.config.load import default_path, find, load
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
    OAuthConfig,
    RerankConfig,
    ResultsConfig,
    SearchConfig,
    ServerConfig,
    StatisticsConfig,
    StoreConfig,
    ToolConfig,
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
    "ResultsConfig",
    "SearchConfig",
    "ServerConfig",
    "StatisticsConfig",
    "StoreConfig",
    "ToolConfig",
    "default_path",
    "find",
    "load",
]
