"""The bases of all messages, and numbers with their bounds."""

from collections.abc import Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, ClassVar, Self

import msgspec
from msgspec import Meta

from logstore.limits import PRODUCER_EPOCH_MAX

INT64_MAX = 2**63 - 1

Int32 = Annotated[int, Meta(ge=0, le=2**31 - 1, extra_json_schema={"format": "int32"})]
#: The id of a broker that leads, or a leader epoch; -1: none.
Int32OrNone = Annotated[int, Meta(ge=-1, le=2**31 - 1, extra_json_schema={"format": "int32"})]
Int64 = Annotated[int, Meta(ge=0, le=INT64_MAX, extra_json_schema={"format": "int64"})]
#: An offset, or bytes of a partition's tail; -1: the leader is another broker, and does not report it.
Int64OrNone = Annotated[int, Meta(ge=-1, le=INT64_MAX, extra_json_schema={"format": "int64"})]
ProducerEpoch = Annotated[int, Meta(ge=0, le=PRODUCER_EPOCH_MAX, extra_json_schema={"format": "int32"})]
#: The topic id that GET /topics/{topic} gives.
TopicId = Annotated[
    str | None,
    Meta(
        description="The id of the topic that is meant. If another topic has the name by now, the "
        "request is refused with error_code 40406."
    ),
]

#: The default of a field that stores of earlier releases do not send: a client reads None. The description shows none.
NOT_SENT_BEFORE: Any = msgspec.field(default_factory=NoneType)


class Message(msgspec.Struct, frozen=True):
    """``examples`` are shown in the description of the interface."""

    examples: ClassVar[Sequence[Mapping[str, Any]]] = ()

    @classmethod
    def of(cls, source: object) -> Self:
        """Return the message with the fields that ``source`` has as keys or as attributes."""
        return msgspec.convert(source, cls, from_attributes=True)


class Request(Message, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A body.

    There are no conversions (``"4"`` is not 4, ``true`` is not 1) and no unknown fields: a misspelt one must not be
    lost.
    """

    def check(self) -> Self:
        """Return the message. Raises ValueError for fields that contradict each other."""
        return self


class Query(Request, frozen=True):
    """A query. Its fields are texts; ``ingest_api.parameters`` reads the numbers and times in them."""


class Response(Message, frozen=True):
    """The body of a response, or a part of it. Clients ignore fields that a newer store adds."""


class ErrorBody(Response, frozen=True):
    """Every 4xx and 5xx answer. `error_code` is the HTTP status, or the status * 100 + n."""

    error_code: int
    message: str
