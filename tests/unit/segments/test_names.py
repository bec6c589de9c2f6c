import pyarrow as pa
import pytest

from logstore.errors import NewerFormatError
from logstore.segments.names import (
    SegmentName,
    known_segment_name,
    new_unique,
    parse_segment_name,
    parse_segment_names,
    segment_name,
)

ZEROS, UNIQUE = "0" * 20, "a" * 32
#: int() and \d in Python take this as a digit; RE2 does not.
ARABIC_ZERO = "\u0660"
#: Names of earlier releases.
WITHOUT_END = {
    f"partition=0/{ZEROS}-0-{UNIQUE}.parquet": SegmentName(0, 0, None, 0, UNIQUE),
    f"partition=4294967295/{7:020d}-4294967295-{UNIQUE}.parquet": SegmentName(2**32 - 1, 7, None, 2**32 - 1, UNIQUE),
}
WITH_END = {
    f"partition=0/{ZEROS}-{1:020d}-0-{UNIQUE}.parquet": SegmentName(0, 0, 1, 0, UNIQUE),
    f"partition=31/{9:020d}-{2**63 - 1:020d}-3-{UNIQUE}.parquet": SegmentName(31, 9, 2**63 - 1, 3, UNIQUE),
}
FOREIGN = [
    "partition=0/part-00000-9a.c000.snappy.parquet",
    f"partition=0/{'0' * 19}-0-{UNIQUE}.parquet",
    f"partition=00/{ZEROS}-0-{UNIQUE}.parquet",
    f"x/partition=0/{ZEROS}-0-{UNIQUE}.parquet",
    f"partition=0/{ZEROS}.parquet",
    f"partition=0/{ARABIC_ZERO * 20}-0-{UNIQUE}.parquet",
    f"partition=1\u0660/{ZEROS}-0-{UNIQUE}.parquet",
    f"partition=0/{ARABIC_ZERO * 20}-{1:020d}-0-{UNIQUE}.parquet",
    "",
]
#: These begin as our names do.
UNKNOWN = [
    f"partition=0/{ZEROS}-v3-{1:020d}-0-{UNIQUE}.parquet",
    f"partition=0/{ZEROS}-{1:020d}-0-1-{UNIQUE}.parquet",
    f"partition=0/{ZEROS}-{1:020d}-0-{UNIQUE}.vortex",
    f"partition=0/{ZEROS}-{'0' * 19}1-00-{UNIQUE}.parquet",
    f"partition=0/{ZEROS}-00-{UNIQUE}.parquet",
    f"partition=0/{ZEROS}-0-{'A' * 32}.parquet",
    f"partition=0/{ZEROS}-0-{UNIQUE}.parquet.crc",
    f"partition=0/{ZEROS}-0-{UNIQUE}.parquet\n",
    f"partition=0/{ZEROS}-1\u0660-{UNIQUE}.parquet",
    f"partition=0/{ZEROS}-{ARABIC_ZERO * 20}-0-{UNIQUE}.parquet",
    f"partition=0/{ZEROS}-{1:020d}-0-{UNIQUE}.parquet\n",
    # These ranges contain nothing, or no offset reaches them.
    f"partition=0/{5:020d}-{5:020d}-0-{UNIQUE}.parquet",
    f"partition=0/{6:020d}-{5:020d}-0-{UNIQUE}.parquet",
    f"partition=0/{0:020d}-{2**63:020d}-0-{UNIQUE}.parquet",
    f"partition=0/{0:020d}-{10**19 + 5:020d}-0-{UNIQUE}.parquet",
]


def test_a_name_reads_back() -> None:
    unique = new_unique()
    path = segment_name(12, 34_000, 35_000, 5, unique)
    assert path == f"partition=12/00000000000000034000-00000000000000035000-5-{unique}.parquet"
    assert parse_segment_name(path) == SegmentName(12, 34_000, 35_000, 5, unique)


def test_names_of_a_partition_sort_by_offset() -> None:
    offsets = (0, 9, 10, 2**62)
    names = [segment_name(0, offset, offset + 1, 0, "0" * 32) for offset in offsets]
    assert sorted(names) == names
    # The order also holds among names of earlier releases.
    mixed = [
        f"partition=0/{o:020d}-9-{UNIQUE}.parquet" if o % 2 else name for o, name in zip(offsets, names, strict=True)
    ]
    assert sorted(mixed) == mixed


def test_no_two_attempts_share_a_name() -> None:
    assert len({new_unique() for _ in range(100)}) == 100


@pytest.mark.parametrize(("path", "name"), [*WITHOUT_END.items(), *WITH_END.items()])
def test_names_of_both_forms_are_ours(path: str, name: SegmentName) -> None:
    assert parse_segment_name(path) == known_segment_name(path) == name


@pytest.mark.parametrize("path", FOREIGN)
def test_other_names_are_foreign(path: str) -> None:
    assert parse_segment_name(path) is None
    assert known_segment_name(path) is None


@pytest.mark.parametrize("path", UNKNOWN)
def test_a_name_of_a_later_form_is_refused(path: str) -> None:
    with pytest.raises(NewerFormatError, match="use the release that wrote it") as refused:
        parse_segment_name(path)
    assert path in str(refused.value)
    assert known_segment_name(path) is None


@pytest.mark.parametrize(
    "paths",
    [
        [*WITHOUT_END, *WITH_END, *FOREIGN, *UNKNOWN],
        list(WITH_END),
        [path for path in UNKNOWN if path.endswith(f"-0-{UNIQUE}.parquet")],
        list(WITHOUT_END),
        [],
    ],
    ids=["all", "with end", "bad ranges", "without end", "none"],
)
def test_a_column_of_names_says_the_same(paths: list[str]) -> None:
    padded = pa.array(["x", *paths], pa.string())
    columns = parse_segment_names(padded.slice(1))
    assert len(columns.base) == len(paths)
    for row, path in enumerate(paths):
        name = known_segment_name(path)
        assert columns.unknown[row] == (path in UNKNOWN)
        assert columns.ours[row] == (path not in FOREIGN)
        assert columns.has_range[row] == (name is not None and name.end_offset is not None)
        if columns.has_range[row]:
            assert (columns.base[row], columns.end[row]) == (name.base_offset, name.end_offset)
