"""The chapters of the demo of a cluster: a leader is killed while a producer sends; no record is lost or doubled."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from docs.demo.checks import Checks
from docs.demo.cluster_processes import BROKERS, SESSION_TIMEOUT_MS, DemoCluster
from docs.demo.flights import FLIGHTS_COUNT, DemoError, read_flights, record_columns
from docs.demo.posting import CLIENT_ID, PARTITIONS, make_topic
from docs.demo.progress import Advance, Steps
from docs.demo.reading import read_at_broker, times_stored
from docs.demo.spark_reading import read_table
from logstore.client.admin import Admin
from logstore.client.metadata import PartitionReplicas
from logstore.client.producer import Producer
from logstore.client.producer.delivery import BatchDelivery
from logstore.cluster_processes.broker_process import BrokerEntry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FLIGHTS = "flights"
BATCH_RECORDS = 2_000
_LOOK_SECONDS = 0.1
_CREATED_SECONDS = 30.0
#: A session ends at most one and a half timeouts after its broker.
_FAILOVER_SECONDS = 1.5 * SESSION_TIMEOUT_MS / 1000 + 20
_FLUSH_SECONDS = 120.0
_IN_SYNC_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class ClusterDemo:
    steps: Steps
    cluster: DemoCluster
    checks: Checks = field(default_factory=Checks)


@dataclass(frozen=True, slots=True)
class Sent:
    """``records``: all flights; ``killed``: the id of the killed broker; ``acknowledged``: numbers of records by
    partition.
    """

    records: Any
    killed: int
    acknowledged: dict[int, int]


def send_flights(demo: ClusterDemo) -> Sent:
    """Send all flights with an idempotent producer; kill the leader of partition 0 when half of them are sent."""
    with demo.steps.step("Reading the flights and sorting them by scheduled departure"):
        records = record_columns(read_flights())
    demo.checks.count("flights in the data files", len(records), FLIGHTS_COUNT)
    make_topic(demo.cluster.urls[0], FLIGHTS, {"min.insync.replicas": "2"}, replication_factor=BROKERS)
    replicas = _await_replicas(
        demo,
        lambda found: all(len(each.in_sync_replicas) == BROKERS for each in found),
        _CREATED_SECONDS,
        "not every partition has all of its replicas in sync",
    )
    demo.checks.holds(f"every partition has {BROKERS} replicas, all of them in sync", held=True)
    killed = replicas[0].leader
    half = len(records) // 2
    with Producer(demo.cluster.urls, client_id=CLIENT_ID, enable_idempotence=True) as producer:
        with demo.steps.step(f"Sending one half to {BROKERS} replicas", half) as advance:
            deliveries = _send(producer, records.slice(0, half), advance)
        unanswered = sum(not each.done() for each in deliveries)
        demo.cluster.kill(killed)
        with demo.steps.step(f"kill -9 of a leader, {unanswered} batches on their way: others lead"):
            _await_replicas(
                demo,
                lambda found: all(each.leader not in {killed, -1} for each in found),
                _FAILOVER_SECONDS,
                "not every partition has a new leader",
            )
        with demo.steps.step(f"Sending the other half to {BROKERS - 1} replicas", len(records) - half) as advance:
            deliveries += _send(producer, records.slice(half), advance)
            producer.flush(timeout=_FLUSH_SECONDS)
    partitions = np.concatenate([each.result().partitions for each in deliveries])
    acknowledged = dict(enumerate(np.bincount(partitions, minlength=PARTITIONS).tolist()))
    demo.checks.count("acknowledged by the leaders", sum(acknowledged.values()), len(records))
    return Sent(records, killed, acknowledged)


def read_back(demo: ClusterDemo, sent: Sent) -> None:
    """Read over HTTP from each remaining broker."""
    for broker in demo.cluster.brokers.values():
        _read_at(demo, sent, broker, f"broker {broker.id}")


def read_table_with_spark(demo: ClusterDemo, sent: Sent, spark: "SparkSession") -> None:
    with demo.steps.step(f"Rolling {FLIGHTS} from the journals into Parquet and Delta"), _admin(demo) as admin:
        admin.roll(FLIGHTS)
        location = admin.describe_topic(FLIGHTS).location
    with demo.steps.step("Reading the Delta table with Spark"):
        contents, different = read_table(spark, location)
    demo.checks.contents("in the Delta table, read by Spark", contents, _from_0(sent.acknowledged))
    demo.checks.count("different flights in the Delta table", different, len(sent.records))


def come_back(demo: ClusterDemo, sent: Sent) -> None:
    """Let the killed broker copy what it missed, and count again."""
    with demo.steps.step(f"logstore cluster start-broker {sent.killed} --data {demo.cluster.data}"):
        demo.cluster.start_again(sent.killed)
    with demo.steps.step("Waiting until it is in sync again in all partitions"):
        _await_replicas(
            demo,
            lambda found: all(len(each.in_sync_replicas) == BROKERS for each in found),
            _IN_SYNC_SECONDS,
            "not every partition has all of its replicas in sync",
        )
    demo.checks.holds(f"broker {sent.killed} is back in every ISR", held=True)
    _read_at(demo, sent, demo.cluster.brokers[sent.killed], f"broker {sent.killed}, again")


def _send(producer: Producer, records: Any, advance: Advance) -> list[BatchDelivery]:
    deliveries = []
    for start in range(0, len(records), BATCH_RECORDS):
        batch = records.slice(start, BATCH_RECORDS)
        deliveries.append(producer.send_batch(FLIGHTS, batch))
        advance(len(batch))
    return deliveries


def _read_at(demo: ClusterDemo, sent: Sent, broker: BrokerEntry, name: str) -> None:
    with demo.steps.step(f"Reading all of it over HTTP at {name}"):
        contents, table = read_at_broker(broker.url, FLIGHTS, PARTITIONS)
        missing, doubled, strange = times_stored(sent.records["value"], table["value"])
        in_order = _in_order(table)
    demo.checks.contents(f"read over HTTP at {name}", contents, _from_0(sent.acknowledged))
    demo.checks.holds(
        f"at {name}: {missing} flights missing, {doubled} doubled, {strange} unknown",
        held=missing == doubled == strange == 0,
    )
    demo.checks.holds(f"at {name}: in order of departure", held=in_order)


def _await_replicas(
    demo: ClusterDemo, reached: Callable[[Sequence[PartitionReplicas]], bool], seconds: float, lacking: str
) -> Sequence[PartitionReplicas]:
    """Wait until the replicas of all partitions are as wanted, and return them. Raises DemoError after ``seconds``."""
    give_up = time.monotonic() + seconds
    while len(found := _replicas(demo)) < PARTITIONS or not reached(found):
        if time.monotonic() > give_up:
            shown = "; ".join(f"{each.partition}: leader {each.leader}, ISR {each.in_sync_replicas}" for each in found)
            raise DemoError(f"{lacking} after {seconds:.0f} s ({shown}): see the logs of the brokers")
        time.sleep(_LOOK_SECONDS)
    return found


def _replicas(demo: ClusterDemo) -> list[PartitionReplicas]:
    with _admin(demo) as admin:
        return [each for each in admin.partition_replicas() if each.topic == FLIGHTS]


def _admin(demo: ClusterDemo) -> Admin:
    return Admin(",".join(demo.cluster.urls), client_id=CLIENT_ID)


def _in_order(table: Any) -> bool:
    """Return whether timestamps rise with offsets in each partition; rows are ordered by partition and offset."""
    partitions, timestamps = table["partition"].to_numpy(), table["timestamp"].to_numpy()
    return bool((timestamps[1:] >= timestamps[:-1])[partitions[1:] == partitions[:-1]].all())


def _from_0(counts: Mapping[int, int]) -> dict[int, range]:
    return {partition: range(count) for partition, count in counts.items()}
