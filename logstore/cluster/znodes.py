"""The documents in ZooKeeper: their paths, their types, and when one is believed.

All are JSON. Paths are below the chroot of ``zookeeper.connect``. A document that a broker would not write is refused
with an error that names its path: an edit by hand is never guessed around. Unknown fields are also refused, because a
broker that does not know them would drop them when it writes.

    /cluster/id               persistent   ClusterIdentity
    /controller               ephemeral    ControllerRegistration
    /controller_epoch         persistent   ControllerEpoch
    /brokers/ids              persistent   empty; each registration raises its version
    /brokers/ids/<id>         ephemeral    BrokerRegistration; its czxid is the broker epoch
    /brokers/registry/<id>    persistent   BrokerRecord
    /brokers/topics/<topic>   persistent   TopicRegistration
    /producer_ids             persistent   ProducerIds
    /locks/<topic>            ephemeral    LockHolder
"""

from typing import Final, Literal, TypeVar
from uuid import UUID

import msgspec

from logstore.cluster.cluster_state import PartitionState
from logstore.errors import ClusterStateError

CLUSTER_ID: Final = "/cluster/id"
CONTROLLER: Final = "/controller"
CONTROLLER_EPOCH: Final = "/controller_epoch"
BROKER_IDS: Final = "/brokers/ids"
REGISTRY: Final = "/brokers/registry"
TOPICS: Final = "/brokers/topics"
PRODUCER_IDS: Final = "/producer_ids"
LOCKS: Final = "/locks"
#: Persistent nodes that a broker creates if they are missing; parents first.
PARENTS: Final = ("/cluster", "/brokers", BROKER_IDS, REGISTRY, TOPICS, LOCKS)

#: A ZooKeeper packet has at most 1 MiB (``jute.maxbuffer``); this leaves room for the names in a multi.
DOCUMENT_BYTES_MAX: Final = 1_000_000

#: Stored as the leader of a partition that has none.
NO_LEADER: Final = -1


class _Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class ClusterIdentity(_Document, frozen=True):
    cluster_id: str


class ControllerRegistration(_Document, frozen=True):
    broker_id: int
    epoch: int


class ControllerEpoch(_Document, frozen=True):
    epoch: int


class BrokerRegistration(_Document, frozen=True):
    """A registered broker. ``url`` is for clients over HTTP, ``kafka`` (host:port) for Kafka's, ``peer`` (host:port)
    for brokers. ``offline`` has, by topic, the partitions that its disk cannot serve. ``record_version`` is the version
    of its ``BrokerRecord``.
    """

    url: str
    peer: str
    rack: str | None
    state: Literal["running", "shutting_down"]
    record_version: int
    offline: dict[str, tuple[int, ...]] = {}
    kafka: str | None = None


class BrokerRecord(_Document, frozen=True):
    """The journal of a broker id: ids of its directories, none while the broker leaves its ISRs (C12)."""

    directories: tuple[UUID, ...]
    incarnation: int
    rack: str | None


class ProducerIds(_Document, frozen=True):
    """``next`` is the first id of the next block."""

    next: int


class LockHolder(_Document, frozen=True):
    broker_id: int


class PartitionRegistration(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A row of a topic's document. The names are those of KRaft's record of the same name.

    Invariants: replicas are distinct; the leader, the ISR, ``adding`` and ``removing`` are among them; a leader is in
    the ISR.
    """

    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    recovering: bool = False

    def __post_init__(self) -> None:
        replicas = frozenset(self.replicas)
        if not replicas or len(replicas) < len(self.replicas) or min(replicas) < 0:
            raise ValueError(f"replicas are distinct ids of brokers, not {list(self.replicas)}")
        for name, some in (("isr", self.isr), ("adding", self.adding), ("removing", self.removing)):
            if len(frozenset(some)) < len(some) or not replicas.issuperset(some):
                raise ValueError(f"{name} {list(some)} is not a part of the replicas {list(self.replicas)}")
        if self.leader != NO_LEADER and self.leader not in self.isr:
            raise ValueError(f"leader {self.leader} is not in the isr {list(self.isr)}")
        if self.leader_epoch < 0:
            raise ValueError(f"leader epoch {self.leader_epoch} is below 0")
        if not replicas.difference(self.removing):
            raise ValueError("all replicas are being removed")

    @property
    def state(self) -> PartitionState:
        return PartitionState(
            self.leader, self.leader_epoch, self.replicas, self.isr, self.recovering, self.adding, self.removing
        )

    @property
    def target(self) -> tuple[int, ...]:
        """The replicas after the reassignment under way, the preferred leader first."""
        return tuple(replica for replica in self.replicas if replica not in self.removing)


class TopicRegistration(_Document, frozen=True):
    """``version`` rises when the configuration in the topic's table has changed."""

    topic_id: UUID
    version: int
    deleting: bool
    partitions: tuple[PartitionRegistration, ...]


Document = TypeVar("Document", bound=msgspec.Struct)

_encoder = msgspec.json.Encoder()


def encode(path: str, document: msgspec.Struct) -> bytes:
    """Encode a document. Raises ClusterStateError if it is larger than ZooKeeper takes."""
    data = _encoder.encode(document)
    if len(data) > DOCUMENT_BYTES_MAX:
        raise ClusterStateError(
            f"The document {path} would have {len(data)} bytes, and ZooKeeper takes {DOCUMENT_BYTES_MAX}: take fewer "
            "partitions or replicas for the topic."
        )
    return data


def decode(path: str, data: bytes, kind: type[Document]) -> Document:
    """Decode a document. Raises ClusterStateError, naming ``path``, if the bytes are not one."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ClusterStateError(
            f"{path} in ZooKeeper is not what a broker of this release writes ({error}). If it was edited by hand, put "
            "its former content back."
        ) from error


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def record_path(broker_id: int) -> str:
    return f"{REGISTRY}/{broker_id}"


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def lock_path(topic: str) -> str:
    return f"{LOCKS}/{topic}"
