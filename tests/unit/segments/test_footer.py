from dataclasses import replace

import pytest

from logstore.errors import CorruptionError, NewerFormatError
from logstore.records.batch_identity import RememberedBatch
from logstore.records.transactions import Marker, OpenTransaction
from logstore.segments.footer import SegmentFooter, decode_footer, encode_footer, log_append_times

PLAIN = SegmentFooter(
    3, 100, 180, 7, ((5, 0), (7, 120)), (RememberedBatch(9, 1, 20, 30, 100, 5),), (), "roll", ((120, 8),), 11
)
OPEN = OpenTransaction(2**63 - 1, 2**15 - 1, 170, 12)
MARKER = Marker(9, 2, 4, 179, 13)


def encoded(footer: SegmentFooter) -> dict[bytes, bytes]:
    return {key.encode(): value.encode() for key, value in encode_footer(footer).items()}


@pytest.mark.parametrize(
    "footer",
    [
        PLAIN,
        replace(PLAIN, open_transactions=(OPEN,)),
        replace(PLAIN, markers=(MARKER,)),
        replace(PLAIN, open_transactions=(OPEN,), markers=(MARKER, MARKER._replace(producer_id=10))),
        replace(PLAIN, log_append_times=((100, 110), (130, 180))),
    ],
    ids=["plain", "open", "marker", "both", "append times"],
)
def test_a_footer_reads_back(footer: SegmentFooter) -> None:
    assert decode_footer(encoded(footer), "f") == footer
    assert log_append_times(encoded(footer), "f") == footer.log_append_times


def test_only_transactions_take_the_higher_format() -> None:
    """Write the higher format only for transactions, which earlier releases would drop: they refuse exactly these
    files.
    """
    assert encode_footer(PLAIN)["logstore.format"] == "2"
    assert not {"logstore.markers", "logstore.open_transactions"} & encode_footer(PLAIN).keys()
    with_append_times = encode_footer(replace(PLAIN, log_append_times=((100, 110),)))
    assert with_append_times == encode_footer(PLAIN) | {"logstore.log_append_times": "[[100, 110]]"}
    for footer in (replace(PLAIN, open_transactions=(OPEN,)), replace(PLAIN, markers=(MARKER,))):
        assert encode_footer(footer)["logstore.format"] == "3"


@pytest.mark.parametrize("version", [0, 1, 4, 30])
def test_another_format_is_refused_by_name(version: int) -> None:
    metadata = encoded(PLAIN) | {b"logstore.format": str(version).encode()}
    with pytest.raises(NewerFormatError, match=rf"^some/file has segment format {version}, .* \(2, 3\)"):
        decode_footer(metadata, "some/file")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("format", b"two"),
        ("markers", None),
        ("open_transactions", None),
        ("markers", b"[[9, 2, 4, 179]]"),
        ("markers", b"[[9, 2, 4, 179, 13], [9, 3, 4, 180, 13]]"),
        ("open_transactions", b"[[9, 2, -1, 5]]"),
        ("open_transactions", b"{}"),
        ("markers", b"[" * 100_000),
        ("cleanings", b"[[1e999, 1]]"),
        ("end_offset", b"x"),
        ("producers", None),
        ("log_append_times", b"[[110, 100]]"),
        ("log_append_times", b"[[120, 130], [100, 110]]"),
        ("log_append_times", b"[[100]]"),
        ("log_append_times", b"{}x"),
    ],
)
def test_a_malformed_footer_is_corruption(key: str, value: bytes | None) -> None:
    metadata = encoded(replace(PLAIN, open_transactions=(OPEN,), markers=(MARKER,)))
    metadata.pop(f"logstore.{key}".encode(), None)
    if value is not None:
        metadata[f"logstore.{key}".encode()] = value
    with pytest.raises(CorruptionError, match="some/file"):
        decode_footer(metadata, "some/file")


def test_a_file_without_one_is_another_writers() -> None:
    with pytest.raises(CorruptionError, match="not written by logstore"):
        decode_footer({b"pandas": b"{}"}, "f")
