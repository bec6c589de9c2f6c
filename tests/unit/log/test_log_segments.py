"""The segments of a partition: sizes of ranges, and the list of unreadable files."""

from logstore.delta.snapshot import SegmentFile
from logstore.log.log_segments import LogSegments


def segment(path: str, base: int, end: int, *, records: int, newest: int) -> SegmentFile:
    bounds = (base, end - 1) if records else (-1, -1)
    return SegmentFile(path, 1_000, records, base, end, *bounds, newest, newest)


def three() -> LogSegments:
    segments = LogSegments()
    segments.follow(
        (
            segment("a", 0, 10, records=10, newest=70),
            segment("b", 10, 20, records=5, newest=90),
            segment("c", 20, 30, records=0, newest=-1),
        )
    )
    return segments


def test_bytes_and_records_of_a_range_count_only_files_with_records() -> None:
    segments = three()
    assert (len(segments), segments.size_bytes, segments.newest_timestamp_ms) == (3, 3_000, 90)
    assert [segments.stored_bytes(*part) for part in ((0, 10), (5, 10), (0, 30), (20, 30), (10, 10))] == [
        1_000,
        500,
        2_000,
        0,
        0,
    ]
    assert [segments.records_above(offset) for offset in (0, 9, 10, 20)] == [15, 15, 5, 0]


def test_a_file_is_unreadable_as_long_as_it_is_in_the_table() -> None:
    segments = three()
    segments.unreadable = {"a": "damaged", "b": "damaged"}
    segments.follow(segments.files[1:])
    assert segments.unreadable == {"b": "damaged"}
