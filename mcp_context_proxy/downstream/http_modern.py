"""A modern-era server over HTTP: one POST for each request, on a shared client.

Requests share nothing but the connection pool, so a refused connection, a reset or a timeout fails its own
request and no other.
"""

from __future__ import annotations

import contextlib
import json
import logging
from http import HTTPStatus

import anyio
import httpx2
from msgspec import UNSET, Raw

from mcp_context_proxy.config import Limits, ServerConfig
from mcp_context_proxy.downstream import http_client
from mcp_context_proxy.downstream.jsonrpc import result_of
from mcp_context_proxy.downstream.link import PLAIN, HeaderMap, Notify, Outgoing
from mcp_context_proxy.errors import BadAnswerError, CallInterruptedError, CallTimeoutError
from mcp_context_proxy.protocol import envelope, eras, headers
from mcp_context_proxy.protocol.envelope import NO_PARAMS, Members
from mcp_context_proxy.protocol.eras import Era
from mcp_context_proxy.protocol.framing import ServerSentEvent
from mcp_context_proxy.system.flights import in_task
from mcp_context_proxy.system.threads import in_thread

logger = logging.getLogger(__name__)


class ModernHttp:
    """A modern-era server at a URL. Implements `Link`. Nothing is sent until the first request."""

    in_flight = ()

    def __init__(
        self, config: ServerConfig, limits: Limits, client: httpx2.AsyncClient, on_notification: Notify
    ):
        self.era = Era.MODERN
        self.server, self._url, self._client = config.name, config.url or "", client
        self._limits, self._on_notification = limits, on_notification
        self._call_seconds = config.call_timeout
        self._next_id = 0
        self.header_maps: dict[str, HeaderMap] | None = {}

    async def request(self, method: str, params: Members = NO_PARAMS, outgoing: Outgoing = PLAIN) -> bytes:
        """Send a request and return its encoded result unchanged; see `Link.request`."""
        await in_task()
        self._next_id += 1
        request_id = self._next_id
        down = eras.fit_params_to_server(
            params,
            Era.MODERN,
            capabilities=outgoing.capabilities,
            client_info=outgoing.client_info,
            log_level=outgoing.log_level,
            progress_token=request_id if outgoing.wants_progress else None,
        )
        subject = outgoing.subject or method
        seconds = outgoing.timeout if outgoing.timeout is not None else self._call_seconds
        give_up_at = anyio.current_time() + max(seconds, self._limits.call_max_seconds)
        with anyio.move_on_after(seconds) as scope:

            def note(name: str, members: Members) -> None:
                if name == "notifications/progress":
                    scope.deadline = min(anyio.current_time() + seconds, give_up_at)
                (outgoing.on_notification or self._on_notification)(name, members)

            try:
                body = envelope.request(request_id, method, down)
                sent = self._headers(method, down)
                async with self._client.stream("POST", self._url, content=body, headers=sent) as response:
                    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
                    if kind == "text/event-stream" and response.is_success:
                        return await self._read_events(response, request_id, note)
                    body = await http_client.read(response, self.server, self._limits.message_bytes)
                    return await self._read_reply(body, response.status_code, kind)
            except httpx2.HTTPError as error:
                cause = f"broke off ({http_client.described(error)})"
                interrupted = CallInterruptedError(self.server, subject, cause)
                raise http_client.refusal(error, self.server, self._url) or interrupted from error
        raise CallTimeoutError(self.server, subject, seconds)

    async def notify(self, method: str, params: Members = NO_PARAMS) -> None:
        """Do nothing: the modern era has no notifications from client to server over HTTP."""
        del params
        logger.debug("%s: %s has no modern form over HTTP", self.server, method)

    def _headers(self, method: str, params: Members) -> dict[str, str]:
        sent = {
            "accept": "application/json, text/event-stream",
            "content-type": "application/json",
            "mcp-protocol-version": eras.MODERN_VERSION,
            "mcp-method": method,
        }
        name = envelope.text(params.get(headers.NAMED.get(method, "")))
        if name is not None:
            sent["mcp-name"] = headers.encoded(name)
            header_map = self.header_maps.get(name) if self.header_maps and method == "tools/call" else None
            if header_map:
                arguments = envelope.value_or_none(params.get("arguments", Raw(b"{}")))
                sent.update(
                    headers.argument_headers(header_map, arguments if isinstance(arguments, dict) else {})
                )
        return sent

    async def _read_events(self, response: httpx2.Response, request_id: int, note: Notify) -> bytes:
        reply = envelope.Envelope()

        async def take(event: ServerSentEvent) -> bool:
            nonlocal reply
            if event.name != b"message" or not event.data:
                return False
            message = await self._decode(event.data)
            if message.method is UNSET:
                reply = message
                return message.id == request_id
            if message.id is UNSET:
                note(message.method, {} if message.params is UNSET else envelope.members(message.params))
            return False

        if not await http_client.read_events(response, self.server, self._limits.sse_event_bytes, take):
            raise httpx2.RemoteProtocolError("the event stream ended without an answer")
        return result_of(self.server, reply)

    async def _read_reply(self, body: bytes, status: int, kind: str) -> bytes:
        message = envelope.Envelope()
        if status < HTTPStatus.BAD_REQUEST and body.lstrip()[:1] in (b"{", b"["):
            message = await self._decode(body)
        elif status >= HTTPStatus.BAD_REQUEST:
            with contextlib.suppress(envelope.MalformedError):
                message = envelope.decode_from_server(body)
        # An OAuth error is no JSON-RPC error: its "error" is a word.
        is_error = message.error is not UNSET and envelope.starts_with(message.error, b"{")
        if not is_error and (message.result is UNSET or status >= HTTPStatus.BAD_REQUEST):
            raise http_client.without_message(self.server, status, kind or "no content")
        return result_of(self.server, message)

    async def _decode(self, data: bytes) -> envelope.Envelope:
        try:
            if envelope.is_large(data):
                return await in_thread(envelope.decode_large, data, envelope.decode_from_server)
            return envelope.decode_from_server(data)
        except envelope.MalformedError as error:
            raise BadAnswerError(self.server, f"with a message that cannot be read ({error})") from None


def header_map(definition: bytes) -> tuple[str, HeaderMap, str | None]:
    """Return a tool's name, its header map, and the reason if that is invalid."""
    if b"x-mcp-header" not in definition:
        return "", {}, None
    try:
        tool = json.loads(definition)
        if not isinstance(tool, dict):
            return "", {}, None
        name, schema = str(tool.get("name")), tool.get("inputSchema")
        problem = headers.fault_in(schema)
        return (name, {}, problem) if problem else (name, headers.header_map_of(schema), None)
    except (ValueError, RecursionError):
        # A number beyond all bounds, or a nesting: nothing else of the definition can be relied on.
        return "", {}, "its x-mcp-header cannot be read"
