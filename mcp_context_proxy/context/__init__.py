"""Contexts of requests and sessions: queries, selections, records."""
