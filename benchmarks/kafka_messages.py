"""The time for a message of Kafka's protocol, in µs of CPU: ``python -m benchmarks.kafka_messages``.

Measured are Produce 13 and Fetch 17 of one topic with 1, 4 and 100 partitions, each with 16 KiB of records (as one
buffer, which is not copied), as the store reads and writes them: whole frames with their headers, without the four
bytes of length that are read before. Beside them is kio, another implementation. The best of several rounds counts.
"""

import io
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from logstore.kafka_protocol.messages import FetchRequest, FetchResponse, ProduceRequest, ProduceResponse
from logstore.kafka_protocol.requests import read_request, write_request
from logstore.kafka_protocol.responses import write_response

_ROUNDS, _CALLS = 20, 200
_TOPIC = bytes(range(16))
_RECORDS = bytes(16 * 1024)
_PRODUCE, _FETCH = (0, 13), (1, 17)


def produce(partitions: int) -> tuple[ProduceRequest, ProduceResponse]:
    parts = [ProduceRequest.PartitionProduceData(i, memoryview(_RECORDS)) for i in range(partitions)]
    request = ProduceRequest(
        acks=-1, timeout_ms=30_000, topic_data=[ProduceRequest.TopicProduceData("", _TOPIC, parts)]
    )
    stored = [
        ProduceResponse.PartitionProduceResponse(index=i, base_offset=1_234_567, log_start_offset=0)
        for i in range(partitions)
    ]
    return request, ProduceResponse(responses=[ProduceResponse.TopicProduceResponse("", _TOPIC, stored)])


def fetch(partitions: int) -> tuple[FetchRequest, FetchResponse]:
    wanted = [
        FetchRequest.FetchPartition(
            partition=i, current_leader_epoch=3, fetch_offset=1_234_567, partition_max_bytes=1 << 20
        )
        for i in range(partitions)
    ]
    request = FetchRequest(max_wait_ms=500, min_bytes=1, topics=[FetchRequest.FetchTopic("", _TOPIC, wanted)])
    read = [
        FetchResponse.PartitionData(
            partition_index=i, high_watermark=9, last_stable_offset=9, aborted_transactions=None, records=[_RECORDS]
        )
        for i in range(partitions)
    ]
    return request, FetchResponse(responses=[FetchResponse.FetchableTopicResponse("", _TOPIC, read)])


def microseconds(call: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.process_time_ns()
        for _ in range(_CALLS):
            call()
        best = min(best, time.process_time_ns() - began)
    return best / _CALLS / 1_000


def kio_in(api: tuple[int, int], frame: bytes) -> Callable[[], object]:
    read = entity_reader(load_request_schema(*api))
    # Skip the header: key, version, correlation id, client id "bench", no tagged fields.
    return lambda: read(frame, 2 + 2 + 4 + 2 + len("bench") + 1)


def kio_out(api: tuple[int, int], frame: bytes) -> Callable[[], object]:
    response = load_response_schema(*api)
    # Skip the header: length, correlation id, no tagged fields.
    entity, _ = entity_reader(response)(frame, 4 + 4 + 1)
    write: Any = entity_writer(response)
    return lambda: write(io.BytesIO(), entity)


def main() -> None:
    print(f"{'':28} {'in':>7} {'out':>7} {'kio in':>7} {'kio out':>7}")
    for partitions in (1, 4, 100):
        for name, api, messages in (("Produce", _PRODUCE, produce), ("Fetch", _FETCH, fetch)):
            request, response = messages(partitions)
            arrived = b"".join(write_request(*api, 7, "bench", request))[4:]
            sent = b"".join(write_response(*api, 7, response))
            times = [
                microseconds(partial(read_request, arrived)),
                microseconds(partial(write_response, *api, 7, response)),
                microseconds(kio_in(api, arrived)),
                microseconds(kio_out(api, sent)),
            ]
            print(f"{name} {api[1]}, {partitions} partitions".ljust(28), *(f"{each:7.2f}" for each in times))


if __name__ == "__main__":
    main()
