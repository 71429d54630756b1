"""One MCP server in front of many: it shows a model only the tools, rules and references a request needs."""

__version__ = "0.1.0"
