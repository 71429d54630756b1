"""Large results of calls: shortened for the model, kept whole for a while, and read in parts on request."""

from mcp_context_proxy.results.kept import KeptResults, ReadError, Reading, read
from mcp_context_proxy.results.shortening import SMALL_BYTES, LargeResults, with_note

__all__ = ["SMALL_BYTES", "KeptResults", "LargeResults", "ReadError", "Reading", "read", "with_note"]
