"""Configuration: loaded from one file, validated as a whole, frozen afterwards."""

from mcp_context_proxy.config.limits import Limits
from mcp_context_proxy.config.load import find, load
from mcp_context_proxy.config.settings import (
    PACKAGED_MODELS,
    AuditConfig,
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
    SharedConfig,
    StatisticsConfig,
    StoreConfig,
)
from mcp_context_proxy.config.tables import AuthConfig, ClassesConfig, ClusterConfig, ToolConfig
from mcp_context_proxy.system.places import default_path

__all__ = [
    "PACKAGED_MODELS",
    "AuditConfig",
    "AuthConfig",
    "ClassesConfig",
    "ClusterConfig",
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
    "SharedConfig",
    "StatisticsConfig",
    "StoreConfig",
    "ToolConfig",
    "default_path",
    "find",
    "load",
]
