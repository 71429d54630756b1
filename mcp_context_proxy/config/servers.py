"""What can be configured of one downstream server, and of each of its tools."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field, model_validator

from mcp_context_proxy.config.limits import Seconds
from mcp_context_proxy.config.table import Flag, Table, Tag, Text
from mcp_context_proxy.items import IncludeMode

Transport: TypeAlias = Literal["stdio", "http", "sse"]


class OAuthConfig(Table):
    """How we log in to a server at a URL."""

    grant: Literal["authorization_code", "client_credentials"] = "authorization_code"
    """``authorization_code``: a person logs in; ``client_credentials``: the client's secret is enough."""
    client_id: Text | None = None
    """None registers us with the authorization server, where it allows that."""
    client_secret: Text | None = Field(default=None, repr=False)
    issuer: Text | None = None
    """The authorization server; None takes the one that the server names."""
    scope: Text | None = None
    """Separated by spaces; None asks for what the server names."""
    redirect_port: Annotated[int, Field(strict=True, ge=0, le=65535)] = 0
    """Port of this machine to which the browser comes back; 0 takes any free one."""


class ToolConfig(Table):
    """What is set for one tool of a server."""

    include: IncludeMode | None = None
    tags: tuple[Tag, ...] = ()
    """Beside those of the server."""
    category: Tag | None = None


class ServerConfig(Table):
    """One downstream server: a program to start or a URL to connect to."""

    derived: ClassVar[frozenset[str]] = frozenset({"name", "secrets"})

    name: str
    command: Text | None = None
    args: tuple[str, ...] = Field(default=(), repr=False)
    env: dict[str, str] = Field(default={}, repr=False)
    cwd: Path | None = None
    url: str | None = Field(default=None, repr=False)
    headers: dict[str, str] = Field(default={}, repr=False)
    transport: Transport = "stdio"
    """Derived when not given: ``stdio`` with a command, ``http`` with a URL."""
    era: Literal["auto", "handshake", "modern"] = "auto"
    """``auto`` asks the server; name the era to skip the question."""
    isolation: Literal["auto", "shared", "session"] = "auto"
    """Whether the sessions of clients share one connection; ``auto`` until the server asks one something."""
    enabled: Flag = True
    include: IncludeMode = IncludeMode.AGENT
    tools: dict[str, ToolConfig] = Field(default={})
    tags: tuple[Tag, ...] = ()
    """Of all its tools, for searches that ask for them; others are derived."""
    category: Tag | None = None
    """Of its tools that have none of their own; None derives it."""
    connect_timeout: Seconds = 30.0
    """Seconds; the default is ``limits.connect_seconds``."""
    call_timeout: Seconds = 60.0
    """Seconds; the default is ``limits.call_seconds``. Progress extends it to ``limits.call_max_seconds``."""
    start: Literal["eager", "lazy"] = "eager"
    """``lazy`` starts it at the first call; until then what it listed last time is searched."""
    idle_timeout: Seconds | None = None
    """Seconds without a call after which it is stopped, until the next one; None never stops it."""
    spotlight: Flag = False
    """The texts that its tools answer are marked as data from outside."""
    oauth: OAuthConfig | None = None
    """None: as its defaults, once you have logged in."""
    secrets: tuple[tuple[str, str], ...] = Field(default=(), repr=False)
    """(variable, value) of what was expanded from the environment, to be redacted wherever text leaves."""

    @model_validator(mode="before")
    @classmethod
    def _derive_transport(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "transport" in data:
            return data
        url = data.get("url")
        if not url:
            return data | {"transport": "stdio"}
        # Servers of HTTP+SSE are at this path nearly all; no server of streamable HTTP is known that is.
        of_sse = isinstance(url, str) and url.partition("?")[0].rstrip("/").endswith("/sse")
        return data | {"transport": "sse" if of_sse else "http"}

    def include_of(self, tool_name: str) -> IncludeMode:
        """The mode of a tool: its own setting, else the server's."""
        tool = self.tools.get(tool_name)
        return tool.include if tool is not None and tool.include is not None else self.include

    def tags_of(self, tool_name: str) -> tuple[str, ...]:
        """The tags of a tool: the server's, then its own."""
        tool = self.tools.get(tool_name)
        return self.tags if tool is None else (*self.tags, *tool.tags)

    def category_of(self, tool_name: str) -> str | None:
        """The category of a tool: its own setting, else the server's."""
        tool = self.tools.get(tool_name)
        return tool.category if tool is not None and tool.category is not None else self.category
