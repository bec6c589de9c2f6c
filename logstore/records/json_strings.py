"""The texts of JSON strings: the stored form of JSON keys if ``key.format`` is ``string``."""

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidRecordError

# With fewer texts the steps over all of them cost more than an object for each.
_VECTOR_ROWS_MIN = 64


def string_text(text: bytes) -> bytes:
    """Return the UTF-8 text of a JSON string; any other JSON text as it is. Raises InvalidRecordError."""
    if not text.startswith(b'"'):
        return text
    if b"\\" not in text:
        return text[1:-1]
    try:
        return msgspec.json.decode(text, type=str).encode()
    except msgspec.DecodeError:
        shown = text[:60].decode(errors="replace")
        raise InvalidRecordError(
            f"The key {shown} has half of a surrogate pair, which is no UTF-8: store keys as JSON (key_format=json, or "
            "the topic's key.format)"
        ) from None


def string_texts(column: pa.Array) -> pa.Array:
    """Return the ``string_text`` of each JSON text of a binary column; null stays null."""
    if len(column) < _VECTOR_ROWS_MIN:
        return pa.array([None if text is None else string_text(text) for text in column.to_pylist()], pa.binary())
    quoted = pc.starts_with(column, pattern=b'"')
    texts = pc.if_else(quoted, pc.binary_slice(column, 1, -1), column)
    escaped = pc.fill_null(pc.and_(quoted, pc.match_substring(column, pattern=b"\\")), fill_value=False)
    if not pc.any(escaped).as_py():
        return texts
    decoded = [string_text(text) for text in column.filter(escaped).to_pylist()]
    return pc.replace_with_mask(texts, escaped, pa.array(decoded, pa.binary()))
