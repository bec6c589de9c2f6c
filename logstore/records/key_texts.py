"""Compares keys by the texts that people and JSON requests mean.

A key that is the JSON text of a string equals each JSON text of this string: encoders write ``/``, ``<`` or ``u`` with
a diaeresis plain or as different escapes. One of these texts, the canonical one, stands for all of them.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from logstore.errors import InvalidRequestError
from logstore.records.where.expression import json_key, key_forms
from logstore.records.where.json_paths import json_scalar

#: None means ``string`` and ``json``, as in an expression: the text does not show in which way the record came.
KeyFormat = Literal["string", "json", "binary"] | None


def key_bytes(texts: Sequence[str], key_format: KeyFormat) -> list[bytes]:
    """Return the keys, each once, and the canonical text of each that is a JSON string. ``string``: UTF-8; ``json``:
    the JSON text of the string; ``binary``: base64. Raises InvalidRequestError.
    """
    found: dict[bytes, None] = {}
    for at, text in enumerate(texts):
        try:
            if key_format == "binary":
                forms = {base64.b64decode(text, validate=True)}
            elif key_format == "string":
                forms = {text.encode()}
            elif key_format == "json":
                forms = {json_key(text)}
            else:
                forms = {*key_forms(text)}
        except (binascii.Error, ValueError) as error:
            raise InvalidRequestError(f"key {at} is no {key_format or 'text'}: {error}") from None
        found |= dict.fromkeys(forms | {_canonical(key) for key in forms if key.startswith(b'"')})
    return list(found)


def respelled_rows(keys: pa.BinaryArray) -> npt.NDArray[np.intp]:
    """Return the rows of keys that may be a JSON string in another than its canonical text."""
    quoted = pc.starts_with(keys, pattern=b'"')
    if not pc.any(quoted).as_py():
        return np.empty(0, dtype=np.intp)
    # Without an escape, only white space behind a string differs.
    differs = pc.or_(pc.match_substring(keys, pattern=b"\\"), pc.invert(pc.ends_with(keys, pattern=b'"')))
    found = pc.fill_null(pc.and_(quoted, differs), fill_value=False)
    return np.flatnonzero(found.to_numpy(zero_copy_only=False))


def canonical_keys(keys: pa.BinaryArray) -> pa.BinaryArray:
    """Return the canonical text of each JSON string, and other keys as they are. No key is null."""
    return pa.array([_canonical(key) for key in keys.to_pylist()], keys.type)


def _canonical(key: bytes) -> bytes:
    try:
        return msgspec.json.encode(_STRING.decode(key))
    except msgspec.DecodeError:
        text = json_scalar(key)
    return json_key(text) if isinstance(text, str) else key


_STRING = msgspec.json.Decoder(str)
