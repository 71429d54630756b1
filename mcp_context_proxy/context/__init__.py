"""Request contexts and sessions: selection of items for a query, and records of it."""
