"""The cases: the contenders of each, and the targets.

``DEFAULT`` takes about half an hour, ``KAFKA`` and ``CLUSTER`` a third of it each. ``MATRIX`` varies cases like the
first two along one axis at a time: payload, partitions, connections, records per request; it takes an hour more. The
first contender of a case is ours.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatch

from benchmarks.cluster import REPLICAS
from benchmarks.cluster_operations import ZOOKEEPER, EmptyReplica, LeaderKilled, Roles, RollingRestart
from benchmarks.groups import CommitOffsets, LoadOffsets
from benchmarks.measure import Target
from benchmarks.operations import (
    BrokerColdStart,
    BrokerRecovery,
    ColdStart,
    EventStreams,
    IdlePolls,
    LatencyWhileRolling,
    ManyTopics,
    Recovery,
    Roll,
)
from benchmarks.ours import ClientConsume, ClientProduce, HttpFetch, HttpLatency, HttpProduce, WrkProduce
from benchmarks.rivals import Confluent, IdleConsumers, JavaConsume, JavaProduce
from benchmarks.run import Case
from benchmarks.server import BenchmarkError
from benchmarks.upkeep import AgedTopic, MaskedConsume, Merge
from benchmarks.workload import Form, Payload, Workload

SMALL = Workload(value_bytes=100)
LARGE = Workload(value_bytes=1_000)
SINGLE = Workload(value_bytes=100, batch=1, connections=32)
FSYNC = "kafka fsync"

#: One broker serves all of Kafka's contenders of a case.
MEMORY = Target("peak_mb", "kafka", at_most=1 / 3)


def rate(against: str, at_least: float | None = None, of: str = "ours") -> Target:
    return Target("records_s", against, of, at_least=at_least)


def megabytes(against: str, at_least: float, of: str = "ours") -> Target:
    return Target("mb_s", against, of, at_least=at_least)


def produce_json(name: str, workload: Workload, kafka: float, kafka_fsync: float) -> Case:
    size = "100 B" if workload.value_bytes == 100 else "1 KB"
    return Case(
        name,
        f"JSON over HTTP, {size} values with keys, 1,000 a request",
        (HttpProduce(workload), JavaProduce(workload), JavaProduce(workload, fsync=True, name=FSYNC)),
        (rate("kafka", kafka), rate(FSYNC, kafka_fsync), MEMORY),
    )


def produce_arrow(name: str, workload: Workload, kafka: float) -> Case:
    size = "100 B" if workload.value_bytes == 100 else "1 KB"
    return Case(
        name,
        f"Arrow over HTTP, {size} values with keys, 10,000 a request",
        (HttpProduce(replace(workload, batch=10_000), "arrow"), JavaProduce(workload), Confluent(workload)),
        (rate("kafka", kafka), rate("confluent", 1.0), MEMORY),
    )


def client_batch(name: str, workload: Workload, kafka: float) -> Case:
    size = "100 B" if workload.value_bytes == 100 else "1 KB"
    return Case(
        name,
        f"Producer.send_batch, {size} values with keys, 10,000 a call",
        (ClientProduce(replace(workload, batch=10_000)), JavaProduce(workload), Confluent(workload)),
        (rate("kafka", kafka), rate("confluent", 1.0), MEMORY),
    )


def fetch(name: str, workload: Workload, records: int, *, sealed: bool) -> Case:
    where = "sealed history" if sealed else "the tail"
    unkeyed = replace(workload, keyed=False)
    return Case(
        name,
        f"{where} as Arrow, over HTTP and with Consumer.poll_arrow, {workload.value_bytes:,} B values",
        (
            HttpFetch(unkeyed, records, sealed),
            ClientConsume(unkeyed, records, sealed, name="poll_arrow"),
            JavaConsume(unkeyed, records),
            Confluent(unkeyed, "consume", records=records),
        ),
        (megabytes("kafka", 1.5), megabytes("kafka", 1.5, of="poll_arrow"), rate("confluent")),
    )


def poll_objects(name: str, workload: Workload, records: int) -> Case:
    unkeyed = replace(workload, keyed=False)
    return Case(
        name,
        f"Consumer.poll, an object a record, {workload.value_bytes:,} B values, from the tail",
        (
            ClientConsume(unkeyed, records, sealed=False, call="poll"),
            Confluent(unkeyed, "consume", records=records),
        ),
        (rate("confluent", 1.0),),
    )


def recovery(megabytes_in_journal: int) -> Case:
    records = megabytes_in_journal * 1_000_000 // LARGE.record_bytes
    return Case(
        f"recovery-{megabytes_in_journal}",
        f"start after kill -9 with {megabytes_in_journal:,} MB of records in the journal",
        (Recovery(LARGE, records), BrokerRecovery(replace(LARGE, keyed=False), records)),
        (Target("ready_s", at_most=5.0), Target("ready_s", "kafka")),
    )


def many_partitions(name: str, title: str, workload: Workload, form: Form) -> Case:
    few = "ours, 4 partitions"
    return Case(
        name,
        title,
        (
            HttpProduce(workload, form),
            HttpProduce(replace(workload, partitions=4), form, name=few),
            JavaProduce(workload, fsync=True, name=FSYNC),
        ),
        (rate(few, 0.9), rate(FSYNC), Target("peak_mb", FSYNC, at_most=1 / 3)),
    )


def aged(rolls: int) -> Case:
    return Case(
        f"aged-{rolls}",
        f"a topic that was rolled {rolls:,} times, a record each: a roll (p50, CPU time), and the start of the store",
        (AgedTopic(rolls),),
        (
            Target("p50_ms", at_most=30.0),
            Target("server_cpu_us", at_most=30_000.0),
            Target("ready_s", at_most=3.0),
        ),
        rounds=1,
    )


DEFAULT: tuple[Case, ...] = (
    produce_json("produce-json-100", SMALL, 1.0, 1.5),
    produce_json("produce-json-1k", LARGE, 0.8, 1.5),
    Case(
        "produce-json-headers",
        "JSON over HTTP, 100 B values with keys and two headers, 1,000 a request",
        (HttpProduce(replace(SMALL, headers=True)),),
    ),
    Case(
        "produce-json-string-keys",
        "JSON over HTTP, 100 B values with keys to a topic with key.format=string, 1,000 a request",
        (HttpProduce(SMALL, configs={"key.format": "string"}),),
    ),
    Case(
        "produce-json-text",
        "JSON over HTTP, 100 B values with text that is not ASCII, 1,000 a request",
        (HttpProduce(replace(SMALL, payload="text")),),
    ),
    produce_arrow("produce-arrow-100", SMALL, 2.0),
    produce_arrow("produce-arrow-1k", LARGE, 1.2),
    Case(
        "produce-lz4-100",
        "Arrow with lz4 over HTTP, 100 B values with keys, 10,000 a request",
        (
            HttpProduce(replace(SMALL, batch=10_000), "arrow lz4"),
            JavaProduce(SMALL, compression="lz4"),
            Confluent(SMALL, compression="lz4"),
        ),
        (rate("kafka"), rate("confluent"), MEMORY),
    ),
    client_batch("client-batch-100", SMALL, 2.0),
    client_batch("client-batch-1k", LARGE, 1.2),
    Case(
        "client-send-100",
        "Producer.send, 100 B values with keys, one a call",
        (ClientProduce(SMALL, "send"), Confluent(SMALL)),
        (rate("confluent", 0.7),),
    ),
    Case(
        "single-json",
        "JSON over HTTP, one record a request, 32 connections (wrk)",
        (WrkProduce(SINGLE),),
        (Target("records_s", at_least=8_000),),
    ),
    Case(
        "latency-1000",
        "1,000 records/s, one a request, from the time they are due; librdkafka with linger 0",
        (
            HttpLatency(replace(SINGLE, connections=8)),
            Confluent(SMALL, "latency", fsync=True, name=FSYNC),
            Confluent(SMALL, "latency", name="kafka"),
        ),
        (
            Target("p50_ms", FSYNC, at_most=1.5),
            Target("p99_ms", FSYNC, at_most=3.0),
            Target("p50_ms", "kafka"),
            Target("p99_ms", "kafka"),
        ),
    ),
    many_partitions(
        "partitions-1000",
        "JSON over HTTP, 1,000 a request, each request to one of 1,000 partitions in turn",
        replace(SMALL, partitions=1_000, spread=False),
        "json",
    ),
    many_partitions(
        "partitions-1000-keyed",
        "Arrow over HTTP, 10,000 a request, each request to all of 1,000 partitions by key",
        replace(SMALL, partitions=1_000, batch=10_000),
        "arrow",
    ),
    fetch("fetch-tail-100", SMALL, 3_000_000, sealed=False),
    fetch("fetch-tail-1k", LARGE, 500_000, sealed=False),
    fetch("fetch-sealed-100", SMALL, 3_000_000, sealed=True),
    fetch("fetch-sealed-1k", LARGE, 500_000, sealed=True),
    poll_objects("poll-100", SMALL, 3_000_000),
    poll_objects("poll-1k", LARGE, 500_000),
    Case(
        "roll-stall",
        "1,000 records/s, one a request, while 128 MB of another topic roll",
        (
            LatencyWhileRolling(
                replace(SINGLE, connections=8), replace(LARGE, partitions=1), 128_000_000 // LARGE.record_bytes
            ),
            HttpLatency(replace(SINGLE, connections=8), name="ours, no roll"),
        ),
        (Target("p99_ms", "ours, no roll", at_most=3.0),),
    ),
    Case("roll", "a roll of 4 x 128 MB, 1 KB values", (Roll(LARGE, 512_000_000 // LARGE.record_bytes),), rounds=2),
    Case(
        "merge",
        "logstore job merge, 8 segments of each of 4 partitions, 100 B values with keys",
        (Merge(SMALL, rolls=12, records=200_000),),
        (Target("mb_s", at_least=150),),
        rounds=2,
    ),
    aged(1_000),
    Case(
        "cold-start",
        "the start on an empty directory",
        (ColdStart(), BrokerColdStart()),
        (Target("ready_s", "kafka"),),
    ),
    recovery(64),
    recovery(256),
    recovery(1_000),
    Case(
        "many-topics",
        "1,000 topics, each with a record in the journal: start, rest, another topic (p50, p99), stop",
        (ManyTopics(),),
        (
            Target("live_s", at_most=1.5),
            Target("ready_s", at_most=5.0),
            Target("rest_percent", at_most=3.0),
            Target("p50_ms", at_most=40.0),
            Target("stop_s", at_most=8.0),
        ),
    ),
    Case(
        "commit-latency",
        "1,000 commits/s of an offset of 100 groups, from the time they are due",
        (CommitOffsets(groups=100, offsets=1, rate=1_000),),
        (Target("p99_ms", at_most=10.0),),
    ),
    Case(
        "consume-masked",
        "sealed history in 80 files, 1 KB values; of each tenth file a deletion vector takes a hundredth of the rows",
        (
            MaskedConsume(replace(LARGE, keyed=False), 400_000, rolls=20, masked=True),
            MaskedConsume(replace(LARGE, keyed=False), 400_000, rolls=20, masked=False, name="without vectors"),
        ),
        (megabytes("without vectors", 0.8),),
    ),
    Case(
        "commit-offsets",
        "commits of 10 offsets each, of 100 groups in turn, 8 connections",
        (CommitOffsets(groups=100, offsets=10),),
        (Target("records_s", at_least=5_000),),
    ),
    Case(
        "load-offsets",
        "what 400,000 committed offsets (400 groups, 1,000 partitions) add to a start",
        (LoadOffsets(groups=400, offsets=1_000),),
        (Target("ready_s", at_most=3.0), Target("resident_mb", at_most=150.0)),
        rounds=3,
    ),
    Case(
        "idle-polls",
        "1,000 long polls that wait, and 1 GB of records in the journal",
        (IdlePolls(replace(LARGE, partitions=1), 1_000_000_000 // LARGE.record_bytes),),
        (Target("resident_mb", at_most=400),),
        rounds=1,
    ),
    Case(
        "event-streams",
        "1,000 Server-Sent Events clients on one topic, 100 records a second",
        (EventStreams(),),
        (Target("p99_ms", at_most=250), Target("peak_mb", at_most=300)),
        rounds=3,
    ),
)


def kafka_produce(name: str, workload: Workload, *, defaults: bool, kafka_fsync: float) -> Case:
    batches = "batches as the producer ships" if defaults else "batches of 256 KiB within 5 ms"
    contender = JavaProduce(workload, defaults=defaults)
    return Case(
        name,
        f"Kafka's own producer, {workload.value_bytes:,} B values, acks=all, {batches}",
        (replace(contender, name="ours", ours=True), contender, replace(contender, name=FSYNC, fsync=True)),
        (
            rate(FSYNC, kafka_fsync),
            rate("kafka", 0.8),
            Target("server_cpu_us", "kafka", at_most=1.0),
            Target("peak_mb", "kafka"),
        ),
    )


def kafka_consume(name: str, workload: Workload, records: int, *, sealed: bool) -> Case:
    where = "sealed history" if sealed else "the tail"
    of_cpu = Target("server_cpu_us", "kafka", at_most=None if sealed else 1.0)
    return Case(
        name,
        f"Kafka's own consumer, {workload.value_bytes:,} B values that Kafka's producer sent, from {where}",
        (JavaConsume(workload, records, name="ours", ours=True, sealed=sealed), JavaConsume(workload, records)),
        (rate("kafka", 0.5 if sealed else 0.9), of_cpu),
    )


#: Kafka's clients, with our listener and with Kafka's.
KAFKA: tuple[Case, ...] = (
    kafka_produce("kafka-produce-defaults-100", SMALL, defaults=True, kafka_fsync=1.2),
    kafka_produce("kafka-produce-defaults-1k", LARGE, defaults=True, kafka_fsync=1.2),
    kafka_produce("kafka-produce-256k-100", SMALL, defaults=False, kafka_fsync=1.3),
    kafka_produce("kafka-produce-256k-1k", LARGE, defaults=False, kafka_fsync=1.3),
    kafka_consume("kafka-consume-tail-100", SMALL, 3_000_000, sealed=False),
    kafka_consume("kafka-consume-tail-1k", LARGE, 500_000, sealed=False),
    kafka_consume("kafka-consume-sealed-100", SMALL, 3_000_000, sealed=True),
    kafka_consume("kafka-consume-sealed-1k", LARGE, 500_000, sealed=True),
    Case(
        "kafka-latency",
        "1,000 records/s, one a request, acks=all, librdkafka with linger 0, from the time they are due",
        (
            Confluent(SMALL, "latency", name="ours", ours=True),
            Confluent(SMALL, "latency", fsync=True, name=FSYNC),
            Confluent(SMALL, "latency", name="kafka"),
        ),
        (Target("p50_ms", FSYNC, at_most=1.5), Target("p99_ms", FSYNC), Target("p50_ms", "kafka")),
    ),
    Case(
        "kafka-idle-consumers",
        "the share of a core with 1,000 consumers that wait at the end of 4 partitions: fetch.max.wait.ms 500, 5,000",
        (
            IdleConsumers(max_wait_ms=500, ours=True, name="ours"),
            IdleConsumers(max_wait_ms=5_000, ours=True, name="ours, 5 s"),
            IdleConsumers(max_wait_ms=500),
            IdleConsumers(max_wait_ms=5_000, name="kafka, 5 s"),
        ),
        (
            Target("rest_percent", at_most=25.0),
            Target("rest_percent", of="ours, 5 s", at_most=5.0),
            Target("rest_percent", "kafka"),
            Target("rest_percent", "kafka, 5 s", of="ours, 5 s"),
        ),
        rounds=3,
    ),
)


ONE_BROKER = "ours, one broker"


def replicated(workload: Workload, form: Form, name: str = "ours") -> HttpProduce:
    return HttpProduce(workload, form, name=name, needs=ZOOKEEPER, brokers=REPLICAS)


def produce_replicated(name: str, workload: Workload, form: Form, kafka: float, one_broker: float) -> Case:
    size = "100 B" if workload.value_bytes == 100 else "1 KB"
    any_broker = "ours, any broker"
    one_partition = replace(workload, spread=False)
    return Case(
        name,
        f"{form} over HTTP, {size} values with keys, {workload.batch:,} a request, each to the leader of one "
        f"partition; three replicas, min.insync.replicas 2, acks=all, our fsync on each of them, and none of Kafka's. "
        f"{any_broker}: keys decide, requests go to the brokers in turn, which send on what others lead",
        (
            replicated(one_partition, form),
            HttpProduce(one_partition, form, name=ONE_BROKER),
            replicated(workload, form, name=any_broker),
            JavaProduce(workload, replicated=True),
        ),
        (rate("kafka", kafka), rate(ONE_BROKER, one_broker), rate(any_broker)),
    )


def roles(form: Form, batch: int) -> Case:
    workload = Workload(partitions=1, batch=batch)
    return Case(
        f"cluster-roles-{form}",
        f"CPU time of a leader, a follower, and a broker that sends records on; {form} over HTTP, 100 B values with "
        f"keys, {batch:,} a request, one partition",
        (
            Roles(workload, form, forwarded=False),
            Roles(workload, form, forwarded=True, name="ours, sent on"),
        ),
    )


def empty_replica(gigabytes: int) -> Case:
    return Case(
        f"cluster-replica-{gigabytes}gb",
        f"a broker with an empty log directory, until it is in the ISR of a partition with {gigabytes} GB of history",
        (EmptyReplica(replace(LARGE, partitions=1, batch=2_000), gigabytes),),
        (Target("joined_s", at_most=5.0),),
        rounds=3,
    )


_SESSION_SECONDS = 6
CLUSTER: tuple[Case, ...] = (
    produce_replicated("cluster-json-100", SMALL, "json", 1.0, 0.6),
    produce_replicated("cluster-json-1k", LARGE, "json", 1.0, 0.6),
    produce_replicated("cluster-arrow-100", replace(SMALL, batch=10_000), "arrow", 2.0, 0.4),
    produce_replicated("cluster-arrow-1k", replace(LARGE, batch=10_000), "arrow", 1.5, 0.4),
    Case(
        "cluster-partitions-1000",
        "JSON over HTTP, 1,000 a request, each to the leader of one of 1,000 partitions in turn; three replicas",
        (
            replicated(replace(SMALL, partitions=1_000, spread=False), "json"),
            replicated(replace(SMALL, spread=False), "json", name="ours, 4 partitions"),
        ),
        (rate("ours, 4 partitions", 0.8),),
    ),
    Case(
        "cluster-latency-1000",
        "1,000 records/s, one a request, from the time they are due; three replicas beside one",
        (
            # Eight connections, shared by three leaders, would sustain 1,000 a second only if no response took 8 ms.
            # Behind a leader whose connections are all busy, requests to the others would also wait.
            HttpLatency(replace(SINGLE, spread=False), needs=ZOOKEEPER, brokers=REPLICAS),
            HttpLatency(replace(SINGLE, spread=False), name=ONE_BROKER),
        ),
        (Target("p50_ms", ONE_BROKER, at_most=5.0), Target("p99_ms", ONE_BROKER)),
    ),
    Case(
        "cluster-failover",
        f"kill -9 of the leader of 1,000 partitions, until each has acknowledged a record; session timeout "
        f"{_SESSION_SECONDS} s",
        (LeaderKilled(1_000, 1_000 * _SESSION_SECONDS),),
        (Target("outage_s", at_most=_SESSION_SECONDS + 3.0),),
        rounds=3,
    ),
    Case(
        "cluster-restart",
        "a rolling restart: the longest wait of a record, and errors, of the Python client with 500 records/s",
        (RollingRestart(12, 500),),
        (Target("longest_ms", at_most=2_000.0), Target("errors", at_most=0.0)),
        rounds=3,
    ),
    empty_replica(1),
    roles("json", 1_000),
    roles("arrow", 10_000),
)


def _matrix() -> Iterator[Case]:
    forms: tuple[tuple[str, Form], ...] = (("json", "json"), ("ndjson", "ndjson"), ("arrow", "arrow"))
    payloads: tuple[Payload, ...] = ("random",)
    for form_name, form in forms:
        for size, workload in (("100", SMALL), ("1k", LARGE)):
            base = replace(workload, keyed=form != "ndjson")
            variants = {"": base}
            variants |= {f"-{payload}": replace(base, payload=payload) for payload in payloads}
            variants |= {f"-p{count}": replace(base, partitions=count) for count in (1, 1_000)}
            variants |= {f"-c{count}": replace(base, connections=count) for count in (1, 32)}
            variants |= {f"-b{count}": replace(base, batch=count) for count in (1, 100, 10_000)}
            for suffix, varied in variants.items():
                ours = HttpProduce(varied, form) if varied.batch > 1 else WrkProduce(varied, form)
                yield Case(
                    f"matrix-{form_name}-{size}{suffix}",
                    f"{form_name} over HTTP: {varied}",
                    (ours, JavaProduce(varied), JavaProduce(varied, fsync=True, name=FSYNC)),
                    (rate("kafka"), rate(FSYNC), MEMORY),
                )


MATRIX: tuple[Case, ...] = (*_matrix(), aged(10_000), empty_replica(10))


def choose(patterns: Sequence[str], *, full: bool = False) -> list[Case]:
    """Return cases by name (``fetch-*`` is a pattern), in their order; without patterns the default ones, or all.

    Raises BenchmarkError for a pattern that matches no case.
    """
    everything = (*DEFAULT, *KAFKA, *CLUSTER, *MATRIX)
    if not patterns:
        return list(everything if full else (*DEFAULT, *KAFKA, *CLUSTER))
    for pattern in patterns:
        if not any(fnmatch(case.name, pattern) for case in everything):
            raise BenchmarkError(f"no case is called {pattern!r}: `make bench LIST=1` names them")
    return [case for case in everything if any(fnmatch(case.name, pattern) for pattern in patterns)]
