"""Checks that JSON decoders leave out and a log needs: doubled fields, and base64 that no encoder makes. Decoders keep
the last of two equal fields and drop the first silently. A doubled field is found by counting: names of fields are
strings, and if the body has more strings than were decoded, a field was dropped. Invariant: nothing here makes an
object for each record, or reads a body more than a few times.
"""

import binascii
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final, Generic, TypeVar

import msgspec
import numpy as np

#: The value of an absent field: no text at all.
ABSENT: Final = msgspec.Raw(b"")
#: With fewer texts the steps over all of them cost more than an object for each.
VECTOR_ROWS_MIN: Final = 64
# The least bytes of a request, beside its texts: in total, for a record's value, for its key.
_ENVELOPE: Final = len('{"records":[]}') - len(",")
_VALUE: Final = len('{"value":},')
_KEY: Final = len('"key":,')
# With fewer bytes a loop is faster than a vector.
_VECTOR_BYTES_MIN: Final = 1024


class Texts:
    """The JSON texts of one field of all records. ``data`` has all of them; ``present`` counts the records with the
    field.
    """

    __slots__ = ("data", "present", "texts")

    def __init__(self, texts: Sequence[msgspec.Raw]) -> None:
        self.texts = texts
        self.data = b"".join(texts)
        self.present = len(texts) - texts.count(ABSENT)

    @classmethod
    def joined(cls, parts: "Sequence[Texts]") -> "Texts":
        """Return the texts of ``parts`` one after another."""
        return parts[0] if len(parts) == 1 else cls(list(chain.from_iterable([part.texts for part in parts])))


def has_doubled_field(body: bytes, keys: Texts, values: Texts) -> bool:
    """Return whether a field occurs twice in a request that has only records of keys and values."""
    rows, with_key, with_value = len(keys.texts), keys.present, values.present
    outside = len(body) - len(keys.data) - len(values.data)
    if rows == with_value and outside == _ENVELOPE + _VALUE * rows + _KEY * with_key:
        return False  # these fields, once each, do not fit into less
    return _quotes(body) - _quotes(keys.data) - _quotes(values.data) != 2 * (1 + with_key + with_value)


def _quotes(data: bytes) -> int:
    if len(data) < _VECTOR_BYTES_MIN:
        return data.count(b'"')
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) == ord('"')))


def count_strings(texts: bytes) -> int:
    """Return the number of strings in JSON texts, including names of fields."""
    if b"\\" in texts:
        texts = texts.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _quotes(texts) // 2


# ---- base64 ---------------------------------------------------------------------------------------------------------


def _letters(letters: bytes) -> np.ndarray:
    found = np.zeros(256, np.bool_)
    found[list(letters)] = True
    return found


# The letters that may precede "=" and "==": their last two or four bits, which belong to no byte, are zero.
_BEFORE_ONE: Final = _letters(b"AEIMQUYcgkosw048")
_BEFORE_TWO: Final = _letters(b"AQgw")


class _Base64(bytes):
    """The bytes that ``_decode_base64`` returns."""

    __slots__ = ()


class _Header(msgspec.Struct, gc=False):
    value: _Base64 | None = None


class _JsonRecord(msgspec.Struct, gc=False):
    headers: list[_Header] | None = None


class _BinaryRecord(_JsonRecord, gc=False):
    key: _Base64 | None = None
    value: _Base64 | None = None


R = TypeVar("R", bound=_JsonRecord)


class _Request(msgspec.Struct, Generic[R]):
    records: list[R]


def canonical_base64(text: str) -> bytes:
    """Decode base64 as encoders write it. Raises ValueError for any other."""
    try:
        decoded = binascii.a2b_base64(text, strict_mode=True)
    except ValueError:
        decoded = None
    if decoded is None or binascii.b2a_base64(decoded, newline=False) != text.encode():
        raise ValueError("Invalid base64: no encoder writes any bytes so (RFC 4648 section 4, with padding)")
    return decoded


def _decode_base64(_: type[Any], text: Any) -> bytes:
    return _Base64(canonical_base64(text))


_HEADERS_DECODER: Final = msgspec.json.Decoder(_Request[_JsonRecord], dec_hook=_decode_base64)
_BINARY_DECODER: Final = msgspec.json.Decoder(_Request[_BinaryRecord], dec_hook=_decode_base64)


def require_canonical_base64(body: bytes, *, is_binary: bool) -> None:
    """Raise msgspec.ValidationError if a valid request has base64 that no encoder makes. ``is_binary``: keys and values
    are also base64, not only the values of headers.
    """
    if _may_have_loose_base64(body):
        (_BINARY_DECODER if is_binary else _HEADERS_DECODER).decode(body)


def _may_have_loose_base64(body: bytes) -> bool:
    """Return whether some text may have bits other than zeros after its last byte. False positives are rare."""
    if b"\\" in body:
        return True
    data = np.frombuffer(body, np.uint8)
    # A request neither begins nor ends with any of these.
    at = np.flatnonzero(data == ord("="))
    at = at[data[at + 1] == ord('"')]
    twice = data[at - 1] == ord("=")
    return not np.where(twice, _BEFORE_TWO[data[at - 2]], _BEFORE_ONE[data[at - 1]]).all()
