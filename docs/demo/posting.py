"""A topic of flights over HTTP: created again, and filled by one connection per partition."""

import itertools
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import msgspec

from docs.demo.flights import Batch, DemoError
from docs.demo.progress import Advance
from logstore.client.admin import Admin
from logstore.client.metadata import TopicDescription
from logstore.client.transport import Transport, topic_path
from logstore.errors import LogStoreError, UnknownTopicError

PARTITIONS = 4
# Each partition has many segments, so that a read of a range can skip some, and retention can remove some. A key is the
# tail number itself, without the quotes of its JSON text, as a Kafka client would send it.
CONFIGS = {"segment.bytes": str(2 * 1024 * 1024), "key.format": "string"}
CLIENT_ID = "logstore-demo"
_JSON = "application/vnd.kafka.json.v2+json"
_RETRY_SECONDS = 60.0


class _Offset(msgspec.Struct):
    partition: int | None
    offset: int | None
    error: str | None = None


class _Offsets(msgspec.Struct):
    offsets: list[_Offset]


class _Record(msgspec.Struct):
    value: dict[str, object]


def make_topic(url: str, topic: str, configs: Mapping[str, str], replication_factor: int = 1) -> None:
    """Create a topic; one of an earlier demo is deleted first.

    Raises DemoError if there is a topic of that name with something else in it.
    """
    with Admin(url, client_id=CLIENT_ID) as admin:
        try:
            earlier = admin.describe_topic(topic)
        except UnknownTopicError:
            earlier = None
        if earlier:
            if not _is_of_demo(url, earlier):
                raise DemoError(
                    f"the store at {url} has a topic '{topic}' that is not from this demo: "
                    "delete it, or give another data directory with --data"
                )
            admin.delete_topic(topic)
        admin.create_topic(
            topic, partitions=PARTITIONS, replication_factor=replication_factor, configs=CONFIGS | dict(configs)
        )


def post(url: str, topic: str, streams: Sequence[Iterator[Batch]], advance: Advance) -> Counter[int]:
    """Post the streams side by side, each over a separate connection; return the number of durable records by
    partition.

    Raises the error of the first failing request.
    """
    failed = threading.Event()

    def post_stream(stream: Iterator[Batch]) -> Counter[int]:
        try:
            return _post_stream(url, topic, itertools.takewhile(lambda _: not failed.is_set(), stream), advance)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(len(streams)) as pool:
        return sum(pool.map(post_stream, streams), Counter())


def _post_stream(url: str, topic: str, stream: Iterable[Batch], advance: Advance) -> Counter[int]:
    acknowledged: Counter[int] = Counter()
    with Transport(url, client_id=CLIENT_ID) as transport:
        for batch in stream:
            answer = transport.request(
                "POST",
                topic_path(topic),
                content=batch.body,
                headers={"Content-Type": _JSON},
                # A 429 or 503 means that nothing was stored, and gives the time to retry.
                retry_timeout_s=_RETRY_SECONDS,
            )
            for row in msgspec.json.decode(answer.content, type=_Offsets).offsets:
                if row.partition is None or row.error is not None:
                    raise DemoError(f"the store refused a record: {row.error}")
                acknowledged[row.partition] += 1
            advance(batch.records)
    return acknowledged


def _is_of_demo(url: str, topic: TopicDescription) -> bool:
    """Return whether the topic is empty or begins with a flight."""
    with Transport(url, client_id=CLIENT_ID) as transport:
        for partition in topic.partitions:
            if partition.log_start_offset == partition.high_watermark:
                continue
            try:
                answer = transport.request(
                    "GET",
                    topic_path(topic.name, f"/partitions/{partition.partition}/records"),
                    params={"offset": partition.log_start_offset, "max_bytes": 1, "max_wait_ms": 0},
                    headers={"Accept": _JSON},
                )
                first = msgspec.json.decode(answer.content, type=list[_Record])[0]
            except (LogStoreError, msgspec.DecodeError, IndexError):
                return False
            return {"tailnum", "time_hour", "arr_delay"} <= first.value.keys()
    return True
