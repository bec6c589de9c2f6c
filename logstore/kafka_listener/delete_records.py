"""DeleteRecords (21), versions 0 to 2: the log start of partitions that this broker leads moves up to an offset."""

from collections import Counter
from typing import Final

from logstore.broker.authorizer import Operation
from logstore.broker.context import RequestContext
from logstore.errors import InvalidRequestError, LogStoreError
from logstore.kafka_listener.change_requests import Deadline, answers
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import number_of
from logstore.kafka_protocol.messages import DeleteRecordsRequest, DeleteRecordsResponse

#: A low watermark is the log start offset of a partition.
_UNKNOWN: Final = -1

_Asked = DeleteRecordsRequest.DeleteRecordsTopic
_Result = DeleteRecordsResponse.DeleteRecordsTopicResult
_Partition = DeleteRecordsResponse.DeleteRecordsPartitionResult


async def delete_records(
    store: KafkaStore,
    context: RequestContext,
    request: DeleteRecordsRequest,
    version: int,  # noqa: ARG001 - as all handlers
) -> DeleteRecordsResponse:
    deadline = Deadline(request.timeout_ms)
    broker = store.broker
    await broker.elsewhere.until_known(topic.name for topic in request.topics)

    async def answer(asked: _Asked) -> _Result:
        wanted = {one.partition_index: one.offset for one in asked.partitions}
        counts = Counter(one.partition_index for one in asked.partitions)
        repeated = {partition for partition, count in counts.items() if count > 1}
        try:
            topic = broker.topics.served.topic(context, asked.name, Operation.DELETE)
            async with deadline.wait(f"The deletion of records of topic {asked.name!r}"):
                starts = await broker.topics.tables.delete_all_records(
                    context, topic, {one: offset for one, offset in wanted.items() if one not in repeated}
                )
        except LogStoreError as error:
            starts = dict.fromkeys(wanted, error)
        starts |= dict.fromkeys(repeated, InvalidRequestError("The partition is there twice."))
        return _Result(name=asked.name, partitions=[_partition(one, starts[one]) for one in wanted])

    return DeleteRecordsResponse(topics=await answers(request.topics, answer))


def _partition(partition: int, start: int | LogStoreError) -> _Partition:
    if isinstance(start, LogStoreError):
        return _Partition(partition_index=partition, low_watermark=_UNKNOWN, error_code=number_of(start))
    return _Partition(partition_index=partition, low_watermark=start)
