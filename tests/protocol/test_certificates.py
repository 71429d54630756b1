"""Trusted certificates are read once, however many clients ask for them, and again if their file changes."""

import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import anyio
import httpx2
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from mcp_context_proxy.downstream.http_client import refusal
from mcp_context_proxy.system import threads


async def test_all_clients_share_certificates_that_are_read_once() -> None:
    given: list[ssl.SSLContext] = []

    async def ask() -> None:
        given.append(await threads.trusted_certificates())

    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(ask)

    assert all(one is given[0] for one in given)


def authority() -> x509.Certificate:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - timedelta(9), now + timedelta(9))
    return made.add_extension(x509.BasicConstraints(True, None), True).sign(key, hashes.SHA256())


async def test_an_authority_that_is_renewed_in_its_file_is_trusted_once_a_server_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Connections go on with the context that they were made with, so nobody has to be restarted."""
    first, renewed = authority(), authority()
    file = tmp_path / "ca.pem"
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    file.write_bytes(first.public_bytes(Encoding.PEM))
    os.utime(file, (1, 1))
    context = await threads.trusted_certificates()
    file.write_bytes(renewed.public_bytes(Encoding.PEM))
    os.utime(file, (2, 2))
    assert renewed.public_bytes(Encoding.DER) not in context.get_ca_certs(binary_form=True)

    refused = refusal(httpx2.ConnectError("certificate verify failed"), "far", "https://far.example/mcp")

    assert "certificate verify failed" in str(refused)
    assert renewed.public_bytes(Encoding.DER) in context.get_ca_certs(binary_form=True)
    assert await threads.trusted_certificates() is context


async def test_a_peer_without_a_trusted_certificate_is_refused() -> None:
    context = await threads.trusted_certificates()

    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname is True
