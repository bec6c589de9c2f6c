"""The records of ``__erasures``: an erasure of records for good, and how far it is.

Key: the erasure's id. Value: JSON of an ``Erasure``; of several with one id the last one counts. A record must not keep
what was erased: a key stands in it as a hash with the erasure's own random salt, a record that an expression has found
as its offset, and of an expression only the form. All are part of the format, see ``docs/table-format.md``: fields may
be added, none removed.

The hash of a key has two parts. The first, murmur2 with a seed from the salt, is computed for a whole column at once.
The second, BLAKE2b keyed with the salt, decides; it is computed for the few keys that the first part lets through.
"""

import hashlib
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from logstore.errors import CorruptionError
from logstore.records.murmur2 import murmur2_column_of

ERASURES_TOPIC: Final = "__erasures"
#: Never compacted, never deleted: a backup that is put back years later is erased again by them.
ERASURES_CONFIGS: Final[Mapping[str, str]] = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "segment.ms": "1000",
}

_SALT_BYTES: Final = 16
_NAME_BYTES: Final = 16

_Offset = Annotated[int, msgspec.Meta(ge=0)]

#: ``started``: the records may still be read. ``pending``: no reader sees them, and copies of them may be on a disk.
#: ``erased``: no file of the store has their bytes.
State = Literal["started", "pending", "erased"]


class ErasedPartition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The erasure is of records below ``end_offset`` that leaders up to ``leader_epoch`` have appended. With
    ``offsets``, ranges [start, end) that rise, it is of these.
    """

    partition: int
    end_offset: _Offset
    leader_epoch: int
    offsets: tuple[tuple[int, int], ...] | None = None


class ErasedBroker(msgspec.Struct, frozen=True):
    """A broker whose journal has none of the bytes since ``erased_ms``; ``journal_files`` were removed for that."""

    broker: int
    erased_ms: int
    journal_files: int


class ErasureRepeat(msgspec.Struct, frozen=True):
    """Records of the erasure came back with a ``RESTORE`` or a backup, and were erased again."""

    version: int
    records: int
    erased_ms: int


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """``number`` rises with each erasure of a topic. ``keys`` are hashed, ``where`` has no literals. ``records`` is the
    number of records that left the table, with ``versions`` as its commits. ``deleted_files`` names the first of the
    files that were deleted, ``deleted_count`` counts them all. Brokers that are ``pending`` erase before they serve
    again. ``not_reached`` says what the store cannot reach. Times in ms since 1970.
    """

    id: str
    number: int
    state: State
    topic: str
    topic_id: str
    requested_ms: int
    partitions: tuple[ErasedPartition, ...]
    salt: str = ""
    keys: tuple[str, ...] = ()
    where: str | None = None
    records: int = 0
    versions: tuple[int, ...] = ()
    rewritten_count: int = 0
    deleted_count: int = 0
    deleted_files: tuple[str, ...] = ()
    brokers: tuple[ErasedBroker, ...] = ()
    pending: tuple[int, ...] = ()
    waiting: str | None = None
    erased_ms: int | None = None
    repeats: tuple[ErasureRepeat, ...] = ()
    not_reached: tuple[str, ...] = ()

    def encoded(self) -> tuple[bytes, bytes]:
        """Key and value of the record."""
        return self.id.encode(), _encoder.encode(self)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Erasure)


def decode_erasure(value: bytes) -> Erasure:
    """CorruptionError."""
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"a record of {ERASURES_TOPIC} is no erasure: {error}") from error


# ---- hashed keys ----------------------------------------------------------------------------------------------------


def new_salt() -> str:
    return secrets.token_hex(_SALT_BYTES)


def seed_of(salt: str) -> np.uint32:
    """The seed of the first part of the hash."""
    return np.uint32(int(salt[:8], 16))


def exact_hash(key: bytes, salt: bytes) -> bytes:
    """The second part of the hash."""
    return hashlib.blake2b(key, digest_size=_NAME_BYTES, key=salt).digest()


def hash_keys(keys: Sequence[bytes], salt: str) -> tuple[str, ...]:
    """The keys as a record names them: hexadecimal, rising, each once."""
    secret = bytes.fromhex(salt)
    quick = murmur2_column_of(keys, seed_of(salt)).tolist()
    found = {f"{first:08x}{exact_hash(key, secret).hex()}" for first, key in zip(quick, keys, strict=True)}
    return tuple(sorted(found))


def parse_hashes(hashes: Iterable[str]) -> tuple[np.ndarray, frozenset[bytes]]:
    """The first parts, rising (uint32), and the second parts. CorruptionError."""
    try:
        parts = [(int(text[:8], 16), bytes.fromhex(text[8:])) for text in hashes]
    except ValueError as error:
        raise CorruptionError(f"a record of {ERASURES_TOPIC} has a malformed hash of a key: {error}") from error
    return np.unique(np.array([first for first, _ in parts], np.uint32)), frozenset(second for _, second in parts)
