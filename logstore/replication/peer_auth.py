"""Proof that a broker has the cluster's secret, without sending it: HMAC-SHA256 over both HELLOs (RFC 2104).

Each side proves it for this connection and this direction only. The signed text begins with a label that each direction
has for itself, so that a proof sent back is worthless. It contains both messages whole: both nonces, both broker ids
and epochs, the cluster id. The connecting side proves first, so a stranger gets nothing to test guesses against.
Without a secret the key is empty, and the proof shows only that the other side has none either. Messages after the
handshake are neither encrypted nor signed.
"""

import hashlib
import hmac
import struct
from typing import Final

from logstore.entropy import random_bytes
from logstore.errors import InvalidConfigError
from logstore.filesystem import Buffer
from logstore.replication.protocol import NONCE_BYTES

_LABELS: Final = (b"logstore peer proof 1: who connects\0", b"logstore peer proof 1: who is asked\0")
_LENGTH: Final = struct.Struct("<I")


def new_nonce() -> bytes:
    return random_bytes(NONCE_BYTES)


class ClusterSecret:
    """``cluster.secret``, which is never shown."""

    __slots__ = ("_key",)

    def __init__(self, secret: str | None) -> None:
        self._key = (secret or "").encode()

    def __bool__(self) -> bool:
        return bool(self._key)

    def proof_of_connecting(self, hello: Buffer, answer: Buffer) -> bytes:
        """Return the proof of the connecting broker. ``hello`` and ``answer`` are the bodies of its HELLO and of the
        other's.
        """
        return self._proof(_LABELS[0], hello, answer)

    def proof_of_asked(self, hello: Buffer, answer: Buffer) -> bytes:
        """Return the proof of the broker that was connected to."""
        return self._proof(_LABELS[1], hello, answer)

    def _proof(self, label: bytes, hello: Buffer, answer: Buffer) -> bytes:
        mac = hmac.new(self._key, label, hashlib.sha256)
        for part in (hello, answer):
            mac.update(_LENGTH.pack(len(part)))
            mac.update(part)
        return mac.digest()

    def require_for(self, address: str, *, loopback: bool) -> None:
        """Raise InvalidConfigError if there is no secret and ``address`` is not a loopback address."""
        if not (self._key or loopback):
            raise InvalidConfigError(
                f"other machines reach {address}, where this broker would listen to other brokers: set cluster.secret, "
                "the same for all of them (openssl rand -hex 32 makes one), or set host to a loopback address"
            )


def is_same_proof(given: bytes, expected: bytes) -> bool:
    """Compare two proofs in a time that does not depend on where they differ."""
    return hmac.compare_digest(given, expected)
