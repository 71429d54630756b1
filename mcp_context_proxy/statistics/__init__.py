"""Statistics: the calls of each tool, the searches, and the tokens that they saved."""
