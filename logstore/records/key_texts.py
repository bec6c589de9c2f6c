"""Converts keys that a person or a JSON request names as text to the bytes that records have."""

import base64
import binascii
from collections.abc import Sequence
from typing import Literal

from logstore.errors import InvalidRequestError
from logstore.records.where.expression import key_forms

#: None means ``string`` and ``json``, as in an expression: the text does not show in which way the record came.
KeyFormat = Literal["string", "json", "binary"] | None


def key_bytes(texts: Sequence[str], key_format: KeyFormat) -> list[bytes]:
    """Return the keys, each once. ``string``: UTF-8; ``json``: the JSON text of the string; ``binary``: base64. Raises
    InvalidRequestError.
    """
    found: dict[bytes, None] = {}
    for at, text in enumerate(texts):
        try:
            if key_format == "binary":
                found[base64.b64decode(text, validate=True)] = None
                continue
            if key_format == "string":
                found[text.encode()] = None
            else:
                forms = key_forms(text)
                found |= dict.fromkeys(forms if key_format is None else forms - {text.encode()})
        except (binascii.Error, ValueError) as error:
            raise InvalidRequestError(f"key {at} is no {key_format or 'text'}: {error}") from None
    return list(found)
