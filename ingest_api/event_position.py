"""Positions of event streams: the next offset of every streamed partition, as the text of an event's id.

The text is ``TOPIC.PARTITION:OFFSET,PARTITION:OFFSET``, as ``6c39d26b.0:17,1:5``, with ``;`` between several topics.
``TOPIC`` is the first eight digits of the topic's id, so that a position of a topic that was deleted and made again is
noticed. A client that writes a position itself may leave ``TOPIC.`` out if it names one topic only.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from ingest_api.errors import ParameterError
from ingest_api.parameters import shown
from logstore.errors import UnknownTopicIdError

#: The header in which a client that connects again sends the id of its last event.
LAST_EVENT_ID: Final = "Last-Event-ID"

_TAG_LENGTH: Final = 8
_OFFSET: Final = r"(?:0|[1-9][0-9]{0,9}):(?:0|[1-9][0-9]{0,18})"
_OF_TOPIC: Final = re.compile(rf"(?:([0-9a-f]{{{_TAG_LENGTH}}})\.)?({_OFFSET}(?:,{_OFFSET})*)")
_OFFSET_MAX: Final = 2**63 - 1

#: The next offset of each partition of a stream, in the order of its partitions.
Offsets = tuple[int, ...]


class StreamPartition(NamedTuple):
    """A partition of a stream. ``topic_id`` has the form of responses."""

    topic: str
    partition: int
    topic_id: str


#: The partitions of a stream. Those of one topic are adjacent.
Partitions = tuple[StreamPartition, ...]


def position_text(partitions: Partitions, offsets: Sequence[int]) -> bytes:
    """Return the position in which the next record of each partition is the one at its offset."""
    return _text(partitions, offsets, 0, len(partitions))


def position_around(partitions: Partitions, offsets: Sequence[int], index: int) -> tuple[bytes, bytes]:
    """Return the text of the position before and after the offset of the partition at ``index``."""
    lead = _lead(partitions, index)
    return (
        _text(partitions, offsets, 0, index) + lead,
        _text(partitions, offsets, index + 1, len(partitions)),
    )


def parse_position(
    text: str, partitions: Partitions, name: str, *, lenient: bool = False
) -> dict[StreamPartition, int]:
    """Return the offsets that ``text`` names, of some or all of ``partitions``. ``name`` is what messages call the
    text. If ``lenient``, other partitions are ignored.

    Raises ParameterError, and UnknownTopicIdError for a position of another topic.
    """
    by_tag: dict[str, dict[int, StreamPartition]] = {}
    for one in partitions:
        by_tag.setdefault(one.topic_id[:_TAG_LENGTH], {})[one.partition] = one
    found: dict[StreamPartition, int] = {}
    for part in text.split(";"):
        matched = _OF_TOPIC.fullmatch(part)
        if matched is None or (matched[1] is None and len(by_tag) != 1 and not (lenient and not by_tag)):
            raise ParameterError(
                f"{name} cannot be {shown(text)}: send the id of an event as it came, or partition:offset pairs, as "
                f"0:17,1:5{'' if name == 'Last-Event-ID' else ', or earliest or latest'}."
            )
        tag = matched[1] or next(iter(by_tag), "")
        if tag not in by_tag and lenient:
            continue
        if tag not in by_tag:
            raise UnknownTopicIdError(
                f"{name} {shown(text)} is a position in another topic, whose id begins with {tag}: a topic that was "
                "deleted and made again begins anew."
            )
        for pair in matched[2].split(","):
            partition, _, offset = pair.partition(":")
            one_of = by_tag[tag].get(int(partition))
            if one_of is None and lenient:
                continue
            if one_of is None or one_of in found or int(offset) > _OFFSET_MAX:
                raise ParameterError(
                    f"{name} {shown(text)} cannot have {pair}: name each partition once that is streamed here, with "
                    "its next offset."
                )
            found[one_of] = int(offset)
    return found


def _text(partitions: Partitions, offsets: Sequence[int], start: int, end: int) -> bytes:
    pieces = (b"%b%d" % (_lead(partitions, index), offsets[index]) for index in range(start, end))
    return b"".join(pieces)


def _lead(partitions: Partitions, index: int) -> bytes:
    """Return the text before the offset of a partition."""
    one = partitions[index]
    if index and partitions[index - 1].topic_id == one.topic_id:
        return b",%d:" % one.partition
    return b"%b%b.%d:" % (b";" if index else b"", one.topic_id[:_TAG_LENGTH].encode(), one.partition)
