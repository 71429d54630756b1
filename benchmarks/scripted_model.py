"""A model on loopback that follows a script, behind the APIs by which hosts ask models."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any


@dataclass
class Request:
    """One request to the model, in the terms that all of their APIs share."""

    tools: dict[str, str]
    """Description by name."""
    said: str
    """All texts that are neither calls nor results: what the host tells the model."""
    results: list[str]
    """Texts of the results of calls, in their order."""


@dataclass
class Model:
    """A model that follows a script, whichever API it is asked by."""

    requests: list[Request] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Requests that were not understood, for whoever looks for the reason."""

    def next(self, request: Request) -> tuple[str, dict[str, Any]] | None:
        """Return the next call; None at the end, and for requests without our tools."""
        ours = next((name for name in request.tools if name.endswith("search_available_tools")), None)
        if ours is None:
            return None
        self.requests.append(request)
        prefix = ours.removesuffix("search_available_tools")
        script: list[tuple[str, dict[str, Any]]] = [
            ("search_available_tools", {"query": "fill in a form and list the lines of the ledger"}),
            ("call_read_only_tool", {"name": "forms__two_forms", "arguments": {}}),
            ("read_document", {"name": "reference://aviary", "section": "Flight times"}),
            ("read_document", {"name": "reference://warehouse/crates.md"}),
            ("call_read_only_tool", {"name": "forms__many_lines", "arguments": {}}),
            ("read_result", {"id": _result_id(request.results), "pattern": "line 4999 of"}),
        ]
        if len(request.results) >= len(script):
            return None
        name, arguments = script[len(request.results)]
        if prefix + name not in request.tools:
            # As for any tool that the host does not list.
            name, arguments = "call_tool", {"name": name, "arguments": arguments}
        return prefix + name, arguments


def _result_id(results: list[str]) -> str:
    found = re.search(r'id=.?"([^"\\]+)', results[-1]) if results else None
    return found[1] if found else "none"


class Api(BaseHTTPRequestHandler):
    """The APIs by which hosts ask models: Anthropic's, two of OpenAI, and Gemini's."""

    protocol_version = "HTTP/1.1"
    model: Model

    def do_GET(self) -> None:
        """List no models."""
        self._json({"data": [], "models": [], "object": "list"})

    def do_POST(self) -> None:
        """Answer a request to the model."""
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            asked = json.loads(body)
        except ValueError:
            asked = {}
        path = self.path.partition("?")[0]
        if path.endswith("/messages"):
            self._events(_anthropic(self.model.next(_from_anthropic(asked))))
        elif path.endswith("/responses"):
            self._events(_responses(self.model.next(_from_responses(asked)), asked))
        elif path.endswith("/chat/completions"):
            self._events(_chat(self.model.next(_from_chat(asked))))
        elif "GenerateContent" in path:
            self._events(_gemini(self.model.next(_from_gemini(asked))))
        elif "generateContent" in path:
            self._json(next(iter(_gemini(self.model.next(_from_gemini(asked)))))[1])
        elif "count" in path.lower():
            self._json({"input_tokens": 10, "totalTokens": 10})
        else:
            self.model.others.append(f"{self.path}: {body[:200]!r}")
            self._json({})

    def _json(self, value: Any) -> None:
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _events(self, events: Iterator[tuple[str, Any]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for name, data in events:
            shown = data if isinstance(data, str) else json.dumps(data)
            self.wfile.write((f"event: {name}\n" if name else "").encode() + f"data: {shown}\n\n".encode())
        self.close_connection = True

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


Call = tuple[str, dict[str, Any]] | None


def _texts(value: Any) -> str:
    """All texts in a value, one a line."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "\n".join(_texts(one) for key, one in value.items() if key not in {"type", "role", "id"})
    return "\n".join(map(_texts, value)) if isinstance(value, list) else ""


def _from_anthropic(asked: Any) -> Request:
    said, results = [_texts(asked.get("system"))], []
    for message in asked.get("messages", []):
        content = message["content"]
        for block in content if isinstance(content, list) else [{"type": "text", "text": content}]:
            if block["type"] == "tool_result":
                results.append(_texts(block.get("content")))
            elif block["type"] == "text":
                said.append(block["text"])
    tools = {one["name"]: one.get("description", "") for one in asked.get("tools", [])}
    return Request(tools, "\n".join(said), results)


def _anthropic(call: Call) -> Iterator[tuple[str, Any]]:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "scripted",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 1},
    }
    yield "message_start", {"type": "message_start", "message": message}
    if call is None:
        start: dict[str, Any] = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": "Done."}
    else:
        start = {"type": "tool_use", "id": f"toolu_{os.urandom(6).hex()}", "name": call[0], "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": start}
    yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    reason = {"stop_reason": "end_turn" if call is None else "tool_use", "stop_sequence": None}
    yield "message_delta", {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 5}}
    yield "message_stop", {"type": "message_stop"}


def _from_responses(asked: Any) -> Request:
    said, results = [_texts(asked.get("instructions"))], []
    for item in asked.get("input", []):
        if item.get("type") in {"function_call_output", "custom_tool_call_output", "mcp_tool_call_output"}:
            results.append(_texts(item.get("output")))
        elif item.get("type") in {None, "message"}:
            said.append(_texts(item.get("content")))
    tools: dict[str, str] = {}
    for one in asked.get("tools", []):
        if one.get("type") == "namespace":
            said.append(one.get("description", ""))
            tools |= {
                f"{one['name']} {inner['name']}": inner.get("description", "") for inner in one["tools"]
            }
        elif "name" in one:
            tools[one["name"]] = one.get("description", "")
    return Request(tools, "\n".join(said), results)


def _responses(call: Call, asked: Any) -> Iterator[tuple[str, Any]]:
    if call is None:
        item: dict[str, Any] = {
            "type": "message",
            "id": "msg_1",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": "Done.", "annotations": []}],
        }
    else:
        space, _, name = call[0].rpartition(" ")
        item = {
            "type": "function_call",
            "id": f"fc_{os.urandom(6).hex()}",
            "call_id": f"call_{os.urandom(6).hex()}",
            "name": name,
            "arguments": json.dumps(call[1]),
            "status": "completed",
        }
        item |= {"namespace": space} if space else {}
    response = {"id": f"resp_{os.urandom(6).hex()}", "object": "response", "output": []}
    yield "response.created", {"type": "response.created", "response": response}
    added = {"type": "response.output_item.added", "output_index": 0, "item": item}
    yield "response.output_item.added", added
    yield "response.output_item.done", {**added, "type": "response.output_item.done"}
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}
    done = {**response, "status": "completed", "output": [item], "usage": usage}
    yield "response.completed", {"type": "response.completed", "response": done}


def _from_chat(asked: Any) -> Request:
    said, results = list[str](), list[str]()
    for message in asked.get("messages", []):
        (results if message["role"] == "tool" else said).append(_texts(message.get("content")))
    tools = {
        one["function"]["name"]: one["function"].get("description", "") for one in asked.get("tools", [])
    }
    return Request(tools, "\n".join(said), results)


def _chat(call: Call) -> Iterator[tuple[str, Any]]:
    def chunk(delta: Any, reason: str | None) -> tuple[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": reason}
        head = {"id": "chat_1", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
        return "", {**head, "choices": [choice]}

    if call is None:
        yield chunk({"role": "assistant", "content": "Done."}, None)
        yield chunk({}, "stop")
    else:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        one = {"index": 0, "id": f"call_{os.urandom(6).hex()}", "type": "function", "function": function}
        yield chunk({"role": "assistant", "tool_calls": [one]}, None)
        yield chunk({}, "tool_calls")
    yield "", "[DONE]"


def _from_gemini(asked: Any) -> Request:
    said, results = [_texts(asked.get("systemInstruction"))], []
    for content in asked.get("contents", []):
        for part in content.get("parts", []):
            if "functionResponse" in part:
                results.append(_texts(part["functionResponse"].get("response")))
            elif "text" in part:
                said.append(part["text"])
    declared = [one for tool in asked.get("tools", []) for one in tool.get("functionDeclarations", [])]
    return Request({one["name"]: one.get("description", "") for one in declared}, "\n".join(said), results)


def _gemini(call: Call) -> Iterator[tuple[str, Any]]:
    part = {"text": "Done."} if call is None else {"functionCall": {"name": call[0], "args": call[1]}}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    yield "", {"candidates": [candidate], "usageMetadata": usage}
