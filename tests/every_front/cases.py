"""The servers behind the proxy, with their questions, notifications and answers."""

from typing import Any

SERVERS = {
    "old": ("handshake", "stdio"),
    "oldweb": ("handshake", "http"),
    "oldsse": ("handshake", "sse"),
    "new": ("modern", "stdio"),
    "newweb": ("modern", "http"),
}
"""By name: their era and how they are reached."""

QUESTIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "elicit": (
        "elicitation/create",
        {
            "message": "Which one?",
            "requestedSchema": {"type": "object", "properties": {}},
            "x-more": [None],
        },
        {"action": "accept", "content": {"which": "this"}},
    ),
    "sample": (
        "sampling/createMessage",
        {"messages": [], "maxTokens": 9, "x-more": {"n": None}},
        {"role": "assistant", "content": {"type": "text", "text": "hello"}, "model": "m"},
    ),
    "roots": ("roots/list", {}, {"roots": [{"uri": "file:///home"}]}),
}
"""Requests of servers, by the tool that makes them: method, params and the client's answer."""

CAPABLE: dict[str, Any] = {
    "elicitation": {},
    "sampling": {},
    "roots": {},
    "extensions": {"com.example/more": {"x": [None]}},
}
"""The capabilities of every client."""

NUMBERS = (
    '{"big":123456789012345678901234567890,"tiny":1.0e-07,"precise":0.12345678901234567890123,'
    '"huge":1e308,"minus":-0,"dup":1,"dup":2,"text":"\\u00e9\u2028", "none" : null}'
)
"""An object that changes if it is decoded and encoded again."""

EXACT = (
    '{"content":[{"type":"text","text":"a\u2028b\\ud83d\\ude00","x-more":{"n":null}}],'
    f'"structuredContent":{NUMBERS},'
    '"x-unknown":[1,null],"_meta":{"com.example/key":{"deep":null}}}'
)
FAILED = {"content": [{"type": "text", "text": "no such file"}], "isError": True, "x-code": 7}

LOGGED = {"level": "warning", "data": {"said": [None]}, "logger": "x"}
MESSAGE, UPDATED = "notifications/message", "notifications/resources/updated"
