"""Entry point of ``mcp-context-proxy`` and ``python -m mcp_context_proxy``."""

from mcp_context_proxy.cli.main import main

if __name__ == "__main__":
    main()
