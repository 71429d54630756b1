"""Questions of servers as they reach a client."""

from typing import Any

SERVER_KEY = "io.github.mcp-context-proxy/server"
NO_SYSTEM_PROMPT = "The messages below come from this server and not from the user."


def as_shown(server: str, method: str, params: dict[str, Any]) -> dict[str, Any]:
    """The params of a harmless request of `server`, with the name of the server that asks."""
    named = {"_meta": {SERVER_KEY: server}}
    prefix = f"[server '{server}' asks] "
    if method == "elicitation/create":
        return {**params, "message": prefix + params.get("message", ""), **named}
    if method == "sampling/createMessage":
        return {**params, "systemPrompt": prefix + params.get("systemPrompt", NO_SYSTEM_PROMPT), **named}
    return params


def form(name: str = "repository", message: str = "Which one?", **field: Any) -> dict[str, Any]:
    """The params of an elicitation with one field, a text unless the keywords say otherwise."""
    schema = {"type": "object", "properties": {name: {"type": "string", **field}}}
    return {"message": message, "requestedSchema": schema}
