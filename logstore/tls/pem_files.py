"""The files of a key store and a trust store: PEM texts, checked before OpenSSL reads them.

OpenSSL names neither the file nor the reason in most of its errors, and takes an expired certificate. Every check here
raises InvalidConfigError with one line that names the setting, the file and what to change.
"""

import re
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from logstore.errors import InvalidConfigError

KEYSTORE: Final = "ssl.keystore.location"
TRUSTSTORE: Final = "ssl.truststore.location"
PASSWORD: Final = "ssl.key.password"  # noqa: S105 - the name of the setting

_BLOCK = re.compile(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", re.DOTALL)
_CERTIFICATES = (b"CERTIFICATE", b"X509 CERTIFICATE")
_JAVA_KEYSTORES = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE = b"\x30"
_FILE_BYTES_MAX = 16 << 20


@dataclass(frozen=True, slots=True)
class Certificate:
    """The facts about a certificate that people need; ``not_after_ms`` is in ms since 1970."""

    subject: str
    not_after_ms: int

    @property
    def not_after(self) -> str:
        return _time_text(self.not_after_ms)


def read_keystore(path: Path, password: str | None, now_ms: int) -> Certificate:
    """Return the store's certificate after checking that the file has it, its private key and nothing expired."""
    blocks = _blocks(path, KEYSTORE, is_secret=True)
    keys = [block for label, block in blocks if label.endswith(b"PRIVATE KEY")]
    chain = _certificates(path, KEYSTORE, blocks)
    if len(keys) != 1:
        found = "no private key" if not keys else f"{len(keys)} private keys"
        raise _bad(KEYSTORE, path, f"has {found}: put one key and its chain of certificates into one PEM file")
    public = _public_key(path, keys[0], password)
    ours = [_spki(certificate) == public for certificate in chain]
    if not any(ours):
        raise _bad(KEYSTORE, path, "has a private key that belongs to none of its certificates: use the pair")
    if not ours[0]:
        raise _bad(KEYSTORE, path, f"has the key's certificate as number {ours.index(True) + 1}: put it first")
    for certificate in chain:
        _check_time(KEYSTORE, path, certificate, now_ms)
    return _facts(chain[0])


def read_truststore(path: Path, now_ms: int) -> str:
    """Return the PEM text of the certificates in the file. An expired one is no error as long as another is valid."""
    certificates = _certificates(path, TRUSTSTORE, _blocks(path, TRUSTSTORE, is_secret=False))
    newest = max(certificates, key=lambda certificate: certificate.not_valid_after_utc)
    _check_time(TRUSTSTORE, path, newest, now_ms)
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def subject_of(der: bytes) -> str:
    """Return the subject of a client's certificate, as X500Principal.getName() writes it (RFC 2253)."""
    return x509.load_der_x509_certificate(der).subject.rfc4514_string()


def _blocks(path: Path, setting: str, *, is_secret: bool) -> list[tuple[bytes, bytes]]:
    """Return the PEM blocks of a file as (label, text)."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise _bad(setting, path, "is no file: name a PEM file")
        if is_secret and found.st_mode & (stat.S_IROTH | stat.S_IWOTH):
            raise _bad(setting, path, f"is open to every user, and holds a private key: chmod o-rwx {path}")
        if found.st_size > _FILE_BYTES_MAX:
            raise _bad(setting, path, f"has {found.st_size} bytes, which no PEM file of certificates has")
        data = path.read_bytes()
    except FileNotFoundError:
        raise _bad(setting, path, "does not exist") from None
    except OSError as error:
        raise _bad(setting, path, f"cannot be read: {error.strerror or error}") from None
    if data.startswith(_JAVA_KEYSTORES):
        raise _bad(
            setting,
            path,
            "is a JKS file: convert it with keytool -importkeystore -deststoretype PKCS12, then openssl pkcs12 -nodes",
        )
    if data.startswith(_DER_SEQUENCE):
        raise _bad(setting, path, "is a PKCS12 or DER file: convert it to PEM with openssl pkcs12 -nodes -in FILE")
    blocks = [(match[1], match[0]) for match in _BLOCK.finditer(data)]
    if not blocks:
        raise _bad(setting, path, "is no PEM file: it has no -----BEGIN ...----- block that ends")
    return blocks


def _certificates(path: Path, setting: str, blocks: list[tuple[bytes, bytes]]) -> list[x509.Certificate]:
    texts = [text for label, text in blocks if label in _CERTIFICATES]
    if not texts:
        raise _bad(setting, path, "has no certificate")
    try:
        return [x509.load_pem_x509_certificate(text) for text in texts]
    except (ValueError, UnsupportedAlgorithm) as error:
        raise _bad(setting, path, f"has a certificate that cannot be read: {error}") from None


def _public_key(path: Path, key: bytes, password: str | None) -> bytes:
    is_encrypted = b"ENCRYPTED" in key
    if is_encrypted and not password:
        raise _bad(KEYSTORE, path, f"has an encrypted key: set {PASSWORD}")
    try:
        secret = password.encode() if is_encrypted and password else None
        return (
            load_pem_private_key(key, secret).public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        )
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if is_encrypted:
            raise _bad(KEYSTORE, path, f"has a key that {PASSWORD} does not open") from None
        raise _bad(KEYSTORE, path, f"has a private key that cannot be read: {type(error).__name__}") from None


def _spki(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _facts(certificate: x509.Certificate) -> Certificate:
    subject = certificate.subject.rfc4514_string() or "a certificate without a subject"
    return Certificate(subject, int(certificate.not_valid_after_utc.timestamp() * 1000))


def _check_time(setting: str, path: Path, certificate: x509.Certificate, now_ms: int) -> None:
    facts = _facts(certificate)
    begins_ms = int(certificate.not_valid_before_utc.timestamp() * 1000)
    if now_ms > facts.not_after_ms:
        raise _bad(setting, path, f"has an expired certificate: {facts.subject} was valid until {facts.not_after}")
    if now_ms < begins_ms:
        raise _bad(
            setting, path, f"has a certificate of the future: {facts.subject} is valid from {_time_text(begins_ms)}"
        )


def _time_text(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _bad(setting: str, path: Path, reason: str) -> InvalidConfigError:
    return InvalidConfigError(f"{setting}: {path} {reason}")
