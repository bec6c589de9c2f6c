"""Consumer groups: their committed offsets, their lag; lists, resets and deletions of groups."""

from typing import Annotated

from fastapi import Query

from consumer_offsets.offset_reset import ResetTarget, ResetTo
from consumer_offsets.offsets import OffsetToCommit
from ingest_api.dependencies import Context, GroupName, State
from ingest_api.errors import ParameterError
from ingest_api.model_routes import MetadataRoute, model_router
from ingest_api.operations import refusals
from ingest_api.parameters import IntegerParameter, shown
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.protocol.error_codes import code_of
from logstore.protocol.messages.groups import (
    CommitOffsetsRequest,
    CommittedOffset,
    CommittedOffsets,
    DeletedGroup,
    DeletedGroups,
    DeleteGroupsRequest,
    GroupLag,
    GroupListings,
    GroupListingsQuery,
    GroupOffset,
    GroupOffsets,
    GroupOffsetsQuery,
    PartitionLag,
    ResetOffsets,
    ResetOffsetsRequest,
)

#: Kafka's names of the states of groups; as in Kafka, upper and lower case are the same.
_STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling", "Stable", "Dead")
_LIMIT = IntegerParameter("limit", 1, 10_000, 1_000, "")

router = model_router(MetadataRoute, tags=["groups"])


@router.get("/groups", operation_id="listGroups", response_description="Names of groups, sorted.")
@requires(Operation.DESCRIBE, ResourceType.GROUP, names_in="answer")
async def list_groups(state: State, context: Context) -> list[str]:
    """List the names of all groups that have members or committed offsets, sorted."""
    return await state.groups.all_groups(context)


@router.get("/group-listings", operation_id="listGroupListings", response_description="A page of groups, by name.")
@requires(Operation.DESCRIBE, ResourceType.GROUP, names_in="answer")
async def list_group_listings(
    state: State, context: Context, query: Annotated[GroupListingsQuery, Query()]
) -> GroupListings:
    """List groups with their states, numbers of members, and lags: a page at a time."""
    limit = _LIMIT.read(query.limit) if query.limit is not None else _LIMIT.default
    assert limit is not None
    states = None if query.states is None else {_state(name) for name in query.states.split(",")}
    return await state.groups.list_all_groups(context, after=query.after, limit=limit, states=states)


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
    """Commit offsets, all of them or none, also lower ones than before. Responds when they are durable.

    If a group has members, only they may commit.
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
    return CommittedOffsets(offsets=tuple(CommittedOffset.of(offset) for offset in offsets))


@router.get("/groups/{group}/offsets", operation_id="getGroupOffsets", response_description="The committed offsets.")
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def get_offsets(
    state: State, context: Context, group: GroupName, query: Annotated[GroupOffsetsQuery, Query()]
) -> GroupOffsets:
    """List the group's committed offsets, by topic and partition."""
    committed = state.groups.committed(context, group, query.topic)
    return GroupOffsets(offsets=tuple(GroupOffset.of(entry) for entry in committed))


@router.get("/groups/{group}/lag", operation_id="getGroupLag", response_description="The lag.")
@requires(Operation.DESCRIBE, ResourceType.GROUP)
async def get_lag(state: State, context: Context, group: GroupName) -> GroupLag:
    """Return the lag of the group behind the high watermark, by topic and partition: in offsets, records and time."""
    lags = await state.groups.fetch_lag_in_records(context, group)
    return GroupLag(
        group=group,
        total_lag=sum(found.lag for found in lags),
        max_lag=max((found.lag for found in lags), default=0),
        records_behind=sum(found.lag if found.records_behind is None else found.records_behind for found in lags),
        max_lag_ms=max((found.lag_ms for found in lags if found.lag_ms is not None), default=None),
        partitions=tuple(PartitionLag.of(found) for found in lags),
    )


@router.post(
    "/groups/{group}/reset-offsets",
    operation_id="resetOffsets",
    response_description="The offsets that are committed durably; with `dry_run`, those that would be.",
    responses=refusals(409, 416, 503, 504),
)
@requires(Operation.READ, ResourceType.GROUP)
async def reset_offsets(state: State, context: Context, group: GroupName, asked: ResetOffsetsRequest) -> ResetOffsets:
    """Commit where a group without members reads next, for all the partitions or none. Creates the group if needed."""
    topics = None if asked.topics is None else {each.topic: each.partitions or () for each in asked.topics}
    offsets = await state.groups.reset(context, group, _target(asked), topics, dry_run=asked.dry_run)
    return ResetOffsets(group=group, dry_run=asked.dry_run, offsets=tuple(offsets))


@router.post(
    "/delete-groups",
    operation_id="deleteGroups",
    response_description="The groups, with an error for each that is not deleted.",
    responses=refusals(503, 504),
)
@requires(Operation.DELETE, ResourceType.GROUP, names_in="body")
async def delete_groups(state: State, context: Context, asked: DeleteGroupsRequest) -> DeletedGroups:
    """Delete several groups without members, with all their committed offsets."""
    errors = await state.groups.delete_groups(context, asked.groups)
    return DeletedGroups(
        groups=tuple(
            DeletedGroup(
                group=group,
                error_code=None if error is None else code_of(error),
                message=None if error is None else error.message,
            )
            for group, error in errors.items()
        )
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


def _state(name: str) -> str:
    for state in _STATES:
        if state.lower() == name.strip().lower():
            return state
    raise ParameterError(f"Query parameter states cannot have {shown(name)}: send some of {', '.join(_STATES)}.")


def _target(asked: ResetOffsetsRequest) -> ResetTarget | list[OffsetToCommit]:
    if asked.offsets is not None:
        return [OffsetToCommit(entry.topic, entry.partition, entry.offset) for entry in asked.offsets]
    if asked.to is not None:
        return ResetTarget(ResetTo(asked.to))
    for to, value in (
        (ResetTo.OFFSET, asked.to_offset),
        (ResetTo.TIMESTAMP, asked.to_timestamp),
        (ResetTo.SHIFT, asked.shift_by),
    ):
        if value is not None:
            return ResetTarget(to, value)
    raise AssertionError
