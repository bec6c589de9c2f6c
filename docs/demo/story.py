"""The chapters of the demo: each does what a user would do, and records the counts that have to agree."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docs.demo import jobs
from docs.demo.checks import Checks, Contents
from docs.demo.flights import (
    FLIGHTS_COUNT,
    PLANES_COUNT,
    batches,
    last_flights,
    mean_arrival_delays,
    read_flights,
    with_tail_number,
)
from docs.demo.posting import CLIENT_ID, PARTITIONS, make_topic, post
from docs.demo.progress import Steps
from docs.demo.reading import read_delta, read_over_http, read_records
from docs.demo.spark_reading import (
    CarrierDelay,
    count_range,
    fetch_jars,
    has_jars,
    mean_delay_per_carrier,
    read_in_batches,
    read_with_spark,
    spark_session,
)
from logstore.client.admin import Admin

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS, LAST_FLIGHT, GROUP = "flights", "last-flight", "flights-report"
BATCH_RECORDS = 2_000
GROUP_BATCH_RECORDS = 100_000


@dataclass(frozen=True, slots=True)
class Demo:
    """``url`` and ``data`` are those of the store."""

    steps: Steps
    url: str
    data: Path
    logs: Path
    checks: Checks = field(default_factory=Checks)


def load_flights(demo: Demo) -> tuple[Any, dict[int, int]]:
    """Send the flights; return them, and the number that each partition of the topic has acknowledged."""
    with demo.steps.step("Reading the flights and sorting them by scheduled departure"):
        flights = read_flights()
    demo.checks.count("flights in the data files", flights.num_rows, FLIGHTS_COUNT)
    acknowledged = _post(demo, FLIGHTS, flights, {})
    demo.checks.count("acknowledged over HTTP", sum(acknowledged.values()), flights.num_rows)
    location, version = _roll(demo, FLIGHTS)
    with demo.steps.step("Reading the Delta table with delta-rs"):
        in_delta, in_order = read_delta(location)
    demo.checks.contents(f"in the Delta table (version {version}, read by delta-rs)", in_delta, _from_0(acknowledged))
    demo.checks.holds("in order of scheduled departure, per partition", held=in_order)
    return flights, acknowledged


def start_spark(steps: Steps, logs: Path) -> "SparkSession":
    if not has_jars():
        with steps.step("Fetching Spark's Delta jars (once)"):
            fetch_jars(logs)
    with steps.step("Starting Spark"):
        return spark_session(logs)


def read_back(demo: Demo, spark: "SparkSession", flights: Any, acknowledged: Mapping[int, int]) -> list[CarrierDelay]:
    """Read everything and a range of offsets, and run a query."""
    checks, url = demo.checks, demo.url
    with demo.steps.step("Reading all of it with Spark"):
        through_store = read_with_spark(spark, FLIGHTS, bootstrap=url)
        from_storage = read_with_spark(spark, FLIGHTS, storage=str(demo.data))
    checks.contents("read by Spark through the store", through_store, _from_0(acknowledged))
    checks.contents("read by Spark from storage alone", from_storage, _from_0(acknowledged))
    with demo.steps.step("Reading the middle half of every partition by offset"):
        starts = {partition: records // 4 for partition, records in acknowledged.items()}
        ends = {partition: records * 3 // 4 for partition, records in acknowledged.items()}
        in_range = count_range(spark, FLIGHTS, starts, ends, url)
    checks.count("read by Spark by offset range (the middle half)", in_range, sum(ends.values()) - sum(starts.values()))
    with demo.steps.step("Asking for the mean arrival delay per carrier"):
        delays = mean_delay_per_carrier(spark, FLIGHTS, url)
    checks.count("in the answer of the query", sum(row.flights for row in delays), flights.num_rows)
    expected = mean_arrival_delays(flights)
    means_agree = {row.carrier for row in delays} == set(expected) and all(
        math.isclose(row.mean_delay_minutes, expected[row.carrier]) for row in delays
    )
    checks.holds("mean delays as computed from the data files", held=means_agree)
    return delays


def read_as_group(demo: Demo, spark: "SparkSession", acknowledged: Mapping[int, int]) -> None:
    """Read batch by batch, each of which is committed."""
    records = sum(acknowledged.values())
    with demo.steps.step(f"Reading as the group {GROUP}, in batches", records) as advance:
        parts = read_in_batches(spark, FLIGHTS, GROUP, demo.url, GROUP_BATCH_RECORDS, advance)
    whole = Contents.joined(parts)
    demo.checks.contents(f"read by the group {GROUP}, in {len(parts)} batches", whole, _from_0(acknowledged))
    with Admin(demo.url, client_id=CLIENT_ID) as admin:
        committed = {found.partition: found.offset for found in admin.group_offsets(GROUP, topic=FLIGHTS)}
        demo.checks.count("committed by the group", sum(committed.values()), records)
        up_to_date = committed == acknowledged and admin.group_lag(GROUP).total_lag == 0
    demo.checks.holds("the group is at the end of every partition", held=up_to_date)


def keep_last_flights(demo: Demo, flights: Any) -> None:
    """Fill a compacted topic with the same flights by plane, of which the last one of each plane stays."""
    known = with_tail_number(flights)
    acknowledged = _post(demo, LAST_FLIGHT, known, {"cleanup.policy": "compact"})
    demo.checks.count(f"acknowledged in {LAST_FLIGHT} (have a tail number)", sum(acknowledged.values()), len(known))
    location, _ = _roll(demo, LAST_FLIGHT)
    with demo.steps.step(f"Compacting {LAST_FLIGHT} to the last flight of each plane"):
        jobs.run("compact", demo.data, LAST_FLIGHT, demo.url, demo.logs)
    with demo.steps.step("Comparing it with the data files"):
        left, expected = read_records(location), last_flights(known)
    demo.checks.count("left by compaction: planes", len(left), PLANES_COUNT)
    demo.checks.holds("each is the last flight of its plane in the data files", held=dict(left) == expected)


def cut_in_half(demo: Demo, acknowledged: Mapping[int, int]) -> None:
    """Run retention by size, which removes the older half of the topic in whole segments."""
    checks, records = demo.checks, sum(acknowledged.values())
    with Admin(demo.url, client_id=CLIENT_ID) as admin:
        before = admin.describe_topic(FLIGHTS)
        half = sum(p.size_bytes for p in before.partitions) // len(before.partitions) // 2
        with demo.steps.step(f"Cutting {FLIGHTS} in half: retention.bytes = {half:,} per partition"):
            admin.alter_configs(FLIGHTS, {"retention.bytes": str(half)})
            removed = jobs.run("retention", demo.data, FLIGHTS, demo.url, demo.logs)
        starts = {p.partition: p.log_start_offset for p in admin.describe_topic(FLIGHTS).partitions}
    with demo.steps.step("Reading what is left, over HTTP and with delta-rs"):
        over_http, (in_delta, _) = read_over_http(demo.url, FLIGHTS), read_delta(before.location)
    expected = {p: range(starts[p], end) for p, end in acknowledged.items()}
    checks.contents("left by retention from the log start on, over HTTP", over_http, expected)
    checks.contents("left by retention from the log start on, in Delta", in_delta, expected)
    checks.count(f"removed by retention, in {removed.segments} segments", removed.records, records - over_http.total)
    checks.holds("that is about half", held=0.4 < over_http.total / records < 0.6)


def _post(demo: Demo, topic: str, flights: Any, configs: Mapping[str, str]) -> dict[int, int]:
    """Create the topic and post the flights; return the number that each partition has acknowledged."""
    streams = batches(flights, PARTITIONS, BATCH_RECORDS)
    make_topic(demo.url, topic, configs)
    with demo.steps.step(f"Posting JSON batches to {topic} over HTTP", len(flights)) as advance:
        return dict(sorted(post(demo.url, topic, streams, advance).items()))


def _roll(demo: Demo, topic: str) -> tuple[str, int]:
    """Roll the topic; return the location of its Delta table, and its version."""
    with demo.steps.step(f"Rolling {topic} from the journal into Parquet and Delta"), Admin(demo.url) as admin:
        version = admin.roll(topic).version
        return admin.describe_topic(topic).location, version


def _from_0(counts: Mapping[int, int]) -> dict[int, range]:
    return {partition: range(count) for partition, count in counts.items()}
