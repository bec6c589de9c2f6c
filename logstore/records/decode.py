"""Decodes request bodies to records: one function per content type, all returning DecodedRecords.

Whatever the bytes are, only InvalidRequestError, InvalidRecordError, RecordTooLargeError and RequestTooLargeError are
raised, with what to change; memory stays within a small multiple of the body and the given limits.
"""

from logstore.records.arrow_decoder import ArrowRequest, decode_arrow
from logstore.records.batch import DecodedRecords, Records
from logstore.records.json_decoder import decode_binary, decode_json
from logstore.records.ndjson_decoder import decode_ndjson

__all__ = [
    "ArrowRequest",
    "DecodedRecords",
    "Records",
    "decode_arrow",
    "decode_binary",
    "decode_json",
    "decode_ndjson",
]
