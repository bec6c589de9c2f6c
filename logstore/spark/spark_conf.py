"""Spark settings, and which source wins.

From weak to strong: the needs of Delta and the preferences of this package, the project's ``conf/spark-defaults.conf``,
the user's own Spark (``$SPARK_CONF_DIR/spark-defaults.conf`` or ``$SPARK_HOME/conf``), ``PYSPARK_SUBMIT_ARGS``, and the
``config`` argument. Extensions are the one key that is joined instead of replaced.
"""

import os
import re
import shlex
import tempfile
from collections.abc import Mapping
from pathlib import Path

DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
EXTENSIONS_KEY = "spark.sql.extensions"
#: The configuration that enables Delta in a Spark that has its jars.
DELTA_SETTINGS: Mapping[str, str] = {
    EXTENSIONS_KEY: DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
#: The directory that holds the package ``logstore``: a checkout's root, or site-packages.
PACKAGE_ROOT = Path(__file__).resolve().parents[2]

_SUBMIT_OPTIONS = {
    "--master": "spark.master",
    "--name": "spark.app.name",
    "--packages": "spark.jars.packages",
    "--exclude-packages": "spark.jars.excludes",
    "--repositories": "spark.jars.repositories",
    "--jars": "spark.jars",
    "--driver-memory": "spark.driver.memory",
    "--driver-java-options": "spark.driver.extraJavaOptions",
    "--driver-class-path": "spark.driver.extraClassPath",
}


def parse_properties(text: str) -> dict[str, str]:
    """Parse ``spark-defaults.conf``: key, white space, ``=`` or ``:``, then value; ``#`` and ``!`` start comments."""
    settings = {}
    for line in re.sub(r"\\\r?\n[ \t]*", "", text).splitlines():
        stripped = line.strip()
        if stripped and stripped[0] not in "#!":
            key, value = [*re.split(r"\s*[=:\s]\s*", stripped, maxsplit=1), ""][:2]
            settings[key] = value
    return settings


def parse_submit_arguments(arguments: str) -> dict[str, str]:
    """Return the settings in ``PYSPARK_SUBMIT_ARGS``, under spark-submit's keys for its options."""
    settings = {}
    words = iter(shlex.split(arguments))
    for word in words:
        option, _, inline = word.partition("=")
        if option in ("--conf", "-c"):
            key, _, value = (inline or next(words, "")).partition("=")
            settings[key] = value
        elif option in _SUBMIT_OPTIONS:
            settings[_SUBMIT_OPTIONS[option]] = inline or next(words, "")
    return settings


def project_conf_directory() -> Path | None:
    """Return ``conf`` of the working directory, else of the checkout, if it holds a ``spark-defaults.conf``."""
    candidates = (Path.cwd() / "conf", PACKAGE_ROOT / "conf")
    return next((directory for directory in candidates if (directory / "spark-defaults.conf").is_file()), None)


def user_conf_directory() -> Path | None:
    """Return the settings directory of the user's own Spark, by Spark's rule; None if none is set."""
    if directory := os.environ.get("SPARK_CONF_DIR"):
        return Path(directory)
    if home := os.environ.get("SPARK_HOME"):
        return Path(home) / "conf"
    return None


def user_settings() -> dict[str, str]:
    """Return all settings from outside Python; the stronger source wins."""
    settings = {"spark.master": os.environ["MASTER"]} if os.environ.get("MASTER") else {}
    for directory in (project_conf_directory(), user_conf_directory()):
        file = directory / "spark-defaults.conf" if directory else None
        if file and file.is_file():
            settings |= parse_properties(file.read_text(encoding="utf-8"))
    return settings | parse_submit_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))


def is_local(master: str) -> bool:
    """Return True if driver and executors are this machine: ``local``, ``local[4]``, ``local-cluster[...]``."""
    return re.match(r"local(\[|-cluster\[|$)", master) is not None


def is_connect(master: str) -> bool:
    return master.startswith("sc://")


def session_settings(master: str, given: Mapping[str, str], *, progress: bool) -> dict[str, str]:
    """Return all settings of a session on ``master``; those in ``given`` win.

    Settings that change the result of a query are the same for every master. The rest suit one machine when the master
    is local: Spark's defaults (200 shuffle partitions, 50 for a Delta snapshot) cost seconds per query there.
    """
    ours = {
        **DELTA_SETTINGS,
        "spark.sql.session.timeZone": "UTC",
        "spark.databricks.delta.vacuum.logging.enabled": "false",
        # This makes a flipped bit in a page an error instead of another record.
        "spark.hadoop.parquet.page.verify-checksum.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(progress).lower(),
    }
    if is_local(master):
        cores = os.cpu_count() or 1
        if not os.access(Path.cwd(), os.W_OK):
            # Spark creates ./spark-warehouse when it starts, and does not start without it.
            ours["spark.sql.warehouse.dir"] = str(Path(tempfile.gettempdir()) / f"spark-warehouse-{os.getuid()}")
        ours |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.sql.shuffle.partitions": str(2 * cores),
            "spark.databricks.delta.snapshotPartitions": str(min(4, cores)),
            "spark.executorEnv.PYTHONPATH": _python_path(given.get("spark.executorEnv.PYTHONPATH")),
        }
    settings = ours | dict(given) | {"spark.master": master}
    extensions = [name.strip() for name in settings[EXTENSIONS_KEY].split(",") if name.strip()]
    if DELTA_EXTENSION not in extensions:
        settings[EXTENSIONS_KEY] = ",".join([*extensions, DELTA_EXTENSION])
    if is_local(master):
        settings["spark.executorEnv.PYTHONPATH"] = ours["spark.executorEnv.PYTHONPATH"]
    return settings


def _python_path(given: str | None) -> str:
    """Return a path from which workers of a local master import the driver's package, wherever it was started."""
    paths = (given or os.environ.get("PYTHONPATH", "")).split(os.pathsep)
    return os.pathsep.join(dict.fromkeys([*filter(None, paths), str(PACKAGE_ROOT)]))
