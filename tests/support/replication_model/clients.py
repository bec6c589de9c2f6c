"""Producers of a schedule: idempotent ones, which retry until they get a response, and one that does not."""

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from logstore.broker.produce.appends import AppendedRequest, AppendGroup, PreparedRequest
from logstore.broker.produce.idempotence import claim
from logstore.errors import (
    DuplicateSequenceError,
    InvalidProducerEpochError,
    LogStoreError,
    OutOfOrderSequenceError,
)
from logstore.log.acknowledgements import Acknowledgement
from logstore.log.leadership import ACKS_ALL
from logstore.records.batch import PartitionBatch
from logstore.records.batch_identity import BatchIdentity
from logstore.records.schema import WIRE_SCHEMA

if TYPE_CHECKING:
    from tests.support.replication_model.cluster import Cluster
    from tests.support.replication_model.process import Process

_BATCHES = {count: pa.RecordBatch.from_pylist([{}] * count, schema=WIRE_SCHEMA) for count in (1, 2, 3)}
_UNDER_WAY_MAX = 3


class _Batch:
    __slots__ = ("count", "payload", "sequence")

    def __init__(self, sequence: int, count: int, payload: bytes) -> None:
        self.sequence, self.count, self.payload = sequence, count, payload


class _Producer:
    """Sends batches in order, without waiting for the responses to earlier ones."""

    def __init__(self, client: "Client", producer_id: int) -> None:
        self.client = client
        self.producer_id = producer_id
        self.epoch = 0
        self.next_sequence = 0
        #: Batches that are not acknowledged yet; ``sent`` of them were sent to the producer's current process.
        self.pending: list[_Batch] = []
        self.sent = 0
        self.at: Process | None = None
        #: True if a leader that knew nothing of the producer took a later batch of the epoch for its first, as in Kafka
        #: (KIP-360): the batch before had failed there, or was truncated, and the producer did not know that.
        self.is_overtaken = False

    def send(self, process: "Process", *, new: bool) -> None:
        chance = self.client.cluster.random
        if process is not self.at or (self.sent and chance.random() < 0.15):  # it does not wait any longer
            self.at, self.sent = process, 0
        if new and len(self.pending) < _UNDER_WAY_MAX:
            count = chance.choice([1, 1, 2, 3])
            self.pending.append(_Batch(self.next_sequence, count, self.client.new_payload()))
            self.next_sequence += count
        for batch in self.pending[self.sent :]:
            if process is not self.at:
                return
            self.sent += 1
            identity = BatchIdentity(self.producer_id, self.epoch, batch.sequence)
            self.client.append(
                process,
                batch,
                identity,
                ACKS_ALL,
                lambda epoch, base, error, b=batch: self.answered(b, epoch, base, error),
            )

    def answered(self, batch: _Batch, epoch: int, base: int, error: LogStoreError | None) -> None:
        if batch not in self.pending:
            return
        if error is None:
            # Earlier batches are stored as well, although their responses were lost. Overtaken ones will never be
            # stored.
            del self.pending[: self.pending.index(batch) + 1]
            self.sent = max(0, self.sent - 1)
            self.client.cluster.acknowledge(epoch, base, batch.count, batch.payload)
            return
        is_first = batch is self.pending[0]
        # A replaced leader that does not know it yet may refuse batches that follow records of its successor.
        leads = self.at is not None and self.client.cluster.leads(self.at)
        self.at, self.sent = None, 0
        if (
            is_first
            and leads
            and isinstance(error, (OutOfOrderSequenceError, InvalidProducerEpochError, DuplicateSequenceError))
        ):
            # Acknowledged batches are never overtaken.
            if not self.client.cluster.is_lossy and not (self.is_overtaken and batch.sequence == 0):
                raise AssertionError(f"C16: {error}")
            # Records before it are lost: the producer begins a new epoch, and gives up batches whose fate it does not
            # know.
            self.epoch += 1
            self.next_sequence = 0
            self.is_overtaken = False
            self.pending.clear()


class Client:
    def __init__(self, cluster: "Cluster") -> None:
        self.cluster = cluster
        self._payloads = 0
        self._producers = []
        for _ in range(2):
            self._producers.append(_Producer(self, cluster.next_producer_id))
            cluster.next_producer_id += 1

    @property
    def producer_ids(self) -> list[int]:
        return [producer.producer_id for producer in self._producers]

    def new_payload(self) -> bytes:
        self._payloads += 1
        return b"%d" % self._payloads

    def produce(self, process: "Process") -> None:
        chance = self.cluster.random
        if chance.random() < 0.3:
            acks = chance.choice([ACKS_ALL, 1])
            batch = _Batch(0, chance.choice([1, 2]), self.new_payload())

            def answered(epoch: int, base: int, error: LogStoreError | None) -> None:
                if error is None and acks == ACKS_ALL:
                    self.cluster.acknowledge(epoch, base, batch.count, batch.payload)

            self.append(process, batch, None, acks, answered)
        else:
            chance.choice(self._producers).send(process, new=True)

    def append(
        self, process: "Process", batch: _Batch, identity: BatchIdentity | None, acks: int, answered: Any
    ) -> None:
        process.run(self._append, process, batch, identity, acks, answered)

    def _append(
        self, process: "Process", batch: _Batch, identity: BatchIdentity | None, acks: int, answered: Any
    ) -> None:
        """Append as ``Producing._append`` does; ``answered`` gets the leader's epoch and a base offset, or an error."""
        epoch = process.log.leader_epoch
        parts = [PartitionBatch(0, _BATCHES[batch.count], None, None)]
        identities = None if identity is None else [identity]
        (claimed,) = claims = claim(process.topic, parts, identities, acks)
        if claimed.error is not None:
            answered(epoch, -1, claimed.error)
            return
        if (refusal := process.journal.refusal) is not None:
            answered(epoch, -1, refusal)
            return
        payload = pa.py_buffer(batch.payload)
        prepared = PreparedRequest(process.topic, identities, batch.count, len(batch.payload), parts, [payload])
        request = AppendedRequest(prepared, claims)
        wait = Acknowledgement(1)
        if claimed.is_new:
            if identity is not None and identity.sequence:
                self._look_for_overtaken(process, identity)
            self.cluster.require_enough(process, acks)
            group = AppendGroup(wait)
            group.add(prepared, request, acks)
            process.journal.store(group.frames, group.on_stored)
        else:
            repeated = request.repeated()
            if not repeated:
                answered(epoch, request.base_offsets[0], None)
                return
            request.wait_for(*repeated[0], acks, wait)

        def done(_: object) -> None:
            error = request.waits[0].error
            answered(epoch, request.base_offsets[0] if error is None else -1, error)

        wait.future.add_done_callback(done)

    def _look_for_overtaken(self, process: "Process", identity: BatchIdentity) -> None:
        """Note whether a leader takes a later batch of a producer for its first. If it knows no batch, its log has
        none.
        """
        if process.log.state.producers.known(identity.owner):
            return
        (producer,) = (one for one in self._producers if one.producer_id == identity.owner)
        producer.is_overtaken = True
        headers = [frame.header for frame in (*self.cluster.table.frames, *self.cluster.frames_of(process))]
        # The table may be ahead of what a replaced leader knows.
        headers = [header for header in headers if header.end_offset <= process.log.log_end_offset]
        if not self.cluster.is_lossy and any(header.identity.owner == identity.owner for header in headers):
            raise AssertionError(f"C16: {process.log} has batches of producer {identity.owner}, and knows of none")

    def flush(self) -> None:
        """Let all producers finish their records."""

        def send() -> bool:
            row = self.cluster.row
            for producer in self._producers:
                if producer.pending and row.leader >= 0 and self.cluster.processes[row.leader].is_ready:
                    producer.send(self.cluster.processes[row.leader], new=False)
            return not any(producer.pending for producer in self._producers)

        self.cluster.until(send, "producers are not answered")


__all__ = ["Client"]
