"""Proof that a broker has the cluster's secret, without sending it: HMAC-SHA256 over both HELLOs (RFC 2104).

Each side proves it for this connection and this direction only. The text that is signed begins with a label of its own
for each direction, so that a proof sent back is worthless, and has both messages whole: both nonces, both broker ids
and epochs, the cluster id. Whoever connects proves first: a stranger learns nothing that a guess could be tried on.

Without a secret the key is empty, and the proof shows nothing but that the other side has none either. Messages behind
the handshake are neither encrypted nor signed.
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
    """``cluster.secret``; shown nowhere."""

    __slots__ = ("_key",)

    def __init__(self, secret: str | None) -> None:
        self._key = (secret or "").encode()

    def __bool__(self) -> bool:
        return bool(self._key)

    def proof_of_connecting(self, hello: Buffer, answer: Buffer) -> bytes:
        """By the broker that connects; ``hello`` and ``answer`` are the bodies of its HELLO and of the other's."""
        return self._proof(_LABELS[0], hello, answer)

    def proof_of_asked(self, hello: Buffer, answer: Buffer) -> bytes:
        """By the broker that was connected to."""
        return self._proof(_LABELS[1], hello, answer)

    def _proof(self, label: bytes, hello: Buffer, answer: Buffer) -> bytes:
        mac = hmac.new(self._key, label, hashlib.sha256)
        for part in (hello, answer):
            mac.update(_LENGTH.pack(len(part)))
            mac.update(part)
        return mac.digest()

    def require_for(self, address: str, *, loopback: bool) -> None:
        """Raise InvalidConfigError if brokers may not be listened to at ``address`` without a secret, and this is
        none.
        """
        if not (self._key or loopback):
            raise InvalidConfigError(
                f"other machines reach {address}, where this broker would listen to other brokers: set cluster.secret, "
                "the same for all of them (openssl rand -hex 32 makes one), or set host to a loopback address"
            )


def is_same_proof(given: bytes, expected: bytes) -> bool:
    """In a time that does not tell where they differ."""
    return hmac.compare_digest(given, expected)
