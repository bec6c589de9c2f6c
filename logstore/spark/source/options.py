"""Options of the source, by the names of Spark's Kafka source; names are case-insensitive."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

TopicPartition = tuple[str, int]
#: As in Spark's Kafka source, in the place of offsets.
EARLIEST, LATEST = -2, -1


@dataclass(frozen=True, slots=True)
class Subscription:
    """Exactly one is given: names, a regular expression for whole names, or partitions by topic."""

    topics: tuple[str, ...] = ()
    pattern: str = ""
    assigned: Mapping[str, tuple[int, ...]] | None = None


@dataclass(frozen=True, slots=True)
class Offsets:
    """EARLIEST or LATEST of ``every`` partition, or an offset (or one of these) by partition."""

    every: int | None = None
    by_partition: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class Timestamps:
    """A time in ms for ``every`` partition, or by partition."""

    every: int | None = None
    by_partition: Mapping[TopicPartition, int] | None = None


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Checked options of a read. ``bootstrap`` (a running store) or ``storage`` (a data root) is empty.

    ``starting`` None is the earliest offset in a batch, the latest in a stream; ``ending`` None is the latest.
    """

    subscription: Subscription
    bootstrap: str = ""
    storage: str = ""
    starting: Offsets | Timestamps | None = None
    ending: Offsets | Timestamps | None = None
    starting_timestamp_strategy: Literal["error", "latest"] = "error"
    fail_on_data_loss: bool = True
    min_partitions: int | None = None
    max_records_per_partition: int | None = None
    include_headers: bool = False
    isolation: Literal["read_uncommitted", "read_committed"] = "read_committed"
    #: The consumer group whose offsets a stream commits; "" for none.
    group: str = ""
    client_id: str = "spark"
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int | None = None
    max_trigger_delay_ms: int = 900_000
    #: How long a store that gives no answer is asked again.
    retry_seconds: float = 10.0


def parse_read_options(options: Mapping[str, str]) -> ReadOptions:
    """InvalidRequestError that names the option and the values that it may have."""
    raise NotImplementedError
