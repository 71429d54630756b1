"""Lets another model order the best tools of a search; if it fails, the order stays."""
