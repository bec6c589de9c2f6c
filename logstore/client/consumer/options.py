"""The options of a consumer under Kafka's names: their values, and which exclude each other."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from logstore.client.client_tls import ClientTls
from logstore.client.consumer.records import Deserializer
from logstore.client.option_checks import check_callable, check_number, check_one_of
from logstore.errors import InvalidConfigError, InvalidGroupError
from logstore.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, INSTANCE_NAME_LENGTH_MAX, MIB
from logstore.names import GROUP_NAME_BYTES_MAX, is_group_name, is_legal_name
from logstore.protocol.assignors.registry import CLIENT_ASSIGNORS, SERVER_ASSIGNORS

AutoOffsetReset: TypeAlias = Literal["earliest", "latest", "none"]
GroupProtocol: TypeAlias = Literal["classic", "consumer"]

DEFAULT_FETCH_MAX_BYTES = 16 * MIB
# It is a quarter of a response, so four busy partitions fill one. Large responses cost the store less per record.
DEFAULT_MAX_PARTITION_FETCH_BYTES = 4 * MIB
_DEFAULT_SESSION_TIMEOUT_MS = 45_000
_DEFAULT_HEARTBEAT_INTERVAL_MS = 3_000
_DEFAULT_ASSIGNORS = ("range", "cooperative-sticky")
# Where an option is set instead, in the consumer protocol (KIP-848).
_OF_STORE = {
    "session_timeout_ms": "the store's group_consumer_session_timeout_ms counts",
    "heartbeat_interval_ms": "the store's group_consumer_heartbeat_interval_ms counts",
    "partition_assignment_strategy": "the store assigns, give group_remote_assignor",
}
_TAKEN_BY_A_STORE = (
    ("fetch_min_bytes", FETCH_BYTES_MAX),
    ("fetch_max_wait_ms", FETCH_WAIT_MS_MAX),
    ("fetch_max_bytes", FETCH_BYTES_MAX),
    ("max_partition_fetch_bytes", FETCH_BYTES_MAX),
)


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """The options given to ``Consumer``, checked and cut to the store's limits.

    Raises InvalidConfigError naming the option and its allowed values, InvalidGroupError, InvalidWhereError.
    """

    group_id: str | None
    client_id: str | None
    key_deserializer: Deserializer | None
    value_deserializer: Deserializer | None
    auto_offset_reset: AutoOffsetReset
    enable_auto_commit: bool | None
    auto_commit_interval_ms: int
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int
    max_partition_fetch_bytes: int
    max_poll_records: int
    consumer_timeout_ms: int | None
    request_timeout_ms: int
    default_api_timeout_ms: int
    metadata_max_age_ms: int
    group_instance_id: str | None
    session_timeout_ms: int | None
    heartbeat_interval_ms: int | None
    max_poll_interval_ms: int
    partition_assignment_strategy: str | Sequence[str] | None
    group_protocol: GroupProtocol
    group_remote_assignor: str | None
    where: str | None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = field(default=None, repr=False)

    @property
    def tls(self) -> ClientTls:
        return ClientTls(self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile, self.ssl_password)

    def __post_init__(self) -> None:
        check_one_of("auto_offset_reset", self.auto_offset_reset, get_args(AutoOffsetReset))
        check_one_of("enable_auto_commit", self.enable_auto_commit, (None, True, False))
        for name in ("key_deserializer", "value_deserializer"):
            check_callable(name, getattr(self, name), "from bytes to an object")
        for name, least in (
            ("auto_commit_interval_ms", 0),
            ("fetch_min_bytes", 0),
            ("fetch_max_wait_ms", 0),
            ("fetch_max_bytes", 1),
            ("max_partition_fetch_bytes", 1),
            ("max_poll_records", 1),
            ("request_timeout_ms", 1),
            ("default_api_timeout_ms", 0),
            ("metadata_max_age_ms", 0),
            ("max_poll_interval_ms", 1),
        ):
            check_number(name, getattr(self, name), least, whole=True)
        for name, most in _TAKEN_BY_A_STORE:
            object.__setattr__(self, name, min(getattr(self, name), most))
        if self.consumer_timeout_ms not in (None, math.inf):
            check_number("consumer_timeout_ms", self.consumer_timeout_ms, 0, whole=True)
        if self.group_id is not None and not is_group_name(self.group_id):
            raise InvalidGroupError(f"group_id = {self.group_id!r}: give 1 to {GROUP_NAME_BYTES_MAX} bytes of UTF-8")
        if self.enable_auto_commit and self.group_id is None:
            raise InvalidConfigError("enable_auto_commit needs a group: give group_id")
        if self.where is not None:
            # It is imported late because few consumers use it.
            from logstore.records.where.parser import parse_where

            if not isinstance(self.where, str):
                raise InvalidConfigError(f"where = {self.where!r}: give an expression as '$.user == \"ada\"'")
            parse_where(self.where)
        self._check_membership()

    def _check_membership(self) -> None:
        check_one_of("group_protocol", self.group_protocol, get_args(GroupProtocol))
        if self.group_instance_id is not None:
            is_name = isinstance(self.group_instance_id, str)
            if not is_name or not is_legal_name(self.group_instance_id, INSTANCE_NAME_LENGTH_MAX):
                raise InvalidConfigError(
                    f"group_instance_id = {self.group_instance_id!r}: give 1 to {INSTANCE_NAME_LENGTH_MAX} of "
                    "A-Z a-z 0-9 . _ -, another one to each consumer of the group"
                )
            if self.group_id is None:
                raise InvalidConfigError("group_instance_id needs a group: give group_id")
        if self.group_protocol == "consumer":
            for name in ("session_timeout_ms", "heartbeat_interval_ms", "partition_assignment_strategy"):
                if getattr(self, name) is not None:
                    raise InvalidConfigError(f"{name} does not go with group_protocol = 'consumer': {_OF_STORE[name]}")
            if self.group_remote_assignor is not None:
                check_one_of("group_remote_assignor", self.group_remote_assignor, tuple(SERVER_ASSIGNORS))
            return
        if self.group_remote_assignor is not None:
            raise InvalidConfigError(
                "group_remote_assignor does not go with group_protocol = 'classic', in which a consumer assigns: give "
                "partition_assignment_strategy"
            )
        for name in ("session_timeout_ms", "heartbeat_interval_ms"):
            if getattr(self, name) is not None:
                check_number(name, getattr(self, name), 1, whole=True)
        if self.heartbeat_interval_s >= self.session_timeout_s:
            raise InvalidConfigError(
                f"heartbeat_interval_ms = {round(self.heartbeat_interval_s * 1000)}: give less than "
                f"session_timeout_ms = {round(self.session_timeout_s * 1000)}, a third of it for example"
            )
        if not self.assignors:
            raise InvalidConfigError(
                f"partition_assignment_strategy = {self.partition_assignment_strategy!r}: give one or several of "
                f"{', '.join(map(repr, CLIENT_ASSIGNORS))}"
            )
        for name in self.assignors:
            check_one_of("partition_assignment_strategy", name, tuple(CLIENT_ASSIGNORS), ", or a list of such")

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors, by preference. Classic protocol: those that this member can run. Consumer protocol: the one
        requested from the store, if any.
        """
        if self.group_protocol == "consumer":
            return () if self.group_remote_assignor is None else (self.group_remote_assignor,)
        given = self.partition_assignment_strategy
        if given is None:
            return _DEFAULT_ASSIGNORS
        if isinstance(given, str):
            return (given,)
        return tuple(dict.fromkeys(given)) if isinstance(given, (list, tuple)) else ()

    @property
    def session_timeout_s(self) -> float:
        return (_DEFAULT_SESSION_TIMEOUT_MS if self.session_timeout_ms is None else self.session_timeout_ms) / 1000

    @property
    def heartbeat_interval_s(self) -> float:
        given = self.heartbeat_interval_ms
        return (_DEFAULT_HEARTBEAT_INTERVAL_MS if given is None else given) / 1000

    @property
    def auto_commit_interval_s(self) -> float | None:
        """Seconds between automatic commits; None if only the program commits."""
        if self.group_id is None or self.enable_auto_commit is False:
            return None
        return self.auto_commit_interval_ms / 1000

    @property
    def consumer_timeout_s(self) -> float:
        return math.inf if self.consumer_timeout_ms is None else self.consumer_timeout_ms / 1000
