"""The least proxy that the SDK's own `Server` and `Client` make: the mark that a proxy has to beat.

    python bare_sdk_proxy.py SERVERS COUNT [--modern] [--http PORT]

In front of SERVERS tiny servers with COUNT tools each, typed all the way, names prefixed. With SERVERS 0 it
is an SDK server with one tool of its own: the cost of a call over HTTP without any proxy.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path
from typing import Any

import anyio
import mcp_types as types
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

TOOL_SERVER = Path(__file__).with_name("tool_server.py")


async def serve(arguments: argparse.Namespace) -> None:
    clients: dict[str, Client] = {}

    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        del ctx, params
        listed = []
        for name, client in clients.items():
            for tool in (await client.list_tools()).tools:
                listed.append(tool.model_copy(update={"name": f"{name}__{tool.name}"}))
        return types.ListToolsResult(tools=listed, ttl_ms=0, cache_scope="private")

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        del ctx
        if not clients:
            return types.CallToolResult(content=[types.TextContent(type="text", text="xx")])
        server, _, tool = params.name.partition("__")
        return await clients[server].call_tool(tool, params.arguments)

    async with contextlib.AsyncExitStack() as stack:
        for number in range(arguments.servers):
            clients[f"s{number}"] = await stack.enter_async_context(Client(_child(number, arguments)))
        server: Server[Any] = Server(
            "bare",
            on_list_tools=list_tools,
            on_call_tool=call_tool,
            # Without it, every modern HTTP call would first run the whole tools/list.
            get_tool_input_schema=lambda name: None,
        )
        if arguments.http:
            await _serve_http(server, arguments.http)
            return
        async with stdio_server() as (reader, writer):
            await server.run(reader, writer, server.create_initialization_options())


async def _serve_http(server: Server[Any], port: int) -> None:
    import uvicorn
    from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
    from starlette.applications import Starlette
    from starlette.routing import Route

    from mcp_context_proxy.front.http import listen

    # As the SDK serves: only the socket is ours, because Nagle's delay would hide everything else.
    manager = StreamableHTTPSessionManager(server)
    app = Starlette(
        routes=[Route("/mcp", StreamableHTTPASGIApp(manager))], lifespan=lambda app: manager.run()
    )
    config = uvicorn.Config(app, log_config=None, access_log=False, ws="none")
    await uvicorn.Server(config).serve(sockets=[listen("127.0.0.1", port)])


def _child(number: int, arguments: argparse.Namespace) -> StdioServerParameters:
    more = ["--modern"] if arguments.modern else []
    return StdioServerParameters(
        command=sys.executable,
        args=["-S", "-E", str(TOOL_SERVER), str(number), str(arguments.count), *more],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("servers", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("--modern", action="store_true")
    parser.add_argument("--http", type=int)
    anyio.run(serve, parser.parse_args())
