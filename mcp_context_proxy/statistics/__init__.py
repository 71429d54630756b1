"""How tools and searches do: what was called, how long it took, what came of it."""
