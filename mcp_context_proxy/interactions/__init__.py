"""Interactions: the searches, calls and messages of agents, found again by meaning and age."""
