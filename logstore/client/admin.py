"""Administration of topics and consumer groups over HTTP. It needs no Arrow."""

import base64
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import starmap
from typing import Any, Literal, Self, TypeAlias

from logstore.backoff import backoffs
from logstore.client.addresses import DEFAULT_URL
from logstore.client.client_tls import ClientTls
from logstore.client.cluster_metadata import DEFAULT_MAX_AGE_MS, ClusterMetadata
from logstore.client.connections import Response
from logstore.client.metadata import MemberIdentity, OffsetAndTimestamp, TopicPartition, TopicPartitions, decode
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
from logstore.protocol.messages.administration import (
    AlterConfigsRequest,
    ClusterTopic,
    ClusterTopicList,
    ConfigChange,
    ConfigEntry,
    CreateTopicRequest,
    ReassignRequest,
    TopicConfigEntry,
    TopicConfigList,
    UpdateTopicRequest,
)
from logstore.protocol.messages.cluster import (
    ClusterDescription,
    ElectedLeaders,
    ElectLeadersRequest,
    PartitionReplicas,
    PartitionReplicasList,
    TopicPartitionEntry,
)
from logstore.protocol.messages.erasures import ErasureReport, ErasureReports, ErasureRequest
from logstore.protocol.messages.groups import (
    DELETED_GROUPS_MAX,
    CommitOffsetsRequest,
    DeletedGroups,
    DeleteGroupsRequest,
    GroupLag,
    GroupListing,
    GroupListings,
    GroupOffset,
    GroupOffsets,
    OffsetReset,
    OffsetToCommit,
    OffsetToReset,
    ResetOffsets,
    ResetOffsetsRequest,
    TopicToReset,
)
from logstore.protocol.messages.members import GroupDescription
from logstore.protocol.messages.records import (
    DeletedRecords,
    DeleteRecordsRequest,
    OffsetsForTimes,
    OffsetsForTimesRequest,
    PartitionOffsets,
    PartitionTime,
)
from logstore.protocol.messages.status import StoreStatus
from logstore.protocol.messages.topics import (
    DroppedForeignFiles,
    KeylessPartition,
    KeylessRecords,
    Refreshed,
    Rolled,
    Topic,
)

_GROUPS_PER_PAGE = 10_000
_LOOK_SECONDS = 5.0
_HEARD_SECONDS = 2.0

ConfigValue: TypeAlias = str | int | float | bool


#: Lists of partitions, by the names that `logstore topic list` gives them.
ListedPartitions = Literal["under-replicated", "unavailable", "under-min-isr"]


class Admin:
    """Administration of the topics and groups of one store. It is a context manager.

    ``bootstrap`` is ``http(s)://host:port`` or ``host:port``, several separated by commas. Every method raises
    StoreUnreachableError, NetworkError or RequestTimedOutError if no response comes. ``request_timeout_ms`` bounds the
    wait for one response, ``default_api_timeout_ms`` bounds the retries of a request that is safe to repeat, and
    ``metadata_max_age_ms`` bounds the age of the known brokers and leaders. ``ssl_cafile``, ``ssl_certfile``,
    ``ssl_keyfile`` and ``ssl_password`` are those of ``ClientTls``.
    """

    def __init__(
        self,
        bootstrap: str = DEFAULT_URL,
        *,
        client_id: str | None = None,
        request_timeout_ms: int = 30_000,
        default_api_timeout_ms: int = 10_000,
        metadata_max_age_ms: int = DEFAULT_MAX_AGE_MS,
        ssl_cafile: str | None = None,
        ssl_certfile: str | None = None,
        ssl_keyfile: str | None = None,
        ssl_password: str | None = None,
    ) -> None:
        self._transport = Transport(
            bootstrap,
            client_id=client_id,
            tls=ClientTls(ssl_cafile, ssl_certfile, ssl_keyfile, ssl_password),
            request_timeout_s=request_timeout_ms / 1000,
            retry_timeout_s=default_api_timeout_ms / 1000,
        )
        #: The brokers and the leaders. It chooses the broker for requests about groups and about single partitions.
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
        """The addresses of ``bootstrap`` and of all brokers of the cluster."""
        self._look_around()
        return self._transport.addresses

    @property
    def cluster_id(self) -> str:
        """The cluster's id. It is requested once."""
        if not self.metadata.cluster_id:
            self._transport.keep_trying(self.metadata.load)
        return self.metadata.cluster_id

    def describe_cluster(self) -> ClusterDescription:
        """Return the live brokers, the controller, and how many partitions lack replicas or a leader."""
        response = self._transport.keep_trying(lambda: self._transport.ask_around("/cluster"))
        return decode(response.content, ClusterDescription)

    def partition_replicas(self, *, state: ListedPartitions | None = None) -> tuple[PartitionReplicas, ...]:
        """Return the leaders and replicas of the partitions in ``state`` (None: of all), by topic and partition."""
        found: list[PartitionReplicas] = []
        params: dict[str, str | int] = {} if state is None else {"state": state}
        while True:
            response = self._transport.request("GET", "/cluster/partitions", params=params)
            page = decode(response.content, PartitionReplicasList)
            found += page.partitions
            if page.next is None:
                return tuple(found)
            params["page_token"] = page.next

    def elect_leaders(
        self,
        election_type: Literal["preferred", "unclean"],
        partitions: Collection[TopicPartition] | Collection[tuple[str, int]] | None = None,
    ) -> dict[TopicPartition, int | LogStoreError]:
        """Elect leaders (KIP-460) for these partitions, or for all that need one (None); at most ``ELECTIONS_MAX``.

        ``preferred`` makes the first replica the leader again if it is in sync. ``unclean`` allows a leader that may
        lack acknowledged records, where no other replica can lead. Returns for each partition its leader now, or its
        error: ElectionNotNeededError, PreferredLeaderNotAvailableError, EligibleLeadersNotAvailableError,
        UnknownTopicError, UnknownPartitionError.
        """
        entries = None if partitions is None else tuple(starmap(TopicPartitionEntry, partitions))
        body = ElectLeadersRequest(election_type, entries)
        # This is safe to send again, but an election that has been held then returns ElectionNotNeededError.
        response = self._transport.request("POST", "/cluster/elect-leaders", json=body)
        return {
            TopicPartition(one.topic, one.partition): error_of(one.error_code or 0, one.message or "")
            if one.leader is None
            else one.leader
            for one in decode(response.content, ElectedLeaders).partitions
        }

    def reassign_partition(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Begin to move a partition to these brokers, the preferred leader first (KIP-455).

        ``partition_replicas`` shows its progress. It replaces a reassignment under way. Raises
        InvalidReplicaAssignmentError, UnknownTopicError, UnknownPartitionError.
        """
        self._transport.request(
            "PUT",
            self._reassignment_path(topic, partition),
            json=ReassignRequest(tuple(replicas)),
            idempotent=True,
            bad_request=InvalidReplicaAssignmentError,
        )

    def cancel_reassignment(self, topic: str, partition: int) -> None:
        """Cancel a reassignment under way: the partition keeps the replicas that it had before.

        Raises NoReassignmentInProgressError, UnknownTopicError, UnknownPartitionError.
        """
        # It is sent once, because a second DELETE after a lost response would fail with NoReassignmentInProgressError.
        self._transport.request("DELETE", self._reassignment_path(topic, partition), idempotent=False)

    def _reassignment_path(self, topic: str, partition: int) -> str:
        return f"{self._topics_path}/{quote_name(topic)}/partitions/{partition}/reassignment"

    def status(self) -> StoreStatus:
        """Return figures of the store and of all its topics, and their problems."""
        return decode(self._transport.request("GET", "/status").content, StoreStatus)

    def topics(self, *, include_internal: bool = False) -> tuple[ClusterTopic, ...]:
        """Return the topics by name; internal ones (``__consumer_offsets``) only with ``include_internal``."""
        listed = decode(self._transport.request("GET", self._topics_path).content, ClusterTopicList).data
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
        """Create a topic. None takes the store's ``num.partitions`` and ``default.replication.factor``.

        Raises TopicExistsError, and InvalidRequestError for a bad name, partition count, replication factor or
        configuration.
        """
        entries = [ConfigEntry(name, _config_text(value)) for name, value in (configs or {}).items()]
        body = CreateTopicRequest(topic, partitions, replication_factor, entries, validate_only)
        try:
            self._transport.request("POST", self._topics_path, json=body)
        except InvalidRequestError as error:
            # The protocol has one code for all errors of a new topic.
            if self._exists(topic):
                raise TopicExistsError(error.message) from None
            raise

    def describe_topic(self, topic: str) -> Topic:
        """Return the topic's offsets, sizes and configuration. Raises UnknownTopicError."""
        return decode(self._transport.request("GET", topic_path(topic)).content, Topic)

    def describe_by_leaders(self, topic: str, partitions: Iterable[int] | None = None) -> Topic:
        """Describe a topic as ``describe_topic`` does, with the offsets of ``partitions`` (None: all).

        Asks again for ``default_api_timeout_ms`` until the leaders have reported them, then raises
        LeaderNotAvailableError.
        """
        wanted = None if partitions is None else set(partitions)

        def described() -> Topic:
            found = self.describe_topic(topic)
            missing = [
                one.partition
                for one in found.partitions
                if one.high_watermark < 0 and (wanted is None or one.partition in wanted)
            ]
            if missing:
                numbers = ", ".join(map(str, missing))
                raise LeaderNotAvailableError(f"The leader of partition {numbers} of topic {topic!r} does not answer.")
            return found

        return self._transport.keep_trying(described)

    def find_partitions(
        self, topics: Iterable[str], *, if_there: bool = False, may_create: bool = False
    ) -> dict[str, TopicPartitions]:
        """Return the topic ids and partition counts by name. ``metadata`` knows the leaders afterwards.

        Raises UnknownTopicError for a topic that does not exist; with ``if_there`` it is left out instead. With
        ``may_create`` it is created, if the store creates topics.
        """
        names = sorted(set(topics))
        for name in names:
            quote_name(name)
        found = self._find(names, may_create)
        waits, give_up = backoffs(), time.monotonic() + _HEARD_SECONDS
        # A broker may not know yet of a topic that was created a moment ago through another broker.
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

    def topic_configs(self, topic: str) -> tuple[TopicConfigEntry, ...]:
        """Return every configuration key of the topic and the source of its value. Raises UnknownTopicError."""
        path = f"{self._topics_path}/{quote_name(topic)}/configs"
        return decode(self._transport.request("GET", path).content, TopicConfigList).data

    def alter_configs(
        self, topic: str, changes: Mapping[str, ConfigValue | None], *, validate_only: bool = False
    ) -> None:
        """Set all of these keys or none; None resets a key to its default. Numbers and booleans are sent as text.

        Raises InvalidConfigError naming the key, UnknownTopicError.
        """
        data = tuple(
            ConfigChange(name, operation="DELETE") if value is None else ConfigChange(name, _config_text(value))
            for name, value in changes.items()
        )
        # Setting a key twice has the effect of setting it once, so this is safe to send again.
        self._transport.request(
            "POST",
            f"{self._topics_path}/{quote_name(topic)}/configs:alter",
            json=AlterConfigsRequest(data, validate_only),
            idempotent=True,
            bad_request=InvalidConfigError,
        )

    def add_partitions(self, topic: str, total: int) -> None:
        """Grow the topic to ``total`` partitions. Raises InvalidPartitionsError if it has that many or more."""
        self._transport.request(
            "PATCH",
            f"{self._topics_path}/{quote_name(topic)}",
            json=UpdateTopicRequest(total),
            bad_request=InvalidPartitionsError,
        )

    def delete_topic(self, topic: str) -> None:
        """Delete the topic and its data. Raises UnknownTopicError."""
        # It is sent once, because a second DELETE after a lost response would fail with UnknownTopicError.
        self._transport.request("DELETE", f"{self._topics_path}/{quote_name(topic)}", idempotent=False)

    def roll(self, topic: str) -> Rolled:
        """Write all records so far to Parquet and Delta, and return when they are durable there."""
        response = self._transport.request("POST", topic_path(topic, "/roll"), json={}, idempotent=True)
        return decode(response.content, Rolled)

    def refresh(self, topic: str) -> int:
        """Let the store read other writers' commits to the topic's table; return the version that readers see now."""
        response = self._transport.request("POST", topic_path(topic, "/refresh"), json={}, idempotent=True)
        return decode(response.content, Refreshed).version

    def keyless_records(self, topic: str) -> tuple[KeylessPartition, ...]:
        """Return the partitions whose part of the table has records without a key, which a compaction removes."""
        response = self._transport.request("GET", topic_path(topic, "/keyless-records"))
        return decode(response.content, KeylessRecords).partitions

    def drop_foreign_files(self, topic: str) -> tuple[str, ...]:
        """Remove files that other writers added from the topic's table; return their paths. They stay on disk."""
        response = self._transport.request("POST", topic_path(topic, "/drop-foreign-files"), json={}, idempotent=True)
        return decode(response.content, DroppedForeignFiles).files

    def erase(
        self,
        topic: str,
        keys: Sequence[str | bytes] = (),
        *,
        where: str | None = None,
        key_format: Literal["string", "json", "binary"] | None = None,
        dry_run: bool = False,
        wait: bool = True,
    ) -> ErasureReport:
        """Erase the present records with these ``keys``, or those that the expression ``where`` selects, for good, from
        every file of the store; return the report.

        A text key matches records whose key is that text or its JSON text, unless ``key_format`` names one of the two,
        or says that the texts are base64 (``binary``).
        A bytes key matches itself; if it is the JSON text of a string, it matches every JSON text of that string.
        ``dry_run`` only counts the records. ``wait`` waits until the report is ``erased``, or waits only for brokers
        that are down; else ``erasure`` returns the progress. Raises UnknownTopicError, InvalidRequestError (too many
        keys, texts beside bytes, or an internal topic).
        """
        texts = tuple(key for key in keys if isinstance(key, str))
        exact = tuple(base64.b64encode(key).decode() for key in keys if isinstance(key, bytes))
        if exact and (texts or key_format):
            raise InvalidRequestError("an erasure is of texts or of bytes: erase the others with a second call")
        body = ErasureRequest(exact or texts, where, "binary" if exact else key_format, dry_run)
        path = topic_path(topic, "/erasures")
        # A second one finds nothing to erase, so this is safe to send again.
        response = self._transport.request("POST", path, json=body, idempotent=True)
        found = decode(response.content, ErasureReport)
        for wait_s in backoffs():
            if not wait or found.is_over or found.pending:
                break
            time.sleep(wait_s)
            found = self.erasure(topic, found.erasure)
        return found

    def erasure(self, topic: str, erasure: str) -> ErasureReport:
        """Return the report of an erasure, or of a dry run, by its id. Raises UnknownErasureError."""
        path = topic_path(topic, f"/erasures/{quote_name(erasure)}")
        return decode(self._transport.request("GET", path).content, ErasureReport)

    def erasures(self, topic: str) -> tuple[ErasureReport, ...]:
        """Return the reports of all erasures of a topic, oldest first."""
        return decode(self._transport.request("GET", topic_path(topic, "/erasures")).content, ErasureReports).erasures

    def offsets(self, topic: str, partition: int, *, timestamp_ms: int | None = None) -> PartitionOffsets:
        """Return the ends of a partition, with the offset for a time (UNSET if none is given).

        Raises UnknownTopicError, UnknownPartitionError.
        """
        params = None if timestamp_ms is None else {"timestamp": timestamp_ms}
        response = self._ask_leader(topic, partition, "GET", "/offsets", params=params)
        return decode(response.content, PartitionOffsets)

    def offsets_for_times(
        self, timestamps_ms: Mapping[TopicPartition, int] | Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """Return the first record of each (topic, partition) at or after a time (ms since 1970 UTC), or None if there
        is none.

        A request has up to ``TIMES_PARTITIONS_MAX`` partitions of a topic. Raises UnknownTopicError,
        UnknownPartitionError.
        """
        by_topic: dict[str, list[PartitionTime]] = {}
        for (topic, partition), timestamp_ms in timestamps_ms.items():
            by_topic.setdefault(topic, []).append(PartitionTime(partition, timestamp_ms))
        found: dict[TopicPartition, OffsetAndTimestamp | None] = {}
        for topic, asked in by_topic.items():
            path = topic_path(topic, "/offsets-for-times")
            for first in range(0, len(asked), TIMES_PARTITIONS_MAX):
                body = OffsetsForTimesRequest(tuple(asked[first : first + TIMES_PARTITIONS_MAX]))
                response = self._transport.request("POST", path, json=body, idempotent=True)
                for at in decode(response.content, OffsetsForTimes).offsets:
                    found[TopicPartition(topic, at.partition)] = (
                        None
                        if at.offset is None or at.timestamp is None
                        else OffsetAndTimestamp(at.offset, at.timestamp)
                    )
        return found

    def delete_records(self, topic: str, partition: int, before_offset: int) -> int:
        """Move the log start offset up to ``before_offset`` (-1: the high watermark); return the new log start offset.

        Raises OffsetOutOfRangeError, UnknownTopicError, UnknownPartitionError.
        """
        body = DeleteRecordsRequest(before_offset)
        response = self._ask_leader(topic, partition, "POST", "/delete-records", json=body, idempotent=True)
        return decode(response.content, DeletedRecords).log_start_offset

    def groups(self) -> tuple[str, ...]:
        """Return the sorted names of the groups that have members or committed offsets."""
        return decode(self._transport.request("GET", "/groups").content, tuple[str, ...])

    def list_groups(self, *, states: Sequence[str] = ()) -> tuple[GroupListing, ...]:
        """Return the same groups with their states, members and lags, in a few requests.

        ``states`` (Kafka's names, such as ``Stable``), if not empty, keeps only groups in one of them.
        """
        found: list[GroupListing] = []
        params: dict[str, str | int] = {"limit": _GROUPS_PER_PAGE}
        if states:
            params["states"] = ",".join(states)
        while True:
            page = decode(self._transport.request("GET", "/group-listings", params=params).content, GroupListings)
            found += page.groups
            if page.next is None:
                return tuple(found)
            params["after"] = page.next

    def describe_group(self, group: str) -> GroupDescription:
        """Return the group's state and members. Raises UnknownGroupError."""
        return decode(self._ask_coordinator(group, "GET", "").content, GroupDescription)

    def group_offsets(self, group: str, *, topic: str | None = None) -> tuple[GroupOffset, ...]:
        """Return the group's committed offsets by topic and partition, only those of ``topic`` if it is given.

        Raises UnknownGroupError, UnknownTopicError.
        """
        params = None if topic is None else {"topic": topic}
        response = self._ask_coordinator(group, "GET", "/offsets", params=params)
        return decode(response.content, GroupOffsets).offsets

    def group_lag(self, group: str) -> GroupLag:
        """Return the group's lag behind the high watermarks, by topic and partition. Raises UnknownGroupError."""
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
        """Commit the next offset to read of each (topic, partition), all or none. The first commit creates the group.

        Offsets lower than before are also accepted. ``metadata`` is a text for the caller's use, at most 4096 bytes.
        ``topic_ids`` has the ids of the topics that were read, by name; without an id, any topic of that name is meant.
        While a group has members only they may commit, each as ``member``. Raises UnknownTopicError,
        UnknownTopicIdError (a topic was deleted and created again), UnknownPartitionError, OffsetOutOfRangeError beyond
        the high watermark, UnknownMemberIdError, IllegalGenerationError, StaleMemberEpochError, FencedInstanceIdError,
        RebalanceInProgressError, InvalidRequestError.
        """
        known = topic_ids or {}
        entries = tuple(
            OffsetToCommit(topic, partition, offset, known.get(topic), metadata)
            for (topic, partition), offset in offsets.items()
        )
        # Committing the same offsets twice has the effect of one commit, so this is safe to send again.
        body = CommitOffsetsRequest(entries, *(member or ()))
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
        """Commit new positions for a group without members, for all the partitions or none; return the offsets.

        ``dry_run`` only returns them. A group that does not exist is created. Give exactly one of the first five:
        ``to_offset`` -n is n before the high watermark, ``shift_by`` is relative to the committed offset, ``offsets``
        has the next offset to read by (topic, partition). ``topics`` has the partitions of each topic, an empty list
        for all of them; None means all topics that the group has committed to.

        Raises NonEmptyGroupError, UnknownGroupError, UnknownTopicError, UnknownPartitionError, OffsetOutOfRangeError,
        InvalidRequestError.
        """
        asked = ResetOffsetsRequest(
            to=to,
            to_offset=to_offset,
            to_timestamp=to_timestamp_ms,
            shift_by=shift_by,
            offsets=None
            if offsets is None
            else tuple(OffsetToReset(name, number, offset) for (name, number), offset in offsets.items()),
            topics=None
            if topics is None
            else tuple(TopicToReset(name, tuple(numbers) or None) for name, numbers in topics.items()),
            dry_run=dry_run,
        )
        # A shift must not be repeated: it would move the offsets twice.
        idempotent = dry_run or shift_by is None
        response = self._ask_coordinator(group, "POST", "/reset-offsets", json=asked, idempotent=idempotent)
        return decode(response.content, ResetOffsets).offsets

    def delete_groups(self, groups: Sequence[str]) -> dict[str, LogStoreError]:
        """Delete several groups, each by itself; return by name the ``delete_group`` errors of those that stay."""
        errors: dict[str, LogStoreError] = {}
        for begin in range(0, len(groups), DELETED_GROUPS_MAX):
            body = DeleteGroupsRequest(tuple(groups[begin : begin + DELETED_GROUPS_MAX]))
            response = self._transport.request("POST", "/delete-groups", json=body)
            for each in decode(response.content, DeletedGroups).groups:
                if each.error_code is not None:
                    errors[each.group] = error_of(each.error_code, each.message or "")
        return errors

    def delete_group(self, group: str) -> None:
        """Delete the group with all its committed offsets. Raises UnknownGroupError, NonEmptyGroupError."""
        # It is sent once, because a second DELETE after a lost response would fail with UnknownGroupError.
        self._ask_coordinator(group, "DELETE", "", idempotent=False)

    def _ask_leader(self, topic: str, partition: int, method: str, rest: str, **options: Any) -> Response:
        """Send a request about a partition to its leader. ``options`` are those of ``Transport.request``."""
        path = topic_path(topic, f"/partitions/{partition}{rest}")
        self._look_around()
        return self._transport.request(
            method, path, send=partial(self.metadata.ask_leader, topic, partition), **options
        )

    def _ask_coordinator(self, group: str, method: str, rest: str, **options: Any) -> Response:
        """Send a request about a group to its coordinator. ``options`` are those of ``Transport.request``."""
        path = group_path(group, rest)
        self._look_around()
        return self._transport.request(method, path, send=partial(self.metadata.ask_coordinator, group), **options)

    def _look_around(self) -> None:
        """Find out whether there are brokers to choose from. If this fails, the request itself fails or is retried."""
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
    """Return the value as text in Kafka's form."""
    return str(value).lower() if isinstance(value, bool) else str(value)
