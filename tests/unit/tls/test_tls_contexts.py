"""PEM files become contexts; a bad one is refused with one line that names the setting, the file and the fault."""

import asyncio
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)

from logstore.clock import SystemClock
from logstore.errors import InvalidConfigError
from logstore.observability import REGISTRY
from logstore.tls.contexts import Tls, make_contexts
from logstore.tls.options import TlsOptions
from tests.support.certificates import Certificates, write_secret

NOW_MS = SystemClock().now_ms()
DAY = timedelta(days=1)


@pytest.fixture(name="made")
def _made(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path / "tls")


def test_a_keystore_gives_contexts_with_the_settings(made: Certificates) -> None:
    options = TlsOptions(made.keystore(password="the secret"), "the secret", made.ca_file, "required", ("TLSv1.3",))
    server, client, certificate = make_contexts(options, NOW_MS)
    assert (server.verify_mode, server.minimum_version, server.maximum_version) == (
        ssl.CERT_REQUIRED,
        ssl.TLSVersion.TLSv1_3,
        ssl.TLSVersion.TLSv1_3,
    )
    assert client is not None
    assert (client.verify_mode, client.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert len(server.get_ca_certs()) == 1
    assert certificate.not_after_ms > NOW_MS
    assert "the secret" not in repr(options)


def test_without_a_trust_store_there_is_no_context_to_other_brokers(made: Certificates) -> None:
    server, client, _ = make_contexts(TlsOptions(made.keystore()), NOW_MS)
    assert (server.verify_mode, client) == (ssl.CERT_NONE, None)


def _jks(made: Certificates) -> Path:
    file = made.directory / "store.jks"
    write_secret(file, b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    return file


def _pkcs12(made: Certificates) -> Path:
    pem = made.keystore().read_bytes()
    file = made.directory / "store.p12"
    certificate = x509.load_pem_x509_certificate(pem)
    key = load_pem_private_key(pem, None)
    write_secret(file, pkcs12.serialize_key_and_certificates(b"store", key, certificate, None, NoEncryption()))
    return file


def _pair_of_two(made: Certificates) -> Path:
    ours, others = made.keystore("a").read_bytes(), made.keystore("b").read_bytes()
    file = made.directory / "pair.pem"
    write_secret(file, _certificate(ours) + others[others.index(b"-----BEGIN PRIVATE") :])
    return file


def _wrong_order(made: Certificates) -> Path:
    file = made.keystore()
    write_secret(file, made.ca_file.read_bytes() + file.read_bytes())
    return file


def _certificate(pem: bytes) -> bytes:
    end = b"-----END CERTIFICATE-----\n"
    return pem[: pem.index(end) + len(end)]


def _changed(change: Callable[[bytes], bytes]) -> Callable[[Certificates], Path]:
    def make(made: Certificates) -> Path:
        file = made.keystore()
        write_secret(file, change(file.read_bytes()))
        return file

    return make


def _open_to_all(made: Certificates) -> Path:
    file = made.keystore()
    file.chmod(0o644)
    return file


def _expired(made: Certificates) -> Path:
    now = datetime.now(UTC)
    return made.keystore(not_before=now - 2 * DAY, not_after=now - DAY)


def _of_the_future(made: Certificates) -> Path:
    now = datetime.now(UTC)
    return made.keystore(not_before=now + DAY, not_after=now + 2 * DAY)


@pytest.mark.parametrize(
    ("make", "password", "reason"),
    [
        (_jks, None, "is a JKS file"),
        (_pkcs12, None, "is a PKCS12 or DER file"),
        (_pair_of_two, None, "has a private key that belongs to none of its certificates"),
        (_wrong_order, None, "has the key's certificate as number 2: put it first"),
        (_expired, None, "has an expired certificate"),
        (_of_the_future, None, "has a certificate of the future"),
        (_open_to_all, None, "is open to every user"),
        (lambda made: made.keystore(password="right"), "wrong", "has a key that ssl.key.password does not open"),
        (lambda made: made.keystore(password="right"), None, "has an encrypted key: set ssl.key.password"),
        (lambda made: made.directory / "none.pem", None, "does not exist"),
        (lambda made: made.directory, None, "is no file"),
        (_changed(lambda pem: pem[:-40]), None, "has no private key"),
        (_changed(lambda pem: pem + pem), None, "has 2 private keys"),
        (_changed(lambda pem: pem[pem.index(b"-----BEGIN PRIV") :]), None, "has no certificate"),
        (_changed(lambda _: b""), None, "is no PEM file"),
        (_changed(lambda pem: pem.replace(b"MII", b"MIJ", 1)), None, "has a certificate that cannot be read"),
    ],
)
def test_a_bad_keystore_is_refused_by_one_line(
    made: Certificates, make: Callable[[Certificates], Path], password: str | None, reason: str
) -> None:
    file = make(made)
    with pytest.raises(InvalidConfigError) as caught:
        make_contexts(TlsOptions(file, password), NOW_MS)
    assert caught.value.message.startswith(f"ssl.keystore.location: {file} {reason}")
    assert "\n" not in caught.value.message
    assert "wrong" not in caught.value.message


def test_a_key_in_openssls_own_form_is_a_key(made: Certificates, tmp_path: Path) -> None:
    """Old versions of openssl wrote other headers."""
    pem = made.keystore().read_bytes()
    key = load_pem_private_key(pem, None).private_bytes(
        Encoding.PEM, PrivateFormat.TraditionalOpenSSL, BestAvailableEncryption(b"secret")
    )
    assert b"Proc-Type: 4,ENCRYPTED" in key
    file = tmp_path / "traditional.pem"
    write_secret(file, _certificate(pem) + key)
    assert make_contexts(TlsOptions(file, "secret"), NOW_MS).certificate
    with pytest.raises(InvalidConfigError, match=r"ssl\.key\.password does not open"):
        make_contexts(TlsOptions(file, "other"), NOW_MS)


@pytest.mark.parametrize(
    ("content", "reason"), [(b"\xfe\xed\xfe\xed", "is a JKS file"), (b"-", "is no PEM file"), (None, "does not exist")]
)
def test_a_bad_trust_store_is_refused_by_one_line(made: Certificates, content: bytes | None, reason: str) -> None:
    file = made.directory / "trusted"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InvalidConfigError) as caught:
        make_contexts(TlsOptions(made.keystore(), truststore_location=file), NOW_MS)
    assert caught.value.message.startswith(f"ssl.truststore.location: {file} {reason}")


def test_only_a_good_file_replaces_the_contexts(made: Certificates) -> None:
    asyncio.run(_renew(made))


async def _renew(made: Certificates) -> None:
    file = made.keystore()
    tls = Tls(TlsOptions(file), SystemClock())
    first = tls.server
    await tls.renew(only_changed=True)
    assert tls.server is first
    for bad in (b"", made.keystore("other").read_bytes()[:200], _certificate(file.read_bytes())):
        write_secret(file, bad)
        await tls.renew(only_changed=True)
        assert tls.server is first
    file.unlink()
    await tls.renew()
    assert tls.server is first
    made.keystore(not_after=datetime.now(UTC) + 7 * DAY)
    await asyncio.wait_for(tls.renew(only_changed=True), 10)
    assert tls.server is not first
    expiry = REGISTRY.get_sample_value("logstore_tls_certificate_expiry_timestamp_seconds")
    assert expiry is not None
    assert abs(expiry - (datetime.now(UTC) + 7 * DAY).timestamp()) < 60
