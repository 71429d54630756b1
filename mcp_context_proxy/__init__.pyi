from mcp_context_proxy.library import *  # noqa: F403 - its ``__all__`` has every public name

__version__: str
