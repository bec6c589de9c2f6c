"""Erasures of records: the request, the reports, and the part of each broker."""

from typing import Annotated

from fastapi import Path

from ingest_api.dependencies import Context, StoreBroker, TopicInPath
from ingest_api.model_routes import MetadataRoute, model_router
from ingest_api.operations import refusals
from ingest_api.routes import requires
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.broker.elsewhere.forwarding import Target
from logstore.log.table_erasure import ErasureProgress as Progress
from logstore.log.topic import Topic as OpenTopic
from logstore.protocol.messages.erasures import (
    ErasedBroker,
    ErasureProgress,
    ErasureRepeat,
    ErasureReport,
    ErasureReports,
    ErasureRequest,
    ErasuresTopic,
)
from logstore.records.erasure_record import Erasure
from logstore.records.key_texts import key_bytes
from logstore.records.where.parser import parse_where

router = model_router(MetadataRoute, tags=["topics"])

ErasureId = Annotated[str, Path(alias="erasure", description="Id of the erasure.")]


@router.post(
    "/topics/{topic}/erasures",
    operation_id="eraseRecords",
    status_code=202,
    response_description="The erasure has begun. It continues whatever happens to the client or the broker.",
    responses=refusals(400, 503),
)
@requires(Operation.DELETE, ResourceType.TOPIC, target=Target.TABLE_LEADER)
async def erase(broker: StoreBroker, context: Context, topic: TopicInPath, request: ErasureRequest) -> ErasureReport:
    """Erase the records of some keys for good: from the table, its old files and every journal."""
    keys = key_bytes(request.keys, request.key_format)
    where = None if request.where is None else parse_where(request.where)
    erasure = await broker.erasing.begin(context, topic, keys, where, dry_run=request.dry_run)
    return _report(broker, topic, erasure)


@router.get("/topics/{topic}/erasures", operation_id="listErasures", response_description="The reports.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC, target=Target.TABLE_LEADER)
async def list_erasures(broker: StoreBroker, topic: TopicInPath) -> ErasureReports:
    """List the reports of all erasures of a topic, oldest first."""
    return ErasureReports(erasures=tuple(_report(broker, topic, one.id) for one in broker.erasing.reports(topic)))


@router.get("/topics/{topic}/erasures/{erasure}", operation_id="getErasure", response_description="The report.")
@requires(Operation.DESCRIBE, ResourceType.TOPIC, target=Target.TABLE_LEADER)
async def get_erasure(broker: StoreBroker, topic: TopicInPath, erasure: ErasureId) -> ErasureReport:
    """Return the report of an erasure and its progress."""
    return _report(broker, topic, erasure)


@router.post(
    "/erasures",
    operation_id="makeErasuresTopic",
    response_description="The topic exists.",
    responses=refusals(503),
)
@requires(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, target=Target.CONTROLLER)
async def make_erasures_topic(broker: StoreBroker) -> ErasuresTopic:
    """Create the topic of erasures if it does not exist: brokers ask the controller for it."""
    return ErasuresTopic(topic_id=str((await broker.erasing.make_topic()).topic_id))


@router.post(
    "/erasures/{erasure}/journal",
    operation_id="eraseFromJournal",
    response_description="No file of this broker's journal has the records.",
    responses=refusals(503),
)
@requires(Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
async def erase_from_journal(broker: StoreBroker, erasure: ErasureId) -> ErasedBroker:
    """Carry out this broker's part of an erasure: the leader of the topic asks each broker."""
    done = await broker.erasing.erase_known(erasure)
    return ErasedBroker(broker=done.broker, erased_ms=done.erased_ms, journal_files=done.journal_files)


def _report(broker: Broker, topic: OpenTopic, erasure_id: str) -> ErasureReport:
    if (count := broker.erasing.count(topic, erasure_id)) is not None:
        state = "failed" if count.failure is not None else "counted" if count.is_done else "counting"
        return _answer(count.erasure, count.progress, count.failure, state, files=count.files, is_dry=count.is_dry)
    record, progress, waiting = broker.erasing.report(topic, erasure_id)
    return _answer(record, progress, waiting, record.state, files=record.rewritten_count)


def _answer(
    record: Erasure, progress: Progress, waiting: str | None, state: str, *, files: int, is_dry: bool = False
) -> ErasureReport:
    return ErasureReport.of(
        {
            "erasure": record.id,
            "state": state,
            "topic": record.topic,
            "topic_id": record.topic_id,
            "dry_run": is_dry,
            "requested_ms": record.requested_ms,
            "erased_ms": record.erased_ms,
            "salt": record.salt,
            "keys": [*record.keys],
            "where": record.where,
            "records": record.records,
            "versions": [*record.versions],
            "rewritten_files": files,
            "deleted_files": [*record.deleted_files],
            "deleted_files_count": record.deleted_count,
            "brokers": [ErasedBroker.of(one) for one in record.brokers],
            "pending": [*record.pending],
            "waiting": None if state == "erased" else waiting,
            "progress": ErasureProgress.of(progress),
            "repeats": [ErasureRepeat.of(one) for one in record.repeats],
            "not_reached": [*record.not_reached],
        }
    )
