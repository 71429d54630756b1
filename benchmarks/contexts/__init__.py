"""Measurements of contexts: expansion, documents that are meant, tools after results."""
