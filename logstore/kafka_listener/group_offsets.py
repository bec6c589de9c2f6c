"""OffsetCommit (8), OffsetFetch (9), OffsetDelete (47): the committed offsets of groups.

As in Kafka, a commit names a partition that exists, with any offset; a commit without a generation and a member is
accepted from anybody while the group has no members; and a group may have any name, also none.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from consumer_offsets.committed_offsets import TopicPartition
from consumer_offsets.offsets import OffsetToCommit
from consumer_offsets.steps import in_steps
from logstore.broker.context import RequestContext
from logstore.errors import (
    InvalidTopicError,
    LogStoreError,
    OffsetMetadataTooLargeError,
    StaleMemberEpochError,
    TopicAuthorizationError,
    UnknownGroupError,
    UnknownTopicError,
    UnstableOffsetCommitError,
    UnsupportedVersionError,
)
from logstore.kafka_listener.group_errors import GROUP_TIMEOUT_MS, group_error_number, require_first
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.error_numbers import NONE, number_of
from logstore.kafka_protocol.messages import (
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    OffsetFetchResponse,
)
from logstore.limits import OFFSET_METADATA_BYTES_MAX
from logstore.protocol.members.identity import MemberIdentity
from logstore.protocol.messages.groups import GroupOffset

# First versions: of a commit by a member of KIP-848; of a fetch with its own error; of a fetch with several groups.
_COMMIT_EPOCH: Final = 9
_FETCH_ERROR: Final = 2
_FETCH_GROUPS: Final = 8
_NO_OFFSET: Final = -1
_NO_LEADER_EPOCH: Final = -1


# ---- OffsetCommit ---------------------------------------------------------------------------------------------------


async def offset_commit(
    store: KafkaStore, context: RequestContext, request: OffsetCommitRequest, version: int
) -> OffsetCommitResponse:
    """Commit offsets. The retention time of a client (before version 5) is ignored: the store's applies to all."""
    numbers: dict[TopicPartition, int] = {}
    offsets: list[OffsetToCommit] = []
    for topic in request.topics:
        for one in topic.partitions:
            metadata = one.committed_metadata or ""
            if len(metadata) > OFFSET_METADATA_BYTES_MAX:
                numbers[TopicPartition(topic.name, one.partition_index)] = OffsetMetadataTooLargeError.kafka_code
                continue
            offsets.append(
                OffsetToCommit(
                    topic.name,
                    one.partition_index,
                    one.committed_offset,
                    metadata,
                    leader_epoch=one.committed_leader_epoch,
                )
            )
    by = MemberIdentity(request.member_id, request.generation_id_or_member_epoch, request.group_instance_id)
    try:
        outcomes = await store.groups.commit_each(context, request.group_id, offsets, by, timeout_ms=GROUP_TIMEOUT_MS)
    except LogStoreError as error:
        number = group_error_number(error)
        if isinstance(error, StaleMemberEpochError) and version < _COMMIT_EPOCH:
            number = UnsupportedVersionError.kafka_code
        numbers.update((TopicPartition(asked.topic, asked.partition), number) for asked in offsets)
    else:
        numbers.update((place, _number_of_partition(outcome)) for place, outcome in outcomes.items())
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetCommitResponse.OffsetCommitResponsePartition(
                        partition_index=one.partition_index,
                        error_code=numbers[TopicPartition(topic.name, one.partition_index)],
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _number_of_partition(error: LogStoreError | None) -> int:
    if error is None:
        return NONE
    # No topic has such a name.
    return UnknownTopicError.kafka_code if isinstance(error, InvalidTopicError) else number_of(error)


# ---- OffsetFetch ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Offset:
    """An ``offset`` of -1 means that none is committed."""

    partition: int
    offset: int = _NO_OFFSET
    leader_epoch: int = _NO_LEADER_EPOCH
    metadata: str = ""
    error_code: int = NONE


#: The offsets of each topic.
_Offsets = dict[str, list[_Offset]]


async def offset_fetch(
    store: KafkaStore, context: RequestContext, request: OffsetFetchRequest, version: int
) -> OffsetFetchResponse:
    """Return committed offsets. A group without offsets, or one that does not exist, has none: that is not an error."""
    if version >= _FETCH_GROUPS:
        stable = request.require_stable
        seen: set[str] = set()
        groups = [
            await _fetched_group(store, context, one, seen, require_stable=stable)
            async for one in in_steps(request.groups)
        ]
        return OffsetFetchResponse(groups=groups)
    topics = None if request.topics is None else [(one.name, one.partition_indexes) for one in request.topics]
    error_code, offsets = NONE, _Offsets()
    try:
        offsets = await _fetch(store, context, request.group_id, topics, require_stable=request.require_stable)
    except LogStoreError as error:
        error_code = group_error_number(error)
        if version < _FETCH_ERROR:
            offsets = {name: [_Offset(one, error_code=error_code) for one in numbers] for name, numbers in topics or ()}
    return OffsetFetchResponse(
        error_code=error_code,
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartition(
                        partition_index=one.partition,
                        committed_offset=one.offset,
                        committed_leader_epoch=one.leader_epoch,
                        metadata=one.metadata,
                        error_code=one.error_code,
                    )
                    for one in found
                ],
            )
            for name, found in offsets.items()
        ],
    )


async def _fetched_group(
    store: KafkaStore,
    context: RequestContext,
    asked: OffsetFetchRequest.OffsetFetchRequestGroup,
    seen: set[str],
    *,
    require_stable: bool,
) -> OffsetFetchResponse.OffsetFetchResponseGroup:
    topics = None if asked.topics is None else [(one.name, one.partition_indexes) for one in asked.topics]
    try:
        require_first(asked.group_id, seen)
        if asked.member_id is not None or asked.member_epoch >= 0:
            store.groups.check_fetch(context, asked.group_id, asked.member_id or "", asked.member_epoch)
        offsets = await _fetch(store, context, asked.group_id, topics, require_stable=require_stable)
    except LogStoreError as error:
        return OffsetFetchResponse.OffsetFetchResponseGroup(
            group_id=asked.group_id, error_code=group_error_number(error)
        )
    return OffsetFetchResponse.OffsetFetchResponseGroup(
        group_id=asked.group_id,
        topics=[
            OffsetFetchResponse.OffsetFetchResponseTopics(
                name=name,
                partitions=[
                    OffsetFetchResponse.OffsetFetchResponsePartitions(
                        partition_index=one.partition,
                        committed_offset=one.offset,
                        committed_leader_epoch=one.leader_epoch,
                        metadata=one.metadata,
                        error_code=one.error_code,
                    )
                    for one in found
                ],
            )
            for name, found in offsets.items()
        ],
    )


async def _fetch(
    store: KafkaStore,
    context: RequestContext,
    group: str,
    topics: Sequence[tuple[str, Sequence[int]]] | None,
    *,
    require_stable: bool,
) -> _Offsets:
    """Return the offsets of the requested partitions; all committed ones if ``topics`` is None."""
    try:
        committed = store.groups.committed(context, group)
    except UnknownGroupError:
        committed = []
    found = {TopicPartition(one.topic, one.partition): one for one in committed}
    unstable = store.groups.pending(context, group) if require_stable else frozenset()
    if topics is None:
        wanted: Iterable[TopicPartition] = sorted(found.keys() | unstable)
        refused: frozenset[str] = frozenset()
    else:
        wanted = [TopicPartition(name, number) for name, numbers in topics for number in numbers]
        names = dict.fromkeys(name for name, _ in topics)
        refused = frozenset(names) - store.broker.authorizer.described(context, list(names))
    offsets = _Offsets() if topics is None else {name: [] for name, _ in topics}
    async for place in in_steps(wanted):
        offsets.setdefault(place.topic, []).append(_offset(place, found.get(place), unstable, refused))
    return offsets


def _offset(
    place: TopicPartition,
    committed: GroupOffset | None,
    unstable: frozenset[TopicPartition],
    refused: frozenset[str],
) -> _Offset:
    if place.topic in refused:
        return _Offset(place.partition, error_code=TopicAuthorizationError.kafka_code)
    if place in unstable:
        return _Offset(place.partition, error_code=UnstableOffsetCommitError.kafka_code)
    if committed is None:
        return _Offset(place.partition)
    return _Offset(place.partition, committed.offset, committed.leader_epoch, committed.metadata)


# ---- OffsetDelete ---------------------------------------------------------------------------------------------------


async def offset_delete(
    store: KafkaStore,
    context: RequestContext,
    request: OffsetDeleteRequest,
    version: int,  # noqa: ARG001
) -> OffsetDeleteResponse:
    places = [TopicPartition(topic.name, one.partition_index) for topic in request.topics for one in topic.partitions]
    try:
        outcomes = await store.groups.delete_offsets(context, request.group_id, places, timeout_ms=GROUP_TIMEOUT_MS)
    except LogStoreError as error:
        return OffsetDeleteResponse(error_code=group_error_number(error))
    numbers = {place: _number_of_partition(outcome) for place, outcome in outcomes.items()}
    return OffsetDeleteResponse(
        topics=[
            OffsetDeleteResponse.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetDeleteResponse.OffsetDeleteResponsePartition(
                        partition_index=one.partition_index,
                        error_code=numbers[TopicPartition(topic.name, one.partition_index)],
                    )
                    for one in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
