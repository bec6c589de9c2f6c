"""The topic read back: by delta-rs, which knows nothing of this project, and by Spark with and without a store."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import numpy as np

from logstore.demo.posting import TOPIC
from logstore.spark import jars
from logstore.spark.session import LOG_VARIABLE, session
from logstore.spark.spark_conf import user_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A JVM that lives for seconds: compiling quickly beats compiling well (half the processor time, measured).
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_JAVA_OPTIONS_KEY = "spark.driver.extraJavaOptions"


@dataclass(frozen=True, slots=True)
class Contents:
    """What a reader found: records per partition, and whether the offsets of each are 0, 1, 2 ... with none missing."""

    records: Mapping[int, int]
    dense: bool

    @property
    def total(self) -> int:
        return sum(self.records.values())


@dataclass(frozen=True, slots=True)
class CarrierDelay:
    carrier: str
    flights: int
    mean_delay_minutes: float


def read_delta(location: str) -> tuple[Contents, bool]:
    """What the Delta table at a URI holds, and whether timestamps rise with offsets in every partition."""
    table = deltalake.DeltaTable(location).to_pyarrow_dataset().to_table(columns=["partition", "offset", "timestamp"])
    table = table.sort_by([("partition", "ascending"), ("offset", "ascending")])
    partitions, offsets = table["partition"].to_numpy(), table["offset"].to_numpy()
    numbers, starts, counts = np.unique(partitions, return_index=True, return_counts=True)
    dense = bool((offsets == np.arange(len(offsets)) - np.repeat(starts, counts)).all())
    same_partition = partitions[1:] == partitions[:-1]
    timestamps = table["timestamp"].to_numpy()
    in_order = bool((timestamps[1:] >= timestamps[:-1])[same_partition].all())
    return Contents(dict(zip(numbers.tolist(), counts.tolist(), strict=True)), dense), in_order


def has_jars() -> bool:
    """Whether the Delta jars are on this machine already."""
    return jars.find(user_settings().get("spark.jars.ivy")) is not None


def fetch_jars(logs: Path) -> None:
    """Fetch them; Ivy's output goes to ``logs``. SparkJarsError if that fails."""
    jars.fetch(user_settings().get("spark.jars.ivy"), log=logs / "ivy.log")


def spark_session(logs: Path) -> "SparkSession":
    """A session that says what it has to say in ``logs``."""
    os.environ.setdefault(LOG_VARIABLE, str(logs / "spark.log"))
    options = f"{_JAVA_OPTIONS} {user_settings().get(_JAVA_OPTIONS_KEY, '')}".strip()
    return session(app_name="logstore demo", config={_JAVA_OPTIONS_KEY: options})


def read_with_spark(spark: "SparkSession", **source: str) -> Contents:
    """The whole topic; ``source`` is ``bootstrap=`` or ``storage=``."""
    from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

    rows = (
        _read_offsets(spark, **source)
        .groupBy("partition")
        .agg(F.count("*").alias("records"), F.min("offset").alias("first"), F.max("offset").alias("last"))
        .collect()
    )
    dense = all(row.first == 0 and row.last == row.records - 1 for row in rows)
    return Contents({row.partition: row.records for row in rows}, dense)


def count_range(spark: "SparkSession", starts: dict[int, int], ends: dict[int, int], **source: str) -> int:
    """How many records Spark reads in [start, end) of each partition."""
    frame = _read_offsets(spark, starting_offsets=starts, ending_offsets=ends, **source)
    return int(frame.count())


def mean_delay_per_carrier(spark: "SparkSession", **source: str) -> list[CarrierDelay]:
    """What a user would ask: the latest carriers first."""
    from pyspark.sql import functions as F  # noqa: N812 (as everybody calls it)

    flight = F.from_json(F.col("value").cast("string"), "carrier STRING, arr_delay DOUBLE").alias("flight")
    rows = (
        _read_offsets(spark, **source)
        .select(flight)
        .groupBy("flight.carrier")
        .agg(F.count("*").alias("flights"), F.avg("flight.arr_delay").alias("mean_delay"))
        .orderBy(F.desc("mean_delay"))
        .collect()
    )
    return [CarrierDelay(row.carrier, row.flights, row.mean_delay) for row in rows]


def _read_offsets(spark: "SparkSession", **options: Any) -> Any:
    from logstore.spark import read_offsets

    return read_offsets(spark, TOPIC, **options)
