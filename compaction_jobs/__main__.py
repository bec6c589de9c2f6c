"""``spark-submit compaction_jobs/__main__.py retention --data DIR`` runs the same as ``logstore job``, under Spark."""

import sys
from pathlib import Path

if not __package__:
    # When this runs as a file, its directory is on the path, but its modules must only be importable as a package.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from compaction_jobs.commands import app

if __name__ == "__main__":
    app(prog_name="compaction_jobs")
