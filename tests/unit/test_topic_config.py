import dataclasses

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logstore.errors import InvalidConfigError
from logstore.topic_config import CONFIG_KEYS, LONG_MAX, TopicConfig, config_key, validate_overrides

# The design's table, in Kafka's spelling. These are promises to users, so they are repeated here.
DEFAULTS = {
    "segment.bytes": "134217728",
    "segment.ms": "60000",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "cleanup.policy": "delete",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "max.compaction.lag.ms": str(LONG_MAX),
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "604800000",
    "max.message.bytes": "1048576",
    "merge.target.bytes": "-1",
    "compression.type": "producer",
    "message.timestamp.type": "CreateTime",
    "key.format": "json",
    "idempotency.window.ms": "600000",
    "idempotency.keys.max": "100000",
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "false",
    "table.columns.mode": "none",
}


def test_the_defaults_are_those_of_the_design():
    assert TopicConfig.parse({}).as_strings() == DEFAULTS


@pytest.mark.parametrize("mode", ["schema_id", "schema_latest"])
def test_modes_of_a_later_release_are_refused_by_name(mode):
    with pytest.raises(InvalidConfigError, match=f"cannot be '{mode}' in this release, which has no schema registry"):
        validate_overrides({"table.columns.mode": mode})


def test_each_key_has_its_field():
    assert [key.field for key in CONFIG_KEYS] == [field.name for field in dataclasses.fields(TopicConfig)]


def test_overrides_win_over_the_stores_defaults_which_win_over_the_built_in_ones():
    config = TopicConfig.parse(
        {"retention.ms": "5"}, defaults={"retention.ms": "7", "segment.ms": "9", "cleanup.policy": "compact"}
    )
    assert (config.retention_ms, config.segment_ms, config.segment_bytes) == (5, 9, 128 * 1024 * 1024)
    assert config.compacted


def test_an_empty_value_is_a_key_that_is_not_set():
    config = TopicConfig.parse({"retention.ms": ""}, defaults={"retention.ms": "7", "segment.ms": ""})
    assert config == TopicConfig.parse({"retention.ms": "7"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("segment.bytes", "0"),
        ("segment.bytes", "2147483648"),
        ("segment.ms", "0"),
        ("segment.ms", "1.5"),
        ("segment.ms", "1_000"),
        ("segment.ms", "9223372036854775808"),
        ("segment.ms", "9" * 5000),
        ("segment.ms", "\u0661"),
        ("retention.ms", "-2"),
        ("retention.ms", "7 days"),
        ("retention.ms", "-7d"),
        ("retention.ms", "64MiB"),
        ("segment.ms", "0s"),
        ("segment.bytes", "7d"),
        ("segment.bytes", "2GiB"),
        ("idempotency.keys.max", "7d"),
        ("min.insync.replicas", "0"),
        ("unclean.leader.election.enable", "1"),
        ("cleanup.policy", "delete,"),
        ("cleanup.policy", "Delete"),
        ("min.cleanable.dirty.ratio", "1.01"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "-0.1"),
        ("max.compaction.lag.ms", "0"),
        ("max.message.bytes", "0"),
        ("compression.type", "brotli"),
        ("message.timestamp.type", "createtime"),
        ("idempotency.keys.max", "-1"),
    ],
)
def test_a_wrong_value_is_refused_with_the_key_the_value_and_what_it_takes(key: str, value: str):
    with pytest.raises(InvalidConfigError) as error:
        validate_overrides({key: value})
    assert str(error.value) == f"{key} cannot be '{value}': it takes {config_key(key).takes}"


@pytest.mark.parametrize("key", DEFAULTS)
def test_an_empty_value_from_a_caller_is_refused(key: str):
    with pytest.raises(InvalidConfigError, match=f"^{key} cannot be ''"):
        validate_overrides({key: ""})


def test_an_unknown_key_is_refused_with_the_nearest_one():
    with pytest.raises(InvalidConfigError, match=r"'retention\.msec'; did you mean 'retention\.ms'\?"):
        validate_overrides({"retention.msec": "1"})
    with pytest.raises(InvalidConfigError, match=r"'flush\.messages'; the keys are cleanup\.policy, compression\.type"):
        TopicConfig.parse({"flush.messages": "1"})


def test_lags_that_contradict_each_other_are_refused():
    with pytest.raises(InvalidConfigError, match=r"min\.compaction\.lag\.ms \(11\) is above max.* \(10\)"):
        TopicConfig.parse({"min.compaction.lag.ms": "11"}, defaults={"max.compaction.lag.ms": "10"})
    with pytest.raises(InvalidConfigError, match="above"):
        validate_overrides({"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"})


def test_values_have_one_normal_text():
    assert validate_overrides(
        {"cleanup.policy": " delete , compact", "min.cleanable.dirty.ratio": "-0", "segment.ms": "+007 "}
    ) == {"cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.0", "segment.ms": "7"}


@pytest.mark.parametrize(
    ("key", "text", "normal"),
    [
        ("retention.ms", "7d", "604800000"),
        ("retention.ms", " 12h ", "43200000"),
        ("segment.ms", "1m30s", "90000"),
        ("retention.bytes", "1GiB", "1073741824"),
        ("segment.bytes", "64MiB", "67108864"),
    ],
)
def test_durations_and_sizes_are_stored_as_ms_and_bytes(key: str, text: str, normal: str):
    assert validate_overrides({key: text}) == {key: normal}
    assert TopicConfig.parse({}, defaults={key: text}) == TopicConfig.parse({key: normal})


@pytest.mark.parametrize(
    ("compression_type", "codec"),
    [("producer", "zstd"), ("uncompressed", "none"), *((codec, codec) for codec in ("gzip", "snappy", "lz4", "zstd"))],
)
def test_the_codec_of_segments_is_one_that_parquet_writes(compression_type: str, codec: str, tmp_path):
    assert TopicConfig.parse({"compression.type": compression_type}).segment_codec == codec
    path = tmp_path / "segment.parquet"
    pq.write_table(pa.table({"offset": [1, 2]}), path, compression=codec)
    expected = "UNCOMPRESSED" if codec == "none" else codec.upper()
    assert pq.read_metadata(path).row_group(0).column(0).compression == expected


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "retention.ms": st.integers(-1, LONG_MAX).map(str),
            "segment.bytes": st.integers(1, 2**31 - 1).map(str),
            "min.cleanable.dirty.ratio": st.floats(0, 1).map(str),
            "cleanup.policy": st.sampled_from(["delete", "compact", "compact,delete", "delete,compact"]),
            "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
        },
    )
)
def test_a_configuration_survives_its_own_text(overrides: dict[str, str]):
    config = TopicConfig.parse(overrides)
    assert TopicConfig.parse(config.as_strings()) == config
    normal = validate_overrides(overrides)
    assert validate_overrides(normal) == normal
    assert TopicConfig.parse(normal) == config
