"""Installation: the proxy takes the place of a host's servers in the host's own file, and gives it back."""
