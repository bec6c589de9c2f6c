"""murmur2, the hash of keys: Kafka's ``org.apache.kafka.common.utils.Utils.murmur2`` (32 bit, seed 0x9747b28c).

A column goes through C (``native``). Without a library it runs word by word for all keys at once: step w mixes the w-th
4-byte word of every key that has one.
"""

import functools
import struct
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from logstore.records import native
from logstore.records.batch import binary_offsets

_SEED = np.uint32(native.SEED)
_M = np.uint32(0x5BD1E995)
# With fewer keys the steps of numpy cost more than the same words in plain Python; keys of one length need fewer steps.
_VECTOR_KEYS_MIN = 24
_ONE_LENGTH_KEYS_MIN = 14
# The number of words mixed at once bounds the memory for positions to 2 MiB beyond one step.
_BLOCK_WORDS = 256 * 1024


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 of one key, as Java's signed int."""
    value = _murmur2(data)
    return value - (1 << 32) if value >> 31 else value


def _murmur2(data: bytes, seed: int = int(_SEED)) -> int:
    """Return murmur2 of one key, unsigned."""
    multiplier = int(_M)
    length = len(data)
    words = length >> 2
    value = seed ^ length
    for word in struct.unpack_from(f"<{words}I", data):
        mixed = word * multiplier & 0xFFFFFFFF
        mixed ^= mixed >> 24
        value = (value * multiplier ^ mixed * multiplier) & 0xFFFFFFFF
    if tail := data[4 * words :]:
        value = (value ^ int.from_bytes(tail, "little")) * multiplier & 0xFFFFFFFF
    value ^= value >> 13
    value = value * multiplier & 0xFFFFFFFF
    return value ^ (value >> 15)


# ``murmur2`` is made for columns: for one name it takes half as long as the rest of a commit.
@functools.lru_cache(maxsize=10_000)
def partition_for(key: str, num_partitions: int) -> int:
    """Return the partition of an internal topic, and so the coordinator, for a group or transactional id."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % num_partitions


def murmur2_column(keys: pa.BinaryArray, seed: np.uint32 = _SEED) -> np.ndarray:
    """Return Kafka's murmur2 per key: uint32, one per row. The number of a null key has no meaning. With a ``seed``
    other than Kafka's it is another hash.
    """
    _, offsets_buffer, data_buffer = keys.buffers()
    if native.NATIVE is not None and data_buffer is not None:
        first = offsets_buffer.address + 4 * keys.offset
        return native.NATIVE.murmur2_column(first, data_buffer.address, len(keys), int(seed))
    if len(keys) < _ONE_LENGTH_KEYS_MIN:
        return _one_by_one(keys, seed)
    offsets = binary_offsets(keys).astype(np.int64)
    data = np.frombuffer(data_buffer, np.uint8) if data_buffer is not None else np.empty(0, np.uint8)
    lengths = np.diff(offsets)
    length = int(lengths[0])
    if len(keys) * length <= 4 * _BLOCK_WORDS and (lengths == length).all():
        return _of_one_length(data[offsets[0] : offsets[-1]].reshape(len(keys), length), seed)
    if len(keys) < _VECTOR_KEYS_MIN:
        return _one_by_one(keys, seed)
    # The longest come first, so that the keys that still have a w-th word are a prefix.
    order = _longest_first(lengths >> 2)
    starts, lengths = offsets[:-1][order], lengths[order]
    state = seed ^ lengths.astype(np.uint32)
    _mix_words(state, data, starts, lengths >> 2)
    _mix_tails(state, data, starts + (lengths & ~3), lengths & 3)
    hashes = np.empty(len(keys), np.uint32)
    hashes[order] = _finished(state)
    return hashes


def murmur2_column_of(keys: Sequence[bytes], seed: np.uint32 = _SEED) -> np.ndarray:
    """Return ``murmur2_column`` of keys in a list."""
    return murmur2_column(pa.array(keys, pa.binary()), seed)


def _one_by_one(keys: pa.BinaryArray, seed: np.uint32) -> np.ndarray:
    return np.array([_murmur2(key or b"", int(seed)) for key in keys.to_pylist()], np.uint32)


def _of_one_length(keys: npt.NDArray[np.uint8], seed: np.uint32) -> np.ndarray:
    """Return murmur2 of keys of the same length, a row of bytes each. They need no order, and their ends are known."""
    count, length = keys.shape
    state = np.full(count, seed ^ np.uint32(length), np.uint32)
    whole = length & ~3
    if whole:
        for mixed in _mix(np.ascontiguousarray(keys[:, :whole]).view("<u4").T):
            state *= _M
            state ^= mixed
    if length > whole:
        for byte in range(whole, length):
            state ^= keys[:, byte].astype(np.uint32) << np.uint32(8 * (byte - whole))
        state *= _M
    return _finished(state)


def _finished(state: np.ndarray) -> np.ndarray:
    state ^= state >> np.uint32(13)
    state *= _M
    state ^= state >> np.uint32(15)
    return state


def _longest_first(words: npt.NDArray[np.int64]) -> np.ndarray:
    # numpy sorts 16-bit integers by radix, which is far faster for keys of a normal size.
    narrow = np.int16 if words.max() <= np.iinfo(np.int16).max else np.int64
    return np.argsort(np.negative(words.astype(narrow)), kind="stable")


def _mix_words(state: np.ndarray, data: np.ndarray, starts: np.ndarray, words: npt.NDArray[np.int64]) -> None:
    """Fold the whole 4-byte words of each key into ``state``; ``words`` (their number per key) falls."""
    if not words[0]:
        return
    # This views every 4 bytes as a little-endian word, at any byte position, without a copy.
    word_at = np.ndarray(len(data) - 3, np.dtype("<u4"), buffer=data, strides=(1,))
    step = 0
    active = int(np.count_nonzero(words))
    while active >= _VECTOR_KEYS_MIN:
        # The shortest of the active keys ends first; until then the same keys take part in each step.
        steps = min(int(words[active - 1]) - step, max(1, _BLOCK_WORDS // active))
        positions = starts[:active] + 4 * np.arange(step, step + steps)[:, np.newaxis]
        head = state[:active]
        for mixed in _mix(word_at[positions]):
            head *= _M
            head ^= mixed
        step += steps
        active = int(np.searchsorted(-words[:active], -step, side="left"))
    for key in range(active):
        first, last = int(starts[key]) + 4 * step, int(starts[key]) + 4 * int(words[key])
        value = int(state[key])
        multiplier = int(_M)
        for mixed_word in _mix(word_at[first:last:4]).tolist():
            value = (value * multiplier & 0xFFFFFFFF) ^ mixed_word
        state[key] = value


def _mix(words: np.ndarray) -> np.ndarray:
    mixed = words * _M
    mixed ^= mixed >> np.uint32(24)
    mixed *= _M
    return mixed


def _mix_tails(state: np.ndarray, data: np.ndarray, positions: np.ndarray, lengths: np.ndarray) -> None:
    """Fold the 0 to 3 bytes after the last whole word of each key into ``state``."""
    for byte in (2, 1, 0):
        rows = np.flatnonzero(lengths > byte)
        state[rows] ^= data[positions[rows] + byte].astype(np.uint32) << np.uint32(8 * byte)
    rows = np.flatnonzero(lengths)
    state[rows] *= _M
