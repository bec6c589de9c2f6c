"""confluent-kafka as its users have it: a loop of ``produce``, a fixed rate with linger 0, a loop of ``consume``."""

import threading
import time
from array import array
from itertools import cycle
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from benchmarks.load.result import precise_timers, print_result, read_specification

_STEP = 1_000
_KEYS = 100_000


def produce(spec: dict[str, Any]) -> None:
    """Produce as many records as fit into the seconds, one per call, until all are acknowledged."""
    failures: list[str] = []

    def on_delivery(error: KafkaError | None, _message: Message) -> None:
        if error:
            failures.append(str(error))

    producer = Producer(
        {
            **_common(spec),
            "linger.ms": 5,
            "batch.size": spec["batch_bytes"],
            "queue.buffering.max.kbytes": spec["buffer_bytes"] // 1024,
            "queue.buffering.max.messages": 1_000_000,
            "compression.type": spec["compression"],
            "partitioner": "murmur2_random",
            "delivery.report.only.error": True,
            "on_delivery": on_delivery,
        }
    )
    records = zip(cycle(_keys(spec)), cycle(_values(spec)), strict=False)
    topic = spec["topic"]
    sent = 0
    began = time.monotonic()
    stop = began + spec["seconds"]
    while time.monotonic() < stop:
        for key, value in records:
            while True:
                try:
                    producer.produce(topic, value, key)
                    break
                except BufferError:
                    producer.poll(0.005)
            sent += 1
            if sent % _STEP == 0:
                break
        producer.poll(0)
    left = producer.flush(60)
    if failures or left:
        raise RuntimeError(f"{left} records are not delivered; {failures[:3]}")
    print_result(sent, time.monotonic() - began)


def latency(spec: dict[str, Any]) -> None:
    """Produce a record each time one is due; its latency counts from then to its delivery report."""
    precise_timers()
    producer = Producer(
        {**_common(spec), "linger.ms": 0, "socket.nagle.disable": True, "partitioner": "murmur2_random"}
    )
    latencies = array("d")
    failures: list[str] = []
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            producer.poll(0.1)

    serving = threading.Thread(target=serve)
    serving.start()
    records = zip(cycle(_keys(spec)), cycle(_values(spec)), strict=False)
    count = int(spec["rate"] * spec["seconds"])
    # The first record looks up the topic's leader.
    producer.produce(spec["topic"], b"first")
    producer.flush(30)
    began = time.monotonic() + 0.05

    def report(due: float) -> Any:
        def on_delivery(error: KafkaError | None, _message: Message) -> None:
            latencies.append(time.monotonic() - due)
            if error:
                failures.append(str(error))

        return on_delivery

    for index, (key, value) in zip(range(count), records, strict=False):
        due = began + index / spec["rate"]
        if (wait := due - time.monotonic()) > 0:
            time.sleep(wait)
        producer.produce(spec["topic"], value, key, on_delivery=report(due))
    left = producer.flush(30)
    stop.set()
    serving.join()
    if failures or left or len(latencies) != count:
        raise RuntimeError(f"{left} records are not delivered; {failures[:3]}")
    print_result(count, time.monotonic() - began, latencies)


def consume(spec: dict[str, Any]) -> None:
    """Consume the whole topic from its beginning, an object per record, and access its key and value."""
    consumer = Consumer(
        {**_common(spec), "group.id": "bench", "enable.auto.commit": False, "fetch.queue.backoff.ms": 5}
    )
    consumer.assign([TopicPartition(spec["topic"], partition, 0) for partition in range(spec["partitions"])])
    wanted, records, size = spec["records"], 0, 0
    began = time.monotonic()
    while records < wanted:
        messages = consumer.consume(10_000, 10)
        if not messages:
            raise RuntimeError(f"{records} of {wanted} records came")
        for message in messages:
            if message.error():
                raise RuntimeError(str(message.error()))
            message.key()
            size += len(message.value() or b"")
        records += len(messages)
    seconds = time.monotonic() - began
    consumer.close()
    print_result(records, seconds, value_bytes=size)


def _common(spec: dict[str, Any]) -> dict[str, Any]:
    acks = {} if spec["call"] == "consume" else {"acks": "all"}
    return {"bootstrap.servers": spec["bootstrap"], "broker.address.family": "v4", **acks}


def _values(spec: dict[str, Any]) -> list[bytes]:
    return Path(spec["payload"]).read_bytes().split(b"\n")


def _keys(spec: dict[str, Any]) -> list[bytes | None]:
    # The prime stride makes neighbours differ, and the loop of keys is no multiple of that of values.
    return [b'"user-%06d"' % (7919 * number % _KEYS) for number in range(_KEYS - 1)] if spec["keyed"] else [None]


if __name__ == "__main__":
    specification = read_specification()
    {"produce": produce, "latency": latency, "consume": consume}[specification["call"]](specification)
