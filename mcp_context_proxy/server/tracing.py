"""OpenTelemetry spans: one for each request of a host, and below it one for each request to a server.

As in the SDK's own tracing, the context comes and goes in ``_meta`` (W3C ``traceparent``), and the program
that embeds the proxy installs a tracer provider. Without one there is no tracing, and ``_meta`` passes
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from opentelemetry.context import Context
from opentelemetry.propagate import extract, get_global_textmap, inject
from opentelemetry.trace import (
    ProxyTracerProvider,
    Span,
    SpanKind,
    StatusCode,
    Tracer,
    get_current_span,
    get_tracer,
    get_tracer_provider,
)

from mcp_context_proxy import __version__
from mcp_context_proxy.errors import DownstreamError, RemoteError
from mcp_context_proxy.protocol import envelope, eras
from mcp_context_proxy.protocol.envelope import Members, RequestError
from mcp_context_proxy.protocol.strangers import LINE_CHARACTERS, NAME_CHARACTERS, clean, stranger_text
from mcp_context_proxy.results import FAILED, outcome_of

NAMED: Final = {"tools/call": "gen_ai.tool.name", "prompts/get": "gen_ai.prompt.name"}
"""Methods whose ``name`` param becomes part of the span, and the attribute that holds it."""


def open_tracing(redact: Callable[[str], str]) -> Tracing | None:
    """Return tracing by the provider that is installed in this process; None without one."""
    if isinstance(get_tracer_provider(), ProxyTracerProvider):
        return None
    return Tracing(get_tracer("mcp-context-proxy", __version__), redact)


class Tracing:
    """Makes spans with one tracer."""

    def __init__(self, tracer: Tracer, redact: Callable[[str], str]) -> None:
        """Remove secrets from words of clients and servers by `redact`: a collector keeps them elsewhere."""
        self._tracer, self._redact = tracer, redact

    @contextmanager
    def request(self, method: str, params: Members, era: eras.Era) -> Iterator[TracedRequest]:
        """Trace a request of a host, below the span that its ``_meta`` names."""
        meta = eras.meta_of(params)
        texts = {name: envelope.text(meta.get(name)) for name in get_global_textmap().fields}
        parent = extract({name: text for name, text in texts.items() if text is not None})
        # Without a context in the request, the ambient one counts.
        known = parent if get_current_span(parent).get_span_context().is_valid else None
        with self._span(method, params, SpanKind.SERVER, {"mcp_context_proxy.era": str(era)}, known) as span:
            try:
                yield TracedRequest(span, method)
            except RequestError as error:
                _fail(span, str(error.code), self._said(error))
                raise

    @contextmanager
    def downstream(self, server: str, method: str, params: Members) -> Iterator[TracedRequest]:
        """Trace a request to a server, which is sent `TracedRequest.params`."""
        attributes = {"mcp_context_proxy.server": server}
        with self._span(method, params, SpanKind.CLIENT, attributes) as span:
            try:
                yield TracedRequest(span, method, _with_context(params))
            except DownstreamError as error:
                kind = str(error.code) if isinstance(error, RemoteError) else type(error).__name__
                _fail(span, kind, self._said(error))
                raise

    def _said(self, error: Exception) -> str:
        return self._redact(clean(str(error)))[:LINE_CHARACTERS]

    def _span(
        self,
        method: str,
        params: Members,
        kind: SpanKind,
        attributes: dict[str, Any],
        parent: Context | None = None,
    ) -> AbstractContextManager[Span]:
        name, attributes["mcp.method.name"] = method, method
        if method == "tools/call":
            attributes["gen_ai.operation.name"] = "execute_tool"
        if method in NAMED and (named := envelope.text(params.get("name"))) is not None:
            named = stranger_text(named, self._redact, NAME_CHARACTERS)
            name, attributes[NAMED[method]] = f"{method} {named}", named
        return self._tracer.start_as_current_span(
            name, parent, kind, attributes, record_exception=False, set_status_on_exception=False
        )


class TracedRequest:
    """Holds a request under way and its span."""

    __slots__ = ("_method", "_span", "params")

    def __init__(self, span: Span, method: str, params: Members | None = None) -> None:
        self._span, self._method = span, method
        self.params: Members = {} if params is None else params
        """The params to be sent on: they name the span."""

    def answered(self, result: bytes) -> None:
        if self._method != "tools/call" or not self._span.is_recording():
            return
        if outcome_of(result) is FAILED:
            _fail(self._span, "tool_error", "")


def _with_context(params: Members) -> Members:
    carried: dict[str, str] = {}
    inject(carried)
    if not carried:
        return params
    meta = {**eras.meta_of(params), **{name: envelope.raw(text) for name, text in carried.items()}}
    return {**params, "_meta": envelope.raw(meta)}


def _fail(span: Span, kind: str, description: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR, description or None)
