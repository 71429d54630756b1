"""Configuration: loaded from one file, validated as a whole, frozen afterwards."""

from mcp_context_proxy.config.load import load
from mcp_context_proxy.config.settings import (
    PACKAGED_MODELS,
    Config,
    DocumentsConfig,
    DomainConfig,
    DomainOptions,
    EmbeddingConfig,
    ExposeConfig,
    HttpConfig,
    InteractionsConfig,
    OAuthConfig,
    RerankConfig,
    ResultsConfig,
    SearchConfig,
    ServerConfig,
    StoreConfig,
    TlsConfig,
)
from mcp_context_proxy.config.tables import AuthConfig, ClassesConfig, ClusterConfig, Limits, ToolConfig
from mcp_context_proxy.system import default_path

__all__ = [
    "PACKAGED_MODELS",
    "AuthConfig",
    "ClassesConfig",
    "ClusterConfig",
    "Config",
    "DocumentsConfig",
    "DomainConfig",
    "DomainOptions",
    "EmbeddingConfig",
    "ExposeConfig",
    "HttpConfig",
    "InteractionsConfig",
    "Limits",
    "OAuthConfig",
    "RerankConfig",
    "ResultsConfig",
    "SearchConfig",
    "ServerConfig",
    "StoreConfig",
    "TlsConfig",
    "ToolConfig",
    "default_path",
    "load",
]
