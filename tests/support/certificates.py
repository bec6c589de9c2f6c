"""Certificates for tests, made by trustme and cryptography: a CA, and PEM files of a server and of clients."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


class Certificates:
    """One CA and the files that it signs, in ``directory``."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self._ca = trustme.CA()
        self.ca_file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.ca_file)

    def keystore(
        self,
        name: str = "store",
        *hosts: str,
        common_name: str | None = None,
        not_before: datetime | None = None,
        not_after: datetime | None = None,
        password: str | None = None,
    ) -> Path:
        """Write the chain and the key of a certificate into one file, and return it."""
        issued = self._ca.issue_cert(
            *(hosts or ("127.0.0.1", "localhost")),
            common_name=common_name,
            not_before=not_before,
            not_after=not_after or datetime.now(UTC) + timedelta(days=90),
        )
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
        chain = b"".join(one.bytes() for one in issued.cert_chain_pems)
        file = self.directory / f"{name}.pem"
        write_secret(file, chain + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
        return file


def write_secret(file: Path, content: bytes) -> None:
    """Put the file into its place as a whole, as tools that renew certificates do."""
    new = file.with_name(f"{file.name}.new")
    new.touch(mode=0o600)
    new.write_bytes(content)
    new.replace(file)
