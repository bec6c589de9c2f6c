"""Settings of the store: given arguments over ``LOGSTORE_*`` variables over ``conf/logstore.toml`` over defaults.

Owns the names: a field ``journal_max_bytes`` is ``journal.max.bytes`` in the file (quoted or not) and
``LOGSTORE_JOURNAL_MAX_BYTES`` in the environment. The store's defaults for topic keys have Kafka's names
(``broker_defaults``), or are in the file's table ``[topic]`` or in ``LOGSTORE_TOPIC_<KEY>``. A misspelt name is
refused, never ignored.
"""

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Self, get_args, get_origin

from pydantic import Field, SecretStr, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from logstore.broker_defaults import set_synonyms, topic_defaults_of
from logstore.errors import DataDirectoryError, InvalidConfigError
from logstore.limits import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, GIB, MIB, PARTITIONS_PER_TOPIC_MAX
from logstore.local_path import local_path
from logstore.quantities import DURATION_FORMS, SIZE_FORMS, duration_ms, size_bytes
from logstore.settings_sources import DEFAULTS_FIELDS, ENV_PREFIX, from_environment, from_file
from logstore.tls.options import PROTOCOLS, ClientAuth, TlsOptions
from logstore.tls.principal_mapping import PrincipalMapping
from logstore.topic_config import ConfigKind, nearest, validate_overrides

#: The allowed values of a setting in words, by pydantic's name of the error.
_TAKES = {
    "bool_parsing": "it takes true or false",
    "bool_type": "it takes true or false",
    "greater_than_equal": "it takes a number of at least {ge}",
    "int_from_float": "it takes a whole number",
    "int_parsing": "it takes a whole number",
    "int_type": "it takes a whole number",
    "less_than_equal": "it takes a number of at most {le}",
    "literal_error": "it takes {expected}",
    "string_too_short": "it takes at least one character",
}


_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+(:[0-9]{1,5})?")
_ADVERTISED_HOST = re.compile(r"[A-Za-z0-9._-]+|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*")
_ALL_ADDRESSES = frozenset(("0.0.0.0", "::"))  # noqa: S104 - to know them
_KAFKA_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):(?P<port>[0-9]{1,5})")
_KAFKA_IDLE_MS = 600_000
_SSL = "SSL://"
_SECRET_LENGTH_MIN = 16
_DURATION = (duration_ms, f"it takes a whole number of ms, or a duration such as {DURATION_FORMS}")
_SIZE = (size_bytes, f"it takes a whole number of bytes, or a size such as {SIZE_FORMS}")
#: The units by the last word of a setting's name.
_UNITS: Mapping[str, tuple[Callable[[str], int], str]] = {
    "ms": _DURATION,
    "bytes": _SIZE,
    "size": _SIZE,
    "second": _SIZE,
}


class Settings(BaseSettings):
    """The settings of one broker process; immutable. Sizes are in bytes.

    Raises pydantic.ValidationError for a value that does not fit, and InvalidConfigError for a file or variable that
    cannot be read or is misspelt. ``load_settings`` turns both into InvalidConfigError.
    """

    model_config = SettingsConfigDict(frozen=True, extra="forbid", env_prefix=ENV_PREFIX, validate_default=True)

    data: Path = Field(Path("data"), description="Directory that holds topics, journals and offsets.")
    host: str = Field("127.0.0.1", min_length=1, description="Address that the HTTP server listens on.")
    port: int = Field(8082, ge=0, le=65_535, description="Port of the HTTP server; 0 takes a free one.")
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Names by which clients may call the store (`Host`), for one port or for all: a list, or "
        "separated by commas. IP addresses, `localhost` and `host` are always accepted; so are this "
        "machine's own names, unless `host` is a loopback address.",
    )
    broker_id: int = Field(0, ge=0, le=2**31 - 1, description="This broker's id; names its part of the data directory.")
    journal_roll_ms: int = Field(
        3_600_000,
        ge=1_000,
        description="A journal file that has records is replaced after this time. Records that are in a table by "
        "then are in no journal file afterwards; all others are copied into the new file.",
    )
    journal_max_bytes: int = Field(
        4 * GIB,
        ge=1,
        description="Bytes that the journal may hold. Beyond that, produce requests get 429 until a roll has finished.",
    )
    journal_topic_max_bytes: int | None = Field(
        None,
        ge=1,
        description="Bytes that the journal may hold for one topic. Beyond that, produce requests to the topic "
        "get 429. Default: a quarter of `journal.max.bytes`.",
    )
    queued_max_request_bytes: int = Field(
        256 * MIB,
        ge=1,
        description="The most bytes of requests in flight; the same limit applies to the bytes of responses. "
        "Beyond that, requests get 429.",
    )
    max_request_size: int = Field(64 * MIB, ge=1, le=GIB, description="Largest request body, after inflation.")
    max_connections: int = Field(
        10_000,
        ge=1,
        description="The most connections at once, of HTTP and of Kafka's clients together; a further one gets "
        "503, or is closed. At most three quarters of the files that the process may open (`ulimit "
        "-n`) are used for them; the log needs the others.",
    )
    connections_max_idle_ms: int = Field(
        60_000,
        ge=1,
        description="Close a connection on which no request begins for this long. Default for Kafka's clients: "
        "600000, as in Kafka.",
    )
    request_head_timeout_ms: int = Field(
        30_000,
        ge=1,
        description="How long the request line and the headers may take from their first byte; after that the "
        "response is 408.",
    )
    request_body_timeout_ms: int = Field(
        30_000,
        ge=1,
        description="In every interval of this length the client must send 1 KiB of the body for each second, or "
        "the end of the body; otherwise the response is 408.",
    )
    response_timeout_ms: int = Field(
        60_000,
        ge=1,
        description="Within twice this time a client must read 1 KiB of the response for each second of this "
        "time, or all that is left of it; otherwise the connection is closed.",
    )
    max_event_streams: int = Field(
        2_000,
        ge=1,
        description="The most streams of events (`GET /topics/{topic}/events`) at once; a further one gets 429.",
    )
    event_stream_keepalive_ms: int = Field(
        15_000,
        ge=1,
        description="After this time without an event a stream sends a comment, so that proxies keep it open.",
    )
    auto_create_topics_enable: bool = Field(
        default=False,
        description="Create a topic when a producer or consumer first uses it. Kafka's default is true.",
    )
    num_partitions: int = Field(
        1, ge=1, le=PARTITIONS_PER_TOPIC_MAX, description="Partitions of a topic that is created without a count."
    )
    offsets_topic_num_partitions: int = Field(
        8,
        ge=1,
        le=PARTITIONS_PER_TOPIC_MAX,
        description="Partitions of the topic of group offsets. The setting is read when the first offset is committed.",
    )
    offsets_retention_minutes: int = Field(
        10_080,
        ge=1,
        description="Minutes that a group without members keeps an offset, from its commit or from when the last "
        "member left.",
    )
    offsets_retention_check_interval_ms: int = Field(
        600_000, ge=1, description="Pause between two searches for expired offsets of groups."
    )
    group_min_session_timeout_ms: int = Field(
        6_000, ge=1, description="The shortest session timeout that a member of a classic group may ask for."
    )
    group_max_session_timeout_ms: int = Field(
        1_800_000, ge=1, description="The longest session timeout that a member of a classic group may ask for."
    )
    group_initial_rebalance_delay_ms: int = Field(
        3_000, ge=0, description="How long the first rebalance of an empty classic group waits for more members."
    )
    group_max_size: int = Field(1_000, ge=1, description="The most members of a group.")
    group_new_member_join_timeout_ms: int = Field(
        300_000, ge=1, description="How long a new member of a classic group waits for its first rebalance."
    )
    group_consumer_session_timeout_ms: int = Field(
        45_000,
        ge=1,
        description="Time without a heartbeat after which a member of a consumer group (KIP-848) is removed.",
    )
    group_consumer_heartbeat_interval_ms: int = Field(
        5_000, ge=1, description="How often a member of a consumer group (KIP-848) sends a heartbeat."
    )
    group_consumer_migration_policy: Literal["disabled", "downgrade", "upgrade", "bidirectional"] = Field(
        "bidirectional",
        description="Which groups with members are converted: `upgrade`, a classic group when a member of the consumer "
        "protocol (KIP-848) joins; `downgrade`, a consumer group when its last member of that protocol leaves; "
        "`bidirectional`, both; `disabled`, none.",
    )
    max_consumer_instances: int = Field(
        1_000,
        ge=1,
        description="The most consumer instances (`POST /consumers/{group}`) at once; a further one gets 429.",
    )
    consumer_instance_timeout_ms: int = Field(
        300_000, ge=1, description="Time without a request after which a consumer instance is removed."
    )
    consumer_max_poll_interval_ms: int = Field(
        300_000,
        ge=1,
        description="Time without a poll after which a consumer instance leaves its group; it joins again at the "
        "next poll. Kafka's `max.poll.interval.ms`.",
    )
    consumer_request_timeout_ms: int = Field(
        1_000,
        ge=0,
        le=FETCH_WAIT_MS_MAX,
        description="How long a poll of a consumer instance waits for records, unless the instance or the poll sets "
        "another time.",
    )
    consumer_request_max_bytes: int = Field(
        16 * MIB,
        ge=1,
        le=FETCH_BYTES_MAX,
        description="The most bytes of records in the response to a poll of a consumer instance; the first record "
        "may be larger. REST Proxy's default is 64 MiB.",
    )
    producer_id_expiration_ms: int = Field(
        86_400_000,
        ge=1,
        description="How long a partition remembers an idempotent producer that appends nothing to it.",
    )
    broker_defaults: dict[str, str] = Field(
        default_factory=dict,
        description="Kafka's broker settings that give topic keys their defaults, as they are set.",
    )
    topic_defaults: dict[str, str] = Field(
        default_factory=dict,
        description="The store's defaults for topic keys: the table `[topic]` in the file, and `broker_defaults`.",
    )
    # ---- Kafka's clients
    kafka_listeners: str = Field(
        "127.0.0.1:9092",
        description="Address for Kafka's clients: `host:port`, with or without `PLAINTEXT://`, or `SSL://host:port` "
        "for TLS; port 0 takes a free one. Empty: no listener. The start fails if the port is in use.",
    )
    kafka_advertised_listeners: str | None = Field(
        None,
        description="Address, `host:port`, at which Kafka's clients reach this broker. Default: the one of "
        "`kafka.listeners`; if that is an address for all interfaces, `advertised.host` or the name of this machine. "
        "`PLAINTEXT://` or `SSL://` before it is that of `kafka.listeners`.",
    )
    # ---- TLS
    http_tls: bool = Field(
        default=False, description="Serve HTTP over TLS alone, with the certificate of `ssl.keystore.location`."
    )
    ssl_keystore_location: Path | None = Field(
        None,
        description="PEM file with the store's certificate, the chain to its CA, and the private key. A file that "
        "changes is taken within seconds, or at SIGHUP, for new connections. Only its owner and group may read it.",
    )
    ssl_key_password: SecretStr | None = Field(
        None, description="Password of the private key in `ssl.keystore.location`, if it is encrypted."
    )
    ssl_truststore_location: Path | None = Field(
        None,
        description="PEM file with the certificates of the CAs whose clients, and brokers, the store trusts.",
    )
    ssl_client_auth: ClientAuth = Field(
        "none",
        description="Whether clients show a certificate over TLS. With `requested` they need none, but one that they "
        "show must be valid.",
    )
    ssl_enabled_protocols: tuple[str, ...] = Field(
        tuple(PROTOCOLS), description="Versions of TLS: `TLSv1.2`, `TLSv1.3`, or both, separated by commas."
    )
    ssl_principal_mapping_rules: str = Field(
        "DEFAULT",
        description="How the subject of a client's certificate becomes the name of its principal: Kafka's rules "
        "`RULE:pattern/replacement/[LU]` and `DEFAULT` (the whole subject), separated by commas. A client whose "
        "subject fits none is refused.",
    )
    security_inter_broker_protocol: Literal["PLAINTEXT", "SSL"] = Field(
        "PLAINTEXT",
        description="With `SSL` the brokers of a cluster talk to each other over TLS. The certificate of each must be "
        "valid by `ssl.truststore.location`, and for the address that the broker registers. All brokers need the same "
        "value.",
    )
    # ---- between the brokers of a cluster
    inter_broker_port: int = Field(
        0, ge=0, le=65_535, description="Port, on `host`, for the other brokers of a cluster; 0 takes a free one."
    )
    advertised_host: str | None = Field(
        None,
        description="Name or address by which others reach this broker of a cluster. Default: `host`, or the name of "
        "this machine if `host` is an address for all interfaces.",
    )
    cluster_secret: SecretStr | None = Field(
        None,
        description="Secret by which the brokers of a cluster authenticate each other: at least 16 characters, the "
        "same for all brokers. Without it a broker of a cluster listens on a loopback address only.",
    )
    socket_send_buffer_bytes: int = Field(
        -1,
        ge=-1,
        le=2**31 - 1,
        description="Send buffer of accepted connections; -1: the system's default. Kafka's default is 102400.",
    )
    socket_receive_buffer_bytes: int = Field(
        -1,
        ge=-1,
        le=2**31 - 1,
        description="Receive buffer of accepted connections; -1: the system's default. Kafka's default is 102400.",
    )
    replica_socket_timeout_ms: int = Field(
        30_000,
        ge=1,
        description="How long a broker waits for another broker's response, or for any message on a connection, "
        "before it closes the connection.",
    )
    replica_socket_receive_buffer_bytes: int = Field(
        -1,
        ge=-1,
        le=2**31 - 1,
        description="Receive buffer of connections to other brokers; -1: the system's default. "
        "Kafka's default is 65536.",
    )
    num_replica_fetchers: int = Field(
        1, ge=1, le=64, description="Connections over which a broker copies partitions from each other broker."
    )
    replica_fetch_wait_max_ms: int = Field(
        500,
        ge=0,
        le=FETCH_WAIT_MS_MAX,
        description="How long a leader keeps a follower's fetch that finds nothing new.",
    )
    replica_fetch_max_bytes: int = Field(
        MIB,
        ge=1,
        le=FETCH_BYTES_MAX,
        description="The most bytes of one partition in a response to a follower; the first batch may be larger.",
    )
    replica_fetch_response_max_bytes: int = Field(
        10 * MIB,
        ge=1,
        le=GIB,
        description="The most bytes of a response to a follower; the first batch may be larger.",
    )
    replica_fetch_backoff_ms: int = Field(
        1_000, ge=0, description="Pause of a follower after a failed fetch, for the broker or for the partition."
    )
    replica_lag_time_max_ms: int = Field(
        30_000,
        ge=1,
        description="A follower that has not reached the leader's log end for this time leaves the in-sync replicas.",
    )
    # ---- jobs
    jobs_enable: bool = Field(
        default=False,
        description="Run retention, key compaction and vacuum in a process beside the store, as "
        "`logstore serve --jobs` does. `log.retention.check.interval.ms` and `log.cleaner.*` are for this process.",
    )
    log_retention_check_interval_ms: int = Field(
        300_000,
        ge=1,
        description="Pause between two passes of retention and vacuum; the first begins 30 s after the start at the "
        "latest. Un-sealed records that have expired by `retention.ms` are rolled after this time at the earliest.",
    )
    log_cleaner_enable: bool = Field(default=True, description="Run key compaction.")
    log_cleaner_backoff_ms: int = Field(
        15_000, ge=0, description="Pause of key compaction when no topic is dirty enough."
    )
    log_cleaner_threads: int = Field(1, ge=1, le=64, description="How many topics are compacted at the same time.")
    log_cleaner_io_max_bytes_per_second: int | None = Field(
        None, ge=1, description="The most bytes that jobs read and write in a second. Default: no limit."
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="The lowest level of logged events."
    )
    log_format: Literal["console", "json"] = Field("console", description="Log lines for people or for programs.")
    # ---- the cluster ----
    zookeeper_connect: str | None = Field(
        None,
        description="The ZooKeeper of the cluster: `host:port,host:port/path`. Create the path first. Default: one "
        "node, without ZooKeeper.",
    )
    zookeeper_session_timeout_ms: int = Field(
        18_000,
        ge=1,
        description="Time after which a broker that ZooKeeper cannot reach loses the leadership of its partitions. "
        "ZooKeeper allows 2 to 20 of its ticks.",
    )
    broker_rack: str | None = Field(
        None,
        min_length=1,
        description="Replicas of a partition are spread over racks. Default: the name of the host.",
    )
    log_dirs: Path | None = Field(
        None,
        description="This broker's own directory, with its journal, on a disk of its machine. Default: "
        "`brokers/<id>` in the data directory. For a broker of a cluster.",
    )
    default_replication_factor: int = Field(
        1, ge=1, le=32_767, description="Replicas of the partitions of a topic that is created without a factor."
    )
    offsets_topic_replication_factor: int = Field(
        3,
        ge=1,
        le=32_767,
        description="Replicas of the topic of group offsets; fewer if there are fewer brokers when it is made.",
    )
    controlled_shutdown_enable: bool = Field(
        default=True, description="Hand a broker's partitions to other leaders before it stops."
    )
    auto_leader_rebalance_enable: bool = Field(
        default=True, description="Let the controller give partitions back to their preferred leaders."
    )
    leader_imbalance_check_interval_seconds: int = Field(
        300, ge=1, description="Pause between two checks of preferred leaders by the controller."
    )
    leader_imbalance_per_broker_percentage: int = Field(
        10,
        ge=0,
        le=100,
        description="A broker gets its partitions back when others lead more than this share of the partitions "
        "that prefer it.",
    )
    # ---- readers elsewhere ----
    data_location: str | None = Field(
        None,
        description="URI under which readers on other machines see the data directory. Default: its own `file://` URI.",
    )

    @field_validator("*", mode="before")
    @classmethod
    def _read_units(cls, value: object, info: ValidationInfo) -> object:
        """Convert ``60s`` for a time, ``64MiB`` for a size; a number is left to pydantic."""
        if not isinstance(value, str) or value.strip().lstrip("+-").isdecimal():
            return value
        units = _UNITS.get((info.field_name or "").rpartition("_")[2])
        if units is None:
            return value
        read, takes = units
        try:
            return read(value.strip())
        except ValueError:
            raise ValueError(takes) from None

    @field_validator("allowed_hosts", "ssl_enabled_protocols", mode="before")
    @classmethod
    def _split_list(cls, value: object) -> object:
        return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value

    @field_validator("allowed_hosts")
    @classmethod
    def _check_hosts(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(_HOST_NAME.fullmatch(name) for name in value):
            raise ValueError("it takes names such as logs.example or logs.example:8082")
        return value

    @field_validator("ssl_enabled_protocols")
    @classmethod
    def _check_protocols(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not value or not set(value) <= PROTOCOLS.keys():
            raise ValueError(f"it takes {', '.join(PROTOCOLS)}, separated by commas")
        return value

    @field_validator("ssl_principal_mapping_rules")
    @classmethod
    def _check_mapping_rules(cls, value: str) -> str:
        PrincipalMapping.parse(value)
        return value

    @field_validator("topic_defaults", mode="before")
    @classmethod
    def _check_topic_defaults(cls, value: object, info: ValidationInfo) -> object:
        if not isinstance(value, Mapping):
            return value
        settings = info.data.get("broker_defaults", {})
        theirs = topic_defaults_of(settings)
        ours = validate_overrides({str(name): str(text) for name, text in value.items()})
        for key in theirs:
            if key in ours and ours[key] != theirs[key]:
                setting, text = next(set_synonyms(key, settings))
                raise InvalidConfigError(
                    f"{key} has two defaults: {setting}={text}, and {key}={ours[key]} of [topic]; keep one of them"
                )
        return validate_overrides({**theirs, **ours})

    @field_validator("data", "log_dirs", "ssl_keystore_location", "ssl_truststore_location", mode="before")
    @classmethod
    def _take_local_paths(cls, value: object) -> object:
        if not isinstance(value, (str, os.PathLike)):
            return value
        try:
            return local_path(value)
        except DataDirectoryError as error:
            raise ValueError(error.message) from None

    @field_validator("data")
    @classmethod
    def _check_data(cls, value: Path) -> Path:
        if "%" in str(value.absolute()):
            raise ValueError("its path may have no '%', which Delta readers take for an escape")
        return value

    @field_validator("advertised_host")
    @classmethod
    def _check_advertised_host(cls, value: str | None) -> str | None:
        if value is not None and not _ADVERTISED_HOST.fullmatch(value):
            raise ValueError("it takes a name or an address without a port, such as store-1.example")
        return value

    @field_validator("kafka_listeners")
    @classmethod
    def _check_kafka_listeners(cls, value: str) -> str:
        return _kafka_address(value, port_min=0) if value.strip() else ""

    @field_validator("kafka_advertised_listeners")
    @classmethod
    def _check_kafka_advertised_listeners(cls, value: str | None) -> str | None:
        if value is None or not value.strip():
            return None
        address = _kafka_address(value, port_min=1)
        if _without_protocol(address)[0] in _ALL_ADDRESSES:
            raise ValueError("clients connect to it: give a name or an address of this machine, and a port")
        return address

    @field_validator("cluster_secret")
    @classmethod
    def _check_cluster_secret(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and len(value.get_secret_value()) < _SECRET_LENGTH_MIN:
            raise ValueError(f"it takes at least {_SECRET_LENGTH_MIN} characters (openssl rand -hex 32 makes some)")
        return value

    @field_validator("data_location")
    @classmethod
    def _check_data_location(cls, value: str | None) -> str | None:
        if value is None:
            return None
        scheme, separator, path = value.partition("://")
        if not (scheme and separator and path):
            raise ValueError("it takes a URI such as file:///srv/log or s3a://bucket/log")
        return value.rstrip("/")

    @field_validator("log_dirs", mode="before")
    @classmethod
    def _check_log_dirs(cls, value: object) -> object:
        if isinstance(value, (list, tuple)) or (isinstance(value, str) and "," in value):
            raise ValueError("it takes one directory")
        return value

    @model_validator(mode="after")
    def _check_cluster(self) -> Self:
        # A store of one node does not recognise its journal, so it would take another directory for an empty one.
        if self.log_dirs is not None and self.zookeeper_connect is None:
            raise ValueError("log.dirs is for a broker of a cluster: set zookeeper.connect, or leave log.dirs out")
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        wanted_by = [
            name
            for name, is_wanted in (
                ("http.tls", self.http_tls),
                ("SSL:// in kafka.listeners", self.kafka_is_tls),
                ("security.inter.broker.protocol=SSL", self.peers_are_tls),
            )
            if is_wanted
        ]
        if wanted_by and self.ssl_keystore_location is None:
            raise ValueError(f"{wanted_by[0]} needs a certificate: set ssl.keystore.location")
        if self.ssl_truststore_location is None:
            if self.peers_are_tls:
                raise ValueError("security.inter.broker.protocol=SSL needs the CA: set ssl.truststore.location")
            if self.ssl_client_auth != "none":
                raise ValueError(f"ssl.client.auth={self.ssl_client_auth} needs a CA: set ssl.truststore.location")
        advertised = self.kafka_advertised_listeners or ""
        if "://" in advertised and advertised.startswith(_SSL) != self.kafka_is_tls:
            raise ValueError(
                f"kafka.advertised.listeners ({advertised}) and kafka.listeners ({self.kafka_listeners}) have "
                "different protocols: give both the same"
            )
        return self

    @model_validator(mode="after")
    def _check_sizes(self) -> Self:
        # Kafka requires the same of queued.max.request.bytes: otherwise the largest request never fits.
        if self.queued_max_request_bytes < self.max_request_size:
            raise ValueError(
                f"queued.max.request.bytes ({self.queued_max_request_bytes}) is below "
                f"max.request.size ({self.max_request_size}); raise the first or lower the second"
            )
        return self

    @model_validator(mode="after")
    def _check_waits(self) -> Self:
        # Kafka requires the same: otherwise every fetch that waits ends its connection, or its follower's membership.
        for name, bound in (
            ("replica.socket.timeout.ms", self.replica_socket_timeout_ms),
            ("replica.lag.time.max.ms", self.replica_lag_time_max_ms),
        ):
            if bound < self.replica_fetch_wait_max_ms:
                raise ValueError(
                    f"{name} ({bound}) is below replica.fetch.wait.max.ms ({self.replica_fetch_wait_max_ms}); raise "
                    "the first or lower the second"
                )
        return self

    @property
    def reachable_host(self) -> str:
        """The name or address by which others reach this broker."""
        if self.advertised_host is not None:
            return self.advertised_host
        return socket.gethostname() if self.host in _ALL_ADDRESSES else self.host

    @property
    def kafka_address(self) -> tuple[str, int] | None:
        """The address on which to listen for Kafka's clients; None for no listener."""
        return _without_protocol(self.kafka_listeners) if self.kafka_listeners else None

    @property
    def kafka_is_tls(self) -> bool:
        """True if Kafka's clients connect over TLS."""
        return self.kafka_listeners.startswith(_SSL)

    @property
    def peers_are_tls(self) -> bool:
        """True if brokers connect to each other over TLS."""
        return self.security_inter_broker_protocol == "SSL" and self.zookeeper_connect is not None

    @property
    def tls_options(self) -> TlsOptions | None:
        """The settings of TLS; None if no listener uses it."""
        location = self.ssl_keystore_location
        if location is None or not (self.http_tls or self.kafka_is_tls or self.peers_are_tls):
            return None
        password = self.ssl_key_password
        return TlsOptions(
            location,
            None if password is None else password.get_secret_value(),
            self.ssl_truststore_location,
            self.ssl_client_auth,
            self.ssl_enabled_protocols,
            self.ssl_principal_mapping_rules,
        )

    def kafka_advertised(self, port: int) -> tuple[str, int]:
        """Return the host and port that are advertised to Kafka's clients; ``port`` is the one that is listened on."""
        if self.kafka_advertised_listeners is not None:
            return _without_protocol(self.kafka_advertised_listeners)
        host, _ = _without_protocol(self.kafka_listeners)
        if host in _ALL_ADDRESSES:
            host = self.advertised_host or socket.gethostname()
        return host, port

    @property
    def kafka_idle_ms(self) -> int:
        """The time after which an idle connection of a Kafka client is closed. It is Kafka's default, since its clients
        close theirs after nine minutes and may lose a request if we close the connection at that moment.
        """
        given = "connections_max_idle_ms" in self.model_fields_set
        return self.connections_max_idle_ms if given else _KAFKA_IDLE_MS

    @property
    def topic_journal_bytes_max(self) -> int:
        """The bytes that the journal may hold for one topic."""
        return self.journal_topic_max_bytes or max(1, self.journal_max_bytes // 4)

    @property
    def log_directory(self) -> Path:
        """The broker's own directory, with its journal."""
        return self.log_dirs or self.data / "brokers" / str(self.broker_id)

    @property
    def location(self) -> str:
        """The URI of the data directory for readers, without a slash at its end."""
        return self.data_location or self.data.resolve().as_uri()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic's signature
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (
            init_settings,
            InitSettingsSource(settings_cls, from_environment(os.environ, plain_settings())),
            InitSettingsSource(settings_cls, from_file(os.environ.get(f"{ENV_PREFIX}CONFIG"), plain_settings())),
        )


def load_settings(**given: Any) -> Settings:
    """Return settings with ``given`` on top; a given None means "not given". Raises InvalidConfigError naming the
    setting, its value and what is wrong with it.
    """
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise InvalidConfigError("; ".join(_explain(error))) from None


def with_kafka_port(settings: Settings, port: int | None, host: str) -> Settings:
    """Return the settings with ``port`` for Kafka's clients, on ``host``, or on that of ``kafka.listeners`` if it was
    set; with None return the settings as they are.
    """
    if port is None:
        return settings
    given = {name: getattr(settings, name) for name in settings.model_fields_set}
    if "kafka_listeners" in given and settings.kafka_address is not None:
        host, _ = settings.kafka_address
    protocol = _SSL if settings.kafka_is_tls else ""
    return load_settings(**given | {"kafka_listeners": protocol + address_of(host, port)})


def host_and_port(address: str) -> tuple[str, int]:
    """Split ``host:port``; an IPv6 address is returned without its brackets."""
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


def address_of(host: str, port: int) -> str:
    """Do the inverse of ``host_and_port``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _kafka_address(value: str, port_min: int) -> str:
    """Return the ``host:port`` of a listener in Kafka's form, with ``SSL://`` before it for TLS; ``PLAINTEXT://`` is
    kept only if it was given. Raises ValueError.
    """
    if "," in value:
        raise ValueError("it takes one address")
    protocol, separator, rest = value.strip().rpartition("://")
    if protocol.upper().startswith("SASL_"):
        raise ValueError(f"{protocol}:// is not supported yet, it comes with authentication: it takes SSL, PLAINTEXT")
    if separator and protocol.upper() not in ("PLAINTEXT", "SSL"):
        raise ValueError(f"{protocol}:// is unknown: it takes PLAINTEXT://host:port, SSL://host:port, or host:port")
    found = _KAFKA_ADDRESS.fullmatch(rest)
    if found is None or not port_min <= int(found["port"]) <= 65_535:
        raise ValueError("it takes host:port, such as 127.0.0.1:9092")
    # In Kafka a listener without a host means all addresses.
    return protocol.upper() + separator + (rest if found["host"] else f"0.0.0.0:{found['port']}")


def _without_protocol(address: str) -> tuple[str, int]:
    return host_and_port(address.rpartition("://")[2])


def setting_name(field: str) -> str:
    """Return the spelling in the configuration file: dots between words, as in Kafka."""
    # TOML allows no `data.location` beside `data`.
    return field if field == "data_location" else field.replace("_", ".")


def plain_settings() -> dict[str, str]:
    """Return the fields of single settings, by their names in the file: all except the two tables of defaults."""
    return {setting_name(field): field for field in Settings.model_fields if field not in DEFAULTS_FIELDS}


def _explain(error: ValidationError) -> Iterator[str]:
    names = {setting_name(field) for field in Settings.model_fields}
    for problem in error.errors():
        text = problem["msg"].removeprefix("Value error, ")
        if not problem["loc"]:
            yield text
        elif problem["type"] == "extra_forbidden":
            name = setting_name(str(problem["loc"][0]))
            yield f"no setting '{name}'; {nearest(name, names)}"
        else:
            limits = problem.get("ctx", {})
            takes = _TAKES.get(problem["type"], text).format_map(limits)
            # A secret is never shown, not even a wrong one.
            given = "what was given" if problem["loc"][0] in secret_settings() else f"'{problem['input']}'"
            yield f"{setting_name(str(problem['loc'][0]))} cannot be {given}: {takes}"


def secret_settings() -> set[str]:
    """Return the fields that hold a secret: their type is SecretStr."""
    return {name for name, field in Settings.model_fields.items() if "SecretStr" in str(field.annotation)}


def setting_kind(field: str) -> ConfigKind:
    """Return Kafka's name of the type of a setting's values."""
    annotation: Any = Settings.model_fields[field].annotation
    if get_origin(annotation) is UnionType:
        (annotation,) = (one for one in get_args(annotation) if one is not NoneType)
    if get_origin(annotation) is tuple:
        return "list"
    kinds: dict[Any, ConfigKind] = {bool: "boolean", int: "long", float: "double", SecretStr: "password"}
    return kinds.get(annotation, "string")


def setting_description(field: str) -> str:
    """Return the description of a setting in a sentence or two, as in docs/configuration.md."""
    return Settings.model_fields[field].description or ""
