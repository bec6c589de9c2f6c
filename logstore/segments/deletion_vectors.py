"""Reads deletion vectors: the rows of a data file that another writer's ``DELETE``, ``UPDATE`` or ``MERGE`` removed
from the table without rewriting the file (Delta protocol, "Deletion Vectors" and "Deletion Vector Format").

The store writes no vectors. An add action names the vector of its file, and readers of the file leave out the rows of
the vector. Invariant: a vector that is returned has the size, the checksum and the number of rows in its description;
otherwise a CorruptionError names the vector and the file.
"""

import base64
import binascii
import zlib
from urllib.parse import unquote, urlsplit
from uuid import UUID

import msgspec
from pyroaring import BitMap64

from logstore.errors import CorruptionError
from logstore.table_files import TableFiles

INLINE, RELATIVE, ABSOLUTE = "i", "u", "p"
_FILE_VERSION = 1
_MAGIC = 1681511377
#: A UUID in Base85.
_UUID_LETTERS = 20
#: The sizes of the length before a vector in its file, and of the CRC-32 after it.
_LENGTH_BYTES = _CHECKSUM_BYTES = 4

# Z85 is Base85 with other letters (rfc.zeromq.org/spec/32).
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_B85 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_TO_B85 = str.maketrans(_Z85, _B85)


class DeletionVector(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True):
    """The description of a vector in an add or a remove action. ``size_in_bytes`` is that of the raw vector."""

    storage_type: str
    path_or_inline_dv: str
    size_in_bytes: int
    cardinality: int
    offset: int | None = None


def file_of(vector: DeletionVector, files: TableFiles) -> str | None:
    """Return the name of the vector's file within the table; None if the vector is in the log.

    Raises CorruptionError for a file outside the table, and for a description that Delta does not know.
    """
    text = vector.path_or_inline_dv
    if vector.storage_type == INLINE:
        return None
    if vector.storage_type == RELATIVE and len(text) >= _UUID_LETTERS:
        prefix, letters = text[:-_UUID_LETTERS], text[-_UUID_LETTERS:]
        try:
            name = f"deletion_vector_{UUID(bytes=_from_z85(letters))}.bin"
        except ValueError as error:
            raise _bad(vector, files, f"its path is not in Base85 ({error})") from error
        return f"{prefix}/{name}" if prefix else name
    if vector.storage_type == ABSOLUTE:
        path, table = unquote(urlsplit(text).path), urlsplit(files.spark_uri).path
        if path.startswith(f"{table}/"):
            return path.removeprefix(f"{table}/")
        raise _bad(vector, files, f"it is in {text}, outside of the table, as in a shallow clone")
    raise _bad(vector, files, f"Delta knows no storage type {vector.storage_type!r} of it")


def deleted_rows(vector: DeletionVector, files: TableFiles) -> BitMap64:
    """Return the positions, from 0, of the rows that the vector removes from its file.

    Raises CorruptionError, FileNotFoundError and OSError.
    """
    name = file_of(vector, files)
    try:
        raw = _inline(vector) if name is None else _stored(vector, files, name)
        if len(raw) < _LENGTH_BYTES or int.from_bytes(raw[:_LENGTH_BYTES], "little") != _MAGIC:
            raise ValueError("it does not begin as a vector does")
        rows = BitMap64.deserialize(raw[_LENGTH_BYTES:])
    except (ValueError, IndexError, EOFError) as error:
        raise _bad(vector, files, str(error)) from error
    if len(rows) != vector.cardinality:
        raise _bad(vector, files, f"it has {len(rows)} rows, the Delta log says {vector.cardinality}")
    return rows


def _inline(vector: DeletionVector) -> bytes:
    raw = _from_z85(vector.path_or_inline_dv)
    if not 0 <= len(raw) - vector.size_in_bytes < _LENGTH_BYTES:
        raise ValueError(f"it has {len(raw)} bytes, the Delta log says {vector.size_in_bytes}")
    return raw[: vector.size_in_bytes]


def _stored(vector: DeletionVector, files: TableFiles, name: str) -> bytes:
    at, size = vector.offset or 0, vector.size_in_bytes
    there = files.head(name).size
    if at < 0 or size < 0 or at + _LENGTH_BYTES + size + _CHECKSUM_BYTES > there:
        raise ValueError(f"its file has {there} bytes and ends before it")
    version, block = bytearray(1), bytearray(_LENGTH_BYTES + size + _CHECKSUM_BYTES)
    files.read_ranges(name, [(0, memoryview(version)), (at, memoryview(block))])
    if version[0] != _FILE_VERSION:
        raise ValueError(f"its file has version {version[0]}, and Delta knows {_FILE_VERSION}")
    raw = bytes(block[_LENGTH_BYTES:-_CHECKSUM_BYTES])
    if (stated := int.from_bytes(block[:_LENGTH_BYTES], "big")) != size:
        raise ValueError(f"its file says that it has {stated} bytes, the Delta log says {size}")
    if zlib.crc32(raw) != int.from_bytes(block[-_CHECKSUM_BYTES:], "big"):
        raise ValueError("its checksum does not match")
    return raw


def _from_z85(text: str) -> bytes:
    """Decode Z85. Raises ValueError if the text is not Z85."""
    if not set(text) <= set(_Z85):
        raise ValueError(f"{text!r} has letters that Z85 does not know")
    try:
        return base64.b85decode(text.translate(_TO_B85))
    except (ValueError, binascii.Error) as error:
        raise ValueError(str(error)) from error


def _bad(vector: DeletionVector, files: TableFiles, why: str) -> CorruptionError:
    kind, text = vector.storage_type, vector.path_or_inline_dv
    where = f"{kind}{text[:64]}" if vector.offset is None else f"{kind}{text[:64]}@{vector.offset}"
    return CorruptionError(
        f"{files}: the deletion vector {where} is damaged: {why}. No record of its file is served, for deleted ones "
        "might be among them: restore the file of the vector from a backup, or the table to the version before"
    )
