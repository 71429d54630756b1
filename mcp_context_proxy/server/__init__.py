"""The one MCP server that hosts see: lists, meta tools, forwarding, for both protocol eras."""
