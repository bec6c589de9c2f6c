import pytest

from logstore.segments.names import SegmentName, new_unique, parse_segment_name, segment_name


def test_a_name_reads_back() -> None:
    unique = new_unique()
    path = segment_name(12, 34_000, 5, unique)
    assert path == f"partition=12/00000000000000034000-5-{unique}.parquet"
    assert parse_segment_name(path) == SegmentName(12, 34_000, 5, unique)


def test_names_of_a_partition_sort_by_offset() -> None:
    names = [segment_name(0, offset, 0, "0" * 32) for offset in (0, 9, 10, 2**62)]
    assert sorted(names) == names


def test_no_two_attempts_share_a_name() -> None:
    assert len({new_unique() for _ in range(100)}) == 100


@pytest.mark.parametrize(
    "path",
    [
        "partition=0/part-00000-9a.c000.snappy.parquet",
        f"partition=0/{'0' * 19}-0-{'a' * 32}.parquet",
        f"partition=00/{'0' * 20}-0-{'a' * 32}.parquet",
        f"partition=0/{'0' * 20}-00-{'a' * 32}.parquet",
        f"partition=0/{'0' * 20}-0-{'A' * 32}.parquet",
        f"partition=0/{'0' * 20}-0-{'a' * 32}.parquet.crc",
        f"x/partition=0/{'0' * 20}-0-{'a' * 32}.parquet",
        f"partition=0/{'0' * 20}-0-{'a' * 32}.parquet\n",
    ],
)
def test_other_names_are_not_ours(path: str) -> None:
    assert parse_segment_name(path) is None
