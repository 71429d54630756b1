"""Fronts, to which hosts connect: stdio and HTTP."""
