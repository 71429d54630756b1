"""OAuth with servers at a URL: logging in, and the bearer token that every request of ours then carries."""
