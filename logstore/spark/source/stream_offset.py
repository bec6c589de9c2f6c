"""The position of a streaming query, as in its checkpoint: the JSON of Spark's Kafka source, and topic ids.

``{"flights": {"0": 23, "1": 45}, "topic_ids": {"flights": "<id>"}}`` are the next offsets to read. Ids may be absent,
as in a checkpoint written by hand; then they are not checked. A query that reads a topic named ``topic_ids`` keeps no
ids: the key is the topic's then, and its values are numbers.

The offset of a query's first batch also has ``"initial offset"``, the position where that batch begins (no topic can
have this name). Spark does not record it, and asks the source again when it repeats the batch after a failure: by then
"latest" would be later.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from logstore.errors import InvalidRequestError
from logstore.spark.source.offset_json import INITIAL, TOPIC_IDS, TopicPartition, read_offsets, write_offsets


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The next offset to read of each partition, topic ids by name, and the beginning of a query's first batch."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, str]
    initial: "StreamOffset | None" = None

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> "StreamOffset":
        """Parse JSON. Raises InvalidRequestError."""
        try:
            offsets, topic_ids = read_offsets(json.dumps(value), least=0)
        except ValueError as error:
            raise InvalidRequestError(f"the checkpoint of the query has no offset of this source: {error}") from None
        initial = value.get(INITIAL)
        return cls(offsets, topic_ids, None if initial is None else cls.of(initial))

    def json(self) -> dict[str, Any]:
        """Return the JSON for Spark, in the order of topics and partitions."""
        ids = {topic: self.topic_ids[topic] for topic, _ in self.offsets if topic in self.topic_ids}
        value: dict[str, Any] = json.loads(write_offsets(self.offsets, None if self._has_topic_of_key() else ids))
        return value if self.initial is None else value | {INITIAL: self.initial.json()}

    def is_of(self, topic: str, topic_id: str) -> bool:
        """Return True if offsets of ``topic`` may be those of the topic with ``topic_id``."""
        return self.topic_ids.get(topic, topic_id) == topic_id

    def _has_topic_of_key(self) -> bool:
        return any(topic == TOPIC_IDS for topic, _ in self.offsets)
