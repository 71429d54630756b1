"""A real authorization server on a loopback port, and an MCP server that takes only its tokens.

Built from the SDK's server-side pieces and served by uvicorn in the test's own event loop, so that a test can
turn its switches while it runs.
"""

import base64
import contextlib
import json
import secrets
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import jwt
import mcp_types as types
import uvicorn
from mcp import MCPError
from mcp.server.auth.handlers.register import RegistrationHandler
from mcp.server.auth.handlers.token import TokenHandler
from mcp.server.auth.middleware.client_auth import ClientAuthenticator
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    RegistrationError,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.lowlevel import Server
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

MACHINE_ID, MACHINE_SECRET = "the-machine", "machine-s3cr3t-value"


@dataclass
class Issuer:
    """Issues tokens; implements the SDK's provider."""

    url: str = ""
    clients: dict[str, OAuthClientInformationFull] = field(default_factory=dict)
    codes: dict[str, AuthorizationCode] = field(default_factory=dict)
    access: dict[str, AccessToken] = field(default_factory=dict)
    refreshable: dict[str, RefreshToken] = field(default_factory=dict)
    granted: list[str] = field(default_factory=list)
    """The grant of each token request that was answered."""
    failed: list[str] = field(default_factory=list)
    lifetime: int = 3600
    wrong_state: bool = False
    registers: bool = True
    keys: dict[str, Any] = field(default_factory=dict)
    """The public keys of clients, who prove with each request for a token that they have the private one."""
    audience: str = ""
    """The name of itself that it takes in such a proof; its issuer if it is empty."""
    proofs: list[str] = field(default_factory=list)
    """Those proofs, each of which it takes once."""
    registered: dict[str, Any] | None = None
    """Its answer to every registration instead of a client."""
    registers_scope: str | None = None
    """The scopes for which it registers every client, whatever was asked for."""
    registers_method: str | None = None
    """The place of a secret at which it takes those of clients, without a word about it."""
    resources: list[str | None] = field(default_factory=list)
    """The resource that each login named."""
    refuses: bool = False
    refusal: str | None = None
    """The words in which it refuses."""
    rotates: bool = True
    named_issuer: str | None = None
    """The issuer that its metadata names instead of the true one."""
    named_door: str | None = None
    """The page that its metadata names for logins instead of its own."""
    pkce_methods: list[str] | None = field(default_factory=lambda: ["S256"])
    """The code challenge methods that its metadata names; None to leave them out."""
    given_scope: str | None = None
    """The scopes of tokens, whatever was asked for."""
    answer: tuple[int, bytes, dict[str, str]] | None = None
    """Status, body and headers that it gives to every token request instead of a token."""
    repeats: int | None = None
    """The status with which it answers every token request by what was sent."""
    sent: str = ""
    """The form of the latest token request."""
    refresh_seconds: float = 0.0
    """Seconds that a refresh takes."""

    # What the SDK's handlers ask

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        client_info.scope = self.registers_scope or client_info.scope
        client_info.token_endpoint_auth_method = (
            self.registers_method or client_info.token_endpoint_auth_method
        )
        if not self.registers:
            raise RegistrationError("invalid_client_metadata", "clients are registered by its operator")
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        self.resources.append(params.resource)
        if self.refuses:
            told = {"error": "access_denied", "error_description": self.refusal, "state": params.state}
            return construct_redirect_uri(str(params.redirect_uri), **told)
        code = secrets.token_urlsafe(24)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        state = "another-state" if self.wrong_state else params.state
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        self.granted.append("authorization_code")
        return self.issue(client.client_id, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        found = self.refreshable.get(refresh_token)
        if found is None:
            self.failed.append("refresh_token")
        return found

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        if self.rotates and self.refreshable.pop(refresh_token.token, None) is None:
            self.failed.append("refresh_token")
            raise TokenError("invalid_grant", "used already")
        await anyio.sleep(self.refresh_seconds)
        self.granted.append("refresh_token")
        return self.issue(client.client_id, scopes, refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        return self.access.get(token)

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        self.access.clear()
        self.refreshable.clear()

    async def verify_token(self, token: str) -> AccessToken | None:
        found = self.access.get(token)
        expired = found is None or (found.expires_at is not None and found.expires_at <= time.time())
        return None if expired else found

    # What tests do

    def issue(self, client_id: str, scopes: list[str], resource: str | None) -> OAuthToken:
        access, renew = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        facts: dict[str, Any] = {"client_id": client_id, "scopes": scopes, "resource": resource}
        self.access[access] = AccessToken(token=access, expires_at=int(time.time()) + self.lifetime, **facts)
        self.refreshable[renew] = RefreshToken(token=renew, **facts)
        return OAuthToken(
            access_token=access, expires_in=self.lifetime, refresh_token=renew, scope=self.given_scope
        )

    def expire_all(self) -> None:
        """No access token is good any more."""
        self.access.clear()

    # What is served

    async def token(self, request: Request) -> Response:
        self.sent = (await request.body()).decode()
        form = await request.form()
        if self.repeats is not None:
            fault = {"error": "server_error", "error_description": f"{dict(form)} came in {self.sent}"}
            away = {"location": f"https://elsewhere.example/?{self.sent}"} if self.repeats == 302 else None
            return JSONResponse(fault, self.repeats, away)
        if self.answer is not None:
            status, body, headers = self.answer
            return Response(body, status, headers)
        client_id = str(form.get("client_id"))
        if client_id in self.keys:
            proof = str(form.get("client_assertion"))
            try:
                audience, algorithms = self.audience or self.url, ["RS256", "ES256", "ES384", "EdDSA"]
                claims = jwt.decode(proof, self.keys[client_id], algorithms, audience=audience)
                assert claims["iss"] == claims["sub"] == client_id
                assert proof not in self.proofs
            except (jwt.PyJWTError, AssertionError):
                return JSONResponse({"error": "invalid_client"}, 401)
            self.proofs.append(proof)
            if form.get("grant_type") == "client_credentials":
                self.granted.append("client_credentials")
                issued = self.issue(client_id, [], str(form.get("resource")))
                return JSONResponse(issued.model_dump(exclude={"refresh_token"}, exclude_none=True))
        if form.get("grant_type") == "client_credentials":
            given = base64.b64decode(request.headers.get("authorization", " ").split(" ")[-1]).decode()
            if given != f"{MACHINE_ID}:{MACHINE_SECRET}":
                return JSONResponse({"error": "invalid_client"}, 401)
            self.granted.append("client_credentials")
            issued = self.issue(MACHINE_ID, [], str(form.get("resource")))
            return JSONResponse(issued.model_dump(exclude={"refresh_token"}, exclude_none=True))
        return await TokenHandler(self, ClientAuthenticator(self)).handle(request)

    async def register(self, request: Request) -> Response:
        if self.registered is not None:
            return JSONResponse(self.registered, 201)
        answer = await RegistrationHandler(self, ClientRegistrationOptions(enabled=True)).handle(request)
        if self.registers_method is None:
            return answer
        said = json.loads(bytes(answer.body))
        del said["token_endpoint_auth_method"]
        return JSONResponse(said, 201)

    async def metadata(self, request: Request) -> Response:
        del request
        named = self.named_issuer or self.url
        methods = {} if self.pkce_methods is None else {"code_challenge_methods_supported": self.pkce_methods}
        return JSONResponse(
            {
                **methods,
                "issuer": named,
                "authorization_endpoint": self.named_door or f"{self.url}/authorize",
                "token_endpoint": f"{self.url}/token",
                "registration_endpoint": f"{self.url}/register",
                "revocation_endpoint": f"{self.url}/revoke",
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token", "client_credentials"],
            }
        )

    def app(self) -> Starlette:
        issuer = AnyHttpUrl(self.url)
        routes = create_auth_routes(
            self,
            issuer,
            client_registration_options=ClientRegistrationOptions(enabled=True),
            revocation_options=RevocationOptions(enabled=True),
        )
        own = [
            Route("/.well-known/oauth-authorization-server", self.metadata),
            Route("/token", self.token, methods=["POST"]),
            Route("/register", self.register, methods=["POST"]),
        ]
        replaced = {route.path for route in own}
        return Starlette(routes=[*own, *(route for route in routes if route.path not in replaced)])


@dataclass
class Protected:
    """An MCP server that takes only the tokens of an issuer."""

    issuer: Issuer
    url: str
    calls: list[str] = field(default_factory=list)
    needs: str = ""
    """A scope that no login has, as a header writes it."""
    metadata: tuple[bytes, str] | None = None
    """Content and type that it serves as its metadata instead of the true ones."""
    scopes: str = ""
    """Scopes that it asks for in a refusal."""


@asynccontextmanager
async def protected_server() -> AsyncIterator[Protected]:
    """An authorization server and an MCP server, each on a port of its own."""
    issuer = Issuer()
    with _bound() as issuer_socket, _bound() as server_socket:
        issuer.url = f"http://127.0.0.1:{issuer_socket.getsockname()[1]}"
        url = f"http://127.0.0.1:{server_socket.getsockname()[1]}/mcp"
        made = Protected(issuer, url)
        async with _served(issuer.app(), issuer_socket), _served(_mcp_app(made), server_socket):
            yield made


def _mcp_app(made: Protected) -> Starlette:
    async def list_tools(ctx: Any, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[types.Tool(name="whoami", input_schema={"type": "object"})])

    async def call_tool(ctx: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        made.calls.append(params.name)
        echo = (params.arguments or {}).get("echo")
        said = f"you sent {ctx.request.headers['authorization']}" if echo else "someone"
        if echo == "refusal":
            raise MCPError(-32050, said, {"headers": said})
        text = types.TextContent(type="text", text=said)
        return types.CallToolResult(content=[text], is_error=echo == "failure")

    server: Server[Any] = Server("protected", on_list_tools=list_tools, on_call_tool=call_tool)
    # As text: an issuer is compared to the letter, and a URL object would add a slash.
    facts = {"issuer_url": made.issuer.url, "resource_server_url": made.url, "validate_token_resource": True}
    settings = AuthSettings.model_validate(facts)
    app = server.streamable_http_app(auth=settings, token_verifier=made.issuer)
    app.add_middleware(StepUp, made=made)
    return app


class StepUp:
    """Refuses requests for want of a scope, as long as one is needed, and serves other metadata."""

    def __init__(self, app: Any, made: Protected) -> None:
        self._app, self._made = app, made

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope.get("path", "")
        known = "authorization" in Headers(scope=scope) if scope["type"] == "http" else True
        if self._made.metadata is not None and "well-known" in path:
            content, kind = self._made.metadata
            await Response(content, media_type=kind)(scope, receive, send)
        elif self._made.scopes and path == "/mcp" and not known:
            said = f'Bearer scope="{self._made.scopes}"'
            await Response(status_code=401, headers={"WWW-Authenticate": said})(scope, receive, send)
        elif scope["type"] == "http" and self._made.needs:
            said = f'Bearer error="insufficient_scope", scope={self._made.needs}'
            await Response(status_code=403, headers={"WWW-Authenticate": said})(scope, receive, send)
        else:
            await self._app(scope, receive, send)


@contextlib.contextmanager
def _bound() -> Any:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound


class _Uvicorn(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@asynccontextmanager
async def _served(app: Starlette, bound: socket.socket) -> AsyncIterator[None]:
    server = _Uvicorn(uvicorn.Config(app, log_config=None, timeout_graceful_shutdown=1, ws="none"))
    async with anyio.create_task_group() as group:
        group.start_soon(lambda: server.serve(sockets=[bound]))
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
            await anyio.sleep(0.01)
        try:
            yield
        finally:
            server.should_exit = True
