"""Large results of calls: shortened for the model, kept whole for a while, and read in parts on request."""

from mcp_context_proxy.results.result_store import KeptResults, ReadError, ReadPage, read
from mcp_context_proxy.results.shortening import SMALL_BYTES, LargeResults, with_note

__all__ = ["SMALL_BYTES", "KeptResults", "LargeResults", "ReadError", "ReadPage", "read", "with_note"]
