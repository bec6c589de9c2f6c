"""The secret for the digests of idempotency keys: ``<data>/brokers/<id>/secret``, readable by its owner only.

The brokers of a cluster share one secret, ``<data>/secret``, so that a partition's next leader recognises the keys.
Invariant: the secret is durable before anything made with it is stored. Without the secret not even the store knows
whether a request was stored before: see ``IdempotencyKeys.require_one_secret``.
"""

import contextlib
from pathlib import Path
from typing import Final

from logstore.crc32c import crc32c
from logstore.entropy import new_uuid, random_bytes
from logstore.errors import DataDirectoryError
from logstore.filesystem import FileSystem

_SECRET_BYTES: Final = 32
_CHECKSUM_BYTES: Final = 4


def load_secret(home: Path, filesystem: FileSystem) -> bytes:
    """Return the 32-byte secret of the broker whose home this is; make it if there is none.

    On disk it is followed by its CRC-32C, all in hexadecimal digits. Raises DataDirectoryError if the file is not what
    was written.
    """
    path = home / "secret"
    try:
        content = bytes.fromhex(filesystem.read_file(path).decode("ascii"))
    except FileNotFoundError:
        secret = random_bytes(_SECRET_BYTES)
        content = secret + _checksum(secret)
        filesystem.write_atomically(path, f"{content.hex()}\n".encode(), mode=0o600)
        return secret
    except ValueError as error:
        raise _damaged(path) from error
    secret = content[:_SECRET_BYTES]
    if len(content) != _SECRET_BYTES + _CHECKSUM_BYTES or content != secret + _checksum(secret):
        raise _damaged(path)
    return secret


def load_shared_secret(data: Path, home: Path, filesystem: FileSystem) -> bytes:
    """Return the secret of all brokers on ``data``. If there is none, make it from that of the store of one node at
    ``home``.

    Raises the errors of ``load_secret``.
    """
    path = data / "secret"
    if not filesystem.exists(path):
        has_one = filesystem.exists(home / "secret")
        secret = load_secret(home, filesystem) if has_one else random_bytes(_SECRET_BYTES)
        made = data / f"secret.{new_uuid().hex}"
        filesystem.write_atomically(made, f"{(secret + _checksum(secret)).hex()}\n".encode(), mode=0o600)
        with contextlib.suppress(FileExistsError):  # another broker was faster
            filesystem.link(made, path)
        filesystem.unlink(made)
        filesystem.sync_directory(data)
    return load_secret(data, filesystem)


def _checksum(secret: bytes) -> bytes:
    return crc32c(secret).to_bytes(_CHECKSUM_BYTES, "big")


def _damaged(path: Path) -> DataDirectoryError:
    return DataDirectoryError(
        f"{path} is damaged: it is not what was written. Restore it from a backup, or remove it: requests with a new "
        "Idempotency-Key are then refused (429) by topics that remember older ones, for idempotency.window.ms."
    )
