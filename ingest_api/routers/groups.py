"""Consumer groups: their committed offsets and their lag."""

from typing import Annotated

from fastapi import Query

from consumer_offsets.group_coordinator import OffsetToCommit
from ingest_api.dependencies import Context, GroupName, State
from ingest_api.model_routes import MetadataRoute, model_router
from ingest_api.operations import refusals
from ingest_api.routes import requires
from ingest_api.schemas.groups import (
    CommitOffsetsRequest,
    CommittedOffset,
    CommittedOffsets,
    GroupLag,
    GroupOffset,
    GroupOffsets,
    GroupOffsetsQuery,
    PartitionLag,
)
from logstore.broker.authorizer import Operation, ResourceType

router = model_router(MetadataRoute, tags=["groups"])


@router.get("/groups", operation_id="listGroups", response_description="Names of groups, sorted.")
@requires(Operation.DESCRIBE, ResourceType.GROUP, names_in="answer")
async def list_groups(state: State, context: Context) -> list[str]:
    """Names of all groups that have members or committed offsets, sorted."""
    return [*state.groups.groups(context)]


@router.post(
    "/groups/{group}/offsets",
    operation_id="commitOffsets",
    response_description="Committed, durably.",
    responses=refusals(409, 416, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def commit_offsets(
    state: State, context: Context, group: GroupName, asked: CommitOffsetsRequest
) -> CommittedOffsets:
    """Commit offsets, all of them or none, also lower ones than before; answers when that is durable.

    A group with members takes commits of its members alone.
    """
    offsets = [
        OffsetToCommit(entry.topic, entry.partition, entry.offset, entry.metadata or "", entry.topic_id)
        for entry in asked.offsets
    ]
    await state.groups.commit(
        context,
        group,
        offsets,
        member_id=asked.member_id,
        generation=asked.generation,
        group_instance_id=asked.group_instance_id,
    )
    return CommittedOffsets(offsets=[CommittedOffset.model_validate(offset) for offset in offsets])


@router.get("/groups/{group}/offsets", operation_id="getGroupOffsets", response_description="The committed offsets.")
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def get_offsets(
    state: State, context: Context, group: GroupName, query: Annotated[GroupOffsetsQuery, Query()]
) -> GroupOffsets:
    """The group's committed offsets, by topic and partition."""
    committed = state.groups.committed(context, group, query.topic)
    return GroupOffsets(offsets=[GroupOffset.model_validate(entry) for entry in committed])


@router.get("/groups/{group}/lag", operation_id="getGroupLag", response_description="The lag.")
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def get_lag(state: State, context: Context, group: GroupName) -> GroupLag:
    """The number of offsets from the group's committed offset to the high watermark, by topic and partition."""
    lags = state.groups.lag(context, group)
    return GroupLag(
        group=group,
        total_lag=sum(found.lag for found in lags),
        max_lag=max((found.lag for found in lags), default=0),
        partitions=[PartitionLag.model_validate(found) for found in lags],
    )


@router.delete(
    "/groups/{group}",
    operation_id="deleteGroup",
    status_code=204,
    response_description="Done.",
    responses=refusals(409, 503, 504),
)
@requires(Operation.DELETE, ResourceType.GROUP)
async def delete_group(state: State, context: Context, group: GroupName) -> None:
    """Delete a group without members, with all its committed offsets."""
    await state.groups.delete(context, group)
