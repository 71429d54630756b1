"""Learning from use: tools that were called for a query rank higher in later searches like it."""
