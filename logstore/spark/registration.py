"""Registers topics in a Spark session: ``format("logstore")``, the table function ``logstore_topic``, and what both
need in the session and in its workers.
"""

import logging
from typing import TYPE_CHECKING

from logstore.client.addresses import environment_url
from logstore.errors import InvalidRequestError
from logstore.spark.shipping import ship_package, ship_through_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

#: The name of the table function.
TOPIC_FUNCTION = "logstore_topic"
#: Without it Spark refuses every batch read of a Python source that accepts filters (the option ``pushFilters``).
FILTER_PUSHDOWN_KEY = "spark.sql.python.filterPushdown.enabled"


def register(spark: "SparkSession") -> None:
    """Register ``format("logstore")`` and the table function ``logstore_topic`` in a session, also of Spark Connect.

    ``logstore.spark.session`` calls this. Sends the package to remote executors; they need numpy, pyarrow, msgspec,
    cachetools and google-crc32c, or in short ``pip install 'delta-logstore[delta]'``. Sets
    ``spark.sql.python.filterPushdown.enabled``. The current LOGSTORE_URL becomes the default address of
    ``logstore_topic``. A second call changes nothing else.

    Raises InvalidRequestError for anything but a Spark session.
    """
    from logstore.spark.source.data_source import LogStoreSource
    from logstore.spark.topic_function import topic_function

    if not hasattr(spark, "dataSource"):
        raise InvalidRequestError(f"register({spark!r}): give a Spark session (Spark 4)")
    if type(spark).__module__.startswith("pyspark.sql.connect."):
        ship_through_connect(spark)
    else:
        ship_package(spark.sparkContext)
    _enable_filter_pushdown(spark)
    spark.dataSource.register(LogStoreSource)
    spark.udtf.register(TOPIC_FUNCTION, topic_function(environment_url() or ""))


def _enable_filter_pushdown(spark: "SparkSession") -> None:
    """Enable filter pushdown. If the user has set it to false, keep that and log the consequence."""
    if spark.conf.getAll.get(FILTER_PUSHDOWN_KEY, "true").lower() == "false":
        log.warning(
            '%s is set to false: Spark refuses batch reads of format("logstore") with the option pushFilters until it '
            "is true",
            FILTER_PUSHDOWN_KEY,
        )
    else:
        spark.conf.set(FILTER_PUSHDOWN_KEY, "true")
