"""The state of the whole store in one response, for people and their tools: no disk is read for it."""

from ingest_api.dependencies import Context, State
from ingest_api.model_routes import model_router
from ingest_api.operations import refusals
from ingest_api.routes import requires
from logstore import __version__
from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.broker import Broker
from logstore.broker.context import RequestContext
from logstore.log.topic import Topic
from logstore.open_files import connections_within, open_files_limit
from logstore.protocol.messages.status import InFlightStatus, JournalStatus, StoreStatus, TopicProblem, TopicStatus

router = model_router(tags=["health"])


@router.get(
    "/status", operation_id="getStatus", response_description="The state of the store.", responses=refusals(503)
)
@requires(Operation.DESCRIBE, ResourceType.CLUSTER)
async def status(state: State, context: Context) -> StoreStatus:
    """Return what `logstore status` and `logstore topic list` show: the store, its topics, and their problems."""
    broker, settings = state.broker, state.settings
    limit = open_files_limit()
    return StoreStatus(
        version=__version__,
        cluster_id=broker.cluster_id,
        broker_id=broker.broker_id,
        now=broker.clock.now_ms(),
        uptime_ms=round((broker.clock.monotonic() - state.began) * 1000),
        not_ready_reason=state.not_ready_reason,
        topics=tuple(
            topic_status(context, broker, topic) for topic in broker.topics.served.all(context, include_internal=True)
        ),
        problems=tuple(TopicProblem.of(problem) for problem in broker.topics.problems.all(context)),
        journal=JournalStatus(
            needed_bytes=broker.journal.needed_bytes,
            retained_bytes=broker.journal.retained_bytes,
            max_bytes=settings.journal_max_bytes,
        ),
        in_flight=InFlightStatus(
            request_bytes=state.requests.reserved,
            answer_bytes=state.answers.reserved,
            max_bytes=settings.queued_max_request_bytes,
        ),
        max_connections=settings.max_connections,
        connections_taken_max=connections_within(settings.max_connections, limit),
        open_files_max=limit,
    )


def topic_status(context: RequestContext, broker: Broker, topic: Topic) -> TopicStatus:
    logs = topic.partitions
    newest = [at for log in logs if (at := log.newest_timestamp_ms) is not None]
    return TopicStatus(
        name=topic.name,
        topic_id=str(topic.topic_id),
        is_internal=topic.is_internal,
        partitions=len(logs),
        replication_factor=len(broker.topics.leaders.partition_state(context, topic, 0).replicas),
        records=sum(log.record_count for log in logs),
        size_bytes=sum(log.segments.size_bytes for log in logs),
        unsealed_records=sum(log.high_watermark - log.sealed_offset for log in logs),
        unsealed_bytes=sum(log.unsealed_bytes for log in logs),
        newest_timestamp=max(newest, default=None),
        misfits=topic.snapshot.misfits,
    )
