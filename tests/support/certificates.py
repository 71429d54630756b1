"""An authority that signs certificates, and files with them."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)


class Authority:
    """Signs certificates, each of which is written into a file together with its key."""

    def __init__(self, name: str = "authority") -> None:
        self.name, self.key = name, ec.generate_private_key(ec.SECP256R1())
        self.certificate = self.signed(name, self.key)

    def signed(self, name: str, key: ec.EllipticCurvePrivateKey, days: int = 9) -> x509.Certificate:
        subject, issuer = (
            x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, one)]) for one in (name, self.name)
        )
        number, now, of_ca = x509.random_serial_number(), datetime.now(UTC), name == self.name
        made = x509.CertificateBuilder(
            issuer, subject, key.public_key(), number, now - timedelta(9), now + timedelta(days)
        )
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), False)
        return made.add_extension(x509.BasicConstraints(of_ca, None), True).sign(self.key, hashes.SHA256())

    def write(self, file: Path, name: str, password: str = "", days: int = 9) -> Path:
        key = ec.generate_private_key(ec.SECP256R1())
        how = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        certificate = self.signed(name, key, days).public_bytes(Encoding.PEM)
        file.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, how) + certificate)
        return file

    def trusted(self, file: Path) -> Path:
        file.write_bytes(self.certificate.public_bytes(Encoding.PEM))
        return file
