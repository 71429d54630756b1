"""Host profiles: how each host treats our names, descriptions, lists and results.

Hosts differ in what they add to a name, how long it may be, what they cut, and which part of a result their
model reads. None of that is in the protocol. This table is the one place for it: the longest name that fits
everywhere is computed from it, ``check --host`` reads it, and so do the tests.

Most values come from public issues and documents, read in November 2026, and not from the makers of the
hosts. So each stands beside its source, where *assumed* means that nobody has said it. A value that proves to
be wrong is corrected here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct
from msgspec.structs import replace

Form: TypeAlias = Literal["text", "structured", "both"]
"""Part of a result that the model reads: its ``content``, its ``structuredContent`` where there is one, or
both, one after the other."""

T_co = TypeVar("T_co", covariant=True)

SERVER: Final = "context-proxy"
"""Recommended name of the proxy in the settings of a host; hosts put it before the name of each tool."""

PLUGIN: Final = "proxy"
PLUGIN_SERVER: Final = "mcp"
"""Names of a plugin for Claude Code and of the server in it: short, as both stand before every tool name."""

CHARACTERS_PER_TOKEN: Final = 4
"""Characters in a token, about, where a host counts its limit in tokens."""


class Fact(Struct, Generic[T_co], frozen=True):
    """A value, and the public issue or document that says so."""

    value: T_co
    source: str


UNKNOWN: Final = Fact(None, "not known")


class NameRule(Struct, frozen=True):
    """The name under which a model gets a tool: a prefix of the host, then the name that we list."""

    prefix: str
    """Has ``{server}`` in the place of the name that the proxy has in the host."""
    most: int
    """Longest name with its prefix, in characters."""
    breach: Literal["refused", "dropped", "shortened"]
    """Fate of a longer name: the model's API refuses the whole list, or the host drops that tool, or it
    shortens the name by itself."""
    prefix_most: int | None = None
    """Length to which the host cuts the prefix."""

    def prefix_with(self, server: str) -> str:
        return self.prefix.format(server=server)[: self.prefix_most]

    def room(self, server: str) -> int:
        return self.most - len(self.prefix_with(server))


class ResultLimit(Struct, frozen=True):
    """The length of a result above which the model does not get all of it."""

    most: int
    unit: Literal["tokens", "characters", "bytes"]
    rest: Literal["in a file", "lost"]
    """Place of a longer result: a file that the model may read, or nowhere beyond the limit."""

    @property
    def characters(self) -> int:
        """Return about how many characters of plain English text that is."""
        return self.most * CHARACTERS_PER_TOKEN if self.unit == "tokens" else self.most


class HostProfile(Struct, frozen=True, kw_only=True):
    """One host. None as a value means that there is no limit, or that nothing is known."""

    name: str
    """Name on our command line."""
    title: str
    """Name that people know."""
    clients: Fact[tuple[str, ...]]
    """Beginnings of the ``clientInfo.name`` that it sends, in small letters."""
    result: Fact[Form]
    names: Fact[NameRule]
    server: str = SERVER
    """Recommended name of the proxy in this host."""
    description_bytes: Fact[int | None] = UNKNOWN
    """Length to which it cuts the description of a tool, and our instructions."""
    results: Fact[ResultLimit | None] = UNKNOWN
    tools: Fact[int | None] = UNKNOWN
    """Most tools of all its servers together."""
    first_list_seconds: Fact[float | None] = UNKNOWN
    """Time after which it does without the tools of a server that has not listed them yet."""
    list_changes: Fact[bool]
    """True if it lists the tools again when they change."""
    elicitation: Fact[bool | None] = UNKNOWN
    sampling: Fact[bool | None] = UNKNOWN
    instructions: Fact[bool] = Fact(True, "assumed, where it was not seen")
    """True if it gives our instructions to its model."""

    @property
    def name_characters(self) -> int:
        """Return the length of the longest name that fits if the proxy has its recommended name."""
        return self.names.value.room(self.server)


_CLAUDE_CODE: Final = HostProfile(
    name="claude-code",
    title="Claude Code",
    clients=Fact(("claude-code",), "apify/mcp-client-capabilities"),
    result=Fact("structured", "anthropics/claude-code#79944, #55677, #54450"),
    names=Fact(NameRule("mcp__{server}__", 64, "refused"), "anthropics/claude-code#19882, #2536"),
    description_bytes=Fact(2048, "code.claude.com/docs/en/mcp: 2 KB for each, instructions too"),
    results=Fact(
        ResultLimit(25_000, "tokens", "in a file"), "code.claude.com/docs/en/mcp: MAX_MCP_OUTPUT_TOKENS"
    ),
    tools=Fact(None, "code.claude.com/docs/en/mcp: it searches its tools instead"),
    first_list_seconds=Fact(
        5.0, "code.claude.com/docs/en/mcp: at the start, for what is always loaded; else MCP_TIMEOUT, 30 s"
    ),
    list_changes=Fact(True, "its changelog, 2.1.0; not over HTTP in 2.1.215: #79826"),
    elicitation=Fact(True, "its changelog, 2.1.76; some versions do not declare it: #65572"),
    sampling=Fact(False, "anthropics/claude-code#1785"),
)

_HOSTS: Final = (
    _CLAUDE_CODE,
    replace(
        _CLAUDE_CODE,
        name="claude-code-plugin",
        title="Claude Code (plugin)",
        clients=Fact(_CLAUDE_CODE.clients.value, "assumed: the same as without the plugin"),
        names=Fact(
            NameRule(f"mcp__plugin_{PLUGIN}_{{server}}__", 64, "refused"),
            "anthropics/claude-code#23149, ChromeDevTools/chrome-devtools-mcp#1169",
        ),
        server=PLUGIN_SERVER,
    ),
    HostProfile(
        name="claude-desktop",
        title="Claude Desktop",
        clients=Fact(("claude-ai", "claude-desktop"), "JetBrains/mcp-jetbrains#5"),
        result=Fact("text", "anthropics/claude-code#55677, of claude.ai"),
        names=Fact(
            NameRule("{server}:", 64, "refused"),
            "anthropics/claude-code#34960, evoila/meho#2745; that the server's name counts is assumed",
        ),
        list_changes=Fact(False, "anthropics/claude-code#50339, anthropics/claude-ai-mcp#960"),
    ),
    HostProfile(
        name="codex",
        title="Codex",
        clients=Fact(("codex",), "apify/mcp-client-capabilities: codex-mcp-client, Codex"),
        result=Fact("structured", "openai/codex#38287, #10334"),
        names=Fact(NameRule("mcp__{server}__", 64, "shortened"), "openai/codex: mcp_connection_manager.rs"),
        results=Fact(
            ResultLimit(10_000, "bytes", "lost"), "openai/codex#6544, #7906; 10,000 tokens with some models"
        ),
        first_list_seconds=Fact(10.0, "openai/codex#3182, #11851"),
        list_changes=Fact(False, "openai/codex#33266, #35583, #37417"),
        elicitation=Fact(True, "openai/codex: mcp_connection_manager.rs"),
    ),
    HostProfile(
        name="vscode",
        title="VS Code",
        clients=Fact(("visual studio code", "visual-studio-code"), "apify/mcp-client-capabilities"),
        result=Fact("structured", "microsoft/vscode#290063"),
        # Its prefix has the title that the proxy announces, and is cut.
        names=Fact(
            NameRule("mcp_{server}_", 64, "refused", prefix_most=18),
            "microsoft/vscode#318638, #243602, mcpTypes.ts",
        ),
        results=Fact(
            ResultLimit(8192, "bytes", "in a file"),
            "microsoft/vscode#329276: chat.agent.largeToolResultsToDisk",
        ),
        tools=Fact(128, "microsoft/vscode-copilot-release#13065"),
        list_changes=Fact(True, "microsoft/vscode#243944"),
        elicitation=Fact(True, "apify/mcp-client-capabilities"),
        sampling=Fact(True, "apify/mcp-client-capabilities"),
    ),
    HostProfile(
        name="copilot-cli",
        title="Copilot CLI",
        clients=Fact(
            ("github-copilot", "copilot-cli"), "apify/mcp-client-capabilities; the second: seen in 1.0.102"
        ),
        result=Fact("both", "github/copilot-cli#3258, #4515; seen in 1.0.102"),
        names=Fact(NameRule("{server}-", 64, "refused"), "microsoft/mcp#842; 128 with some models: #1879"),
        results=Fact(ResultLimit(20_480, "bytes", "in a file"), "microsoft/vscode#329276"),
        tools=Fact(None, "github/copilot-cli#4038: it defers many tools instead"),
        list_changes=Fact(True, "github/copilot-cli#132, #3125: from the next message of the user on"),
        elicitation=Fact(True, "seen in 1.0.102"),
        sampling=Fact(True, "seen in 1.0.102"),
        instructions=Fact(False, "seen in 1.0.102: only with --allow-all-mcp-server-instructions"),
    ),
    HostProfile(
        name="jetbrains",
        title="Copilot in JetBrains IDEs",
        # In its agent mode it is Copilot CLI that connects.
        clients=Fact(
            ("jetbrains", "github-copilot"),
            "apify/mcp-client-capabilities: JetBrains-IU-copilot-intellij; "
            "microsoft/copilot-intellij-feedback#1979: github-copilot-developer",
        ),
        result=Fact("both", "microsoft/copilot-intellij-feedback#2058"),
        names=Fact(
            NameRule("mcp_{server}_", 59, "refused"),
            "not known, last looked for on 2026-11-24: prefix as in VS Code, and the room of the strictest "
            "host, are assumed; the characters: microsoft/copilot-intellij-feedback#1583",
        ),
        tools=Fact(128, "microsoft/copilot-intellij-feedback#1842"),
        list_changes=Fact(
            False,
            "microsoft/copilot-intellij-feedback#1979: a conversation loses the tools of a server that "
            "starts again; not known for other changes",
        ),
        elicitation=Fact(True, "apify/mcp-client-capabilities"),
        sampling=Fact(True, "apify/mcp-client-capabilities"),
    ),
    HostProfile(
        name="cursor",
        title="Cursor",
        clients=Fact(("cursor",), "apify/mcp-client-capabilities: cursor-vscode"),
        result=Fact("structured", "modelcontextprotocol/modelcontextprotocol#1411"),
        # A server and a tool of 60 characters together are one too many, so there is one between them.
        names=Fact(NameRule("{server}:", 60, "dropped"), "ComposioHQ/composio#2788, PostHog/posthog#51483"),
        results=Fact(None, "long ones go to files; the length is not known"),
        tools=Fact(40, "mcptrove.com/blog/cursor-tool-limit-math; it may be higher by now"),
        list_changes=Fact(False, "forum.cursor.com/t/161459"),
        elicitation=Fact(True, "apify/mcp-client-capabilities"),
    ),
    HostProfile(
        name="opencode",
        title="opencode",
        clients=Fact(("opencode",), "apify/mcp-client-capabilities"),
        result=Fact("text", "anomalyco/opencode#32074, #34505"),
        names=Fact(
            NameRule("{server}_", 64, "refused"), "opencode.ai/docs/mcp-servers; the length is assumed"
        ),
        results=Fact(ResultLimit(51_200, "bytes", "in a file"), "anomalyco/opencode#22565, #35661"),
        first_list_seconds=Fact(5.0, "the schema of its settings, 1.x: the timeout of a request to a server"),
        list_changes=Fact(True, "anomalyco/opencode#5913"),
    ),
    HostProfile(
        name="gemini-cli",
        title="Gemini CLI",
        clients=Fact(("gemini-cli",), "apify/mcp-client-capabilities: gemini-cli-mcp-client"),
        result=Fact("text", "google-gemini/gemini-cli: mcp-tool.ts"),
        names=Fact(
            NameRule("mcp_{server}_", 63, "shortened"), "google-gemini/gemini-cli#21425, #20987, #28971"
        ),
        results=Fact(
            ResultLimit(40_000, "characters", "in a file"), "google-gemini/gemini-cli#18446, #19365"
        ),
        list_changes=Fact(True, "google-gemini/gemini-cli#14375, #21050"),
    ),
    HostProfile(
        name="qwen-code",
        title="Qwen Code",
        clients=Fact(("qwen-",), "seen in 0.24.4: qwen-cli-mcp-client-context-proxy"),
        result=Fact("both", "seen in 0.24.4"),
        names=Fact(NameRule("mcp__{server}__", 63, "shortened"), "seen in 0.24.4; the length is in its code"),
        results=Fact(ResultLimit(500_000, "characters", "in a file"), "the code of 0.24.4"),
        list_changes=Fact(False, "seen in 0.24.4"),
        elicitation=Fact(False, "seen in 0.24.4"),
        sampling=Fact(False, "seen in 0.24.4"),
    ),
    HostProfile(
        name="cline",
        title="Cline",
        clients=Fact(("@cline/", "cline"), "seen in 3.0.65: @cline/core; the second is assumed"),
        result=Fact("both", "seen in 3.0.65"),
        names=Fact(NameRule("{server}__", 64, "refused"), "seen in 3.0.65; the length is assumed"),
        list_changes=Fact(False, "seen in 3.0.65"),
        elicitation=Fact(False, "seen in 3.0.65"),
        sampling=Fact(False, "seen in 3.0.65"),
        instructions=Fact(False, "seen in 3.0.65"),
    ),
    HostProfile(
        name="continue",
        title="Continue",
        clients=Fact(("continue",), "seen in 1.5.47: continue-cli-client"),
        result=Fact("text", "seen in 1.5.47"),
        names=Fact(NameRule("", 64, "refused"), "seen in 1.5.47; the length is assumed"),
        list_changes=Fact(False, "seen in 1.5.47"),
        elicitation=Fact(False, "seen in 1.5.47"),
        sampling=Fact(False, "seen in 1.5.47"),
        instructions=Fact(False, "seen in 1.5.47"),
    ),
    HostProfile(
        name="plain",
        title="A plain client",
        clients=Fact((), "any other"),
        result=Fact("text", "the protocol: content is for the model"),
        names=Fact(NameRule("", 128, "refused"), "the protocol, 2025-11-25: tool names"),
        list_changes=Fact(False, "assumed: the protocol does not demand it"),
    ),
)

HOSTS: Final[Mapping[str, HostProfile]] = {host.name: host for host in _HOSTS}
"""All profiles by name."""

NAME_CHARACTERS: Final = min(host.name_characters for host in _HOSTS)
"""Longest name that fits every host, if the proxy has its recommended name there."""


def name_room(client: str) -> int:
    """Return the length of the longest name that fits a client, by the ``clientInfo.name`` that it sends.

    It is the least of all hosts that send such a name, and for an unknown client that of all hosts.
    """
    said = client.strip().casefold()
    return min(
        (host.name_characters for host in _HOSTS if said.startswith(host.clients.value)),
        default=NAME_CHARACTERS,
    )


def room_given(host: HostProfile) -> int:
    """Return the length of the longest name that a host gets from us: other hosts may send the same name."""
    return name_room(host.clients.value[0]) if host.clients.value else NAME_CHARACTERS


NAME_LENGTHS: Final = tuple(sorted({room_given(host) for host in _HOSTS}))
"""Lengths of names that some client has room for, `NAME_CHARACTERS` first."""

INSTRUCTIONS_BYTES: Final = min(size for host in _HOSTS if (size := host.description_bytes.value) is not None)
"""Length of the instructions that no host cuts."""


def shows_instructions(client: str) -> bool:
    host = host_named(client)
    return host is None or host.instructions.value


def host_named(name: str) -> HostProfile | None:
    """Return a host by its name here or by the ``clientInfo.name`` that it sends; None if it is not known."""
    asked = name.strip().casefold()
    if (known := HOSTS.get(asked)) is not None:
        return known
    found = [(len(start), host) for host in _HOSTS for start in host.clients.value if asked.startswith(start)]
    return max(found, key=lambda pair: pair[0])[1] if found else None
