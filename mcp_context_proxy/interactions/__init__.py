"""Memory of interactions: what agents searched, called and said, found again by meaning and age."""
