"""A real Airflow in a separate directory, and a store that runs beside it."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.server_process import ROOT, ServerProcess

AIRFLOW = ROOT / ".venv-airflow/bin/airflow"
#: The command of the store's own environment, as a person types it.
LOGSTORE = Path(sys.executable).parent / "logstore"

POOL = "logstore"
SETTINGS = {
    "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "airflow_dags"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    # Airflow sends nothing to outside services.
    "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    "SCARF_ANALYTICS": "false",
    "DO_NOT_TRACK": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "AIRFLOW__CORE__DEFAULT_TASK_RETRY_DELAY": "1",
    "LOGSTORE_AIRFLOW_POOL": POOL,
}
#: Most of the time of a small job is compilation, for which the JVM's quick compiler is enough.
SPARK_DEFAULTS = "spark.master local[2]\nspark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC\n"


class Airflow:
    """The command ``airflow``, with a separate home and its own Airflow variables."""

    def __init__(self, home: Path, **variables: str) -> None:
        others = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "LOGSTORE_"))}
        self._environment = {**others, **SETTINGS, "AIRFLOW_HOME": str(home), "SPARK_CONF_DIR": str(home)}
        self._environment |= {f"AIRFLOW_VAR_{name.upper()}": value for name, value in variables.items()}
        self.home = home

    def run(self, *arguments: str, code: int = 0, seconds: float = 300) -> str:
        """Run Airflow and return its output with task logs. The exit code must be ``code``; all processes end after
        ``seconds``.
        """
        with subprocess.Popen(
            [str(AIRFLOW), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=self.home,
            env=self._environment,
        ) as process:
            try:
                output, _ = process.communicate(timeout=seconds)
            finally:
                # A job runs in a separate session, so it does not end with Airflow.
                if process.poll() is None:
                    for each in [*psutil.Process(process.pid).children(recursive=True), process]:
                        each.kill()
        assert process.returncode == code, output[-10_000:]
        return output

    def python(self, code: str, *, seconds: float = 120) -> str:
        """Run ``code`` in Airflow's own Python beside the DAGs, and return its output."""
        done = subprocess.run(
            [str(AIRFLOW.parent / "python"), "-W", "ignore", "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            cwd=self.home,
            env={**self._environment, "PYTHONPATH": SETTINGS["AIRFLOW__CORE__DAGS_FOLDER"]},
            timeout=seconds,
            check=True,
        )
        return done.stdout

    def with_variables(self, **variables: str) -> "Airflow":
        """Return the same Airflow with only these variables."""
        return Airflow(self.home, **variables)


@pytest.fixture(scope="session")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Airflow:
    """Return an Airflow with a new database: SQLite in its home."""
    assert AIRFLOW.is_file(), "`make test-airflow` installs Airflow, then runs these tests"
    home = tmp_path_factory.mktemp("airflow")
    (home / "spark-defaults.conf").write_text(SPARK_DEFAULTS)
    airflow = Airflow(home)
    airflow.run("db", "migrate")
    airflow.run("pools", "set", POOL, "2", "jobs of logstore")
    return airflow


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server
