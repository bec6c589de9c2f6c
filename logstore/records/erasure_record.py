"""Defines the records of ``__erasures``: each describes an erasure and its progress.

The key is the erasure's id, the value JSON of an ``Erasure``; if several records have one id, the last one counts. A
record must not contain erased data: keys are stored as hashes with a random salt of the erasure, records that an
expression has found as their offsets, and an expression without its values. All of this is part of the format, see
``docs/table-format.md``: fields may be added, none removed.

The hash of a key has two parts. The first, murmur2 with a seed from the salt, is computed for a whole column at once.
The second, BLAKE2b keyed with the salt, decides; it is computed only for the few keys that match the first part.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final, Literal

import msgspec
import numpy as np

from logstore.entropy import random_bytes
from logstore.errors import CorruptionError
from logstore.records.murmur2 import murmur2_column_of

ERASURES_TOPIC: Final = "__erasures"
#: The topic is never compacted and never deleted: the records are needed to erase again from a backup that is restored
#: years later.
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
    """The part of a partition that an erasure covers: records below ``end_offset`` that leaders up to ``leader_epoch``
    have appended. If ``offsets`` (rising ranges [start, end)) is set, it covers only these.
    """

    partition: int
    end_offset: _Offset
    leader_epoch: int
    offsets: tuple[tuple[int, int], ...] | None = None


class ErasedBroker(msgspec.Struct, frozen=True):
    """A broker whose journal has none of the bytes since ``erased_ms``; ``journal_files`` counts the removed files."""

    broker: int
    erased_ms: int
    journal_files: int


class ErasureRepeat(msgspec.Struct, frozen=True):
    """Records of the erasure came back with a ``RESTORE`` or a backup, and were erased again."""

    version: int
    records: int
    erased_ms: int


class Erasure(msgspec.Struct, frozen=True, kw_only=True):
    """An erasure and its progress. ``number`` rises with each erasure of a topic. ``keys`` are hashed, ``where`` has no
    literals. ``records`` is the number of records that were removed from the table, and ``versions`` are the commits
    that removed them. ``deleted_files`` names the first of the deleted files, ``deleted_count`` counts all of them.
    Brokers that are ``pending`` erase before they serve again. ``not_reached`` lists the places that the store cannot
    reach. Times are in ms since 1970.
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
        """Return the key and the value of the record."""
        return self.id.encode(), _encoder.encode(self)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Erasure)


def decode_erasure(value: bytes) -> Erasure:
    """Decode the value of a record. Raises CorruptionError."""
    try:
        return _decoder.decode(value)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"a record of {ERASURES_TOPIC} is no erasure: {error}") from error


# ---- hashed keys ----------------------------------------------------------------------------------------------------


def new_salt() -> str:
    return random_bytes(_SALT_BYTES).hex()


def seed_of(salt: str) -> np.uint32:
    """Return the seed of the first part of the hash."""
    return np.uint32(int(salt[:8], 16))


def exact_hash(key: bytes, salt: bytes) -> bytes:
    """Return the second part of the hash."""
    return hashlib.blake2b(key, digest_size=_NAME_BYTES, key=salt).digest()


def hash_keys(keys: Sequence[bytes], salt: str) -> tuple[str, ...]:
    """Return the hashes of keys as a record has them: hexadecimal, rising, each once."""
    secret = bytes.fromhex(salt)
    quick = murmur2_column_of(keys, seed_of(salt)).tolist()
    found = {f"{first:08x}{exact_hash(key, secret).hex()}" for first, key in zip(quick, keys, strict=True)}
    return tuple(sorted(found))


def parse_hashes(hashes: Iterable[str]) -> tuple[np.ndarray, frozenset[bytes]]:
    """Return the first parts, rising (uint32), and the second parts. Raises CorruptionError."""
    try:
        parts = [(int(text[:8], 16), bytes.fromhex(text[8:])) for text in hashes]
    except ValueError as error:
        raise CorruptionError(f"a record of {ERASURES_TOPIC} has a malformed hash of a key: {error}") from error
    return np.unique(np.array([first for first, _ in parts], np.uint32)), frozenset(second for _, second in parts)
