"""The operations that a principal may do with a resource, as Kafka's responses have them: a bit for each (KIP-430)."""

from collections.abc import Mapping, Sequence
from typing import Final

from logstore.broker.authorizer import CLUSTER_NAME, Authorizer, Operation, ResourceType
from logstore.broker.context import RequestContext

#: The value if the request did not ask for operations.
NOT_ASKED: Final = -(2**31)

# The bits are Kafka's ``AclOperation.code``.
_BITS: Final[Mapping[Operation, int]] = {
    Operation.READ: 3,
    Operation.WRITE: 4,
    Operation.CREATE: 5,
    Operation.DELETE: 6,
    Operation.ALTER: 7,
    Operation.DESCRIBE: 8,
    Operation.CLUSTER_ACTION: 9,
    Operation.DESCRIBE_CONFIGS: 10,
    Operation.ALTER_CONFIGS: 11,
    Operation.IDEMPOTENT_WRITE: 12,
}
# The operations are Kafka's ``AclEntry.supportedOperations``.
_OF: Final[Mapping[ResourceType, Sequence[Operation]]] = {
    ResourceType.TOPIC: (
        Operation.READ,
        Operation.WRITE,
        Operation.CREATE,
        Operation.DELETE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ,
        Operation.DELETE,
        Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE,
        Operation.ALTER,
        Operation.DESCRIBE,
        Operation.CLUSTER_ACTION,
        Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS,
        Operation.IDEMPOTENT_WRITE,
    ),
}


def authorized_operations(
    authorizer: Authorizer, context: RequestContext, resource_type: ResourceType, name: str = CLUSTER_NAME
) -> int:
    return sum(
        1 << _BITS[operation]
        for operation in _OF[resource_type]
        if authorizer.authorize(context, operation, resource_type, (name,))
    )
