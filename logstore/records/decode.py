"""Request bodies to records: one function per content type, all giving DecodedRecords.

Whatever the bytes are, only InvalidRequestError, InvalidRecordError, RecordTooLargeError and RequestTooLargeError come
out, with what to change; memory stays within a small multiple of the body and the limits given.
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
