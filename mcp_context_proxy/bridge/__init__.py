"""Small processes beside the proxy, of the standard library alone: the bridge, and the prompt hook."""
