"""Topics read back by Spark: with and without a store, by offset range, with a query, and as a consumer group."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs.demo.checks import Contents
from docs.demo.progress import Advance
from logstore.spark import group_read, jars, read_offsets
from logstore.spark.session import LOG_VARIABLE, session
from logstore.spark.spark_conf import user_settings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# The JVM lives for seconds, so quick compilation is better than good compilation (half the processor time, measured).
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_JAVA_OPTIONS_KEY = "spark.driver.extraJavaOptions"


@dataclass(frozen=True, slots=True)
class CarrierDelay:
    carrier: str
    flights: int
    mean_delay_minutes: float


def has_jars() -> bool:
    """Return whether the Delta jars are already on this machine."""
    return jars.find(user_settings().get("spark.jars.ivy")) is not None


def fetch_jars(logs: Path) -> None:
    """Fetch the jars; Ivy's output goes to ``logs``. Raises SparkJarsError if that fails."""
    jars.fetch(user_settings().get("spark.jars.ivy"), log=logs / "ivy.log")


def spark_session(logs: Path) -> "SparkSession":
    """Return a session whose output goes to ``logs``."""
    os.environ.setdefault(LOG_VARIABLE, str(logs / "spark.log"))
    options = f"{_JAVA_OPTIONS} {user_settings().get(_JAVA_OPTIONS_KEY, '')}".strip()
    return session(app_name="logstore demo", config={_JAVA_OPTIONS_KEY: options})


def read_with_spark(spark: "SparkSession", topic: str, **source: Any) -> Contents:
    """Read the whole topic; ``source`` is ``bootstrap=`` or ``storage=``."""
    return _contents(read_offsets(spark, topic, **source))


def read_table(spark: "SparkSession", location: str) -> tuple[Contents, int]:
    """Read the Delta table at a URI as any Spark does; return its content and its number of different values."""
    table = spark.read.format("delta").load(location)
    return _contents(table), table.select("value").distinct().count()


def count_range(spark: "SparkSession", topic: str, starts: dict[int, int], ends: dict[int, int], url: str) -> int:
    """Count the records that Spark reads in [start, end) of each partition."""
    return int(read_offsets(spark, topic, starts, ends, bootstrap=url).count())


def read_in_batches(
    spark: "SparkSession", topic: str, group: str, url: str, batch_records: int, advance: Advance
) -> list[Contents]:
    """Read the records that ``group`` has not read yet, in batches of about ``batch_records``; each batch is committed
    when it is done.
    """
    batches: list[Contents] = []
    while True:
        with group_read(spark, topic, group, bootstrap=url, max_offsets_per_trigger=batch_records) as batch:
            if batch.is_empty:
                return batches
            batches.append(_contents(batch.df))
        advance(batches[-1].total)


def mean_delay_per_carrier(spark: "SparkSession", topic: str, url: str) -> list[CarrierDelay]:
    """Run a user's query: the carriers with the largest delay first."""
    from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

    flight = F.from_json(F.col("value").cast("string"), "carrier STRING, arr_delay DOUBLE").alias("flight")
    rows = (
        read_offsets(spark, topic, bootstrap=url)
        .select(flight)
        .groupBy("flight.carrier")
        .agg(F.count("*").alias("flights"), F.avg("flight.arr_delay").alias("mean_delay"))
        .orderBy(F.desc("mean_delay"))
        .collect()
    )
    return [CarrierDelay(row.carrier, row.flights, row.mean_delay) for row in rows]


def _contents(records: "DataFrame") -> Contents:
    from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

    found = F.count("*").alias("records"), F.min("offset").alias("first"), F.max("offset").alias("last")
    rows = records.groupBy("partition").agg(*found).collect()
    offsets = {row.partition: range(row.first, row.first + row.records) for row in rows}
    return Contents(offsets, dense=all(row.last - row.first == row.records - 1 for row in rows))
