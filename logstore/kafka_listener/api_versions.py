"""ApiVersions (18): the APIs and versions that are served. The first request of almost every client."""

from typing import Final

from logstore.broker.context import RequestContext
from logstore.errors import UnsupportedVersionError
from logstore.kafka_listener.store import KafkaStore
from logstore.kafka_protocol.apis import APIS
from logstore.kafka_protocol.messages import ApiVersionsRequest, ApiVersionsResponse

_SERVED: Final = tuple(
    ApiVersionsResponse.ApiVersion(api_key=api.key, min_version=api.advertised_min, max_version=api.version_max)
    for api in APIS.values()
)

# This announces groups of the consumer protocol (KIP-848). Clients before Kafka 4.0 accept no minimum of 0.
_GROUP_VERSION: Final = ApiVersionsResponse.SupportedFeatureKey(name="group.version", min_version=1, max_version=1)
_FINALIZED_GROUP_VERSION: Final = ApiVersionsResponse.FinalizedFeatureKey(
    name="group.version", min_version_level=1, max_version_level=1
)


async def api_versions(
    store: KafkaStore,  # noqa: ARG001 - as all handlers
    context: RequestContext,  # noqa: ARG001
    request: ApiVersionsRequest | None,
    version: int,  # noqa: ARG001
) -> ApiVersionsResponse:
    """Return the served APIs. ``request`` is None if its version is not served; the response has the served ones
    (KIP-511).
    """
    error_code = UnsupportedVersionError.kafka_code if request is None else 0
    return ApiVersionsResponse(
        error_code=error_code,
        api_keys=_SERVED,
        supported_features=(_GROUP_VERSION,),
        finalized_features_epoch=0,
        finalized_features=(_FINALIZED_GROUP_VERSION,),
    )
