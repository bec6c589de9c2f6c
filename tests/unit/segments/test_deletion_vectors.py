"""Deletion vectors: every way to store one, and each kind of damage by its name."""

import json
from pathlib import Path

import pytest

from logstore.errors import CorruptionError
from logstore.segments.deletion_vectors import DeletionVector, deleted_rows, file_of
from logstore.table_files import TableFiles, open_table
from tests.support import deletion_vectors as others

ROWS = [0, 3, 4, 7, 70_000, 2**33 + 1]


def stored(table: Path, kind: str = "u", **changes: object) -> DeletionVector:
    told = {**others.stored_vector(table, ROWS, kind, prefix="ab" if kind == "u" else ""), **changes}
    return DeletionVector(
        told["storageType"], told["pathOrInlineDv"], told["sizeInBytes"], told["cardinality"], told.get("offset")
    )


@pytest.fixture
def files(tmp_path: Path) -> TableFiles:
    (tmp_path / "t").mkdir()
    return open_table(tmp_path / "t")


@pytest.mark.parametrize("kind", ["i", "u", "p"])
def test_each_storage_type_is_read(files: TableFiles, kind: str) -> None:
    assert list(deleted_rows(stored(Path(files.uri), kind), files)) == ROWS


def test_the_file_of_the_protocols_example(files: TableFiles) -> None:
    """Use JSON Example 1 of PROTOCOL.md."""
    vector = DeletionVector("u", "ab^-aqEH.-t@S}K{vb[*k^", 40, 6, 4)
    assert file_of(vector, files) == "ab/deletion_vector_d2c639aa-8816-431a-aaf6-d3fe2512ff61.bin"


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "checksum": lambda path: flip(path, -1),
    "its checksum": lambda path: flip(path, -8),
    "version": lambda path: flip(path, 0),
    "ends before": lambda path: path.write_bytes(path.read_bytes()[:-3]),
}


@pytest.mark.parametrize("what", DAMAGES)
def test_a_damaged_file_is_named(files: TableFiles, what: str) -> None:
    vector = stored(Path(files.uri))
    (path,) = Path(files.uri).glob("ab/*.bin")
    DAMAGES[what](path)
    with pytest.raises(CorruptionError, match=rf"{what}.*restore the file of the vector from a backup"):
        deleted_rows(vector, files)


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        ("u", {"cardinality": 5}, "it has 6 rows, the Delta log says 5"),
        ("u", {"sizeInBytes": 8}, "the Delta log says 8"),
        ("u", {"offset": 1}, "the Delta log says"),
        ("i", {"sizeInBytes": 8}, "the Delta log says 8"),
        ("i", {"pathOrInlineDv": "'"}, "Z85"),
        ("i", {"pathOrInlineDv": "00000", "sizeInBytes": 4}, "does not begin as a vector does"),
        ("u", {"pathOrInlineDv": "short"}, "storage type"),
        ("x", {}, "storage type 'x'"),
        ("p", {"pathOrInlineDv": "file:///elsewhere/deletion_vector_x.bin"}, "outside of the table"),
    ],
)
def test_a_wrong_description_is_named(files: TableFiles, kind: str, changes: dict[str, object], why: str) -> None:
    vector = stored(Path(files.uri), "u" if kind == "x" else kind, **changes, storageType=kind)
    with pytest.raises(CorruptionError, match=why):
        deleted_rows(vector, files)


def test_a_vector_that_is_gone(files: TableFiles) -> None:
    vector = stored(Path(files.uri))
    (path,) = Path(files.uri).glob("ab/*.bin")
    path.unlink()
    with pytest.raises(FileNotFoundError):
        deleted_rows(vector, files)


def test_descriptions_travel_as_text(files: TableFiles) -> None:
    from logstore.segments.foreign_names import foreign_records, joined_name, masked_name

    vector = stored(Path(files.uri))
    name = masked_name("partition=0/x.parquet", vector)
    records = foreign_records(joined_name((name, "partition=0/y.parquet"), 3, 9))
    assert records.paths == ("partition=0/x.parquet", "partition=0/y.parquet")
    assert records.vectors == (vector, None)
    assert records.bounds == (3, 9)
    assert json.loads(name.partition("\t")[2])["storageType"] == "u"
