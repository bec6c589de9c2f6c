"""The newest bytes of the journal in memory."""

from logstore.journal.frame import FrameLocation
from logstore.journal.recent_frames import RecentFrames


def found(recent: RecentFrames, position: int, length: int) -> bytes | None:
    pieces = recent.find(FrameLocation(position, length))
    return None if pieces is None else b"".join(pieces)


def test_frames_are_found_whole_in_one_buffer_or_over_several() -> None:
    recent = RecentFrames(100)
    recent.add(10, [b"abcd", b"ef"])
    recent.add(16, [b"ghij"])
    assert found(recent, 10, 4) == b"abcd"
    assert found(recent, 12, 2) == b"cd"
    assert found(recent, 12, 4) == b"cdef"
    assert found(recent, 14, 6) == b"efghij"


def test_missing_parts_are_not_guessed() -> None:
    recent = RecentFrames(100)
    assert found(recent, 0, 4) is None
    recent.add(10, [b"abcd"])
    recent.add(20, [b"efgh"])  # another file, because its header and snapshots are in between
    assert found(recent, 9, 2) is None
    assert found(recent, 12, 4) is None, "it goes on elsewhere"
    assert found(recent, 14, 2) is None
    assert found(recent, 22, 4) is None, "it is not written yet"
    assert found(recent, 20, 4) == b"efgh"


def test_the_oldest_go_when_there_are_too_many_bytes() -> None:
    recent = RecentFrames(10)
    for n in range(3_000):
        recent.add(n * 4, [b"%04d" % n])
        assert found(recent, n * 4, 4) == b"%04d" % n
        if n >= 2:
            assert found(recent, (n - 1) * 4, 4) == b"%04d" % (n - 1)
            assert found(recent, (n - 2) * 4, 4) is None
    assert len(recent._buffers) < 2_100, "memory is bounded"
