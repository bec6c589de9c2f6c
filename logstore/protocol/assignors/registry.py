"""The assignors by name."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from logstore.protocol.assignors.assignor import Assignor, ServerAssignor
from logstore.protocol.assignors.cooperative_sticky import CooperativeStickyAssignor
from logstore.protocol.assignors.range import RangeAssignor
from logstore.protocol.assignors.roundrobin import RoundRobinAssignor
from logstore.protocol.assignors.sticky import StickyAssignor
from logstore.protocol.assignors.uniform import UniformAssignor


def _by_name(*assignors: Assignor) -> Mapping[str, Assignor]:
    return MappingProxyType({assignor.name: assignor for assignor in assignors})


#: The assignors of classic groups (``partition.assignment.strategy``), which the leading member runs.
CLIENT_ASSIGNORS: Final[Mapping[str, Assignor]] = _by_name(
    RangeAssignor(), RoundRobinAssignor(), StickyAssignor(), CooperativeStickyAssignor()
)
#: The assignors of groups of KIP-848 (``group.consumer.assignors``), which the store runs. The first is the default.
SERVER_ASSIGNORS: Final[Mapping[str, ServerAssignor]] = _by_name(UniformAssignor(), RangeAssignor())
