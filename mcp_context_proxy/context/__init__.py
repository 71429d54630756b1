"""What a request and a session know: the query, and what was shown for it."""
