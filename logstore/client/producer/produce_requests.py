"""Produce requests from first try to last: sent until the store has responded, then their records are completed.

Invariants:

- The same request, with the same sequence numbers, is sent until the response is final: the store does not store it
  twice. Without idempotence a request whose response was lost may be stored twice.
- Each try goes to the currently known leader of the partitions. If they have several leaders by now, the request is
  divided, and each part, with its sequence numbers, is sent separately.
- A partition that refuses its records does not hold up others. Records that are stored are completed, and only
  partitions with a retriable error are sent again. The other partitions are released before that.
- A refusal that may concern only few of the records does not cost the others: the request is sent again in parts.
- A request is for one topic id. If the topic was created again, records go to the new one if they cannot be stored in
  the old one and the new one has the same number of partitions; otherwise they fail.
- All records of a request are completed when ``send`` returns, whatever happened.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Sequence

import pyarrow as pa

from logstore import errors
from logstore.client.cluster_metadata import ANY_BROKER, NO_LEADER, ClusterMetadata
from logstore.client.connections import Response
from logstore.client.metadata import TopicIdentity, TopicPartitions
from logstore.client.producer.delivery import Outcome
from logstore.client.producer.options import ProducerOptions
from logstore.client.producer.produce_request import ARROW_STREAM, ProduceRequest
from logstore.client.producer.produce_response import read_place, read_response
from logstore.client.producer.producer_batch import ProducerBatch, body, join_many
from logstore.client.producer.producer_identity import Identities
from logstore.client.producer.retries import Retries, may_be_stored
from logstore.client.transport import Transport, topic_path
from logstore.errors import LogStoreError

# The store's sequence numbers differ from ours, so this identity can no longer be used.
_OUT_OF_STEP = (
    errors.OutOfOrderSequenceError,
    errors.DuplicateSequenceError,
    errors.InvalidProducerEpochError,
)


class _SeveralLeadersError(Exception):
    """Raised with the ``partitions`` of a request, grouped by leader."""

    def __init__(self, partitions: list[set[int]]) -> None:
        super().__init__(partitions)
        self.partitions = partitions


class ProduceRequests:
    """Sends requests. Safe from several threads, if no two send for the same partition.

    ``complete`` is called for each batch as ``Outcome.complete``; ``find_partitions`` is that of ``Sender``.
    """

    def __init__(
        self,
        transport: Transport,
        metadata: ClusterMetadata,
        options: ProducerOptions,
        retries: Retries,
        complete: Callable[[ProducerBatch, int, LogStoreError | None], None],
        find_partitions: Callable[[str, float, Iterable[Outcome]], TopicPartitions],
    ) -> None:
        self._transport = transport
        self._metadata = metadata
        self._options = options
        self._retries = retries
        self._complete = complete
        self._find_partitions = find_partitions
        self._identities = Identities(transport) if options.idempotent else None
        self._params: dict[str, str | int] = {
            "acks": options.acks,
            "timeout_ms": max(1, int(options.request_timeout_ms)),
        }

    def send(
        self,
        requests: Sequence[ProduceRequest],
        release: Callable[[set[int]], None],
        elsewhere: Callable[[ProduceRequest], bool],
    ) -> None:
        """Send ``requests`` for one topic, and complete them.

        ``release`` is called with partitions whose records are all completed while other partitions still wait.
        ``elsewhere`` is called with a part for another broker; it returns True if another thread sends it.
        """
        waiting = list(reversed(requests))
        topic = requests[0].topic.name
        partitions = {partition for request in requests for partition in request.partitions}

        def release_all_but(unanswered: Iterable[ProduceRequest]) -> None:
            left = {batch.partition for request in (*waiting, *unanswered) for batch in request.batches}
            release(partitions - left)

        while waiting:
            request = waiting.pop()
            # Some partitions may refuse their records while others accept theirs.
            refused: list[tuple[ProduceRequest, LogStoreError]] = []

            def release_stored(
                request: ProduceRequest = request, refused: list[tuple[ProduceRequest, LogStoreError]] = refused
            ) -> None:
                release_all_but([request, *(part for part, _ in refused)])

            try:
                self._send(request, refused, release_stored)
            except _SeveralLeadersError as found:
                own, *others = [request.part(led) for led in found.partitions]
                waiting += [part for part in others if not elsewhere(part)]
                waiting.append(own)
            except Exception as failed:  # noqa: BLE001 (a bug here must not leave others waiting)
                refused += request.by_error(as_log_store_error(topic, failed))
            for part, error in refused:
                waiting += self._replacements(part, error)
            if waiting:
                release_all_but(())

    def send_first(
        self, outcome: Outcome, record: pa.RecordBatch, partition: int | None, give_up: float
    ) -> tuple[int, int]:
        """Send one record to a topic that may not exist; return the place of the record.

        The store may create the topic with its first record; only then are there partitions to choose from.
        """
        path = topic_path(outcome.topic, "" if partition is None else f"/partitions/{partition}")
        headers = {"Content-Type": ARROW_STREAM, "Idempotency-Key": uuid.uuid4().hex}
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, record.schema) as writer:
            writer.write_batch(record)
        content = sink.getvalue().to_pybytes()

        def once(timeout_s: float) -> Response:
            return self._transport.request_once(
                "POST", path, content, headers=headers, params=self._params, timeout_s=timeout_s
            )

        return read_place(self._retries.ask(once, give_up, [outcome]).content)

    def _send(
        self,
        request: ProduceRequest,
        refused: list[tuple[ProduceRequest, LogStoreError]],
        release_stored: Callable[[], None],
    ) -> None:
        """Send until the store has responded for all partitions; add those that it refuses for good to ``refused``."""
        request.batches = join_many(request.batches, self._options.codec)
        give_up = max(batch.deadline for batch in request.batches)
        outcomes = _outcomes(request)
        if self._identities and request.identity is None:
            request.identity = self._identities.current(lambda once: self._retries.ask(once, give_up, outcomes))
            request.sequences = self._identities.sequences(request.identity, request.topic, request.partitions)
        content = body(request.batches)
        count = len(request.batches)
        began = 0.0
        failed: LogStoreError | None = None

        def once(timeout_s: float) -> Response:
            nonlocal content, count, began, failed
            if failed is not None:
                self._metadata.after(failed, [request.topic.name], began)
            if self._metadata.is_cluster:
                self._metadata.keep_fresh([request.topic.name])
            if len(request.batches) < count:  # the other partitions are done
                content, count = body(request.batches), len(request.batches)
            began = time.monotonic()
            try:
                role = request.topic.name, min(request.partitions)
                with self._metadata.way_to(self._leader(request), role) as way:
                    response = self._transport.request_once(
                        "POST",
                        topic_path(request.topic.name),
                        content,
                        headers=request.headers,
                        params=self._params,
                        timeout_s=timeout_s,
                        at=way.url,
                    )
                    self._take(request, response, refused, began)
                    way.was_refused = bool(request.refusals)
            except LogStoreError as error:
                request.refusals.clear()
                if may_be_stored(error):
                    request.in_doubt.update(request.partitions)
                failed = self._unless_unheard_of(error, request, max(request.partitions), began)
                raise failed from None
            if request.refusals:
                release_stored()
                failed = next(iter(request.refusals.values()))
                raise failed
            return response

        self._retries.ask(once, give_up, outcomes)

    def _leader(self, request: ProduceRequest) -> int | None:
        """Return the leader of all partitions of ``request``. Raises LeaderNotAvailableError, _SeveralLeadersError."""
        name, _ = request.topic
        leaders = self._metadata.leaders(name)
        if leaders is None:
            return ANY_BROKER
        by_leader: dict[int | None, set[int]] = {}
        for partition in request.partitions:
            by_leader.setdefault(self._metadata.leader(name, partition), set()).add(partition)
        if len(by_leader) > 1:
            raise _SeveralLeadersError(list(by_leader.values()))
        (leader,) = by_leader
        if leader == NO_LEADER:
            numbers = ", ".join(map(str, sorted(request.partitions)))
            raise errors.LeaderNotAvailableError(f"Partition {numbers} of topic {name!r} has no leader at present.")
        return leader

    def _unless_unheard_of(
        self, error: LogStoreError, request: ProduceRequest, partition: int, began: float
    ) -> LogStoreError:
        """Return ``error``, or a retriable one if the leader only does not know the partition yet."""
        if self._metadata.is_unheard_of(error, *request.topic, partition, began=began):
            return errors.NotLeaderOrFollowerError(f"The leader has not heard of it yet: {error.message}")
        return error

    def _take(
        self,
        request: ProduceRequest,
        response: Response,
        refused: list[tuple[ProduceRequest, LogStoreError]],
        began: float,
    ) -> None:
        """Complete the stored records, and add to ``refused`` those that will never be stored.

        ``request`` keeps the partitions that another try may store, with their ``refusals``.
        """
        request.refusals = {}
        if self._options.acks == 0:
            self._end(request, [(batch, -1) for batch in request.batches])
            request.batches = []
            return
        produced = read_response(response.content, request.topic.name, request.batches)
        self._end(request, produced.stored)
        request.in_doubt.update(partition for partition, error in produced.failed.items() if may_be_stored(error))
        for partition, refusal in produced.failed.items():
            error = self._unless_unheard_of(refusal, request, partition, began)
            if error.retriable:
                request.refusals[partition] = error
            else:
                refused.append((request.part({partition}), error))
        request.batches = [batch for batch in request.batches if batch.partition in request.refusals]

    def _replacements(self, request: ProduceRequest, error: LogStoreError) -> list[ProduceRequest]:
        """Return requests to send instead of one that was refused for good. Complete the records that none has."""
        if isinstance(error, errors.UnknownTopicIdError):
            return self._for_new_topic(request, error)
        if halves := request.halves(error, self._options.codec):
            return halves
        if isinstance(error, errors.DuplicateSequenceError) and request.in_doubt:
            # An earlier try stored the records. Their offsets are no longer known.
            self._end(request, [(batch, -1) for batch in request.batches])
        else:
            self._give_up(request, error)
        return []

    def _for_new_topic(self, request: ProduceRequest, refusal: errors.UnknownTopicIdError) -> list[ProduceRequest]:
        """Return requests to send to the topic that has the name now. Complete the records that none has."""
        name, topic_id = request.topic
        made_again = f"Topic {name!r} was deleted and made again"
        if request.in_doubt:
            unknown = "the record may be stored in the deleted one, so it is not sent to the new one"
            self._give_up(request.part(request.in_doubt), errors.UnknownTopicIdError(f"{made_again}: {unknown}"))
            request = request.part(request.partitions.keys() - request.in_doubt)
            if not request.batches:
                return []
        try:
            give_up = max(batch.deadline for batch in request.batches)
            now = self._find_partitions(name, give_up, _outcomes(request))
            if now.topic_id == topic_id:
                raise refusal
        except LogStoreError as error:
            self._give_up(request, error)
            return []
        fitting = []
        for batch in request.batches:
            if batch.chosen_among.count == now.count:
                fitting.append(batch)
            else:
                chosen = f"its partition was chosen among {batch.chosen_among.count}, the new topic has {now.count}"
                self._complete(batch, -1, errors.UnknownTopicIdError(f"{made_again}: {chosen}. Send it again"))
        return [ProduceRequest(TopicIdentity(name, now.topic_id), fitting)] if fitting else []

    def _give_up(self, request: ProduceRequest, error: LogStoreError) -> None:
        if (
            self._identities
            and request.identity
            and (request.in_doubt or may_be_stored(error) or isinstance(error, _OUT_OF_STEP))
        ):
            self._identities.retire(request.identity)
        for batch in request.batches:
            self._complete(batch, -1, error)

    def _end(self, request: ProduceRequest, stored: list[tuple[ProducerBatch, int]]) -> None:
        """Complete these batches of ``request``, which are stored together with all others of their partitions."""
        if self._identities and request.identity:
            counts = request.part({batch.partition for batch, _ in stored}).partitions
            self._identities.advance(request.identity, request.topic, request.sequences, counts)
        for batch, base_offset in stored:
            self._complete(batch, base_offset, None)


def as_log_store_error(topic: str, error: Exception) -> LogStoreError:
    return error if isinstance(error, LogStoreError) else LogStoreError(f"Sending to topic {topic!r} failed: {error!r}")


def _outcomes(request: ProduceRequest) -> set[Outcome]:
    return {each.outcome for batch in request.batches for each in batch.batches}
