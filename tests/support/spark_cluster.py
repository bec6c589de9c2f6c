"""A standalone Spark cluster on loopback: a master and workers, each a separate process."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pyspark

from benchmarks.free_port import free_port
from tests.support.eventually import eventually

SPARK_HOME = Path(pyspark.__file__).parent
#: Most of the time of a small job is compilation, for which the JVM's quick compiler is enough.
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


@dataclass
class SparkCluster:
    """A cluster whose URL for ``--master`` is ``master``; workers have one core each."""

    directory: Path
    master: str
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def submit(self, *arguments: object) -> subprocess.Popen[str]:
        """Start ``spark-submit`` of ``compaction_jobs`` outside the cluster, as an operator does."""
        quick = ["--master", self.master, "--driver-java-options", QUICK_JVM]
        for name, value in {
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.cores": "1",
            "spark.executor.memory": "512m",
            "spark.executor.extraJavaOptions": QUICK_JVM,
            "spark.sql.shuffle.partitions": "4",
        }.items():
            quick += ["--conf", f"{name}={value}"]
        main = Path(__file__).parents[2] / "compaction_jobs/__main__.py"
        return subprocess.Popen(
            [SPARK_HOME / "bin/spark-submit", *quick, main, *map(str, arguments)],
            env=_environment(),
            cwd=self.directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def executors_at_work(self) -> list[psutil.Process]:
        """Return the JVMs of executors that run Python for a task."""
        found = []
        for process in self.processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                for child in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()) and any(
                            "pyspark.daemon" in " ".join(each.cmdline()) for each in child.children()
                        ):
                            found.append(child)
        return found


def _environment() -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    return {
        **environment,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "SPARK_NO_DAEMONIZE": "1",
    }


@contextlib.contextmanager
def standalone_cluster(directory: Path, workers: int = 2) -> Iterator[SparkCluster]:
    """Yield the cluster once all workers have registered, and end all its processes afterwards."""
    port = free_port()
    cluster = SparkCluster(directory, f"spark://127.0.0.1:{port}")
    logs = []
    try:
        classes = [["master.Master", "--port", str(port)]]
        classes += [["worker.Worker", "-c", "1", "-m", "1g", cluster.master] for _ in range(workers)]
        for number, (name, *arguments) in enumerate(classes):
            log = directory / f"spark-{number}.log"
            logs.append(log)
            with log.open("wb") as output:
                command = [SPARK_HOME / "bin/spark-class", f"org.apache.spark.deploy.{name}"]
                place = ["--host", "127.0.0.1", "--webui-port", "0"]
                if number:
                    place += ["--work-dir", str(directory / f"work-{number}")]
                cluster.processes.append(
                    subprocess.Popen(
                        [*command, *place, *arguments],
                        env=_environment(),
                        cwd=directory,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                    )
                )
        registered = "Registering worker"
        eventually(lambda: logs[0].read_text().count(registered) == workers, "workers did not register", seconds=240)
        yield cluster
    finally:
        for process in reversed(cluster.processes):
            with contextlib.suppress(psutil.NoSuchProcess):
                for each in psutil.Process(process.pid).children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        each.kill()
            process.kill()
            process.wait(30)
