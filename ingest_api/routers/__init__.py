"""One router per resource, in the order in which paths are tried: the hot ones first."""

from fastapi import APIRouter

from ingest_api.routers import (
    clusters,
    configs,
    description,
    events,
    fetch,
    groups,
    health,
    instance_records,
    instances,
    members,
    metrics,
    offsets,
    produce,
    producers,
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
    instance_records.router,
    instances.router,
    topics.router,
    clusters.router,
    configs.router,
    replicas.router,
    health.router,
    status.router,
    metrics.router,
    description.router,
)
