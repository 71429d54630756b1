"""The server that the login of 0.1.0 is for, and its authorization server: an address that never changes."""

import base64
import errno
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

ADDRESS = ("127.83.10.1", 47123)
"""Of this machine; a login is bound to the URL of its server, and nobody else uses this one."""

ISSUER = f"http://{ADDRESS[0]}:{ADDRESS[1]}"
URL = f"{ISSUER}/mcp"
PATIENCE = 60
"""Seconds to wait for another run of the tests that has the address."""

LIFETIME = 3_000_000_000
"""Seconds; the login must not expire."""

METADATA = {
    "issuer": ISSUER,
    "authorization_endpoint": f"{ISSUER}/authorize",
    "token_endpoint": f"{ISSUER}/token",
    "registration_endpoint": f"{ISSUER}/register",
    "revocation_endpoint": f"{ISSUER}/revoke",
    "response_types_supported": ["code"],
    "grant_types_supported": ["authorization_code", "refresh_token"],
    "code_challenge_methods_supported": ["S256"],
    "token_endpoint_auth_methods_supported": ["none"],
}


class Locked(ThreadingHTTPServer):
    """Takes one access token, which somebody who logs in is given."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        self.access, self.renewal = "access-token-of-0.1.0", "refresh-token-of-0.1.0"
        self.challenge = ""
        self.granted: list[str] = []
        """The grants of the token requests."""
        self.revoked: list[str] = []
        super().__init__(ADDRESS, _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Locked
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path, given = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
        if path.startswith("/.well-known/oauth-protected-resource"):
            self._answer(200, {"resource": URL, "authorization_servers": [ISSUER]})
        elif path.startswith("/.well-known/oauth-authorization-server"):
            self._answer(200, METADATA)
        elif path == "/authorize":
            self.server.challenge = given["code_challenge"][0]
            back = {"code": "the-code", "state": given["state"][0], "iss": ISSUER}
            self._answer(302, None, Location=f"{given['redirect_uri'][0]}?{urlencode(back)}")
        else:
            self._answer(405, None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        if self.path == "/mcp":
            self._mcp(json.loads(body))
        elif self.path == "/register":
            self._answer(201, {**json.loads(body), "client_id": "a-client-of-0.1.0"})
        elif self.path == "/token":
            self._token({key: values[0] for key, values in parse_qs(body).items()})
        else:
            self.server.revoked += parse_qs(body)["token"]
            self._answer(200, {})

    def do_DELETE(self) -> None:
        self._answer(200, {})

    def _token(self, given: dict[str, str]) -> None:
        proof = hashlib.sha256(given.get("code_verifier", "").encode()).digest()
        expected = base64.urlsafe_b64encode(proof).decode().rstrip("=")
        if given["grant_type"] == "authorization_code" and expected != self.server.challenge:
            self._answer(400, {"error": "invalid_grant"})
            return
        self.server.granted.append(given["grant_type"])
        tokens = {"access_token": self.server.access, "refresh_token": self.server.renewal}
        self._answer(200, {**tokens, "token_type": "Bearer", "expires_in": LIFETIME})

    def _mcp(self, message: dict[str, Any]) -> None:
        if self.headers.get("authorization") != f"Bearer {self.server.access}":
            where = f'Bearer resource_metadata="{ISSUER}/.well-known/oauth-protected-resource/mcp"'
            self._answer(401, {}, **{"WWW-Authenticate": where})
        elif "id" not in message:
            self._answer(202, None)
        elif message["method"] == "initialize":
            version = message["params"]["protocolVersion"]
            facts = {"capabilities": {"tools": {}}, "serverInfo": {"name": "locked", "version": "1"}}
            self._result(message, {"protocolVersion": version, **facts})
        elif message["method"] == "tools/list":
            self._result(message, {"tools": [{"name": "whoami", "inputSchema": {"type": "object"}}]})
        else:
            error = {"code": -32601, "message": "Method not found"}
            self._answer(200, {"jsonrpc": "2.0", "id": message["id"], "error": error})

    def _result(self, message: dict[str, Any], result: dict[str, Any]) -> None:
        self._answer(200, {"jsonrpc": "2.0", "id": message["id"], "result": result})

    def _answer(self, status: int, data: Any, **headers: str) -> None:
        body = b"" if data is None else json.dumps(data).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None: ...


def _alone() -> Locked:
    until = time.monotonic() + PATIENCE
    while True:
        try:
            return Locked()
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > until:
                raise
            time.sleep(0.05)


@contextmanager
def locked() -> Iterator[Locked]:
    """The server while it runs.

    Raises:
        OSError: this machine has no such address.
    """
    with _alone() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
