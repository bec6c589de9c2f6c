"""One router per resource, in the order in which paths are tried: the hot ones first."""

from fastapi import APIRouter

from ingest_api.routers import (
    clusters,
    configs,
    consumer_groups,
    description,
    events,
    fetch,
    groups,
    health,
    members,
    metrics,
    offsets,
    produce,
    producers,
    reassignments,
    records,
    replicas,
    status,
    topics,
    typed_records,
)

ROUTERS: tuple[APIRouter, ...] = (
    produce.router,
    records.router,
    offsets.router,
    fetch.router,
    events.router,
    producers.router,
    typed_records.router,
    groups.router,
    members.router,
    topics.router,
    clusters.router,
    configs.router,
    replicas.router,
    reassignments.router,
    consumer_groups.router,
    health.router,
    status.router,
    metrics.router,
    description.router,
)
