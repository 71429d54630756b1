"""Connections to the servers behind the proxy: each owned by one task, each failure contained there."""
