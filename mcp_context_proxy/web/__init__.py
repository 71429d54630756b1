"""For people and programs beside the protocol: the REST API, and the page that shows contexts."""
