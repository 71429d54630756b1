"""Skills as servers list them, as they lie in folders, and as clients get them."""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from support.proxies import Host
from support.raw_client import RpcError

EXTENSION = "io.modelcontextprotocol/skills"


def digest(content: str | bytes) -> str:
    """The digest of a file as a manifest has it."""
    data = content.encode() if isinstance(content, str) else content
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def manifest_file(name: str, description: str, body: str = "Do it.", more: str = "") -> str:
    """The text of a ``SKILL.md``."""
    return f"---\nname: {name}\ndescription: {description}\n{more}---\n\n{body}\n"


def entry(root: str, files: dict[str, str], **more: Any) -> dict[str, Any]:
    """The entry of a skill by the URI of its folder, with the front matter that ``more`` names."""
    resources = [
        {"uri": f"{root}/{path}", "digest": digest(text), "size": len(text.encode())}
        for path, text in files.items()
    ]
    name = root.rpartition("/")[2]
    front = {"name": name, "description": f"Teaches {name}"} | more
    return {"uri": f"{root}/SKILL.md", "frontmatter": front, "resources": resources}


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    """Write the files of a skill."""
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content.encode() if isinstance(content, str) else content)


async def listed(host: Host) -> dict[str, dict[str, Any]]:
    """The entries that a client is told, by their URIs."""
    return {one["uri"]: one for one in (await host.request("skills/list"))["skills"]}


async def read(host: Host, uri: str) -> dict[str, Any]:
    """The one content of a resource."""
    (content,) = (await host.request("resources/read", {"uri": uri}))["contents"]
    return dict(content)


async def refusal(host: Host, method: str, uri: str) -> RpcError:
    """The error that a client is answered with."""
    with pytest.raises(RpcError) as refused:
        await host.request(method, {"uri": uri})
    return refused.value
