"""Without PySpark, everything that needs it names the extra that installs it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.system

WITHOUT = "import sys; sys.modules['pyspark'] = None; "
MESSAGE = "this needs Spark, and PySpark is not installed: pip install 'delta-logstore[spark]'"


@pytest.mark.parametrize(
    "code",
    [
        "import logstore.spark; logstore.spark.session()",
        "from compaction_jobs.applications import SparkApplication; SparkApplication('compact').session",
    ],
)
def test_a_missing_pyspark_says_which_extra(code):
    # This runs in another process, because this one has PySpark loaded.
    done = subprocess.run([sys.executable, "-c", WITHOUT + code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"logstore.spark.session.SparkStartError: {MESSAGE}"
