"""A roll reads its frames in chunks, each of which holds the interpreter for a moment."""

import pytest

from logstore.journal.frame import FrameLocation
from logstore.limits import KIB, MIB
from logstore.log.frame_index import IndexedFrame
from logstore.log.roller import _in_chunks


def frames(count: int, length: int) -> list[IndexedFrame]:
    return [IndexedFrame(at, at + 1, FrameLocation(at * length, length), 0, length) for at in range(count)]


@pytest.mark.parametrize(
    ("count", "length", "chunks"),
    [(0, 1, []), (1, 10 * MIB, [1]), (128, 800, [128]), (300, 800, [128, 128, 44]), (5, 512 * KIB, [2, 2, 1])],
)
def test_chunks_are_bounded_by_frames_and_bytes(count: int, length: int, chunks: list[int]) -> None:
    given = frames(count, length)
    found = list(_in_chunks(iter(given)))
    assert [len(chunk) for chunk in found] == chunks
    assert [frame for chunk in found for frame in chunk] == given
