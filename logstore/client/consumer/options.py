"""The options of a consumer, by Kafka's names: the values of each, and which do not go together."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from logstore.client.consumer.records import Deserializer
from logstore.client.option_checks import check_callable, check_number, check_one_of
from logstore.errors import InvalidConfigError, InvalidGroupError
from logstore.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, GROUP_NAME_LENGTH_MAX, MIB
from logstore.names import is_legal_name

AutoOffsetReset: TypeAlias = Literal["earliest", "latest", "none"]

DEFAULT_FETCH_MAX_BYTES = 16 * MIB
# A quarter of an answer: four busy partitions fill one, and a store that is asked rarely has less to do per record.
DEFAULT_MAX_PARTITION_FETCH_BYTES = 4 * MIB
_TAKEN_BY_A_STORE = (
    ("fetch_min_bytes", FETCH_BYTES_MAX),
    ("fetch_max_wait_ms", FETCH_WAIT_MS_MAX),
    ("fetch_max_bytes", FETCH_BYTES_MAX),
    ("max_partition_fetch_bytes", FETCH_BYTES_MAX),
)


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """As given to ``Consumer``, checked, and no more than a store takes.

    InvalidConfigError naming the option and what it takes, InvalidGroupError.
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
        ):
            check_number(name, getattr(self, name), least, whole=True)
        for name, most in _TAKEN_BY_A_STORE:
            object.__setattr__(self, name, min(getattr(self, name), most))
        if self.consumer_timeout_ms not in (None, math.inf):
            check_number("consumer_timeout_ms", self.consumer_timeout_ms, 0, whole=True)
        if self.group_id is not None and not is_legal_name(self.group_id, GROUP_NAME_LENGTH_MAX):
            raise InvalidGroupError(
                f"group_id = {self.group_id!r}: give 1 to {GROUP_NAME_LENGTH_MAX} of A-Z a-z 0-9 . _ - "
                "(but not '.' or '..')"
            )
        if self.enable_auto_commit and self.group_id is None:
            raise InvalidConfigError("enable_auto_commit needs a group: give group_id")

    @property
    def auto_commit_interval_s(self) -> float | None:
        """Seconds between automatic commits; None: only the program commits."""
        if self.group_id is None or self.enable_auto_commit is False:
            return None
        return self.auto_commit_interval_ms / 1000

    @property
    def consumer_timeout_s(self) -> float:
        return math.inf if self.consumer_timeout_ms is None else self.consumer_timeout_ms / 1000
