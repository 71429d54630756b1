"""One MCP server in front of many: it shows a model only the tools, rules and references a request needs."""

from importlib.metadata import version

__version__ = version("mcp-context-proxy")
