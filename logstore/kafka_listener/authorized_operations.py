"""The operations that a principal may do with a resource, as the bits that Kafka's answers have for them (KIP-430)."""

from collections.abc import Mapping
from typing import Final

from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import RequestContext

#: Instead of the bits when the client has not asked for them.
NOT_ASKED: Final = -(2**31)

# Kafka's AclOperation.
_NUMBERS: Final[Mapping[Operation, int]] = {
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
# Kafka's AclEntry.supportedOperations; groups have no configurations here.
_OF_TYPE: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
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
    ResourceType.GROUP: (Operation.READ, Operation.DELETE, Operation.DESCRIBE),
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
    authorizer: Authorizer, context: RequestContext, resource_type: ResourceType, name: str
) -> int:
    """A bit for each operation, by its number."""
    allowed = [one for one in _OF_TYPE[resource_type] if authorizer.authorize(context, one, resource_type, (name,))]
    return sum(1 << _NUMBERS[operation] for operation in allowed)
