"""Topics and consumer groups over HTTP: make, look at, change, delete. No Arrow is needed here."""

import base64
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self, TypeAlias

from logstore.backoff import backoffs
from logstore.client.addresses import DEFAULT_URL
from logstore.client.cluster_metadata import DEFAULT_MAX_AGE_MS, ClusterMetadata
from logstore.client.connections import Answer
from logstore.client.metadata import (
    ClusterDescription,
    ConfigEntry,
    ErasureReport,
    GroupDescription,
    GroupLag,
    GroupListing,
    GroupOffset,
    KeylessRecords,
    MemberIdentity,
    OffsetAndTimestamp,
    OffsetReset,
    PartitionOffsets,
    PartitionReplicas,
    RollDescription,
    StoreStatus,
    TopicDescription,
    TopicListing,
    TopicPartition,
    TopicPartitions,
    decode,
)
from logstore.client.transport import Transport, group_path, quote_name, topic_path
from logstore.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidRequestError,
    LeaderNotAvailableError,
    LogStoreError,
    TopicExistsError,
    UnknownTopicError,
)
from logstore.limits import TIMES_PARTITIONS_MAX
from logstore.protocol.error_codes import error_of
from logstore.records.key_texts import key_bytes

_GROUPS_PER_PAGE = 10_000
_GROUPS_PER_DELETION = 1_000
_LOOK_SECONDS = 5.0
_HEARD_SECONDS = 2.0

ConfigValue: TypeAlias = str | int | float | bool


@dataclass(frozen=True, slots=True)
class _Topics:
    data: tuple[TopicListing, ...]


@dataclass(frozen=True, slots=True)
class _Configs:
    data: tuple[ConfigEntry, ...]


@dataclass(frozen=True, slots=True)
class _OffsetForTime:
    partition: int
    offset: int | None
    timestamp: int | None


@dataclass(frozen=True, slots=True)
class _OffsetsForTimes:
    offsets: tuple[_OffsetForTime, ...]


@dataclass(frozen=True, slots=True)
class _LogStart:
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class _Refreshed:
    version: int


@dataclass(frozen=True, slots=True)
class _KeylessRecords:
    partitions: tuple[KeylessRecords, ...]


@dataclass(frozen=True, slots=True)
class _DroppedForeignFiles:
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Erasures:
    erasures: tuple[ErasureReport, ...]


@dataclass(frozen=True, slots=True)
class _PartitionReplicasList:
    partitions: tuple[PartitionReplicas, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class _ElectedPartition:
    topic: str
    partition: int
    leader: int | None
    error_code: int | None
    message: str | None

    def outcome(self) -> int | LogStoreError:
        return self.leader if self.leader is not None else error_of(self.error_code or 0, self.message or "")


@dataclass(frozen=True, slots=True)
class _ElectedLeaders:
    partitions: tuple[_ElectedPartition, ...]


@dataclass(frozen=True, slots=True)
class _GroupOffsets:
    offsets: tuple[GroupOffset, ...]


@dataclass(frozen=True, slots=True)
class _GroupListings:
    groups: tuple[GroupListing, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class _ResetOffsets:
    offsets: tuple[OffsetReset, ...]


@dataclass(frozen=True, slots=True)
class _DeletedGroup:
    group: str
    error_code: int | None
    message: str | None


@dataclass(frozen=True, slots=True)
class _DeletedGroups:
    groups: tuple[_DeletedGroup, ...]


#: Lists of partitions, as `logstore topic list` names them.
ListedPartitions = Literal["under-replicated", "unavailable", "under-min-isr"]


class Admin:
    """Administration of the topics and groups of one store.

    ``bootstrap`` is ``http(s)://host:port`` or ``host:port``, several separated by commas. Every method raises
    StoreUnreachableError, NetworkError or RequestTimedOutError when no answer comes: ``request_timeout_ms`` is how long
    one may take, ``default_api_timeout_ms`` how long a request is tried again where that is safe,
    ``metadata_max_age_ms`` how old what is known of brokers and leaders may get. A context manager.
    """

    def __init__(
        self,
        bootstrap: str = DEFAULT_URL,
        *,
        client_id: str | None = None,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 10_000,
        metadata_max_age_ms: int = DEFAULT_MAX_AGE_MS,
    ) -> None:
        self._transport = Transport(
            bootstrap,
            client_id=client_id,
            request_timeout_s=request_timeout_ms / 1000,
            retry_timeout_s=default_api_timeout_ms / 1000,
        )
        #: The brokers, and who leads what. Requests of groups and of single partitions go where it says.
        self.metadata = ClusterMetadata(self._transport, max_age_ms=metadata_max_age_ms)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def urls(self) -> tuple[str, ...]:
        """The addresses of ``bootstrap``."""
        return self._transport.urls

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of ``bootstrap``, and those of all brokers of a cluster."""
        self._look_around()
        return self._transport.addresses

    @property
    def cluster_id(self) -> str:
        """The cluster's id; asked for once."""
        if not self.metadata.cluster_id:
            self._transport.keep_trying(self.metadata.load)
        return self.metadata.cluster_id

    def describe_cluster(self) -> ClusterDescription:
        """The brokers that are there, the controller, and how many partitions lack replicas or a leader."""
        answer = self._transport.keep_trying(lambda: self._transport.ask_around("/cluster"))
        return decode(answer.content, ClusterDescription)

    def partition_replicas(self, *, state: ListedPartitions | None = None) -> tuple[PartitionReplicas, ...]:
        """Leaders and replicas of the partitions in ``state`` (None: of all), by topic and partition."""
        found: list[PartitionReplicas] = []
        params: dict[str, str | int] = {} if state is None else {"state": state}
        while True:
            answer = self._transport.request("GET", "/cluster/partitions", params=params)
            page = decode(answer.content, _PartitionReplicasList)
            found += page.partitions
            if page.next is None:
                return tuple(found)
            params["page_token"] = page.next

    def elect_leaders(
        self,
        election_type: Literal["preferred", "unclean"],
        partitions: Collection[TopicPartition] | Collection[tuple[str, int]] | None = None,
    ) -> dict[TopicPartition, int | LogStoreError]:
        """Have leaders elected (KIP-460) of these partitions, or of all that need one (None); up to ``ELECTIONS_MAX``.

        ``preferred``: the first replica leads again, if it is in sync. ``unclean``: a replica leads that may lack
        acknowledged records, where no other one can. The value of a partition is its leader now, or its error:
        ElectionNotNeededError, PreferredLeaderNotAvailableError, EligibleLeadersNotAvailableError, UnknownTopicError,
        UnknownPartitionError.
        """
        body: dict[str, object] = {"election_type": election_type}
        if partitions is not None:
            body["partitions"] = [{"topic": topic, "partition": number} for topic, number in partitions]
        # An election that has been held is not needed again: safe to send again, but then the answer says so.
        answer = self._transport.request("POST", "/cluster/elect-leaders", json=body)
        return {
            TopicPartition(one.topic, one.partition): one.outcome()
            for one in decode(answer.content, _ElectedLeaders).partitions
        }

    def reassign_partition(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Begin to move a partition to these brokers, the preferred leader first (KIP-455); ``partition_replicas``
        shows how far it is. It replaces a reassignment under way.

        Raises InvalidReplicaAssignmentError, UnknownTopicError, UnknownPartitionError.
        """
        self._transport.request(
            "PUT",
            self._reassignment_path(topic, partition),
            json={"replicas": list(replicas)},
            idempotent=True,
            bad_request=InvalidReplicaAssignmentError,
        )

    def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Take a reassignment back that is under way: the partition keeps the replicas that it had before.

        Raises NoReassignmentInProgressError, UnknownTopicError, UnknownPartitionError.
        """
        # Sent once: a second DELETE after a lost answer would say that there is none.
        self._transport.request("DELETE", self._reassignment_path(topic, partition), idempotent=False)

    def _reassignment_path(self, topic: str, partition: int) -> str:
        return f"{self._topics_path}/{quote_name(topic)}/partitions/{partition}/reassignment"

    def status(self) -> StoreStatus:
        """The store and all its topics in numbers, and their problems."""
        return decode(self._transport.request("GET", "/status").content, StoreStatus)

    def topics(self, *, include_internal: bool = False) -> tuple[TopicListing, ...]:
        """Topics, by name; the store's own (``__consumer_offsets``) only with ``include_internal``."""
        listed = decode(self._transport.request("GET", self._topics_path).content, _Topics).data
        wanted = (topic for topic in listed if include_internal or not topic.is_internal)
        return tuple(sorted(wanted, key=lambda topic: topic.topic_name))

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        configs: Mapping[str, ConfigValue] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Make a topic; None takes the store's ``num.partitions`` and ``default.replication.factor``.

        Raises TopicExistsError, InvalidRequestError (name, partition count, replication factor or a configuration).
        """
        body = {
            "topic_name": topic,
            "configs": [{"name": name, "value": _config_text(value)} for name, value in (configs or {}).items()],
            "validate_only": validate_only,
            **({} if partitions is None else {"partitions_count": partitions}),
            **({} if replication_factor is None else {"replication_factor": replication_factor}),
        }
        try:
            self._transport.request("POST", self._topics_path, json=body)
        except InvalidRequestError as error:
            # The protocol has one code for all errors of a new topic.
            if self._exists(topic):
                raise TopicExistsError(error.message) from None
            raise

    def describe_topic(self, topic: str) -> TopicDescription:
        """Offsets, sizes and configuration; UnknownTopicError."""
        return decode(self._transport.request("GET", topic_path(topic)).content, TopicDescription)

    def describe_by_leaders(self, topic: str, partitions: Iterable[int] | None = None) -> TopicDescription:
        """As ``describe_topic``, with the offsets of ``partitions`` (None: all): asked again until their leaders have
        told them, for ``default_api_timeout_ms``; then LeaderNotAvailableError.
        """
        wanted = None if partitions is None else set(partitions)

        def told() -> TopicDescription:
            found = self.describe_topic(topic)
            untold = [
                one.partition
                for one in found.partitions
                if one.high_watermark < 0 and (wanted is None or one.partition in wanted)
            ]
            if untold:
                numbers = ", ".join(map(str, untold))
                raise LeaderNotAvailableError(f"The leader of partition {numbers} of topic {topic!r} does not answer.")
            return found

        return self._transport.keep_trying(told)

    def find_partitions(
        self, topics: Iterable[str], *, if_there: bool = False, may_create: bool = False
    ) -> dict[str, TopicPartitions]:
        """The ids and numbers of partitions, by name; ``metadata`` has the leaders then. UnknownTopicError for a topic
        that is not there; ``if_there``: that one is left out. ``may_create``: it is made, if the store makes topics.
        """
        names = sorted(set(topics))
        for name in names:
            quote_name(name)
        found = self._find(names, may_create)
        waits, give_up = backoffs(), time.monotonic() + _HEARD_SECONDS
        # A broker may not have heard yet of a topic that was made a moment ago through another one.
        while self.metadata.is_cluster and not if_there and any(map(_is_unknown, found.values())):
            wait_s = next(waits)
            if time.monotonic() + wait_s > give_up:
                break
            time.sleep(wait_s)
            found = self._find(names, may_create)
        for topic in found.values():
            if isinstance(topic, LogStoreError) and not (if_there and _is_unknown(topic)):
                raise topic
        return {name: topic for name, topic in found.items() if isinstance(topic, TopicPartitions)}

    def _find(self, topics: Sequence[str], may_create: bool) -> dict[str, TopicPartitions | LogStoreError]:
        if not topics:
            return {}
        return self._transport.keep_trying(lambda: self.metadata.find(topics, may_create=may_create))

    def topic_configs(self, topic: str) -> tuple[ConfigEntry, ...]:
        """Every configuration key of the topic and where its value comes from; UnknownTopicError."""
        path = f"{self._topics_path}/{quote_name(topic)}/configs"
        return decode(self._transport.request("GET", path).content, _Configs).data

    def alter_configs(
        self, topic: str, changes: Mapping[str, ConfigValue | None], *, validate_only: bool = False
    ) -> None:
        """Set keys, all or none; None takes a key back to its default. Numbers and booleans are sent as text.

        Raises InvalidConfigError naming the key, UnknownTopicError.
        """
        data = [
            {"name": name, "operation": "DELETE"}
            if value is None
            else {"name": name, "value": _config_text(value), "operation": "SET"}
            for name, value in changes.items()
        ]
        # Setting a key twice is setting it once: safe to send again.
        self._transport.request(
            "POST",
            f"{self._topics_path}/{quote_name(topic)}/configs:alter",
            json={"data": data, "validate_only": validate_only},
            idempotent=True,
            bad_request=InvalidConfigError,
        )

    def add_partitions(self, topic: str, total: int) -> None:
        """Grow the topic to ``total`` partitions; InvalidPartitionsError when it has that many or more."""
        self._transport.request(
            "PATCH",
            f"{self._topics_path}/{quote_name(topic)}",
            json={"partitions_count": total},
            bad_request=InvalidPartitionsError,
        )

    def delete_topic(self, topic: str) -> None:
        """Delete the topic and its data; UnknownTopicError."""
        # Sent once: a second DELETE after a lost answer would say that there is no such topic.
        self._transport.request("DELETE", f"{self._topics_path}/{quote_name(topic)}", idempotent=False)

    def roll(self, topic: str) -> RollDescription:
        """Put all records so far into Parquet and Delta; returns when that is durable."""
        answer = self._transport.request("POST", topic_path(topic, "/roll"), json={}, idempotent=True)
        return decode(answer.content, RollDescription)

    def refresh(self, topic: str) -> int:
        """Have the store read commits of others from the topic's table; the version that all its readers see now."""
        answer = self._transport.request("POST", topic_path(topic, "/refresh"), json={}, idempotent=True)
        return decode(answer.content, _Refreshed).version

    def keyless_records(self, topic: str) -> tuple[KeylessRecords, ...]:
        """The partitions whose part of the table has records without a key, which a compaction removes."""
        answer = self._transport.request("GET", topic_path(topic, "/keyless-records"))
        return decode(answer.content, _KeylessRecords).partitions

    def drop_foreign_files(self, topic: str) -> tuple[str, ...]:
        """Take files that other writers added out of the topic's table; their paths. They stay on disk."""
        answer = self._transport.request("POST", topic_path(topic, "/drop-foreign-files"), json={}, idempotent=True)
        return decode(answer.content, _DroppedForeignFiles).files

    def erase(
        self,
        topic: str,
        keys: Sequence[str | bytes] = (),
        *,
        where: str | None = None,
        key_format: Literal["string", "json"] | None = None,
        dry_run: bool = False,
        wait: bool = True,
    ) -> ErasureReport:
        """Erase the records of ``keys``, or those that the expression ``where`` selects, that are there now, for good,
        from every file of the store; the report.

        A key that is a text means the records that have it as such and those that have its JSON text, unless
        ``key_format`` names one of them; bytes mean themselves. ``dry_run`` counts the records. ``wait``: until the
        report says ``erased``, or that it waits for brokers that are not there; else ``erasure`` tells how far it is.
        Raises UnknownTopicError, InvalidRequestError (too many keys, or a topic of the store's own).
        """
        texts = [key for key in keys if isinstance(key, str)]
        exact = [key for key in keys if isinstance(key, bytes)]
        if exact or key_format:
            exact += key_bytes(texts, key_format)
            body: dict[str, object] = {
                "keys": [base64.b64encode(key).decode() for key in exact],
                "key_format": "binary",
            }
        else:
            body = {"keys": texts, "key_format": None}
        if where is not None:
            body["where"] = where
        path = topic_path(topic, "/erasures")
        # A second one finds nothing to erase: safe to send again.
        answer = self._transport.request("POST", path, json={**body, "dry_run": dry_run}, idempotent=True)
        found = decode(answer.content, ErasureReport)
        for wait_s in backoffs():
            if not wait or found.is_over or found.pending:
                break
            time.sleep(wait_s)
            found = self.erasure(topic, found.erasure)
        return found

    def erasure(self, topic: str, erasure: str) -> ErasureReport:
        """The report of an erasure, or of a dry run, by its id; UnknownErasureError."""
        path = topic_path(topic, f"/erasures/{quote_name(erasure)}")
        return decode(self._transport.request("GET", path).content, ErasureReport)

    def erasures(self, topic: str) -> tuple[ErasureReport, ...]:
        """The reports of all erasures of a topic, oldest first."""
        return decode(self._transport.request("GET", topic_path(topic, "/erasures")).content, _Erasures).erasures

    def offsets(self, topic: str, partition: int, *, timestamp_ms: int | None = None) -> PartitionOffsets:
        """The ends of a partition, and the offset of a time; UnknownTopicError, UnknownPartitionError."""
        params = None if timestamp_ms is None else {"timestamp": timestamp_ms}
        answer = self._ask_leader(topic, partition, "GET", "/offsets", params=params)
        return decode(answer.content, PartitionOffsets)

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record of each (topic, partition) at or after a time (ms since 1970 UTC); None where there is none.

        A request has up to ``TIMES_PARTITIONS_MAX`` partitions of a topic. Raises UnknownTopicError,
        UnknownPartitionError.
        """
        by_topic: dict[str, list[dict[str, int]]] = {}
        for (topic, partition), timestamp_ms in timestamps_ms.items():
            by_topic.setdefault(topic, []).append({"partition": partition, "timestamp": timestamp_ms})
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for topic, asked in by_topic.items():
            path = topic_path(topic, "/offsets-for-times")
            for first in range(0, len(asked), TIMES_PARTITIONS_MAX):
                body = {"partitions": asked[first : first + TIMES_PARTITIONS_MAX]}
                answer = self._transport.request("POST", path, json=body, idempotent=True)
                for at in decode(answer.content, _OffsetsForTimes).offsets:
                    found[TopicPartition(topic, at.partition)] = (
                        None
                        if at.offset is None or at.timestamp is None
                        else OffsetAndTimestamp(at.offset, at.timestamp)
                    )
        return found

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Move the log start up to ``before_offset`` (-1: the high watermark); the new log start.

        Raises OffsetOutOfRangeError, UnknownTopicError, UnknownPartitionError.
        """
        body = {"before_offset": before_offset}
        answer = self._ask_leader(topic, partition, "POST", "/delete-records", json=body, idempotent=True)
        return decode(answer.content, _LogStart).log_start_offset

    def groups(self) -> tuple[str, ...]:
        """Names of the groups that have members or committed offsets, sorted."""
        return decode(self._transport.request("GET", "/groups").content, tuple[str, ...])

    def list_groups(self, *, states: Sequence[str] = ()) -> tuple[GroupListing, ...]:
        """The same groups with their states, members and lags, in a few requests; only those in one of ``states``
        (Kafka's names, as ``Stable``), if there are any.
        """
        found: list[GroupListing] = []
        params: dict[str, str | int] = {"limit": _GROUPS_PER_PAGE}
        if states:
            params["states"] = ",".join(states)
        while True:
            page = decode(self._transport.request("GET", "/group-listings", params=params).content, _GroupListings)
            found += page.groups
            if page.next is None:
                return tuple(found)
            params["after"] = page.next

    def describe_group(self, group: str) -> GroupDescription:
        """The group's state and members; UnknownGroupError."""
        return decode(self._ask_coordinator(group, "GET", "").content, GroupDescription)

    def group_offsets(self, group: str, *, topic: str | None = None) -> tuple[GroupOffset, ...]:
        """The group's committed offsets, by topic and partition; only those of ``topic`` if it is named.

        Raises UnknownGroupError, UnknownTopicError.
        """
        params = None if topic is None else {"topic": topic}
        answer = self._ask_coordinator(group, "GET", "/offsets", params=params)
        return decode(answer.content, _GroupOffsets).offsets

    def group_lag(self, group: str) -> GroupLag:
        """How far the group is behind the high watermarks, by topic and partition; UnknownGroupError."""
        return decode(self._ask_coordinator(group, "GET", "/lag").content, GroupLag)

    def commit_offsets(
        self,
        group: str,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int],
        *,
        metadata: str = "",
        topic_ids: Mapping[str, str] | None = None,
        member: MemberIdentity | None = None,
    ) -> None:
        """Commit the next offset to read of each (topic, partition), all or none; a group begins with its first commit.

        Lower offsets than before are taken, too. ``metadata`` is a text of the caller's own, at most 4096 bytes;
        ``topic_ids`` are the ids of the topics that were read, by name (left out: whichever topic has the name). While
        a group has members only these commit, each as ``member``. Raises UnknownTopicError, UnknownTopicIdError (a
        topic was deleted and made again), UnknownPartitionError, OffsetOutOfRangeError beyond the high watermark,
        UnknownMemberIdError, IllegalGenerationError, StaleMemberEpochError, FencedInstanceIdError,
        RebalanceInProgressError, InvalidRequestError.
        """
        known = topic_ids or {}
        entries = [
            {
                "topic": topic,
                "partition": partition,
                "offset": offset,
                "metadata": metadata,
                **({"topic_id": known[topic]} if topic in known else {}),
            }
            for (topic, partition), offset in offsets.items()
        ]
        # Committing the same twice is committing it once: safe to send again.
        body = {"offsets": entries, **({} if member is None else member._asdict())}
        self._ask_coordinator(group, "POST", "/offsets", json=body, idempotent=True)

    def reset_offsets(
        self,
        group: str,
        *,
        to: Literal["earliest", "latest", "current"] | None = None,
        to_offset: int | None = None,
        to_timestamp_ms: int | None = None,
        shift_by: int | None = None,
        offsets: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int] | None = None,
        topics: Mapping[str, Sequence[int]] | None = None,
        dry_run: bool = False,
    ) -> tuple[OffsetReset, ...]:
        """Commit where a group without members is to read next, for all the partitions or none; the offsets, which
        ``dry_run`` only tells. A group that does not exist is made.

        Give one of the first five: ``to_offset`` -n is n before the high watermark, ``shift_by`` counts from where the
        group is, ``offsets`` are the next to read by (topic, partition). ``topics`` has the partitions of each topic,
        none for all; left out: all topics that the group has committed to.

        Raises NonEmptyGroupError, UnknownGroupError, UnknownTopicError, UnknownPartitionError, OffsetOutOfRangeError,
        InvalidRequestError.
        """
        asked = {
            "to": to,
            "to_offset": to_offset,
            "to_timestamp": to_timestamp_ms,
            "shift_by": shift_by,
            "offsets": None
            if offsets is None
            else [{"topic": name, "partition": n, "offset": offset} for (name, n), offset in offsets.items()],
            "topics": None
            if topics is None
            else [{"topic": name, "partitions": list(numbers) or None} for name, numbers in topics.items()],
            "dry_run": dry_run,
        }
        # Shifting twice is not shifting once.
        idempotent = dry_run or shift_by is None
        answer = self._ask_coordinator(group, "POST", "/reset-offsets", json=asked, idempotent=idempotent)
        return decode(answer.content, _ResetOffsets).offsets

    def delete_groups(self, groups: Sequence[str]) -> dict[str, LogStoreError]:
        """Delete several groups, each by itself: the errors of those that were not, as of ``delete_group``, by name."""
        errors: dict[str, LogStoreError] = {}
        for begin in range(0, len(groups), _GROUPS_PER_DELETION):
            body = {"groups": groups[begin : begin + _GROUPS_PER_DELETION]}
            answer = self._transport.request("POST", "/delete-groups", json=body)
            for each in decode(answer.content, _DeletedGroups).groups:
                if each.error_code is not None:
                    errors[each.group] = error_of(each.error_code, each.message or "")
        return errors

    def delete_group(self, group: str) -> None:
        """Delete the group: all its committed offsets; UnknownGroupError, NonEmptyGroupError."""
        # Sent once: a second DELETE after a lost answer would say that there is no such group.
        self._ask_coordinator(group, "DELETE", "", idempotent=False)

    def _ask_leader(self, topic: str, partition: int, method: str, rest: str, **options: Any) -> Answer:
        """A request of a partition, to its leader; ``options`` as of ``Transport.request``."""
        path = topic_path(topic, f"/partitions/{partition}{rest}")
        self._look_around()
        return self._transport.request(
            method, path, send=partial(self.metadata.ask_leader, topic, partition), **options
        )

    def _ask_coordinator(self, group: str, method: str, rest: str, **options: Any) -> Answer:
        """A request of a group, to its coordinator; ``options`` as of ``Transport.request``."""
        path = group_path(group, rest)
        self._look_around()
        return self._transport.request(method, path, send=partial(self.metadata.ask_coordinator, group), **options)

    def _look_around(self) -> None:
        """Find out whether there are brokers to choose from. Without an answer the request itself fails, or is sent
        again.
        """
        with suppress(LogStoreError):
            self.metadata.load(timeout_s=_LOOK_SECONDS)

    @property
    def _topics_path(self) -> str:
        return f"/v3/clusters/{self.cluster_id}/topics"

    def _exists(self, topic: str) -> bool:
        try:
            self.describe_topic(topic)
        except (UnknownTopicError, InvalidRequestError):
            return False
        return True


def _is_unknown(topic: TopicPartitions | LogStoreError) -> bool:
    return isinstance(topic, UnknownTopicError)


def _config_text(value: ConfigValue) -> str:
    """The value as text, in Kafka's form."""
    return str(value).lower() if isinstance(value, bool) else str(value)
