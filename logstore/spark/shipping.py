"""Sends the package to workers that cannot import it: executors of a cluster, and the Python of a Spark Connect server.

The objects that a worker receives refer to classes of ``logstore`` and do not contain them, so an executor needs
exactly the driver's version. The archive has its content's checksum in its name: Spark Connect refuses other content
under a name.
"""

import io
import os
import subprocess
import tempfile
import zipfile
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakSet

import logstore
from logstore.spark.spark_conf import PACKAGE_ROOT, is_local

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

_IMPORT_SECONDS_MAX = 60
#: Contexts, and sessions of Spark Connect, that have the package.
_shipped: "WeakSet[SparkContext | SparkSession]" = WeakSet()


def ship_package(context: "SparkContext") -> None:
    """Give workers of this context exactly this version of the package, and of the jobs beside it, once.

    Executors of a cluster receive it. Workers of the driver get its path: Spark does not look for sent files when it
    starts the worker of a streaming source.
    """
    if context in _shipped:
        return
    if not _workers_import_it(context):
        paths = context.environment.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")).split(os.pathsep)
        context.environment["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), str(PACKAGE_ROOT)])
    if not is_local(str(context.master)):
        directory = tempfile.mkdtemp(prefix="logstore-", dir=context._temp_dir)  # noqa: SLF001 - removed with it
        context.addPyFile(str(_write_archive(Path(directory))))
    _shipped.add(context)


def ship_through_connect(spark: "SparkSession") -> None:
    """Send the package to the workers of a Spark Connect session, once.

    Those of streaming queries do not look for it: Spark 4.2 lets them use installed packages, but no files of a
    session.
    """
    if spark not in _shipped:
        with tempfile.TemporaryDirectory(prefix="logstore-") as directory:
            spark.addArtifacts(str(_write_archive(Path(directory))), pyfile=True)
        _shipped.add(spark)


def _workers_import_it(context: "SparkContext") -> bool:
    """Return True if a worker of the driver, in any directory, imports exactly this package."""
    if str(PACKAGE_ROOT) in context.environment.get("PYTHONPATH", "").split(os.pathsep):
        return True
    ran = subprocess.run(  # noqa: S603 - the interpreter that Spark is told to use
        [context.pythonExec, "-c", "import logstore; print(logstore.__file__)"],
        env=os.environ | context.environment,
        cwd=tempfile.gettempdir(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        timeout=_IMPORT_SECONDS_MAX,
        check=False,
    )
    return ran.stdout.strip() == logstore.__file__


def _write_archive(directory: Path) -> Path:
    content = _archive()
    path = directory / f"logstore-{logstore.__version__}-{zlib.crc32(content):08x}.zip"
    path.write_bytes(content)
    return path


@cache
def _archive() -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for package in ("logstore", "compaction_jobs"):
            for module in sorted((PACKAGE_ROOT / package).rglob("*.py")):
                # Without a date the archive is the same for the same files.
                name = zipfile.ZipInfo(module.relative_to(PACKAGE_ROOT).as_posix())
                archive.writestr(name, module.read_bytes(), zipfile.ZIP_DEFLATED)
    return content.getvalue()
