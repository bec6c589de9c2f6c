"""Decodes request bodies to records: one function per content type, all returning DecodedRecords.

Whatever the bytes are, only InvalidRequestError, InvalidRecordError, RecordTooLargeError and RequestTooLargeError are
raised, with what to change; memory stays within a small multiple of the body and the given limits.
"""

from logstore.records import json_decoder
from logstore.records.arrow_decoder import ArrowRequest, decode_arrow
from logstore.records.batch import DecodedRecords, Records
from logstore.records.json_decoder import decode_binary
from logstore.records.ndjson_decoder import decode_ndjson
from logstore.records.scanned import scan_json

__all__ = [
    "ArrowRequest",
    "DecodedRecords",
    "Records",
    "decode_arrow",
    "decode_binary",
    "decode_json",
    "decode_ndjson",
]


def decode_json(body: bytes, *, max_message_bytes: int, string_keys: bool = False) -> DecodedRecords:
    """Decode as ``json_decoder.decode_json`` does: by the scanner in C, if it takes the body."""
    scanned = scan_json(body, string_keys=string_keys)
    if scanned is not None and scanned.found.largest <= max_message_bytes:
        return scanned
    return json_decoder.decode_json(body, max_message_bytes=max_message_bytes, string_keys=string_keys)
