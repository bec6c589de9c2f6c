"""A Spark session in which topics can be read: Delta configured, times in UTC, quiet.

All Spark settings of the user win over those chosen here (``spark_conf.py`` has the order). The class path consists of
local files: after the first time, a session starts without a network.
"""

import importlib.util
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from logstore.errors import InvalidRequestError, LogStoreError
from logstore.spark.registration import register
from logstore.spark.spark_conf import (
    DELTA_EXTENSION,
    EXTENSIONS_KEY,
    is_connect,
    is_local,
    project_conf_directory,
    session_settings,
    user_conf_directory,
    user_settings,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Names the file that receives all output of Spark and its JVM.
LOG_VARIABLE = "LOGSTORE_SPARK_LOG"
_STDERR = 2


class SparkStartError(LogStoreError):
    """Raised if Spark did not start, or the Spark that runs already cannot read topics."""


def require_pyspark() -> None:
    """Raise SparkStartError, with the command that installs it, if PySpark is missing."""
    if importlib.util.find_spec("pyspark") is None:
        raise SparkStartError("this needs Spark, and PySpark is not installed: pip install 'delta-logstore[spark]'")


def session(
    app_name: str = "logstore", master: str | None = None, config: Mapping[str, str] | None = None
) -> "SparkSession":
    """Return the running Spark session, or a new one with Delta configured; topics are registered in it (``register``).

    ``master`` is Spark's: ``local[*]`` (the default, unless Spark's own settings differ), ``spark://host:port``,
    ``k8s://...``, or ``sc://host:port`` for a Spark Connect server that has Delta. ``config`` takes any Spark setting.
    Raises SparkJarsError if the jars are missing and cannot be fetched, SparkStartError if PySpark is missing, Spark
    does not start or runs already without Delta, InvalidRequestError for a ``config`` whose values are not text.
    """
    require_pyspark()
    given = user_settings() | _checked(config or {})
    master = master or given.get("spark.master") or os.environ.get("SPARK_REMOTE") or "local[*]"
    if is_connect(master):
        return _connect(app_name, master, _checked(config or {}))

    from pyspark.sql import SparkSession

    if (active := SparkSession.getActiveSession()) is not None:
        return _reuse(active, config or {})
    settings = session_settings(master, given, progress=sys.stderr.isatty())
    if app_name != "logstore" or "spark.app.name" not in given:
        settings["spark.app.name"] = app_name
    settings |= _jar_settings(given) | _logging_settings(given)
    _start(settings, local=is_local(master))
    _quieten_pyspark()
    spark = SparkSession.builder.getOrCreate()
    register(spark)
    return spark


def _checked(config: Mapping[str, Any]) -> dict[str, str]:
    for key, value in config.items():
        if not isinstance(value, (str, int, float)):
            raise InvalidRequestError(f"Spark setting {key}: {value!r} is a {type(value).__name__}; give text")
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in config.items()}


def _reuse(active: "SparkSession", config: Mapping[str, Any]) -> "SparkSession":
    if DELTA_EXTENSION not in (active.conf.get(EXTENSIONS_KEY, "") or ""):
        raise SparkStartError(
            "a Spark session without Delta is running in this process; stop it first (spark.stop()), or start it with "
            f"{EXTENSIONS_KEY}={DELTA_EXTENSION}"
        )
    for key, value in _checked(config).items():
        if active.conf.isModifiable(key):
            active.conf.set(key, value)
    register(active)
    return active


def _connect(app_name: str, master: str, config: Mapping[str, str]) -> "SparkSession":
    """Return a session on a Spark Connect server, which brings its own Delta and settings."""
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.appName(app_name).remote(master)
    for key, value in ({"spark.sql.session.timeZone": "UTC"} | dict(config)).items():
        builder = builder.config(key, value)
    try:
        spark = builder.getOrCreate()
    except (ImportError, PySparkException) as error:
        needs = "; it needs: pip install 'pyspark[connect]'" if isinstance(error, ImportError) else ""
        raise SparkStartError(f"no Spark Connect session at {master}{needs} ({error})") from error
    register(spark)
    return spark


def _jar_settings(given: Mapping[str, str]) -> dict[str, str]:
    """Return ``spark.jars`` with the Delta jars, unless the user's Spark or settings bring Delta."""
    named = " ".join(given.get(key, "") for key in ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"))
    home = os.environ.get("SPARK_HOME")
    if "delta-spark" in named or (home and any(Path(home, "jars").glob("delta-spark*.jar"))):
        return {}
    import pyspark

    from logstore.spark import jars

    if not pyspark.__version__.startswith(f"{jars.SPARK_LINE}."):
        raise SparkStartError(
            f"this is Spark {pyspark.__version__}, and {jars.DELTA_PACKAGE} is built for Spark {jars.SPARK_LINE}; name "
            "the Delta of your Spark in spark.jars.packages"
        )
    ivy_home = given.get("spark.jars.ivy")
    found = jars.find(ivy_home)
    if found is None:
        print(f"Fetching Spark's Delta {jars.DELTA_VERSION} jars (12 MB, once) ...", file=sys.stderr)  # noqa: T201 - takes a while
        found = jars.fetch(ivy_home)
    return {"spark.jars": ",".join([*filter(None, [given.get("spark.jars")]), *(jar.as_uri() for jar in found)])}


def _logging_settings(given: Mapping[str, str]) -> dict[str, str]:
    directories = (user_conf_directory(), project_conf_directory())
    if any(directory and (directory / "log4j2.properties").is_file() for directory in directories):
        return {}
    key = "spark.driver.extraJavaOptions"
    level = "warn" if os.environ.get(LOG_VARIABLE) else "error"
    file = Path(__file__).with_name("log4j2.properties")
    options = f"-Dlog4j2.configurationFile={file.as_uri()} -Dlogstore.spark.log.level={level}"
    return {key: f"{options} {given.get(key, '')}".strip()}


def _quieten_pyspark() -> None:
    """Keep PySpark from logging each error of a query with the JVM's stack, because it also raises the error."""
    from pyspark.logger import PySparkLogger

    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL)


def _start(settings: Mapping[str, str], *, local: bool) -> None:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    if not shutil.which("java") and not Path(os.environ.get("JAVA_HOME", ""), "bin", "java").is_file():
        raise SparkStartError("Spark needs Java 17 or later (Debian: apt-get install openjdk-17-jre-headless)")
    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    environment = _environment(settings, local=local)
    log = os.environ.get(LOG_VARIABLE)
    try:
        with _environment_set(environment), _output(log) as output:
            # The JVM of an earlier session of this process is used again.
            gateway = SparkContext._gateway  # noqa: SLF001 - no public name
            gateway = gateway or launch_gateway(conf, {"stdout": output, "stderr": output})  # type: ignore[no-untyped-call]
            SparkContext(conf=conf, gateway=gateway)
    except (PySparkException, OSError) as error:
        raise SparkStartError(f"Spark did not start: {error}{f' (its log is {log})' if log else ''}") from error


def _environment(settings: Mapping[str, str], *, local: bool) -> dict[str, str]:
    """Return variables that Spark reads while it starts, if the user has not set them."""
    wanted = {}
    if local:
        # Without it, Spark looks the host name up, and warns that it is the loopback address.
        wanted["SPARK_LOCAL_IP"] = settings["spark.driver.bindAddress"]
        wanted["PYSPARK_PYTHON"] = settings.get("spark.pyspark.python", sys.executable)
    return {name: value for name, value in wanted.items() if name not in os.environ}


@contextmanager
def _environment_set(variables: Mapping[str, str]) -> Iterator[None]:
    os.environ.update(variables)
    try:
        yield
    finally:
        for name in variables:
            os.environ.pop(name, None)


@contextmanager
def _output(log: str | None) -> Iterator[IO[bytes] | int]:
    """Yield the target of the JVM's output: the file ``log``, appended to, or stderr. stdout is the program's."""
    if not log:
        yield _STDERR
        return
    path = Path(log)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        yield file
