"""``spark-submit compaction_jobs/__main__.py retention --data DIR``: what ``logstore job`` runs, in Spark's hands."""

import sys
from pathlib import Path

if not __package__:
    # Run as a file: the modules beside it belong to a package and must not be importable by themselves.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from logstore.cli.job import app

if __name__ == "__main__":
    app(prog_name="compaction_jobs")
