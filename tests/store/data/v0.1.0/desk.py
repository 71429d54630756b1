"""The MCP server that the store of 0.1.0 knows: over stdio, of the handshake era."""

import json
import sys


def tool(name, description, /, **parameters):
    properties = {key: {"type": "string", "description": said} for key, said in parameters.items()}
    return {
        "name": name,
        "description": description,
        "inputSchema": {"type": "object", "properties": properties},
    }


TOOLS = [
    tool("post_message", "Send a message to a channel", channel="Where to", text="The message"),
    tool("create_ticket", "Open a ticket about a problem", title="The problem in one line"),
    tool("find_file", "Find files by a part of their name", name="Part of the name"),
    tool("book_room", "Reserve a meeting room", day="Which day"),
    tool("report", "Figures of the sales of a quarter", quarter="Such as 2026-Q3"),
    tool("fails", "Restart a machine that hangs", machine="Its name"),
]


def answer(method, params):
    if method == "initialize":
        return {
            "protocolVersion": params["protocolVersion"],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "desk", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        text = f"{params['name']}: done"
        return {"content": [{"type": "text", "text": text}], "isError": params["name"] == "fails"}
    return {} if method == "ping" else None


def main():
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = answer(message["method"], message.get("params", {}))
            unknown = {"error": {"code": -32601, "message": "Method not found"}}
            reply = unknown if result is None else {"result": result}
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **reply}), flush=True)


if __name__ == "__main__":
    main()
