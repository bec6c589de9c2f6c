"""Writes golden files with the code as it is now: ``python -m tests.golden.write 2026-11-22`` makes it.

Every later version must open them. Run it when a format on disk got something new, before the next release, under a new
name: nothing that was written once is written again. It takes a Spark, for the jobs.

- ``data.tar.gz`` a data directory, sealed and un-sealed records; ``data.json`` what a store answers from it
- ``journal`` and ``journal.json``, its frames; ``segments`` and ``segments.json``, their footers and rows
- ``bytes.json`` what the code must still write byte by byte
"""

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from logstore.journal.inspect import dump
from tests.golden.data_directory import write_data_directory
from tests.golden.observed import record_rows
from tests.golden.parts import deterministic, footer_row, frame_rows, write_journal, write_segments
from tests.support.table_paths import read_footer, read_row_group, row_groups

GOLDEN = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description="Write golden files with the code as it is now.")
    parser.add_argument("name", help="of the new directory: today's date, or a version")
    directory = GOLDEN / parser.parse_args().name
    if directory.exists():
        parser.error(f"{directory.name} is there: golden files are never written again, choose another name")
    with tempfile.TemporaryDirectory() as temporary:
        made = Path(temporary) / directory.name
        made.mkdir()
        _save(made / "data.json", write_data_directory(Path(temporary), made / "data.tar.gz"))
        write_journal(made / "journal")
        _save(made / "journal.json", frame_rows(dump(made / "journal")))
        write_segments(made / "segments")
        _save(
            made / "segments.json",
            {
                path.relative_to(made / "segments").as_posix(): segment_row(path)
                for path in sorted((made / "segments").rglob("*.parquet"))
            },
        )
        _save(made / "bytes.json", deterministic())
        shutil.move(made, directory)


def segment_row(path: Path) -> dict[str, Any]:
    """The footer and, for each row group, its rows."""
    groups = [record_rows(read_row_group(path, group.index)) for group in row_groups(path)]
    return {"footer": footer_row(read_footer(path)), "row_groups": groups}


def _save(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
