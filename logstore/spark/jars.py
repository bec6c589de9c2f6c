"""The Delta jars of a Spark session: their names, their directory, and how they are fetched.

Spark's own means (Ivy, so that the user's ``spark.jars.ivySettings``, ``spark.jars.repositories`` and
``spark.jars.ivy`` apply) fetch them once into Spark's ordinary Ivy directory. Afterwards a session names the files and
looks nothing up. Everything that Spark ships itself is excluded: a second Hadoop, Parquet or Jackson beside Spark's is
70 MB more and a class path with two versions of a class.
"""

# ruff: noqa: T201 - a command prints

import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from filelock import FileLock

from logstore.errors import LogStoreError
from logstore.spark.spark_conf import user_settings

DELTA_VERSION = "4.4.0"
#: The Spark version for which this Delta is built.
SPARK_LINE = "4.2"
SCALA_LINE = "2.13"
DELTA_PACKAGE = f"io.delta:delta-spark_{SPARK_LINE}_{SCALA_LINE}:{DELTA_VERSION}"
#: Spark ships these, or Delta needs them only for catalogs that access by path never uses.
EXCLUDED_PACKAGES = (
    "com.*:*",
    "commons-*:*",
    "io.airlift:*",
    "io.delta:delta-kernel-unitycatalog",
    "io.unitycatalog:*",
    "javax.*:*",
    "org.*:*",
)
#: Ivy's names of the files: organisation_artifact-revision.jar.
JAR_NAMES = tuple(
    f"io.delta_{artifact}-{DELTA_VERSION}.jar"
    for artifact in (
        f"delta-spark_{SPARK_LINE}_{SCALA_LINE}",
        "delta-storage",
        "delta-kernel-api",
        "delta-kernel-defaults",
    )
)
FETCH_SECONDS_MAX = 900
_IVY_SETTINGS = ("spark.jars.ivySettings", "spark.jars.repositories")
_IVY_DIRECTORY = ".ivy2.5.2"


class SparkJarsError(LogStoreError):
    """Raised if the Delta jars could not be fetched."""


def find(ivy_home: str | None = None) -> tuple[Path, ...] | None:
    """Return the jars if all of them exist and are whole, else None. Uses no network.

    ``ivy_home`` is Spark's ``spark.jars.ivy``; by default Spark's own directory in the home directory.
    """
    jars = tuple(_ivy_home(ivy_home) / "jars" / name for name in JAR_NAMES)
    # An interrupted copy leaves a file without the archive's directory, which is at its end.
    return jars if all(zipfile.is_zipfile(jar) for jar in jars) else None


def _ivy_home(given: str | None) -> Path:
    """Return Spark's Ivy directory for Spark's settings: Java finds the home directory in the user database."""
    return Path(given).expanduser() if given else Path.home() / _IVY_DIRECTORY


def fetch(ivy_home: str | None = None, *, log: Path | None = None) -> tuple[Path, ...]:
    """Return the jars, after fetching them if any is missing: 12 MB, once per machine. Ivy's output goes to the file
    ``log``.

    Raises SparkJarsError with what to do about it.
    """
    if found := find(ivy_home):
        return found
    log = log or Path(tempfile.gettempdir()) / f"logstore-spark-jars-{os.getuid()}.log"
    # Two processes that fill Ivy's cache at once would damage it.
    with FileLock(f"{log}.lock"):
        if found := find(ivy_home):
            return found
        resolved = _resolve(_ivy_home(ivy_home), log)
    if found := find(ivy_home):
        return found
    if resolved:
        raise SparkJarsError(
            f"{DELTA_PACKAGE} was fetched, but its jars are not in {_ivy_home(ivy_home) / 'jars'}; Ivy's log, {log}, "
            "says where they went: name that directory in spark.jars.ivy, or put the jars into spark.jars."
        )
    raise SparkJarsError(
        f"fetching {DELTA_PACKAGE} failed{_reason(log)}; Ivy's log is {log}. Without access to Maven Central name a "
        "repository in spark.jars.repositories (conf/spark-defaults.conf), or put the jars into spark.jars."
    )


def _resolve(ivy_home: Path, log: Path) -> bool:
    """Return True if Ivy reports that it has everything."""
    # This starts a Spark gateway without a session: spark-submit resolves packages before it starts anything.
    arguments = ["--packages", DELTA_PACKAGE, "--exclude-packages", ",".join(EXCLUDED_PACKAGES)]
    settings = {key: value for key, value in user_settings().items() if key in _IVY_SETTINGS}
    for key, value in (settings | {"spark.jars.ivy": str(ivy_home)}).items():
        arguments += ["--conf", shlex.quote(f"{key}={value}")]
    environment = os.environ | {"PYSPARK_SUBMIT_ARGS": " ".join([*arguments, "pyspark-shell"])}
    environment.pop("PYSPARK_GATEWAY_PORT", None)
    command = [sys.executable, "-c", "from pyspark.java_gateway import launch_gateway; launch_gateway()"]
    with log.open("wb") as output:
        try:
            ran = subprocess.run(  # noqa: S603 - our own interpreter and constants
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=FETCH_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SparkJarsError(
                f"fetching {DELTA_PACKAGE} took over {FETCH_SECONDS_MAX} s; see {log} and try again"
            ) from error
    return ran.returncode == 0


def _reason(log: Path) -> str:
    text = log.read_text(errors="replace") if log.exists() else ""
    if "JAVA_HOME is not set" in text or "java: command not found" in text:
        return ": Java is missing (Debian: apt-get install openjdk-17-jre-headless)"
    problem = re.search(
        r"^.*(unresolved dependency|Server access error|UnknownHost|not found\. url).*$", text, re.MULTILINE
    )
    return f": {problem.group().strip(' :')}" if problem else ""


def main() -> int:
    """Run ``python -m logstore.spark.jars``: fetch the jars if needed, and print one line."""
    ivy_home = user_settings().get("spark.jars.ivy")
    if found := find(ivy_home):
        print(f"Spark's Delta {DELTA_VERSION} jars are in {found[0].parent}")
        return 0
    print(f"Fetching Spark's Delta {DELTA_VERSION} jars (12 MB, once) ...", flush=True)
    try:
        found = fetch(ivy_home)
    except SparkJarsError as error:
        print(error, file=sys.stderr)
        return 1
    print(f"Spark's Delta {DELTA_VERSION} jars are in {found[0].parent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
