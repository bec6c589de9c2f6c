"""PySpark's own Spark Connect server, in a separate JVM, without this package."""

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyspark

from benchmarks.free_port import free_port
from tests.support.eventually import eventually

SUBMIT = Path(pyspark.__file__).parent / "bin/spark-submit"
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.connect.grpc.binding.address": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@contextlib.contextmanager
def connect_server(directory: Path, master: str = "local[2]") -> Iterator[str]:
    """Run the server in ``directory`` and yield its address, ``sc://...``. It has ended when the block ends."""
    port = free_port()
    command = [SUBMIT, "--master", master, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in (_SETTINGS | {"spark.connect.grpc.binding.port": str(port)}).items():
        command += ["--conf", f"{name}={value}"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK"))}
    log = directory / "connect.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env={**environment, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        eventually(lambda: _listens(port, process), f"no Spark Connect server; see {log}", seconds=240)
        yield f"sc://127.0.0.1:{port}"
    finally:
        for each in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
        process.kill()
        process.wait(30)


def _listens(port: int, process: "subprocess.Popen[bytes]") -> bool:
    assert process.poll() is None, "the Spark Connect server ended"
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0
