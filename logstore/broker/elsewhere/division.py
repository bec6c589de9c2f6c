"""Requests whose partitions several brokers lead: the parts of each broker, and the outcome of each part."""

import dataclasses
from collections.abc import Awaitable, Callable, Sequence

from logstore.broker.produce.appends import AppendedRequest, PreparedRequest
from logstore.broker.produce.result import NO_OFFSET, PartitionResponse, ProduceResult
from logstore.errors import LogStoreError
from logstore.replication.protocol import AppendPart


class DividedRequest:
    """The outcome of each part of a request."""

    def __init__(self, one: PreparedRequest) -> None:
        self._count = one.num_records
        self._has_identity = one.identities is not None
        self._nbytes = [part.batch.nbytes for part in one.parts]
        # Without a response, as with acks=0, a part has no offset and no error.
        self._responses = [
            PartitionResponse(part.partition, NO_OFFSET, part.batch.num_rows, part.rows) for part in one.parts
        ]
        self._repeated: set[int] = set()
        #: The parts whose broker has refused everything that it was sent.
        self._refused: set[int] = set()
        #: Bytes of new records at other brokers.
        self.bytes_elsewhere = 0

    def place(self, at: int, base_offset: int, error: LogStoreError | None, *, repeated: bool) -> None:
        """Set the outcome of part ``at``."""
        self._responses[at] = dataclasses.replace(self._responses[at], base_offset=base_offset, error=error)
        if repeated:
            self._repeated.add(at)

    def place_elsewhere(self, at: int, base_offset: int, error: LogStoreError | None, *, repeated: bool) -> None:
        """Set the outcome of a part that another broker has appended."""
        self.place(at, base_offset, error, repeated=repeated)
        if error is None and not repeated:
            self.bytes_elsewhere += self._nbytes[at]

    def refuse(self, at: int, error: LogStoreError) -> None:
        """Refuse part ``at``, because a broker has refused everything that it was sent."""
        self.place(at, NO_OFFSET, error, repeated=False)
        self._refused.add(at)

    def result(self, throttle_ms: int) -> ProduceResult:
        """Return the result. Raises the common error if all brokers have refused the request with the same kind of
        error.
        """
        errors = [response.error for response in self._responses if response.error is not None]
        if len(self._refused) == len(self._responses) and len({type(error) for error in errors}) == 1:
            raise errors[0]
        replayed = self._has_identity and len(self._repeated) == len(self._responses)
        return ProduceResult(tuple(self._responses), self._count, replayed, throttle_ms)


class Division:
    """The requests of one call, divided by the brokers that append their parts. ``send`` sends those of others."""

    def __init__(
        self, send: Callable[["Division", int, int | None], Awaitable[object]], requests: Sequence[PreparedRequest]
    ) -> None:
        self._send = send
        self.requests = [DividedRequest(one) for one in requests]
        #: The requests that this broker appends.
        self.here: list[PreparedRequest] = []
        # The request of each of ``here``, and the numbers of its parts.
        self._here: list[tuple[DividedRequest, list[int]]] = []
        #: By leader: the request, the number of the part, and the part as it is sent.
        self.elsewhere: dict[int, list[tuple[DividedRequest, int, AppendPart]]] = {}

    def send(self, acks: int, timeout_ms: int | None) -> Awaitable[object]:
        """Send the parts of other brokers. The result is done when all outcomes are placed; with acks=0, at once.

        Raises ThrottledError if too much already waits for other brokers; then nothing is sent.
        """
        return self._send(self, acks, timeout_ms)

    def add_here(self, request: DividedRequest, one: PreparedRequest, places: list[int]) -> None:
        parts, payloads = [one.parts[at] for at in places], [one.payloads[at] for at in places]
        identities = None if one.identities is None else [one.identities[at] for at in places]
        count, nbytes = sum([part.batch.num_rows for part in parts]), sum([part.batch.nbytes for part in parts])
        self.here.append(PreparedRequest(one.topic, identities, count, nbytes, parts, payloads))
        self._here.append((request, places))

    def answer_here(self, appended: Sequence[AppendedRequest]) -> None:
        """Take the outcome of each of ``here``, which this broker has appended."""
        for (request, places), one in zip(self._here, appended, strict=True):
            for at, response, claimed in zip(places, one.result().partitions, one.claims, strict=True):
                request.place(at, response.base_offset, response.error, repeated=claimed.stored is not None)

    def refuse_here(self, error: LogStoreError) -> None:
        for request, places in self._here:
            for at in places:
                request.refuse(at, error)
