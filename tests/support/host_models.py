"""The part of our lists and results that the model of a host gets, as far as its profile tells."""

import json
from collections.abc import Iterable
from typing import Any

from mcp_context_proxy.config.host_profiles import HostProfile


def tools_seen(
    profile: HostProfile, listed: Iterable[dict[str, Any]], server: str | None = None
) -> list[dict[str, Any]]:
    """The tools of a `tools/list` as the host gives them to its model, under their names there.

    Empty if the list is refused. `server` is the name of the proxy there, by default the recommended one.
    """
    rule = profile.names.value
    prefix = rule.prefix_with(profile.server if server is None else server)
    seen: dict[str, dict[str, Any]] = {}
    for tool in listed:
        name = prefix + tool["name"]
        if len(name) > rule.most:
            if rule.breach == "refused":
                return []
            if rule.breach == "dropped":
                continue
            half = (rule.most - 3) // 2
            name = f"{name[:half]}...{name[-half:]}"
        shown = description_seen(profile, tool.get("description", ""))
        seen[name] = {**tool, "name": name, "description": shown}
    return [*seen.values()][: profile.tools.value]


def description_seen(profile: HostProfile, text: str) -> str:
    """A description, or our instructions, without the part that the host cuts."""
    return text.encode()[: profile.description_bytes.value].decode("utf-8", "ignore")


def model_sees(profile: HostProfile, result: dict[str, Any]) -> str:
    """The text of a `tools/call` result that reaches the model of the host."""
    texts = [block["text"] for block in result.get("content", ()) if block["type"] == "text"]
    structured = result.get("structuredContent")
    data = [] if structured is None else [json.dumps(structured, ensure_ascii=False, separators=(",", ":"))]
    match profile.result.value:
        case "both":
            parts = texts + data
        case "structured":
            parts = data or texts
        case "text":
            parts = texts or data
    whole, limit = "\n".join(parts), profile.results.value
    if limit is None:
        return whole
    size = len(whole.encode()) if limit.unit == "bytes" else len(whole)
    if size <= limit.characters:
        return whole
    if limit.rest == "in a file":
        return f"The result of {size} {limit.unit} is in a file."
    return whole.encode()[: limit.characters].decode("utf-8", "ignore")
