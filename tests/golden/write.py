"""Writes golden files with the code as it is now: ``python -m tests.golden.write 2026-11-22`` made the first ones.

Every later version must open them. Run it when a format on disk gets something new, before the next release, under a
new name: a golden file is never written again. With names of parts it writes only these, as ``python -m
tests.golden.write journal-3 journal refused bytes`` did for version 3 of the journal, ``journal-4 data journal refused
bytes`` for version 4 and the file beside it, ``segments-3 data segments`` for names with a range and version 3 of
footers, ``record-batches record_batches`` for those of Kafka's clients, ``append-times segments`` for footers with the
ranges of append times, ``cluster-2 cluster`` for version 2 of ``cluster.json``. ``journal-1`` has version 1 of the
journal: the code of d66ab5f wrote it in the same way, with a producer of seven batches more.

- ``data.tar.gz``: a data directory, sealed and un-sealed records; ``data.json``: the responses of a store on it. The
  jobs need a Spark
- ``journal`` and ``journal.json``, its frames; ``segments`` and ``segments.json``, their footers and rows
- ``record_batches``: a journal with record batches of Kafka's clients; ``record_batches.json``: its frames and records
- ``refused``: journals, each named after its content that this release refuses; ``refused.json``: their frames
- ``cluster``: each ``cluster.json`` in a directory named after its kind of store; ``cluster.json``: their cluster ids
- ``bytes.json``: bytes that the code must still write
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from logstore.inspection.journal import dump
from logstore.inspection.observed_journal import ObservedJournal
from logstore.log.frame_records import frame_records
from tests.golden.data_directory import write_data_directory
from tests.golden.observed import record_rows
from tests.golden.parts import (
    deterministic,
    footer_row,
    frame_rows,
    write_cluster_files,
    write_journal,
    write_record_batches,
    write_refused,
    write_segments,
)
from tests.support.table_paths import read_footer, read_row_group, row_groups

GOLDEN = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Write golden files with the code as it is now.")
    parser.add_argument("name", help="of the new directory: today's date, or a format and its version")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(_PARTS)}; default: all")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - _PARTS.keys():
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    directory = GOLDEN / arguments.name
    if directory.exists():
        parser.error(f"{directory.name} is there: golden files are never written again, choose another name")
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / directory.name
        made.mkdir()
        for part in arguments.parts or _PARTS:
            content = _PARTS[part](made, Path(temporary))
            (made / f"{part}.json").write_text(json.dumps(content, indent=1) + "\n")
        shutil.move(made, directory)


def _data(made: Path, temporary: Path) -> Any:
    return write_data_directory(temporary, made / "data.tar.gz")


def _journal(made: Path, _: Path) -> Any:
    write_journal(made / "journal")
    return frame_rows(dump(made / "journal"))


def _refused(made: Path, _: Path) -> Any:
    write_refused(made / "refused")
    return {path.name: frame_rows(dump(path)) for path in sorted((made / "refused").iterdir())}


def _record_batches(made: Path, _: Path) -> Any:
    write_record_batches(made / "record_batches")
    return {"frames": frame_rows(dump(made / "record_batches")), "records": journal_rows(made / "record_batches")}


def journal_rows(directory: Path) -> list[Any]:
    """Return the records of a journal's frames, in journal order."""
    frames = ObservedJournal(directory).records(lambda _: True)
    return record_rows(pa.Table.from_batches(frame_records(frames)))


def _segments(made: Path, _: Path) -> Any:
    write_segments(made / "segments")
    return {
        path.relative_to(made / "segments").as_posix(): segment_row(path)
        for path in sorted((made / "segments").rglob("*.parquet"))
    }


def _cluster(made: Path, _: Path) -> Any:
    """Write only the file: locks and the broker's epoch do not belong to it."""
    with tempfile.TemporaryDirectory() as temporary:
        found = write_cluster_files(Path(temporary))
        for name in found:
            (made / "cluster" / name).mkdir(parents=True)
            shutil.copy(Path(temporary) / name / "cluster.json", made / "cluster" / name)
    return found


def _bytes(_made: Path, _: Path) -> Any:
    return deterministic()


def segment_row(path: Path) -> dict[str, Any]:
    """Return the footer and the rows of each row group."""
    groups = [record_rows(read_row_group(path, group.index)) for group in row_groups(path)]
    return {"footer": footer_row(read_footer(path)), "row_groups": groups}


_PARTS = {
    "data": _data,
    "journal": _journal,
    "record_batches": _record_batches,
    "refused": _refused,
    "segments": _segments,
    "bytes": _bytes,
    "cluster": _cluster,
}

if __name__ == "__main__":
    main()
