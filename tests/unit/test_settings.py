import socket
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from logstore.errors import InvalidConfigError
from logstore.settings import Settings, load_settings, secret_settings, setting_name, with_kafka_port
from logstore.topic_config import CONFIG_KEYS

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to an empty directory, without conf/logstore.toml."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_config(directory: Path, text: str) -> Path:
    path = directory / "conf/logstore.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_the_defaults_are_those_of_the_design(elsewhere: Path):
    settings = load_settings()
    assert (settings.host, settings.port, settings.data) == ("127.0.0.1", 8082, Path("data"))
    assert (settings.journal_max_bytes, settings.queued_max_request_bytes) == (4 * 1024**3, 256 * 1024**2)
    assert settings.max_request_size == 64 * 1024**2
    assert (settings.auto_create_topics_enable, settings.num_partitions) == (False, 1)
    assert settings.location == (elsewhere / "data").as_uri()


def test_arguments_win_over_variables_which_win_over_the_file(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    write_config(elsewhere, 'port = 1\nhost = "file"\nnum.partitions = 3\n')
    monkeypatch.setenv("LOGSTORE_PORT", "2")
    monkeypatch.setenv("LOGSTORE_HOST", "variable")
    settings = load_settings(port=4, data=None)
    assert (settings.port, settings.host, settings.num_partitions) == (4, "variable", 3)


def test_names_in_the_file_may_be_quoted_or_not_and_topic_defaults_stand_in_a_table(elsewhere: Path):
    write_config(
        elsewhere,
        """
        "journal.max.bytes" = 10
        auto.create.topics.enable = true
        [topic]
        retention.ms = 604800000
        "segment.ms" = 5
        cleanup.policy = ["delete", "compact"]
        """,
    )
    settings = load_settings()
    assert (settings.journal_max_bytes, settings.auto_create_topics_enable) == (10, True)
    assert settings.topic_defaults == {
        "retention.ms": "604800000",
        "segment.ms": "5",
        "cleanup.policy": "compact,delete",
    }


def test_times_and_sizes_may_say_their_units(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    write_config(
        elsewhere, 'connections.max.idle.ms = "90s"\njournal.max.bytes = "1GiB"\n[topic]\nretention.ms = "7d"\n'
    )
    monkeypatch.setenv("LOGSTORE_MAX_REQUEST_SIZE", "8MiB")
    monkeypatch.setenv("LOGSTORE_LOG_CLEANER_IO_MAX_BYTES_PER_SECOND", "1MiB")
    settings = load_settings()
    assert (settings.connections_max_idle_ms, settings.journal_max_bytes) == (90_000, 1024**3)
    assert settings.max_request_size == 8 * 1024**2
    assert settings.log_cleaner_io_max_bytes_per_second == 1024**2
    assert settings.topic_defaults == {"retention.ms": "604800000"}
    with pytest.raises(InvalidConfigError, match=r"journal\.max\.bytes cannot be 'plenty': it takes .* 64MiB"):
        load_settings(journal_max_bytes="plenty")
    with pytest.raises(InvalidConfigError, match=r"port cannot be '7d'"):
        load_settings(port="7d")


def test_topic_defaults_of_variables_join_those_of_the_file(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    write_config(elsewhere, "[topic]\nretention.ms = 1\nsegment.ms = 2\n")
    monkeypatch.setenv("LOGSTORE_TOPIC_SEGMENT_MS", "3")
    assert load_settings().topic_defaults == {"retention.ms": "1", "segment.ms": "3"}


def test_kafkas_settings_give_topics_their_defaults(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    write_config(
        elsewhere,
        """
        log.retention.hours = 168
        log.segment.bytes = "64MiB"
        log.cleanup.policy = ["compact", "delete"]
        log.cleaner.min.cleanable.ratio = 0.25
        [topic]
        key.format = "string"
        segment.bytes = 67108864
        """,
    )
    monkeypatch.setenv("LOGSTORE_LOG_ROLL_HOURS", "1")
    settings = load_settings()
    assert settings.topic_defaults == {
        "retention.ms": "604800000",
        "segment.bytes": "67108864",
        "segment.ms": "3600000",
        "cleanup.policy": "compact,delete",
        "min.cleanable.dirty.ratio": "0.25",
        "key.format": "string",
    }
    # ms takes precedence over minutes, and minutes over hours, wherever they come from.
    monkeypatch.setenv("LOGSTORE_LOG_RETENTION_MINUTES", "-1")
    assert load_settings().topic_defaults["retention.ms"] == "-1"
    monkeypatch.setenv("LOGSTORE_LOG_RETENTION_MS", "2h")
    assert load_settings().topic_defaults["retention.ms"] == "7200000"
    assert load_settings(topic_defaults={"retention.ms": "7200000"}).topic_defaults["retention.ms"] == "7200000"


def test_one_default_with_two_values_is_refused(elsewhere: Path):
    write_config(elsewhere, "log.retention.hours = 1\n[topic]\nretention.ms = 5\n")
    message = r"retention\.ms has two defaults: log\.retention\.hours=1, and retention\.ms=5 of \[topic\]"
    with pytest.raises(InvalidConfigError, match=message):
        load_settings()


def test_the_file_can_be_named(elsewhere: Path, monkeypatch: pytest.MonkeyPatch):
    write_config(elsewhere, "port = 1\n")
    other = elsewhere / "other.toml"
    other.write_text("port = 2\n")
    monkeypatch.setenv("LOGSTORE_CONFIG", str(other))
    assert load_settings().port == 2
    monkeypatch.setenv("LOGSTORE_CONFIG", str(elsewhere / "gone.toml"))
    with pytest.raises(InvalidConfigError, match=r"cannot read .*gone\.toml: No such file"):
        load_settings()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "merge.target.bytes = 5\n",
            r"'merge\.target\.bytes' is a key of topics: its default stands in the table \[topic\]$",
        ),
        ("retention.ms = 5\n", r"the table \[topic\], or as log\.retention\.ms or log\.retention\.minutes or log"),
        ("journal.max.byte = 1\n", r"no setting 'journal\.max\.byte'; did you mean 'journal\.max\.bytes'\?"),
        ("journal_max_bytes = 1\n", r"no setting 'journal_max_bytes'; did you mean 'journal\.max\.bytes'\?"),
        ("topic_defaults = 1\n", r"no setting 'topic_defaults'"),
        ("[topic]\nretention.m = 1\n", r"no topic configuration key 'retention\.m'; did you mean 'retention\.ms'\?"),
        ("[topic]\nretention.ms = 'x'\n", r"retention\.ms cannot be 'x': it takes a whole number"),
        ("port = 65536\n", r"port cannot be '65536': it takes a number of at most 65535$"),
        ("port = -1\n", r"port cannot be '-1': it takes a number of at least 0$"),
        ("port = 'http'\n", r"port cannot be 'http': it takes a whole number$"),
        ("port = true\n[", r"cannot read conf/logstore\.toml: Invalid initial character"),
        ("log.level = 'loud'\n", r"log\.level cannot be 'loud': it takes 'debug', 'info', 'warning' or 'error'$"),
        (
            "log.retention.hours = 0\n",
            r"log\.retention\.hours cannot be '0': it takes -1, or a whole number of at least 1$",
        ),
        (
            "log.retention.ms = 0\n",
            r"log\.retention\.ms cannot be '0': it takes -1, or a whole number of at least 1, or",
        ),
        ("log.retention.minutes = '7d'\n", r"log\.retention\.minutes cannot be '7d'"),
        ("log.roll.hours = -1\n", r"log\.roll\.hours cannot be '-1': it takes a whole number of at least 1$"),
        ("log.retention.hour = 1\n", r"no setting 'log\.retention\.hour'; did you mean 'log\.retention\.hours'\?"),
        ("log.flush.interval.ms = 1\n", r"no setting 'log\.flush\.interval\.ms': every acknowledgement is synced$"),
        ("log.cleaner.dedupe.buffer.size = 1\n", r"no setting 'log\.cleaner\.dedupe\.buffer\.size': .* no buffers"),
        ("data_location = '/srv'\n", r"data_location cannot be '/srv': it takes a URI"),
        ("max.request.size = 300000000\n", r"queued\.max\.request\.bytes \(268435456\) is below max\.request\.size"),
    ],
)
def test_a_file_with_a_mistake_is_refused_and_the_message_says_where(elsewhere: Path, text: str, message: str):
    write_config(elsewhere, text)
    with pytest.raises(InvalidConfigError, match=message):
        load_settings()


def test_a_misspelt_variable_is_refused_but_somebody_elses_is_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LOGSTORE_URL", "http://127.0.0.1:8082")
    monkeypatch.setenv("LOGSTORE_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("LOGSTORE_CONTROL", "/run/somebody/elses")
    monkeypatch.setenv("LOGSTORE_CONTROLLER_SERVICE_HOST", "10.0.0.2")  # Kubernetes sets it for a service of that name
    assert load_settings().port == 8082
    monkeypatch.setenv("LOGSTORE_JOURNAL_MAX_BYTE", "1")
    with pytest.raises(InvalidConfigError, match="did you mean LOGSTORE_JOURNAL_MAX_BYTES"):
        load_settings()


def test_an_unknown_argument_is_refused():
    with pytest.raises(InvalidConfigError, match="no setting 'prt'; did you mean 'port'"):
        load_settings(prt=1)


def test_settings_do_not_change():
    settings = Settings(port=0)
    with pytest.raises(ValidationError):
        settings.port = 1


def test_the_location_for_readers_elsewhere_has_no_slash_at_its_end():
    assert load_settings(data_location="s3a://bucket/log/").location == "s3a://bucket/log"


def test_the_file_that_comes_along_shows_every_setting_with_its_default(monkeypatch: pytest.MonkeyPatch):
    text = (REPOSITORY / "conf/logstore.toml").read_text()
    for field in Settings.model_fields:
        if field not in {"broker_defaults", "topic_defaults"}:
            assert f"{setting_name(field)} = " in text
    monkeypatch.setenv("LOGSTORE_CONFIG", str(REPOSITORY / "conf/logstore.toml"))
    with_file = load_settings()
    monkeypatch.delenv("LOGSTORE_CONFIG")
    assert with_file == load_settings()


def test_the_examples_in_the_shipped_file_are_also_valid(elsewhere: Path):
    text = (REPOSITORY / "conf/logstore.toml").read_text()
    examples = "\n".join(line.removeprefix("# ") if " = " in line else line for line in text.splitlines())
    assert tomllib.loads(examples)["data_location"]
    write_config(elsewhere, examples)
    settings = load_settings()
    defaults = {key.name: key.default for key in CONFIG_KEYS}
    assert settings.topic_defaults == {name: defaults[name] for name in settings.topic_defaults}
    assert {"segment.ms", "segment.bytes", "retention.ms", "key.format"} <= settings.topic_defaults.keys()
    assert settings.location == "file:///srv/logstore"


def test_a_setting_that_holds_a_secret_has_the_type_of_one():
    secrets = {name for name in Settings.model_fields if {"password", "secret", "token"} & set(name.split("_"))}
    assert secrets == secret_settings()


def test_a_secret_is_not_shown_when_it_is_wrong_either():
    with pytest.raises(InvalidConfigError) as raised:
        load_settings(cluster_secret="hunter2", port=-1)
    port, secret = sorted(str(raised.value).split("; "), reverse=True)
    assert secret.startswith("cluster.secret cannot be what was given: it takes at least 16 characters")
    assert port.startswith("port cannot be '-1'")
    assert "hunter2 is long enough" not in repr(load_settings(cluster_secret="hunter2 is long enough"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "replica.socket.timeout.ms = 499",
            r"replica\.socket\.timeout\.ms \(499\) is below replica\.fetch\.wait\.max\.ms",
        ),
        (
            "replica.lag.time.max.ms = 499",
            r"replica\.lag\.time\.max\.ms \(499\) is below replica\.fetch\.wait\.max\.ms",
        ),
        ("advertised.host = 'store:9000'", r"advertised\.host cannot be 'store:9000': it takes a name or an address w"),
        ("advertised.host = ''", r"advertised\.host cannot be ''"),
        (
            "socket.send.buffer.bytes = -2",
            r"socket\.send\.buffer\.bytes cannot be '-2': it takes a number of at least -1",
        ),
    ],
)
def test_settings_between_brokers_are_checked(elsewhere: Path, text: str, message: str):
    write_config(elsewhere, f"{text}\n")
    with pytest.raises(InvalidConfigError, match=message):
        load_settings()


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ({}, "127.0.0.1"),
        ({"host": "10.0.0.5"}, "10.0.0.5"),
        ({"host": "0.0.0.0"}, socket.gethostname()),
        ({"host": "::"}, socket.gethostname()),
        ({"host": "0.0.0.0", "advertised_host": "store-1.example"}, "store-1.example"),
        ({"host": "0.0.0.0", "advertised_host": "fd00::1"}, "fd00::1"),
    ],
)
def test_others_reach_the_host_that_is_advertised_or_listened_on(given, host):
    assert load_settings(**given).reachable_host == host


def test_the_journal_of_a_broker_of_a_cluster_may_be_elsewhere(elsewhere: Path):
    write_config(
        elsewhere, 'zookeeper.connect = "zk:2181/one"\nbroker.id = 3\nlog.dirs = "/disk"\nlog.level = "debug"\n'
    )
    assert load_settings().log_directory == Path("/disk")
    write_config(elsewhere, "broker.id = 3\n")
    assert load_settings().log_directory == Path("data/brokers/3")
    with pytest.raises(InvalidConfigError, match=r"log\.dirs is for a broker of a cluster: set zookeeper\.connect"):
        load_settings(log_dirs=Path("/disk"))
    with pytest.raises(InvalidConfigError, match=r"log\.dirs cannot be '/a,/b': it takes one directory"):
        load_settings(log_dirs="/a,/b", zookeeper_connect="zk")


def test_settings_that_are_keys_of_topics_too_give_them_their_defaults(elsewhere: Path):
    write_config(elsewhere, "min.insync.replicas = 2\nunclean.leader.election.enable = true\n")
    assert load_settings().topic_defaults == {"min.insync.replicas": "2", "unclean.leader.election.enable": "true"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("replica.high.watermark.checkpoint.interval.ms", "no checkpoint"),
        ("transaction.state.log.replication.factor", "no transactions yet"),
        ("transaction.state.log.min.isr", "no transactions yet"),
        ("process.roles", "through ZooKeeper"),
        ("controller.quorum.voters", "through ZooKeeper"),
        ("log.index.interval.bytes", "no index files"),
        ("listeners", "Kafka's clients have kafka.listeners"),
        ("advertised.listeners", "kafka.advertised.listeners"),
    ],
)
def test_kafkas_settings_without_meaning_say_why_in_a_file_and_as_variables(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, name: str, why: str
):
    write_config(elsewhere, f"{name} = 1\n")
    with pytest.raises(InvalidConfigError, match=f"no setting '{name}': .*{why}"):
        load_settings()
    write_config(elsewhere, "")
    variable = f"LOGSTORE_{name.upper().replace('.', '_')}"
    monkeypatch.setenv(variable, "1")
    with pytest.raises(InvalidConfigError, match=f"no setting {variable}: .*{why}"):
        load_settings()


@pytest.mark.parametrize(
    ("given", "address"),
    [
        (None, ("127.0.0.1", 9092)),
        ("", None),
        (" ", None),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("PLAINTEXT://store-1.example:19092", ("store-1.example", 19092)),
        ("plaintext://[::1]:9092", ("::1", 9092)),
        ("PLAINTEXT://:9092", ("0.0.0.0", 9092)),
        ("SSL://h:9093", ("h", 9093)),
        ("ssl://:9093", ("0.0.0.0", 9093)),
    ],
)
def test_kafka_listeners_are_an_address_or_none(elsewhere: Path, monkeypatch, given, address):
    monkeypatch.delenv("LOGSTORE_KAFKA_LISTENERS")
    settings = load_settings(kafka_listeners=given, ssl_keystore_location="store.pem")
    assert settings.kafka_address == address
    assert settings.kafka_is_tls == (given or "").lower().startswith("ssl:")
    assert with_kafka_port(settings, 1, "h").kafka_is_tls == settings.kafka_is_tls


@pytest.mark.parametrize(
    ("host", "listeners", "address"),
    [
        ("127.0.0.1", None, ("127.0.0.1", 9999)),
        ("0.0.0.0", None, ("0.0.0.0", 9999)),
        ("0.0.0.0", "10.0.0.1:9092", ("10.0.0.1", 9999)),
        ("0.0.0.0", "", ("0.0.0.0", 9999)),
    ],
)
def test_a_kafka_port_is_on_the_host_of_its_own_listener_or_of_http(
    elsewhere: Path, monkeypatch, host: str, listeners: str | None, address: tuple[str, int]
):
    monkeypatch.delenv("LOGSTORE_KAFKA_LISTENERS")
    settings = load_settings(host=host, kafka_listeners=listeners)
    assert with_kafka_port(settings, 9999, settings.host).kafka_address == address
    assert with_kafka_port(settings, None, settings.host) is settings


def test_a_host_for_all_leaves_kafkas_clients_on_this_machine(elsewhere: Path, monkeypatch):
    monkeypatch.delenv("LOGSTORE_KAFKA_LISTENERS")
    assert load_settings(host="0.0.0.0").kafka_address == ("127.0.0.1", 9092)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("TLS://h:9093", "TLS:// is unknown: it takes PLAINTEXT://host:port, SSL://host:port, or host:port"),
        ("SASL_PLAINTEXT://h:9093", "SASL_PLAINTEXT:// is not supported yet, it comes with authentication"),
        ("SASL_SSL://h:9093", "SASL_SSL:// is not supported yet, it comes with authentication"),
        ("PLAINTEXT://a:9092,PLAINTEXT://b:9093", "it takes one address"),
        ("9092", "it takes host:port"),
        ("h", "it takes host:port"),
        ("h:65536", "it takes host:port"),
        ("h:-1", "it takes host:port"),
        ("::1:9092", "it takes host:port"),
    ],
)
def test_kafka_listeners_that_cannot_be_are_refused_by_name(elsewhere: Path, given: str, why: str):
    with pytest.raises(InvalidConfigError, match=r"^kafka\.listeners cannot be '.*': ") as caught:
        load_settings(kafka_listeners=given)
    assert why in caught.value.message


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"http_tls": True}, "http.tls needs a certificate: set ssl.keystore.location"),
        ({"kafka_listeners": "SSL://h:1"}, "SSL:// in kafka.listeners needs a certificate: set ssl.keystore.location"),
        (
            {"http_tls": True, "ssl_keystore_location": "s.pem", "ssl_client_auth": "required"},
            "ssl.client.auth=required needs a CA: set ssl.truststore.location",
        ),
        (
            {"zookeeper_connect": "z:1", "security_inter_broker_protocol": "SSL", "ssl_keystore_location": "s.pem"},
            "security.inter.broker.protocol=SSL needs the CA: set ssl.truststore.location",
        ),
        (
            {
                "kafka_listeners": "SSL://h:1",
                "ssl_keystore_location": "s.pem",
                "kafka_advertised_listeners": "PLAINTEXT://h:2",
            },
            (
                "kafka.advertised.listeners (PLAINTEXT://h:2) and kafka.listeners (SSL://h:1) have different "
                "protocols: give both the same"
            ),
        ),
        (
            {"ssl_enabled_protocols": "TLSv1.1,TLSv1.2"},
            "ssl.enabled.protocols cannot be 'TLSv1.1,TLSv1.2': it takes TLSv1.2, TLSv1.3, separated by commas",
        ),
        (
            {"ssl_principal_mapping_rules": "RULE:a"},
            (
                "ssl.principal.mapping.rules cannot be 'RULE:a': it takes DEFAULT and RULE:pattern/replacement/, not "
                "'RULE:a'"
            ),
        ),
        ({"ssl_client_auth": "want"}, "ssl.client.auth cannot be 'want': it takes 'none', 'requested' or 'required'"),
    ],
)
def test_settings_of_tls_that_do_not_fit_together_are_refused(elsewhere: Path, given: dict[str, object], why: str):
    with pytest.raises(InvalidConfigError) as caught:
        load_settings(**given)
    assert caught.value.message == why


def test_settings_of_tls_count_only_where_a_listener_uses_it(elsewhere: Path):
    location = {"ssl_keystore_location": "s.pem", "ssl_key_password": "hidden", "ssl_enabled_protocols": "TLSv1.3"}
    assert load_settings(**location).tls_options is None
    options = load_settings(http_tls=True, **location).tls_options
    assert options is not None
    assert (options.keystore_location, options.key_password) == (Path("s.pem"), "hidden")
    assert options.enabled_protocols == ("TLSv1.3",)
    assert "hidden" not in repr(load_settings(**location))


def test_kafkas_clients_get_an_address_that_they_can_reach(elsewhere: Path):
    def told(**given: str) -> tuple[str, int]:
        return load_settings(**given).kafka_advertised(4711)

    assert told(kafka_listeners="127.0.0.1:9092") == ("127.0.0.1", 4711)
    assert told(kafka_listeners="0.0.0.0:9092", advertised_host="h.example") == ("h.example", 4711)
    assert told(kafka_listeners="0.0.0.0:9092") == (socket.gethostname(), 4711)
    assert told(kafka_listeners="[::]:0", kafka_advertised_listeners="PLAINTEXT://out:1") == ("out", 1)
    for address in ("0.0.0.0:9092", "h:0"):
        with pytest.raises(InvalidConfigError, match=r"kafka\.advertised\.listeners cannot be"):
            load_settings(kafka_advertised_listeners=address)


def test_idle_connections_of_kafkas_clients_have_kafkas_time_unless_it_is_set(elsewhere: Path):
    assert load_settings().kafka_idle_ms == 600_000
    assert load_settings(connections_max_idle_ms=5).kafka_idle_ms == 5
