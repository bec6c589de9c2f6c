"""The one tree of errors.

Each class has Kafka's name and number of the error (``org.apache.kafka.common.protocol.Errors``; -1 if Kafka has none)
and whether the same request may succeed later unchanged. The codes by which errors are sent are one table,
``logstore/protocol/error_codes.py``. A message names the operation, the object, and what to do next.
"""

import errno
import re
from collections.abc import Sequence
from typing import ClassVar, NamedTuple
from uuid import UUID


class LogStoreError(Exception):
    """The base of all errors that this project raises on purpose."""

    kafka_name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    kafka_code: ClassVar[int] = -1
    retriable: ClassVar[bool] = False
    #: True if the program has had it already, from a delivery or in a callback.
    was_raised = False

    @property
    def message(self) -> str:
        return str(self)


def unforeseen(error: Exception) -> Exception | None:
    """Return the error itself if it is neither ours nor the system's, else None: ``exc_info`` for a log line with a
    traceback.
    """
    return None if isinstance(error, (LogStoreError, OSError)) else error


# ---- the request is wrong -------------------------------------------------------------------------------------------


class InvalidRequestError(LogStoreError):
    """The request is malformed: a body, field, query parameter or header that cannot be read."""

    kafka_name, kafka_code = "INVALID_REQUEST", 42


class NoRecordsError(InvalidRequestError):
    """A produce request has no record."""


class InvalidWhereError(InvalidRequestError):
    """An expression of ``--where`` or ``?where=`` cannot be read. ``position`` is that of the first wrong character,
    from 1; None if the expression as a whole is refused.
    """

    def __init__(self, message: str, position: int | None = None) -> None:
        super().__init__(message)
        self.position = position


class RefusedRecords(NamedTuple):
    """The refused records of a batch. ``numbers`` count from 0 in the record batch, and rise; ``message`` applies to
    each of them.
    """

    numbers: Sequence[int]
    message: str


class InvalidRecordError(InvalidRequestError):
    """A record is not acceptable: bad base64, null key in a compacted topic, timestamp out of range. ``refused`` has
    the records of a Kafka record batch that are the reason, if the others of the batch are acceptable.
    """

    kafka_name, kafka_code = "INVALID_RECORD", 87

    def __init__(self, message: str, refused: RefusedRecords | None = None) -> None:
        super().__init__(message)
        self.refused = refused


class InvalidRecordBatchError(InvalidRecordError):
    """A Kafka record batch (magic 2) is refused: it is cut, has wrong facts about its records, or could not be rolled.
    The classes below have numbers in Kafka.
    """


class CorruptRecordBatchError(InvalidRecordBatchError):
    """The batch was damaged on the way: its length or its CRC is wrong. It may arrive whole the next time."""

    kafka_name, kafka_code, retriable = "CORRUPT_MESSAGE", 2, True


class UnsupportedCompressionTypeError(InvalidRecordBatchError):
    kafka_name, kafka_code = "UNSUPPORTED_COMPRESSION_TYPE", 76


class RecordBatchTooLargeError(InvalidRecordBatchError):
    """The records of the batch inflate to more than is allowed."""

    kafka_name, kafka_code = "MESSAGE_TOO_LARGE", 10


class InvalidTimestampError(InvalidRecordBatchError):
    """A timestamp of a record is outside the range of a table."""

    kafka_name, kafka_code = "INVALID_TIMESTAMP", 32


class RecordTooLargeError(LogStoreError):
    """One record is over ``max.message.bytes``."""

    kafka_name, kafka_code = "MESSAGE_TOO_LARGE", 10


class RequestTooLargeError(LogStoreError):
    """A request body, as sent or inflated, is over ``max.request.size``."""

    kafka_name, kafka_code = "MESSAGE_TOO_LARGE", 10


class UnknownTopicError(LogStoreError):
    kafka_name, kafka_code = "UNKNOWN_TOPIC_OR_PARTITION", 3


class UnknownTopicIdError(UnknownTopicError):
    """The topic of the name has another id than in the request: the topic was deleted, and its name used again. Offsets
    and sequence numbers in the old topic mean nothing in the new one.
    """

    kafka_name, kafka_code = "UNKNOWN_TOPIC_ID", 100


class UnknownPartitionError(LogStoreError):
    kafka_name, kafka_code = "UNKNOWN_TOPIC_OR_PARTITION", 3


class UnknownErasureError(LogStoreError):
    """The topic has no erasure with that id."""

    kafka_name, kafka_code = "RESOURCE_NOT_FOUND", 91


class UnknownGroupError(LogStoreError):
    """The group has no committed offsets, or was deleted."""

    kafka_name, kafka_code = "GROUP_ID_NOT_FOUND", 69


class InvalidGroupError(InvalidRequestError):
    """A group name is not allowed."""

    kafka_name, kafka_code = "INVALID_GROUP_ID", 24


class OffsetMetadataTooLargeError(InvalidRequestError):
    """The text that a group commits with an offset is too long."""

    kafka_name, kafka_code = "OFFSET_METADATA_TOO_LARGE", 12


class UnknownClusterError(LogStoreError):
    """The cluster id of a v3 path is not this cluster's."""


class InvalidTopicError(LogStoreError):
    """A topic name is not allowed, or differs from an existing one only by case or by ``.`` and ``_``; or the topic
    is the store's own.
    """

    kafka_name, kafka_code = "INVALID_TOPIC_EXCEPTION", 17


class TopicExistsError(LogStoreError):
    kafka_name, kafka_code = "TOPIC_ALREADY_EXISTS", 36


class InvalidPartitionsError(LogStoreError):
    """A partition count is not positive, too large, or smaller than that of the topic."""

    kafka_name, kafka_code = "INVALID_PARTITIONS", 37


class InvalidReplicationFactorError(LogStoreError):
    kafka_name, kafka_code = "INVALID_REPLICATION_FACTOR", 38


class InvalidReplicaAssignmentError(LogStoreError):
    """The wanted replicas of a partition are not a list of existing brokers."""

    kafka_name, kafka_code = "INVALID_REPLICA_ASSIGNMENT", 39


class NoReassignmentInProgressError(LogStoreError):
    kafka_name, kafka_code = "NO_REASSIGNMENT_IN_PROGRESS", 85


class InvalidConfigError(LogStoreError):
    """The configuration key is unknown, or its value is not allowed."""

    kafka_name, kafka_code = "INVALID_CONFIG", 40


class OffsetOutOfRangeError(LogStoreError):
    """The offset is outside [log start offset, high watermark]."""

    kafka_name, kafka_code = "OFFSET_OUT_OF_RANGE", 1

    def __init__(self, message: str, *, log_start_offset: int, high_watermark: int) -> None:
        super().__init__(message)
        self.log_start_offset = log_start_offset
        self.high_watermark = high_watermark


class SerializationError(LogStoreError):
    """A serializer or deserializer of the program failed on a key or value; ``__cause__`` is its own exception."""


class RecordDeserializationError(SerializationError):
    """A deserializer failed on the record at ``offset``: seek past it, or give the consumer another deserializer."""

    def __init__(self, message: str, *, topic: str, partition: int, offset: int) -> None:
        super().__init__(message)
        self.topic = topic
        self.partition = partition
        self.offset = offset


class NoOffsetForPartitionError(LogStoreError):
    """The group has committed nothing for a partition, and ``auto_offset_reset`` is "none"."""


class UnreadableRecordError(LogStoreError):
    """A stored record cannot be returned in the requested format (a value that is not JSON as JSON)."""

    def __init__(self, message: str, *, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


# ---- members of groups -----------------------------------------------------------------------------------------------


class UnknownMemberIdError(LogStoreError):
    """The group has no member of this id: it left, its session ended, or it has not joined. Join again."""

    kafka_name, kafka_code = "UNKNOWN_MEMBER_ID", 25


class IllegalGenerationError(LogStoreError):
    """The request is of another generation of the classic group than the present one."""

    kafka_name, kafka_code = "ILLEGAL_GENERATION", 22


class InconsistentGroupProtocolError(LogStoreError):
    """The member has no protocol in common with the other members, or the group is of the other kind."""

    kafka_name, kafka_code = "INCONSISTENT_GROUP_PROTOCOL", 23


class RebalanceInProgressError(LogStoreError):
    """The group is rebalancing: join it again."""

    kafka_name, kafka_code = "REBALANCE_IN_PROGRESS", 27


class MemberIdRequiredError(LogStoreError):
    """A new member was given an id, and joins again with it (KIP-394)."""

    kafka_name, kafka_code = "MEMBER_ID_REQUIRED", 79


class FencedInstanceIdError(LogStoreError):
    """Another member has taken over the ``group.instance.id`` (KIP-345): this one stops."""

    kafka_name, kafka_code = "FENCED_INSTANCE_ID", 82


class UnreleasedInstanceIdError(LogStoreError):
    """The ``group.instance.id`` belongs to a member that has not left (KIP-848)."""

    kafka_name, kafka_code = "UNRELEASED_INSTANCE_ID", 111


class FencedMemberEpochError(LogStoreError):
    """The member's epoch is not the coordinator's: it gives up its partitions, and joins again with epoch 0
    (KIP-848).
    """

    kafka_name, kafka_code = "FENCED_MEMBER_EPOCH", 110


class StaleMemberEpochError(LogStoreError):
    """An offset is committed with another epoch than the member's present one (KIP-848)."""

    kafka_name, kafka_code = "STALE_MEMBER_EPOCH", 113


class GroupMaxSizeReachedError(LogStoreError):
    """The group has ``group.max.size`` members."""

    kafka_name, kafka_code = "GROUP_MAX_SIZE_REACHED", 81


class NonEmptyGroupError(LogStoreError):
    """The group has members."""

    kafka_name, kafka_code = "NON_EMPTY_GROUP", 68


class UnknownInstanceError(LogStoreError):
    """The group has no consumer instance of that name: it was deleted, has timed out, or never existed."""


class InstanceExistsError(LogStoreError):
    """The group has a consumer instance of that name."""


class IllegalStateError(LogStoreError):
    """A consumer instance cannot do this in its present state: subscribed, assigned, or neither."""


class InvalidInstanceConfigError(InvalidRequestError):
    """The configuration of a consumer instance is not acceptable."""


class InvalidSessionTimeoutError(InvalidRequestError):
    """The session timeout is outside ``group.min.session.timeout.ms`` and ``group.max.session.timeout.ms``."""

    kafka_name, kafka_code = "INVALID_SESSION_TIMEOUT", 26


class UnsupportedAssignorError(InvalidRequestError):
    """The coordinator has no assignor of this name."""

    kafka_name, kafka_code = "UNSUPPORTED_ASSIGNOR", 112


class InvalidRegularExpressionError(InvalidRequestError):
    """The regular expression of a subscription cannot be used."""

    kafka_name, kafka_code = "INVALID_REGULAR_EXPRESSION", 128


class CoordinatorLoadInProgressError(LogStoreError):
    """The coordinator is reading its groups: ask again soon."""

    kafka_name, kafka_code, retriable = "COORDINATOR_LOAD_IN_PROGRESS", 14, True


class CoordinatorNotAvailableError(LogStoreError):
    """The group is being removed, or its coordinator starts or stops: ask again soon."""

    kafka_name, kafka_code, retriable = "COORDINATOR_NOT_AVAILABLE", 15, True


class NotCoordinatorError(LogStoreError):
    """Another node coordinates the group: look it up again."""

    kafka_name, kafka_code, retriable = "NOT_COORDINATOR", 16, True


class CommitFailedError(LogStoreError):
    """A consumer's offsets are for partitions that the group has taken from it: nothing was committed. The new owner
    may read the records again.
    """


class WakeupError(LogStoreError):
    """``Consumer.wakeup`` was called."""


# ---- not permitted ---------------------------------------------------------------------------------------------------


class AuthorizationError(LogStoreError):
    """The principal may not do this; nothing was done. The message names principal, operation and resource."""


class TopicAuthorizationError(AuthorizationError):
    kafka_name, kafka_code = "TOPIC_AUTHORIZATION_FAILED", 29


class GroupAuthorizationError(AuthorizationError):
    kafka_name, kafka_code = "GROUP_AUTHORIZATION_FAILED", 30


class ClusterAuthorizationError(AuthorizationError):
    kafka_name, kafka_code = "CLUSTER_AUTHORIZATION_FAILED", 31


class TransactionalIdAuthorizationError(AuthorizationError):
    """A producer may not use this transactional id."""

    kafka_name, kafka_code = "TRANSACTIONAL_ID_AUTHORIZATION_FAILED", 53


# ---- idempotent produce (KIP-98) ------------------------------------------------------------------------------------


class InvalidProducerRequestError(InvalidRequestError):
    """The producer's headers, or the idempotency key, of a request cannot be read or do not fit its records."""


class UnknownProducerIdError(InvalidProducerRequestError):
    """A producer's id was not issued by this store: ask for one. Nothing was stored."""

    kafka_name, kafka_code = "UNKNOWN_PRODUCER_ID", 59


class OutOfOrderSequenceError(LogStoreError):
    """A producer's sequence number does not follow its last one in the partition: a batch is missing. Nothing was
    stored.
    """

    kafka_name, kafka_code = "OUT_OF_ORDER_SEQUENCE_NUMBER", 45


class DuplicateSequenceError(LogStoreError):
    """A batch was stored before, but so long ago that its offsets are not remembered. Nothing was stored again."""

    kafka_name, kafka_code = "DUPLICATE_SEQUENCE_NUMBER", 46


class InvalidProducerEpochError(LogStoreError):
    """A producer's epoch is below one that was seen: this instance is fenced. Nothing was stored."""

    kafka_name, kafka_code = "INVALID_PRODUCER_EPOCH", 47


class IdempotencyKeyReusedError(LogStoreError):
    """An ``Idempotency-Key`` was used for another request. Nothing was stored."""


# ---- not now --------------------------------------------------------------------------------------------------------


class ThrottledError(LogStoreError):
    """A bound of memory or of the journal is reached; ask again after ``retry_after_s``."""

    kafka_name, kafka_code, retriable = "THROTTLING_QUOTA_EXCEEDED", 89, True

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class RequestTimedOutError(LogStoreError):
    """The time limit passed while the outcome was unknown: the records may or may not be stored."""

    kafka_name, kafka_code, retriable = "REQUEST_TIMED_OUT", 7, True


class BrokerNotReadyError(LogStoreError):
    """The broker is starting, stopping, or has stopped taking appends after a storage failure."""

    kafka_name, kafka_code, retriable = "BROKER_NOT_AVAILABLE", 8, True


class NotLeaderOrFollowerError(LogStoreError):
    """The broker does not lead the partition; nothing was stored. Another one does, or will soon."""

    kafka_name, kafka_code, retriable = "NOT_LEADER_OR_FOLLOWER", 6, True


class WrongBrokerError(NotLeaderOrFollowerError):
    """Another broker must serve this request, and the client has asked not to have it forwarded
    (``Logstore-Forward: never``). Nothing was done. ``broker_id`` and ``url`` are those of that broker; they are None
    for an item of a larger response, which does not have them.
    """

    def __init__(self, message: str, *, broker_id: int | None = None, url: str | None = None) -> None:
        super().__init__(message)
        self.broker_id = broker_id
        self.url = url


class LeaderNotAvailableError(LogStoreError):
    """No broker leads the partition now, or its leader is not ready: nothing was stored."""

    kafka_name, kafka_code, retriable = "LEADER_NOT_AVAILABLE", 5, True


class NotEnoughReplicasError(LogStoreError):
    """Fewer replicas than ``min.insync.replicas`` are in sync; nothing was stored."""

    kafka_name, kafka_code, retriable = "NOT_ENOUGH_REPLICAS", 19, True


class NotEnoughReplicasAfterAppendError(LogStoreError):
    """Replicas were lost after the append: it is unknown for now whether the records stay stored."""

    kafka_name, kafka_code, retriable = "NOT_ENOUGH_REPLICAS_AFTER_APPEND", 20, True


class OffsetNotAvailableError(LogStoreError):
    """A leader that was just elected does not know yet where the partition ends (KIP-207)."""

    kafka_name, kafka_code, retriable = "OFFSET_NOT_AVAILABLE", 78, True


class UnknownLeaderEpochError(LogStoreError):
    """The caller knows a newer leader epoch than this broker."""

    kafka_name, kafka_code, retriable = "UNKNOWN_LEADER_EPOCH", 75, True


class OffsetMovedToTieredStorageError(LogStoreError):
    """The offset is in the topic's table, and no longer in the leader's journal (KIP-405)."""

    kafka_name, kafka_code = "OFFSET_MOVED_TO_TIERED_STORAGE", 109


class ZooKeeperUnavailableError(BrokerNotReadyError):
    """ZooKeeper does not answer. The outcome of a write is unknown: read before you write again."""


class NotControllerError(LogStoreError):
    """Another broker is the controller, or none is: nothing was changed."""

    kafka_name, kafka_code, retriable = "NOT_CONTROLLER", 41, True


class InvalidUpdateVersionError(LogStoreError):
    """The partition has another state than the one on which its leader decided: nothing was changed."""

    kafka_name, kafka_code, retriable = "INVALID_UPDATE_VERSION", 95, True


class IneligibleReplicaError(LogStoreError):
    """A broker that is not registered, is stopping, or was started again since cannot join an ISR (C4, KIP-903)."""

    kafka_name, kafka_code, retriable = "INELIGIBLE_REPLICA", 107, True


class ElectionNotNeededError(LogStoreError):
    """The partition already has the leader that the election would give it."""

    kafka_name, kafka_code = "ELECTION_NOT_NEEDED", 84


class PreferredLeaderNotAvailableError(LogStoreError):
    """The first replica of the partition is not available, or not in sync: it cannot lead."""

    kafka_name, kafka_code, retriable = "PREFERRED_LEADER_NOT_AVAILABLE", 80, True


class EligibleLeadersNotAvailableError(LogStoreError):
    """No replica of the partition is available, so none can lead."""

    kafka_name, kafka_code, retriable = "ELIGIBLE_LEADERS_NOT_AVAILABLE", 83, True


class UnstableOffsetCommitError(LogStoreError):
    """A transaction that is still open has committed one of the requested offsets (KIP-447): ask again when it has
    ended.
    """

    kafka_name, kafka_code, retriable = "UNSTABLE_OFFSET_COMMIT", 88, True


class QuarantinedError(LogStoreError):
    """The topic or partition is refused until its table is repaired; nothing was stored or read."""

    kafka_name, kafka_code = "KAFKA_STORAGE_ERROR", 56

    def __init__(self, reason: str, remedy: str = "", topic_id: UUID | None = None) -> None:
        super().__init__(f"{reason.rstrip('.')}. {remedy}" if remedy else reason)
        self.reason = reason
        self.remedy = remedy
        #: The id of a whole topic, if its table still has it.
        self.topic_id = topic_id


class MissingRecordsError(LogStoreError):
    """Another writer took sealed records out of the table: reads of their offsets are refused."""

    kafka_name, kafka_code = "CORRUPT_MESSAGE", 2


class StorageFullError(LogStoreError):
    """No space on the disk: nothing was stored; appends work again by themselves once there is space."""

    kafka_name, kafka_code, retriable = "KAFKA_STORAGE_ERROR", 56, True


# ---- between a client and the store ----------------------------------------------------------------------------------


class NetworkError(LogStoreError):
    """A connection broke before the response came: it is unknown whether the request took effect."""

    kafka_name, kafka_code, retriable = "NETWORK_EXCEPTION", 13, True


class StoreUnreachableError(NetworkError):
    """No address accepts a connection: nothing was sent."""


class SslAuthenticationError(LogStoreError):
    """A client and the store have no TLS connection: one of them refuses the other's certificate, or speaks no TLS.
    Nothing was sent.
    """


class UnknownHostError(StoreUnreachableError):
    """No host of the addresses has an IP address: the name is misspelt, or the name server does not answer."""


# ---- Kafka's protocol alone ------------------------------------------------------------------------------------------


class InvalidRequiredAcksError(InvalidRequestError):
    """A produce request asks for acks other than -1, 0 and 1."""

    kafka_name, kafka_code = "INVALID_REQUIRED_ACKS", 21


class FetchSessionNotFoundError(LogStoreError):
    """The broker does not have the fetch session, or evicted it (KIP-227): fetch without one."""

    kafka_name, kafka_code, retriable = "FETCH_SESSION_ID_NOT_FOUND", 70, True


class InvalidFetchSessionEpochError(LogStoreError):
    """A fetch of the session is missing, or this one is a repetition (KIP-227): fetch without a session."""

    kafka_name, kafka_code, retriable = "INVALID_FETCH_SESSION_EPOCH", 71, True


class FetchSessionTopicIdError(LogStoreError):
    """One fetch session identifies topics both by name and by id (KIP-516): fetch without a session."""

    kafka_name, kafka_code, retriable = "FETCH_SESSION_TOPIC_ID_ERROR", 106, True


class InconsistentTopicIdError(LogStoreError):
    """The topic of a partition in a fetch session has another id by now (KIP-516)."""

    kafka_name, kafka_code, retriable = "INCONSISTENT_TOPIC_ID", 103, True


class GroupSubscribedToTopicError(LogStoreError):
    """Offsets of a topic are not deleted while a group is subscribed to it (KIP-496)."""

    kafka_name, kafka_code = "GROUP_SUBSCRIBED_TO_TOPIC", 86


class MismatchedEndpointTypeError(InvalidRequestError):
    """A broker was asked for the endpoints of controllers, which KRaft has (KIP-919)."""

    kafka_name, kafka_code = "MISMATCHED_ENDPOINT_TYPE", 114


class UnsupportedEndpointTypeError(InvalidRequestError):
    """The type of endpoints does not exist (KIP-919)."""

    kafka_name, kafka_code = "UNSUPPORTED_ENDPOINT_TYPE", 115


# ---- between the brokers of a cluster --------------------------------------------------------------------------------


class MalformedMessageError(LogStoreError):
    """A message of another broker, or of Kafka's protocol, cannot be read: it is cut, too long, or not a message of the
    protocol.
    """

    kafka_name, kafka_code = "INVALID_REQUEST", 42


class UnsupportedVersionError(LogStoreError):
    """Another broker, or a Kafka client, sends messages of a type or version that this release does not serve."""

    kafka_name, kafka_code = "UNSUPPORTED_VERSION", 35


class InconsistentClusterIdError(LogStoreError):
    """The connecting broker belongs to another cluster."""

    kafka_name, kafka_code = "INCONSISTENT_CLUSTER_ID", 104


class BrokerIdNotRegisteredError(LogStoreError):
    """The broker at the address is not the intended one."""

    kafka_name, kafka_code = "BROKER_ID_NOT_REGISTERED", 102


class PeerAuthenticationError(LogStoreError):
    """The connecting broker has not proved that it knows the secret of the cluster."""

    kafka_name, kafka_code = "SASL_AUTHENTICATION_FAILED", 58


class PeerUnavailableError(NetworkError):
    """Another broker of the cluster cannot be reached, does not answer in time, or the connection to it broke.

    ``nothing_sent``: the request has not left this broker, so it had no effect; otherwise its outcome is unknown.
    """

    def __init__(self, message: str, *, nothing_sent: bool = False) -> None:
        super().__init__(message)
        self.nothing_sent = nothing_sent


# ---- storage and commits --------------------------------------------------------------------------------------------


class StorageError(LogStoreError):
    """A write or fsync failed. Whether the pending records are stored is unknown until a restart reads the journal."""

    kafka_name, kafka_code = "KAFKA_STORAGE_ERROR", 56


class LockLostError(StorageError):
    """The lock on the data directory or the journal was lost: another process may have it. Nothing more is
    acknowledged.
    """


class JournalFileLostError(StorageError):
    """A journal file that this process writes to was removed or replaced: its records would be gone after a restart.
    Nothing more is acknowledged.
    """


_FULL = {errno.ENOSPC, errno.EDQUOT}
# Delta writers report the error of the disk as text, with colours.
_FULL_TEXT = re.compile(r"os error (28|122)\b|No space left on device|Disk quota exceeded")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def storage_error(doing: str, error: BaseException) -> StorageError | StorageFullError:
    """Return the LogStoreError for ``error`` of the disk, or of a library that writes to it; nothing was stored."""
    text = " ".join(_COLOUR.sub("", str(error)).split())
    if getattr(error, "errno", None) in _FULL or _FULL_TEXT.search(text):
        return StorageFullError(f"No space left on the disk: {doing} failed, nothing was changed. Free some space.")
    return StorageError(f"{doing} failed, nothing was changed: {text}")


class CorruptionError(LogStoreError):
    """Stored bytes differ from the written ones. Nothing is guessed: the message names file, position and repair."""

    kafka_name, kafka_code = "CORRUPT_MESSAGE", 2


class NewerFormatError(CorruptionError):
    """Stored bytes, or the name of a file, have a form that this release does not know. They need not be damaged."""


class UnsupportedTableError(CorruptionError):
    """Another writer gave the table a feature that readers of ours do not honour: they would serve wrong records."""

    def __init__(self, reason: str, remedy: str = "") -> None:
        super().__init__(f"{reason}. {remedy}")
        self.reason = reason
        self.remedy = remedy


class FencedLeaderEpochError(LogStoreError):
    """The table holds a leader epoch above the caller's: another leader took over."""

    kafka_name, kafka_code = "FENCED_LEADER_EPOCH", 74


class CommitRefusedError(LogStoreError):
    """A precondition of a commit does not hold on a fresh snapshot (rule R4); nothing was committed."""


class CommitConflictError(CommitRefusedError):
    """Other commits kept winning; nothing was committed."""

    retriable = True


class CommitStateUnknownError(LogStoreError):
    """It could not be found out whether a Delta commit happened (rule R5). Look again before doing anything else."""

    retriable = True


class DataDirectoryError(LogStoreError):
    """The data directory is in use by another process, of another format, or not one of ours."""


class ClusterStateError(LogStoreError):
    """The cluster's state in ZooKeeper cannot be trusted or written: a document edited by hand, another cluster's, or
    too large. The message names its path.
    """
