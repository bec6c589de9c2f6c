"""The base of all models: strict requests, responses, numbers, and the one shape of errors."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from logstore.records.batch_identity import PRODUCER_EPOCH_MAX

INT64_MAX = 2**63 - 1

Int32 = Annotated[int, Field(ge=0, le=2**31 - 1, json_schema_extra={"format": "int32"})]
#: The id of a broker that leads, or a leader epoch; -1: none.
Int32OrNone = Annotated[int, Field(ge=-1, le=2**31 - 1, json_schema_extra={"format": "int32"})]
Int64 = Annotated[int, Field(ge=0, le=INT64_MAX, json_schema_extra={"format": "int64"})]
#: An offset, or bytes of a partition's tail; -1: the leader is another broker, and does not report it.
Int64OrNone = Annotated[int, Field(ge=-1, le=INT64_MAX, json_schema_extra={"format": "int64"})]
ProducerEpoch = Annotated[int, Field(ge=0, le=PRODUCER_EPOCH_MAX, json_schema_extra={"format": "int32"})]
#: The topic id that GET /topics/{topic} gives.
TopicId = Annotated[
    str | None, Field(description="The topic that is meant: another one of that name is error_code 40406.")
]


class Request(BaseModel):
    """A body or a query.

    There are no conversions (``"4"`` is not 4, ``true`` is not 1) and no unknown fields: a misspelt one must not be
    lost. So fields of a query are texts; ``parameters`` reads the numbers and times in them.
    """

    model_config = ConfigDict(strict=True, extra="forbid")


class Answer(BaseModel):
    """The body of a response, or a part of it. It may be made from an object with attributes of the same names."""

    # Every response also has the fields with defaults.
    model_config = ConfigDict(from_attributes=True, json_schema_serialization_defaults_required=True)


class ErrorBody(Answer):
    """Every 4xx and 5xx answer. `error_code` is the HTTP status, or the status * 100 + n."""

    error_code: int
    message: str
