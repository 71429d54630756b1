"""OAuth for servers at a URL: logs in, and puts the bearer token on every request."""
