"""Topic-partitions, offsets and times as JSON, in the forms of Spark's Kafka source.

Partitions are ``{"flights":[0,1]}``; offsets and times ``{"flights":{"0":23,"1":45}}``. Beside its topics an offset may
have ``"topic_ids":{"flights":"6c39d26b-..."}``, which identifies the topics of these names. An offset in a streaming
query's progress can be read as it is. Any other text raises ValueError with an example.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

TopicPartition = tuple[str, int]
#: The key of the topics' ids. A topic of this name differs from it in its values, which are numbers.
TOPIC_IDS = "topic_ids"
#: A key of a streaming query's first offset; no topic can have this name.
INITIAL = "initial offset"

_PARTITION = re.compile(r"[0-9]{1,10}")
_PARTITION_MAX, _LONG_MAX = 2**31 - 1, 2**63 - 1


def read_partitions(text: str) -> dict[str, tuple[int, ...]]:
    """Parse partitions by topic, in rising order."""
    wrong = ValueError(f'Expected e.g. {{"topicA":[0,1],"topicB":[0,1]}}, got {text}')
    found = _object(text, wrong)
    for partitions in found.values():
        if not isinstance(partitions, list) or not all(_is_number(p, 0, _PARTITION_MAX) for p in partitions):
            raise wrong
    return {topic: tuple(sorted(set(partitions))) for topic, partitions in found.items() if partitions}


def read_offsets(text: str, least: int = -2) -> tuple[dict[TopicPartition, int], dict[str, str]]:
    """Parse offsets from ``least`` on by topic-partition, and ids by topic, if there are any."""
    wrong = ValueError(f'Expected e.g. {{"topicA":{{"0":23,"1":-1}},"topicB":{{"0":-2}}}}, got {text}')
    return _by_partition(text, least, wrong)


def read_times(text: str) -> dict[TopicPartition, int]:
    """Parse times, in ms since 1970, by topic-partition."""
    wrong = ValueError(
        'Expected e.g. {"topicA": {"0": 123456789, "1": 123456789}, "topicB": {"0": 123456789, "1": 123456789}}, '
        f"got {text}"
    )
    return _by_partition(text, 0, wrong)[0]


def write_offsets(offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, str] | None = None) -> str:
    """Return the text of offsets, in the order of topics and partitions."""
    by_topic: dict[str, Any] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    if topic_ids:
        by_topic[TOPIC_IDS] = dict(sorted(topic_ids.items()))
    return json.dumps(by_topic, separators=(",", ":"))


def _by_partition(text: str, least: int, wrong: ValueError) -> tuple[dict[TopicPartition, int], dict[str, str]]:
    numbers: dict[TopicPartition, int] = {}
    topic_ids: dict[str, str] = {}
    for topic, values in _object(text, wrong).items():
        if topic == INITIAL:
            continue
        if not isinstance(values, dict):
            raise wrong
        if topic == TOPIC_IDS and values and all(isinstance(value, str) for value in values.values()):
            topic_ids = values
            continue
        for partition, value in values.items():
            if not _PARTITION.fullmatch(partition) or int(partition) > _PARTITION_MAX:
                raise wrong
            if not _is_number(value, least, _LONG_MAX) or (topic, int(partition)) in numbers:
                raise wrong
            numbers[topic, int(partition)] = value
    return numbers, topic_ids


def _object(text: str, wrong: ValueError) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) < len(pairs):
            raise wrong
        return dict(pairs)

    try:
        found = json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise wrong from None
    if not isinstance(found, dict):
        raise wrong
    return found


def _is_number(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most
