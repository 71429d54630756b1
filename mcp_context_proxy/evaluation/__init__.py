"""Measures how well search finds the needed tools, on tools and queries that anyone can bring."""
