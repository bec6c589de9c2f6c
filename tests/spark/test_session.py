"""A session: its settings, the user's settings that it keeps, and executors that work from any directory."""

import os
import subprocess
import sys

import pytest
from pyspark.errors import AnalysisException

from logstore.errors import InvalidRequestError
from logstore.spark import session
from logstore.spark.session import SparkStartError
from logstore.spark.spark_conf import DELTA_EXTENSION, PACKAGE_ROOT

pytestmark = pytest.mark.spark


def test_the_settings_of_a_session(spark):
    conf = spark.sparkContext.getConf()
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert DELTA_EXTENSION in conf.get("spark.sql.extensions")
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.sparkContext.appName == "tests"
    assert spark.sparkContext.pythonExec == sys.executable
    assert conf.get("spark.jars.packages", "") == "", "jars are local files: no look-up in a network"
    assert "PYSPARK_PYTHON" not in os.environ, "the caller's environment is as it was"


def test_a_second_call_gives_the_same_session_with_what_can_be_changed(spark):
    again = session(config={"spark.sql.shuffle.partitions": 3, "spark.driver.memory": "9g"})
    assert again.sparkContext is spark.sparkContext
    assert again.conf.get("spark.sql.shuffle.partitions") == "3"


def test_a_setting_that_is_no_text_is_refused_by_name():
    with pytest.raises(InvalidRequestError, match=r"spark\.jars: \['a'\] is a list"):
        session(config={"spark.jars": ["a"]})


def test_spark_connect_without_its_libraries_says_what_to_install(tmp_path):
    # A separate process is used because here the packages are installed. Spark takes a main module without a file for
    # its own doctests.
    script = tmp_path / "connect.py"
    script.write_text(
        "import sys; sys.modules['grpc'] = None\nimport logstore.spark as s\n"
        "try:\n    s.session(master='sc://localhost:1')\nexcept Exception as e:\n    print(type(e).__name__, e)"
    )
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE_ROOT)}
    ran = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.startswith(
        "SparkStartError no Spark Connect session at sc://localhost:1; it needs: pip install 'pyspark[connect]' ("
    )


def test_workers_import_what_the_driver_does(spark):
    def where(batches):
        import pyarrow as pa

        import logstore

        for _ in batches:
            yield pa.RecordBatch.from_pydict({"path": [logstore.__file__]})

    rows = spark.range(1).mapInArrow(where, "path string").collect()
    assert rows[0].path == str(PACKAGE_ROOT / "logstore" / "__init__.py")


def test_a_running_session_without_delta_is_named_as_the_reason(spark, monkeypatch):
    monkeypatch.setattr(sys.modules["logstore.spark.session"], "DELTA_EXTENSION", "org.example.Other")
    with pytest.raises(SparkStartError, match="Spark session without Delta is running in this process"):
        session()


def test_a_wrong_query_raises_and_prints_nothing_besides(spark, capfd):
    for wrong in (lambda: spark.sql("SELECT nothing FROM range(3)"), lambda: spark.range(3).select("nothing")):
        with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
            wrong()
    assert "".join(capfd.readouterr()) == ""


def test_without_java_the_error_says_what_to_install(tmp_path):
    """Start the session in a separate process, because a JVM already runs in this one."""
    script = "import logstore.spark as s\ntry:\n    s.session()\nexcept Exception as e:\n    print(type(e).__name__, e)"
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={"PATH": str(tmp_path), "HOME": os.environ["HOME"], "PYTHONPATH": str(PACKAGE_ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.startswith("SparkStartError Spark needs Java 17 or later (Debian: apt-get install"), ran.stderr
