"""The producer id and epoch of an idempotent producer, and its next sequence number in each partition (KIP-98,
KIP-360).

Invariants:

- Sequence numbers belong to a topic, not to its name: in a topic that was created again they begin at 0.
- A partition's next sequence number rises only by the records of a request that the store has acknowledged. Only the
  partition's one request under way reads and writes it.
- Once it cannot be known whether the store counted a request, its identity is retired: later requests have a higher
  epoch, with which every partition begins at 0 again, and requests of the old epoch that are still under way are
  fenced.
"""

import threading
from collections.abc import Callable, Mapping

from logstore.client.connections import Response
from logstore.client.metadata import TopicIdentity, decode
from logstore.client.transport import Transport
from logstore.errors import InvalidProducerEpochError, InvalidRequestError
from logstore.protocol.messages.records import Producer as Identity

_SEQUENCES = 2**31

#: Sends a request, with retries.
Ask = Callable[[Callable[[float], Response]], Response]


class Identities:
    """The successive identities of one producer."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._current: Identity | None = None
        self._retired: Identity | None = None
        # For each topic name and partition: the identity, the topic's id, and the next sequence number.
        self._next: dict[tuple[str, int], tuple[Identity, str, int]] = {}

    def current(self, ask: Ask) -> Identity:
        """Return the identity for new requests, requested from the store if there is none. Raises as ``ask``."""
        with self._lock:
            if self._current is None:
                self._current = self._new(ask)
            return self._current

    def retire(self, identity: Identity) -> None:
        """Let the next request have a higher epoch than ``identity``."""
        with self._lock:
            if self._current == identity:
                self._current, self._retired = None, identity

    def sequences(self, identity: Identity, topic: TopicIdentity, partitions: Mapping[int, int]) -> dict[int, int]:
        """Return the base sequence in each of ``partitions``."""
        found = {}
        for partition in partitions:
            counted_by, topic_id, sequence = self._next.get((topic.name, partition), (identity, topic.topic_id, 0))
            found[partition] = sequence if (counted_by, topic_id) == (identity, topic.topic_id) else 0
        return found

    def advance(
        self, identity: Identity, topic: TopicIdentity, sequences: Mapping[int, int], partitions: Mapping[int, int]
    ) -> None:
        """Advance after the response to a request with ``sequences``. ``partitions`` has its record count in each."""
        for partition, count in partitions.items():
            following = (sequences[partition] + count) % _SEQUENCES
            self._next[topic.name, partition] = (identity, topic.topic_id, following)

    def _new(self, ask: Ask) -> Identity:
        def request(body: bytes | None) -> Identity:
            headers = {"Content-Type": "application/json"} if body else None
            response = ask(
                lambda timeout_s: self._transport.request_once(
                    "POST", "/producers", body, headers=headers, timeout_s=timeout_s
                )
            )
            return decode(response.content, Identity)

        if (old := self._retired) is not None:
            try:
                return request(b'{"producer_id":%d,"producer_epoch":%d}' % (old.producer_id, old.producer_epoch))
            except (InvalidRequestError, InvalidProducerEpochError):
                # The store no longer knows the producer id, or another producer has it.
                self._retired = None
        return request(None)
