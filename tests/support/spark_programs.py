"""Spark programs in separate processes."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.server_process import ROOT


def output_of(script: Path, *arguments: object, directory: Path, timeout_s: float, python_path: Path = ROOT) -> str:
    """Run the program in ``directory`` and return its output. It must exit with 0."""
    ran = subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(python_path), "PYSPARK_PYTHON": sys.executable},
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    return ran.stdout
