"""The answer to a fetch of many partitions: ``application/vnd.logstore.fetch``.

A body is a sequence of sections, one for each partition that has news, each a header of 40 bytes and its content,
little-endian. ``index`` is the partition's place in the request. With ``error_code`` 0 the content is record batches
(``record_batch``), none where only a gap was passed over; otherwise it is the error's message in UTF-8. Zeros pad it to
a multiple of 8 bytes; the length in the header does not count them.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from logstore.filesystem import Buffer
from logstore.records.record_batch import ALIGNMENT

#: index, error code, log start offset, high watermark, next offset, bytes of the content
SECTION_HEADER: Final = struct.Struct("<iiqqqq")


@dataclass(frozen=True, slots=True)
class Section:
    """``pieces`` laid end to end are the content. Offsets are -1 where an error leaves them unknown."""

    index: int
    error_code: int
    log_start_offset: int
    high_watermark: int
    next_offset: int
    pieces: Sequence[Buffer]


def encode_sections(sections: Sequence[Section]) -> list[Buffer]:
    """The body in pieces; contents are not copied."""
    encoded: list[Buffer] = []
    for section in sections:
        length = sum(map(len, section.pieces))
        encoded.append(
            SECTION_HEADER.pack(
                section.index,
                section.error_code,
                section.log_start_offset,
                section.high_watermark,
                section.next_offset,
                length,
            )
        )
        encoded.extend(section.pieces)
        if padding := -length % ALIGNMENT:
            encoded.append(bytes(padding))
    return encoded
