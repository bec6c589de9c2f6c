"""The declared columns of a topic: what they are, changes to them, and a proposal."""

from typing import Annotated

from fastapi import Query

from ingest_api.dependencies import Context, StoreBroker, TopicInPath, TopicName
from ingest_api.model_routes import MetadataRoute, model_router
from ingest_api.operations import refusals
from ingest_api.parameters import IntegerParameter
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.elsewhere.forwarding import Target
from logstore.broker.topics.columns import SAMPLE_MAX
from logstore.delta import columns as declared
from logstore.delta.columns import table_columns
from logstore.log.topic import Topic
from logstore.protocol.messages.columns import (
    ChangedColumns,
    Column,
    ColumnProposal,
    ColumnsRequest,
    FieldLeftOut,
    Misfit,
    ProposalQuery,
    RetireColumnsRequest,
    TopicColumns,
)
from logstore.records.columns.declaration import declaration, field_text

router = model_router(MetadataRoute, tags=["topics"])

_COLUMNS = "/topics/{topic}/columns"
_RECORDS = IntegerParameter("records", 1, SAMPLE_MAX, 10_000, "")


@router.get(_COLUMNS, operation_id="getColumns", response_description="The columns.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC)
async def get_columns(broker: StoreBroker, context: Context, topic: TopicInPath) -> TopicColumns:
    """Return the declared columns of a topic, and how far its table has them."""
    found, fill = broker.topics.columns.describe(context, topic)
    retired = {column.name for column in found.retired}
    return TopicColumns(
        topic=topic.name,
        mode=topic.config.table_columns_mode,
        ddl=_ddl(topic),
        columns=tuple(
            Column(
                name=column.name,
                field=field_text(column.path),
                conversion=column.conversion,
                retired=column.name in retired,
            )
            for column in (*found.columns, *found.retired)
        ),
        misfits=fill.misfits,
        unfilled_files=len(fill.unfilled),
        unfilled_records=fill.unfilled_records,
        problems=found.problems,
    )


@router.put(
    _COLUMNS,
    operation_id="setColumns",
    response_description="The columns are declared.",
    responses=refusals(400, 503),
)
@requires(Operation.ALTER_CONFIGS, ResourceType.TOPIC, target=Target.CONTROLLER)
async def set_columns(broker: StoreBroker, context: Context, name: TopicName, asked: ColumnsRequest) -> ChangedColumns:
    """Declare these columns, and retire all others."""
    changed = await broker.topics.columns.declare(context, name, asked.columns, is_whole=True, dry_run=asked.dry_run)
    return _changed(broker.topics.served.topic(context, name, Operation.ALTER_CONFIGS), changed)


@router.post(
    _COLUMNS,
    operation_id="addColumns",
    response_description="The columns are declared.",
    responses=refusals(400, 503),
)
@requires(Operation.ALTER_CONFIGS, ResourceType.TOPIC, target=Target.CONTROLLER)
async def add_columns(broker: StoreBroker, context: Context, name: TopicName, asked: ColumnsRequest) -> ChangedColumns:
    """Declare columns beside those that are there."""
    changed = await broker.topics.columns.declare(context, name, asked.columns, is_whole=False, dry_run=asked.dry_run)
    return _changed(broker.topics.served.topic(context, name, Operation.ALTER_CONFIGS), changed)


@router.post(
    f"{_COLUMNS}/retire",
    operation_id="retireColumns",
    response_description="The columns are retired.",
    responses=refusals(400, 503),
)
@requires(Operation.ALTER_CONFIGS, ResourceType.TOPIC, target=Target.CONTROLLER)
async def retire_columns(
    broker: StoreBroker, context: Context, name: TopicName, asked: RetireColumnsRequest
) -> ChangedColumns:
    """Retire columns: new files do not have them. Their names and types stay, so that they can be declared again."""
    changed = await broker.topics.columns.retire(context, name, asked.columns, dry_run=asked.dry_run)
    return _changed(broker.topics.served.topic(context, name, Operation.ALTER_CONFIGS), changed)


@router.get(
    f"{_COLUMNS}/proposal",
    operation_id="proposeColumns",
    response_description="The proposal. Nothing is declared.",
    responses=refusals(400, 503),
)
@requires(Operation.READ, ResourceType.TOPIC)
async def propose_columns(
    broker: StoreBroker, context: Context, topic: TopicInPath, query: Annotated[ProposalQuery, Query()]
) -> ColumnProposal:
    """Propose columns for the newest records of a topic."""
    records = _RECORDS.read(query.records) if query.records is not None else _RECORDS.default
    assert records is not None
    elsewhere = await broker.elsewhere.offsets(topic.partitions)
    found = await broker.topics.columns.propose(context, topic, records, elsewhere)
    return ColumnProposal(
        topic=topic.name,
        ddl=found.ddl,
        records=found.sampled,
        fitting=found.fitting,
        misfits=tuple(Misfit(reason=reason, records=count) for reason, count in found.misfits),
        left_out=tuple(FieldLeftOut(field=one.field, reason=one.reason) for one in found.left_out),
        plain_bytes=found.plain_bytes,
        typed_bytes=found.typed_bytes,
    )


def _ddl(topic: Topic) -> str:
    return ", ".join(map(declaration, table_columns(topic.name, topic.snapshot.table.meta_data).columns))


def _changed(topic: Topic, changed: declared.ChangedColumns | None) -> ChangedColumns:
    meta_data = topic.snapshot.table.meta_data if changed is None else changed.meta_data
    return ChangedColumns(
        topic=topic.name,
        added=tuple(map(declaration, changed.added)) if changed else (),
        retired=tuple(column.name for column in changed.retired) if changed else (),
        ddl=", ".join(map(declaration, table_columns(topic.name, meta_data).columns)),
    )
