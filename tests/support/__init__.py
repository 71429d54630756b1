"""Helpers of the tests: servers to put behind the proxy, and a client without the SDK to put in front."""
