"""One router per resource, in the order in which paths are tried: the hot ones first."""

from fastapi import APIRouter

from ingest_api.routers import (
    clusters,
    configs,
    description,
    fetch,
    groups,
    health,
    metrics,
    offsets,
    produce,
    producers,
    records,
    status,
    topics,
)

ROUTERS: tuple[APIRouter, ...] = (
    produce.router,
    records.router,
    offsets.router,
    fetch.router,
    producers.router,
    groups.router,
    topics.router,
    clusters.router,
    configs.router,
    health.router,
    status.router,
    metrics.router,
    description.router,
)
