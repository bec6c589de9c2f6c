"""Records of a topic as a DataFrame: ``TopicView.plan`` as Spark's scans and tasks."""

from collections.abc import Sequence
from functools import reduce
from types import ModuleType
from typing import TYPE_CHECKING

from logstore.spark import history_check, tail_reader, worker
from logstore.spark.column_types import struct_of
from logstore.spark.offset_ranges import OffsetRange
from logstore.spark.read_plan import HistoryScan
from logstore.spark.tail_reader import TAIL_COLUMNS
from logstore.spark.topic_view import TopicView
from logstore.table_files import TableFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: At most this many tasks fetch records of a topic at once; each goes through its share of the partitions.
TASKS_MAX = 200


def topic_frame(spark: "SparkSession", view: TopicView, ranges: Sequence[OffsetRange]) -> "DataFrame":
    """Return records of ``ranges`` (one per partition, inside the bounds): ``topic`` and the columns of its table."""
    plan = view.plan(ranges)
    parts = _history(spark, view, plan.history) if plan.history else []
    if plan.fetched:
        parts.append(_fetched(spark, view, plan.fetched))
    records = reduce(lambda a, b: a.union(b), parts) if parts else spark.createDataFrame([], struct_of(TAIL_COLUMNS))
    # Each column that is named costs some calls of the JVM; parts have the columns in their order.
    return records.selectExpr(f"'{view.topic}' AS topic", "*")


def read_table(spark: "SparkSession", files: TableFiles) -> "DataFrame":
    return spark.read.format("delta").load(files.spark_uri)


def client_id(spark: "SparkSession") -> str:
    """Return the client id by which the store's logs and metrics name this application."""
    return f"spark {spark.conf.get('spark.app.name', '')}".strip()


def _history(spark: "SparkSession", view: TopicView, scans: Sequence[HistoryScan]) -> list["DataFrame"]:
    table = read_table(spark, view.files)
    if view.refused_files:
        names = ", ".join(f"'{name}'" for name in view.refused_files)
        table = table.where(f"_metadata.file_name NOT IN ({names})")
    table = table.select(*TAIL_COLUMNS)
    # The check comes first, where a query for a few rows begins. Delta has chosen the files before any task runs: if it
    # is the same table then, it was the same when they were chosen.
    return [_check(spark, view, scans), *(table.where(scan.condition()) for scan in scans)]


def _check(spark: "SparkSession", view: TopicView, scans: Sequence[HistoryScan]) -> "DataFrame":
    """Return a DataFrame without rows, whose evaluation may fail."""
    from logstore.delta.actions import OWN_PREFIX

    _send_along(history_check, worker)
    known = history_check.KnownHistory(
        view.topic,
        view.topic_id,
        view.files.uri,
        view.snapshot.version,
        bool(view.refused_files),
        OWN_PREFIX,
        tuple((r.partition, r.start, r.end) for scan in scans for r in scan.ranges),
    )
    return spark.range(0, 1, 1, 1).mapInArrow(history_check.history_check(known), struct_of(TAIL_COLUMNS))


def _send_along(*modules: ModuleType) -> None:
    """Send the modules with the query, because executors need not have this package."""
    from pyspark import cloudpickle

    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _fetched(spark: "SparkSession", view: TopicView, ranges: Sequence[OffsetRange]) -> "DataFrame":
    # On an executor without ``logstore.client`` the task fails with a readable reason.
    _send_along(tail_reader, worker)
    wanted = [(r.partition, r.start, r.end) for r in ranges]
    reader = tail_reader.tail_reader(view.urls, view.topic, view.topic_id, wanted, client_id(spark))
    tasks = min(len(ranges), TASKS_MAX)
    return spark.range(0, len(ranges), 1, tasks).mapInArrow(reader, struct_of(TAIL_COLUMNS))
