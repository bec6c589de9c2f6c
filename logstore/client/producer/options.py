"""The options of a producer under Kafka's names: their values, and which exclude each other."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from logstore.client.client_tls import ClientTls
from logstore.client.option_checks import check_callable, check_number, check_one_of
from logstore.errors import InvalidConfigError
from logstore.limits import GIB, MIB

#: -1 and the texts are other spellings of "all", 1 and 0.
Acks: TypeAlias = Literal["all", 1, 0, -1, "-1", "1", "0"]
Compression: TypeAlias = Literal["none", "lz4", "zstd"]
#: Called with a key and the number of partitions; returns the partition.
PartitionerFunction: TypeAlias = Callable[[bytes | None, int], int]
PartitionerOption: TypeAlias = Literal["murmur2", "sticky", "round_robin"] | PartitionerFunction
#: Called with a key or value that is not None; returns bytes or text.
Serializer: TypeAlias = Callable[[Any], bytes | str | None]

RETRIES_MAX = 2**31 - 1
_ACKS: tuple[Acks, ...] = ("all", 1, 0)
_ACKS_SPELLINGS: Mapping[object, Acks] = {-1: "all", "-1": "all", "1": 1, "0": 0}
_PARTITIONERS = ("murmur2", "sticky", "round_robin")


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """The options given to ``Producer``, checked. Raises InvalidConfigError naming the option and its values."""

    client_id: str | None
    acks: Acks
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    linger_ms: float
    batch_size: int
    buffer_memory: int
    max_block_ms: float
    compression_type: Compression | None
    retries: int
    retry_backoff_ms: float
    retry_backoff_max_ms: float
    delivery_timeout_ms: float
    max_in_flight_requests_per_connection: int
    request_timeout_ms: float
    max_request_size: int
    metadata_max_age_ms: float
    partitioner: PartitionerOption
    enable_idempotence: bool | None
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    ssl_password: str | None = field(default=None, repr=False)

    @property
    def tls(self) -> ClientTls:
        return ClientTls(self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile, self.ssl_password)

    def __post_init__(self) -> None:
        if isinstance(self.acks, (int, str)):
            object.__setattr__(self, "acks", _ACKS_SPELLINGS.get(self.acks, self.acks))
        check_one_of("acks", self.acks, _ACKS)
        check_one_of("compression_type", self.compression_type, (None, *get_args(Compression)))
        check_one_of("enable_idempotence", self.enable_idempotence, (None, True, False))
        for name in ("key_serializer", "value_serializer"):
            check_callable(name, getattr(self, name), "from an object to bytes")
        if not callable(self.partitioner):
            function = " or a function from (key, number of partitions) to a partition"
            check_one_of("partitioner", self.partitioner, _PARTITIONERS, function)
        for name, least, most in (
            ("linger_ms", 0, None),
            ("batch_size", 1, GIB),
            ("buffer_memory", 1, None),
            ("max_block_ms", 0, None),
            ("retries", 0, RETRIES_MAX),
            ("retry_backoff_ms", 0, None),
            ("retry_backoff_max_ms", 0, None),
            ("delivery_timeout_ms", 0, None),
            ("max_in_flight_requests_per_connection", 1, 1_000),
            ("request_timeout_ms", 1, None),
            ("max_request_size", 1, GIB),
            ("metadata_max_age_ms", 0, None),
        ):
            whole = ProducerOptions.__annotations__[name] is int
            check_number(name, getattr(self, name), least, most, whole=whole)
        if self.batch_size > self.max_request_size:
            raise InvalidConfigError(
                f"batch_size = {self.batch_size} is more than max_request_size = {self.max_request_size}: "
                "lower the first or raise the second"
            )
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            raise InvalidConfigError(
                f"delivery_timeout_ms = {self.delivery_timeout_ms} leaves no time for one try: make it at least "
                f"linger_ms + request_timeout_ms = {self.linger_ms + self.request_timeout_ms}"
            )
        if self.enable_idempotence and self.acks != "all":
            raise InvalidConfigError(f"enable_idempotence needs acks='all', not {self.acks!r}: change one of them")
        if self.enable_idempotence and self.retries == 0:
            raise InvalidConfigError("enable_idempotence needs retries: leave them at their default, or turn it off")

    @property
    def idempotent(self) -> bool:
        """True if the producer is idempotent. As in Kafka it is, unless other options allow records to be lost."""
        if self.enable_idempotence is None:
            return self.acks == "all" and self.retries > 0
        return self.enable_idempotence

    @property
    def codec(self) -> str | None:
        return None if self.compression_type in (None, "none") else self.compression_type


DEFAULT_BATCH_SIZE = MIB
DEFAULT_MAX_REQUEST_SIZE = 4 * MIB
DEFAULT_BUFFER_MEMORY = 32 * MIB
