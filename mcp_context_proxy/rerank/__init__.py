"""A second opinion on the best tools of a search: another model puts them in order, or nothing changes."""
