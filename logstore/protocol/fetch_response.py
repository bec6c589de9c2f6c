"""The fetch response for many partitions: ``application/vnd.logstore.fetch``.

A body is a sequence of partition responses, one for each partition that has news, each a header of 48 bytes and its
content, little-endian. ``index`` is the partition's place in the request. With ``error_code`` 0 the content is record
batches (``record_batch``), or nothing where only a gap in the offsets was passed; otherwise it is the error's message
in UTF-8. Zeros pad it to a multiple of 8 bytes; the length in the header does not count them.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Self

import pyarrow as pa

from logstore.errors import LogStoreError, OffsetOutOfRangeError
from logstore.filesystem import Buffer
from logstore.protocol.error_codes import code_of, error_of
from logstore.protocol.record_batch import begins_with_parquet, read_records
from logstore.protocol.sections import padding, read_sections

MEDIA_TYPE: Final = "application/vnd.logstore.fetch"
#: index, error code, log start offset, high watermark, last stable offset, next offset, bytes of the content
RESPONSE_HEADER: Final = struct.Struct("<iiqqqqq")


@dataclass(frozen=True, slots=True)
class PartitionData:
    """``content`` is in pieces, in order; a response that was read has one piece, a pa.Buffer. Offsets are -1 where an
    error leaves them unknown.
    """

    index: int
    error_code: int
    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    next_offset: int
    content: Sequence[Buffer | pa.Buffer]

    @classmethod
    def of_error(cls, index: int, error: LogStoreError) -> Self:
        """Return the response for a partition that could not be read."""
        start, end = -1, -1
        if isinstance(error, OffsetOutOfRangeError):
            start, end = error.log_start_offset, error.high_watermark
        return cls(index, code_of(error), start, end, -1, -1, [error.message.encode("utf-8", "backslashreplace")])

    @property
    def error(self) -> LogStoreError | None:
        """The error of a partition that could not be read, else None."""
        if not self.error_code:
            return None
        message = str(memoryview(self.content[0]), "utf-8", "replace")
        return error_of(
            self.error_code, message, log_start_offset=self.log_start_offset, high_watermark=self.high_watermark
        )

    @property
    def has_parquet(self) -> bool:
        """True if the content begins with a row group of history."""
        return not self.error_code and begins_with_parquet(self.content[0])

    def records(self, first_offset: int) -> Iterator[pa.RecordBatch]:
        """Yield what ``read_records`` yields, for a response without an error."""
        return read_records(self.content[0], first_offset)


def encode_fetch_response(responses: Sequence[PartitionData]) -> list[Buffer]:
    """Return the body in pieces; contents are not copied."""
    encoded: list[Buffer] = []
    for response in responses:
        length = sum(map(len, response.content))
        encoded.append(
            RESPONSE_HEADER.pack(
                response.index,
                response.error_code,
                response.log_start_offset,
                response.high_watermark,
                response.last_stable_offset,
                response.next_offset,
                length,
            )
        )
        encoded += (*response.content, *padding(length))
    return encoded


def read_fetch_response(body: pa.Buffer) -> Iterator[PartitionData]:
    """Yield the partition responses, in place. Raises LogStoreError if ``body`` is not a fetch response."""
    for fields, content in read_sections(body, RESPONSE_HEADER, "partition"):
        index, error_code, log_start_offset, high_watermark, last_stable_offset, next_offset = fields
        ends = log_start_offset, high_watermark, last_stable_offset
        yield PartitionData(index, error_code, *ends, next_offset, (content,))
