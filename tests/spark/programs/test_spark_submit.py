"""The jobs as applications for spark-submit: same arguments, no package installed, a session that Spark makes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.support.keyed_topics import KeyedTopic, Record
from tests.support.server_process import ROOT

pytestmark = pytest.mark.long

SUBMIT = Path(pyspark.__file__).parent / "bin/spark-submit"


def test_spark_submit_takes_the_same_arguments(tmp_path):
    topic = KeyedTopic.create(tmp_path / "data", "events")
    topic.roll({0: [Record(b"k", b"v", 0)] * 10})
    topic.table.advance_log_start({0: 4}, {0: 1})
    arguments = ["retention", "--data", "data", "--topic", "ev*", "--json"]
    quick = ["--master", "local[1]", "--conf", "spark.ui.enabled=false", "--conf", "spark.driver.host=127.0.0.1"]
    quick += ["--driver-java-options", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    done = subprocess.run(
        [SUBMIT, *quick, ROOT / "compaction_jobs/__main__.py", *arguments],
        env={**environment, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    report = json.loads(done.stdout[done.stdout.index("{\n") :])
    assert report["topics"][0]["after"]["records"] == 6
    assert list(topic.contents()) == list(range(4, 10))
