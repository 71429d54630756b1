"""How well search finds what is needed, measured on tools and queries that anyone can bring."""
