"""A trace goes through the proxy: a host's span, ours, one for each request of a server, the server's own."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from support.proxies import Host, inside, real_command
from support.raw_client import RpcError
from support.servers import Workshop, tool
from support.wires import stdio

from mcp_context_proxy.app.proxy import Proxy
from mcp_context_proxy.server.tracing import Tracing, open_tracing

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{PARENT}-01"
CALLS = {
    "fails": [{"result": {"content": [], "isError": True}}],
    "refuses": [{"error": {"code": -32603, "message": "no"}}],
}

PROVIDED = """
import sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
provider = TracerProvider()
one_line = lambda span: span.to_json(indent=None) + "\\n"
provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=sys.stderr, formatter=one_line)))
trace.set_tracer_provider(provider)
from mcp_context_proxy.__main__ import main
main()
"""


@pytest.fixture
def config(workshop: Workshop) -> Path:
    tools = [tool("echo", "Say it again"), tool("fails", "Fails"), tool("refuses", "Refuses")]
    workshop.server("s", tools=tools, calls=CALLS)
    return workshop.config()


@pytest.fixture
async def proxy(config: Path) -> AsyncIterator[Proxy]:
    async with inside(config) as opened:
        yield opened


@pytest.fixture
def collected(proxy: Proxy) -> InMemorySpanExporter:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    proxy.trace(Tracing(provider.get_tracer("test"), proxy.redact))
    return exporter


def of(collected: InMemorySpanExporter) -> tuple[ReadableSpan, ReadableSpan]:
    """The span of the last request, and that of the request a server was sent for it."""
    *_, sent, asked = collected.get_finished_spans()
    assert (asked.kind, sent.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    return asked, sent


def received(workshop: Workshop) -> dict[str, Any]:
    """The ``_meta`` of the last call that the server got."""
    lines = [json.loads(entry["line"]) for entry in workshop.servers["s"].ledger.entries("received")]
    calls = [line for line in lines if line.get("method") == "tools/call"]
    meta: dict[str, Any] = calls[-1]["params"].get("_meta", {})
    return meta


async def test_a_call_is_a_span_with_a_child_span_for_the_server_request(
    host: Host, collected: InMemorySpanExporter, workshop: Workshop
) -> None:
    await host.call("s__echo", traceparent=TRACEPARENT, tracestate="vendor=1")
    asked, sent = of(collected)

    assert (asked.name, sent.name) == ("tools/call s__echo", "tools/call echo")
    assert asked.parent is not None
    assert f"{asked.context.trace_id:032x}" == TRACE
    assert f"{asked.parent.span_id:016x}" == PARENT
    assert sent.parent is not None
    assert sent.parent.span_id == asked.context.span_id
    assert received(workshop)["traceparent"] == f"00-{TRACE}-{sent.context.span_id:016x}-01"
    assert received(workshop)["tracestate"] == "vendor=1"
    assert sent.attributes is not None
    assert sent.attributes["mcp_context_proxy.server"] == "s"
    assert sent.attributes["gen_ai.tool.name"] == "echo"


async def test_a_call_through_call_tool_joins_the_trace_as_well(
    host: Host, collected: InMemorySpanExporter, workshop: Workshop
) -> None:
    await host.call("call_tool", {"name": "s__echo"}, traceparent=TRACEPARENT)
    asked, sent = of(collected)

    assert asked.name == "tools/call call_tool"
    assert received(workshop)["traceparent"] == f"00-{TRACE}-{sent.context.span_id:016x}-01"


async def test_without_a_trace_context_a_new_trace_begins_and_reaches_the_server(
    host: Host, collected: InMemorySpanExporter, workshop: Workshop
) -> None:
    await host.call("s__echo", traceparent="nonsense")
    asked, sent = of(collected)

    assert asked.parent is None
    assert received(workshop)["traceparent"].split("-")[1:3] == [
        f"{asked.context.trace_id:032x}",
        f"{sent.context.span_id:016x}",
    ]


async def test_a_failure_is_recorded_in_the_span(host: Host, collected: InMemorySpanExporter) -> None:
    await host.call("s__fails")
    for span in of(collected):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes is not None
        assert span.attributes["error.type"] == "tool_error"
    with pytest.raises(RpcError):
        await host.call("s__refuses")
    asked, sent = of(collected)

    assert (asked.status.description, asked.status.status_code) == ("[server 's' says] no", StatusCode.ERROR)
    assert sent.attributes is not None
    assert sent.attributes["error.type"] == "-32603"


async def test_what_a_client_writes_reaches_a_collector_short_clean_and_without_secrets(
    workshop: Workshop,
) -> None:
    workshop.server("s", settings={"env": {"API_TOKEN": "q8w7e6r5t4y3u2"}})
    written = "q8w7e6r5t4y3u2\u202e" + "x" * 60_000
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with inside(workshop.config()) as proxy:
        proxy.trace(Tracing(provider.get_tracer("test"), proxy.redact))
        host = Host(proxy, "handshake")
        await host.call(written)
        with pytest.raises(RpcError):
            await host.request("prompts/get", {"name": written})

    for span in exporter.get_finished_spans():
        collected = json.dumps(json.loads(span.to_json()), ensure_ascii=False)
        assert "[redacted API_TOKEN]" in collected
        assert "q8w7" not in collected
        assert "\u202e" not in collected
        assert len(collected) < 5_000


async def test_without_a_provider_there_is_no_tracing_and_the_context_passes_unchanged(
    host: Host, workshop: Workshop
) -> None:
    await host.call("s__echo", traceparent=TRACEPARENT, tracestate="vendor=1", baggage="a=b")

    assert open_tracing(str) is None
    meta = received(workshop)
    assert (meta["traceparent"], meta["tracestate"], meta["baggage"]) == (TRACEPARENT, "vendor=1", "a=b")


async def test_the_real_command_uses_the_provider_that_is_installed_in_its_process(
    config: Path, workshop: Workshop
) -> None:
    log = config.with_suffix(".log")
    words = [sys.executable, "-c", PROVIDED, *real_command(config, "serve")[3:]]
    with log.open("w", encoding="utf-8") as stderr:
        async with stdio(words, stderr=stderr) as client:
            await client.until_listed("s__echo")
            await client.call("s__echo", traceparent=TRACEPARENT)
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if line.startswith("{")]
    spans = {span["name"]: span for span in map(json.loads, lines)}

    assert spans["tools/call s__echo"]["parent_id"] == f"0x{PARENT}"
    assert spans["tools/call echo"]["parent_id"] == spans["tools/call s__echo"]["context"]["span_id"]
    sent = spans["tools/call echo"]["context"]["span_id"].removeprefix("0x")
    assert received(workshop)["traceparent"] == f"00-{TRACE}-{sent}-01"


def test_other_commands_do_not_load_tracing() -> None:
    program = (
        "import sys, mcp_context_proxy.app.serve; print(any('opentelemetry' in name for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={**os.environ}
    )

    assert done.stdout == "False\n"
