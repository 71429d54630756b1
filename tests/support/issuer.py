"""A tiny issuer of tokens on a loopback port: keys, discovery, and switches for bad behaviour."""

import base64
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from http.server import ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from support.services import QuietHandler, serving

AUDIENCE = "https://proxy.example.com/mcp"

Private = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


@cache
def rsa_key(name: str = "first", bits: int = 2048) -> rsa.RSAPrivateKey:
    del name
    return rsa.generate_private_key(65537, bits)


def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def pem(key: Private) -> bytes:
    public = key.public_key()
    return public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def jwk(key: Private, kid: str | None, **more: Any) -> dict[str, Any]:
    """A public key as an issuer publishes it."""
    algorithm: Any
    if isinstance(key, rsa.RSAPrivateKey):
        algorithm = jwt.algorithms.RSAAlgorithm
    elif isinstance(key, ec.EllipticCurvePrivateKey):
        algorithm = jwt.algorithms.ECAlgorithm
    else:
        algorithm = jwt.algorithms.OKPAlgorithm
    public = json.loads(algorithm.to_jwk(key.public_key()))
    return public | ({} if kid is None else {"kid": kid}) | {"use": "sig"} | more


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


class Issuer:
    """One issuer. Change its documents while it runs."""

    def __init__(self) -> None:
        self.key: Private = ec_key()
        self.kid, self.algorithm = "one", "ES256"
        self.keys = [jwk(self.key, self.kid)]
        self.asked = list[str]()
        """Paths that were asked for."""
        self.answers = dict[str, tuple[int, dict[str, str], bytes]]()
        """Answers by path that replace the usual ones."""
        self.delay = 0.0
        issuer = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                issuer.asked.append(self.path)
                time.sleep(issuer.delay)
                status, headers, body = issuer.answer(self.path)
                self.send_response(status)
                for name, value in {**headers, "content-length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(body)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        if path in self.answers:
            return self.answers[path]
        documents: dict[str, Any] = {
            "/.well-known/openid-configuration": {"issuer": self.url, "jwks_uri": f"{self.url}/keys"},
            "/keys": {"keys": self.keys},
        }
        if path not in documents:
            return 404, {}, b"{}"
        return 200, {"content-type": "application/json"}, json.dumps(documents[path]).encode()

    def claims(self, subject: str = "anna", **more: Any) -> dict[str, Any]:
        """The claims of a good token; those that are None are left out."""
        now = int(time.time())
        whole = {"iss": self.url, "aud": AUDIENCE, "sub": subject, "iat": now, "exp": now + 600} | more
        return {name: value for name, value in whole.items() if value is not None}

    def token(self, subject: str = "anna", headers: dict[str, Any] | None = None, **more: Any) -> str:
        """A token that this issuer has signed."""
        named = {"kid": self.kid} | (headers or {})
        return jwt.encode(self.claims(subject, **more), self.key, self.algorithm, headers=named)

    def rotate(self, kid: str) -> None:
        """Sign with another key from now on, and publish that alone."""
        self.key, self.kid = ec_key(), kid
        self.keys = [jwk(self.key, kid)]

    def settings(self, **more: Any) -> dict[str, Any]:
        """The table ``[auth]`` of a proxy that believes it."""
        return {"mode": "jwt", "issuer": self.url} | more


@contextmanager
def issuing() -> Iterator[Issuer]:
    """A running issuer."""
    issuer = Issuer()
    with serving(issuer.server):
        yield issuer
