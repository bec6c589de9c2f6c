"""Views of an authorizer for tests."""

from collections.abc import Collection
from dataclasses import dataclass

from logstore.broker.authorizer import Operation, ResourceType
from logstore.broker.context import Principal


@dataclass(frozen=True)
class Denied:
    """Allows everything except operations on a resource whose name is ``denied``."""

    denied: Collection[str]
    version: int = 1

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        return name not in self.denied


@dataclass(frozen=True)
class DeniedOperations:
    """Allows everything except these operations on resources of these names."""

    denied: Collection[tuple[Operation, str]]
    version: int = 1

    def allows(
        self, principal: Principal, host: str, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        return (operation, name) not in self.denied


@dataclass(frozen=True)
class Nothing:
    """Denies everything."""

    version: int = 1

    def allows(self, *_: object) -> bool:
        return False
