"""All fixed bounds in one place. Bounds that a user may change are in ``topic_config.py`` and ``settings.py``."""

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

TOPIC_NAME_LENGTH_MAX = 249
PARTITIONS_PER_TOPIC_MAX = 10_000
# This bounds names of consumer instances, and is Kafka's bound of a group.instance.id.
INSTANCE_NAME_LENGTH_MAX = 249
# The part of a name that a message shows: a group's name may have 32,767 bytes.
SHOWN_NAME_LENGTH_MAX = 249
# This is Kafka's offset.metadata.max.bytes, in UTF-8.
OFFSET_METADATA_BYTES_MAX = 4096
# A member's metadata for all protocols, and its assignment: the record of a group has those of all members.
GROUP_MEMBER_BYTES_MAX = 256 * 1024
# The least size that the names of a member (its ids, its client's id and host) and the rest of it count.
GROUP_MEMBER_BYTES = KIB
# The bytes of all members in a group's record, which is written again with each change of the group. In a classic group
# it bounds the metadata with which they join, and separately the assignments of its leader.
GROUP_BYTES_MAX = 4 * MIB
# Beyond this size, the bytes of the members of all groups in a partition of the topic of groups do not grow.
ALL_GROUPS_BYTES_MAX = 64 * MIB
# Ids that a partition of the topic of groups has issued to members that have not joined yet: they take memory until a
# session ends, and a client can ask for one after the other.
GROUP_MEMBERS_PENDING_MAX = 100_000
HEADERS_PER_RECORD_MAX = 1_000
# Records of refused record batches that a response names one by one.
RECORD_ERRORS_MAX = 1_000
# Idempotent producers that a partition remembers: up to 15 batches of 38 bytes each, 6 MB, and those that followers do
# not have yet. Beyond that it forgets the producer that has not appended for longest.
PRODUCERS_PER_PARTITION_MAX = 10_000
IDEMPOTENCY_KEY_LENGTH_MAX = 255
# The greatest epoch of a producer (KIP-360): after it the producer gets another id.
PRODUCER_EPOCH_MAX = 2**15 - 1
# The cost of a record beside its key, value and headers (index, columns). It bounds requests of empty records.
RECORD_OVERHEAD_BYTES = 32
# Records of one request: decoding JSON costs about 200 bytes of objects a record, however small the record is.
REQUEST_RECORDS_MAX = 1_000_000
# The least rate of a client in bytes a second, for bodies and responses (Apache asks for 500, Kestrel for 240).
CLIENT_BYTES_PER_SECOND_MIN = KIB
# These bound Arrow from outside. The metadata of an IPC message describes columns, it holds no data.
ARROW_METADATA_BYTES_MAX = 256 * KIB
ARROW_BATCHES_PER_REQUEST_MAX = 4_096
# The largest window that a decoder of the content coding "zstd" supports (RFC 9659).
ZSTD_WINDOW_BYTES_MAX = 8 * MIB

# A row group of Parquet is the unit that a reader decodes at once.
ROW_GROUP_ROWS_MAX = 128 * 1024
ROW_GROUP_BYTES_MAX = 16 * MIB

JOURNAL_FILE_BYTES = 64 * MIB
# The most bytes that one group commit writes before it fsyncs.
JOURNAL_GROUP_BYTES_MAX = 32 * MIB
# The newest frames that a broker of a cluster keeps in memory for followers.
RECENT_FRAMES_BYTES = 32 * MIB

DELTA_CHECKPOINT_INTERVAL = 100
COMMIT_ATTEMPTS_MAX = 20

FETCH_BYTES_DEFAULT = 1 * MIB
FETCH_BYTES_MAX = 64 * MIB
FETCH_WAIT_MS_MAX = 60_000
# Bytes of records that one response to a fetch with an expression searches, for each partition.
SEARCHED_BYTES_MAX = 32 * MIB
# The most partitions of one fetch request.
FETCH_PARTITIONS_MAX = 10_000
#: Partitions of one request for elections.
ELECTIONS_MAX = 10_000
#: Ranges of offsets of one erasure by an expression, each of about 16 bytes in its record.
ERASED_RANGES_MAX = 100_000
#: Keys of one erasure: its record in ``__erasures`` has 43 bytes for each.
ERASED_KEYS_MAX = 10_000
# The most partitions of one request for offsets of times: each partition may cost a read of a row group.
TIMES_PARTITIONS_MAX = 100
# Bytes that readers of history and of large frames hold between two slices.
READINGS_BYTES_MAX = 128 * MIB

# Timestamps that fit both ms and the table's µs in 64 bits, within the range that Spark, Python and JSON readers
# accept: 0001-01-01T00:00:00Z to 9999-12-31T23:59:59.999Z.
TIMESTAMP_MS_MIN = -62_135_596_800_000
TIMESTAMP_MS_MAX = 253_402_300_799_999
#: The time after which a broker closes an idle connection over which another one relays requests, in seconds.
PEER_HTTP_IDLE_S = 60.0

# Elements of all arrays, and tagged fields, of one message of Kafka's protocol: about 150 bytes of objects each.
KAFKA_MESSAGE_ELEMENTS_MAX = 256 * 1024
