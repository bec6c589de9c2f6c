import json
import logging
from collections.abc import Iterator

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from logstore import observability
from logstore.observability import LOG_FIELDS, client_label, configure_logging, forget_topic, render_metrics


@pytest.fixture(autouse=True)
def no_log_fields_are_left() -> Iterator[None]:
    yield
    LOG_FIELDS.set({})


def samples(name: str, label: str) -> dict[str, float]:
    """Return the values of a metric by one of its labels."""
    families = text_string_to_metric_families(render_metrics().decode())
    return {s.labels[label]: s.value for f in families for s in f.samples if s.name == name}


def test_json_lines_carry_event_fields_level_and_bound_request_id(capsys: pytest.CaptureFixture[str]):
    configure_logging("info", "json")
    LOG_FIELDS.set({"request_id": "r-1"})
    structlog.get_logger("logstore.log").info("rolled", topic="flights", sealed=3)
    logging.getLogger("uvicorn.error").warning("slow %s", "start")
    structlog.get_logger("logstore.log").debug("not shown")
    captured = capsys.readouterr()
    assert captured.out == ""
    first, second = map(json.loads, captured.err.splitlines())
    assert (
        first.items()
        >= {
            "event": "rolled",
            "topic": "flights",
            "sealed": 3,
            "level": "info",
            "logger": "logstore.log",
            "request_id": "r-1",
        }.items()
    )
    assert second.items() >= {"event": "slow start", "level": "warning", "logger": "uvicorn.error"}.items()


@pytest.mark.parametrize("line_format", ["console", "json"])
def test_a_logged_exception_shows_where_but_not_the_records(line_format: str, capsys: pytest.CaptureFixture[str]):
    def append(record: str) -> None:
        raise RuntimeError(len(record))

    configure_logging("info", line_format)
    try:
        append("some user's " + "private text")
    except RuntimeError:
        structlog.get_logger().exception("append failed")
    lines = capsys.readouterr().err
    assert "append failed" in lines
    assert "RuntimeError" in lines
    assert "test_observability.py" in lines
    assert "private text" not in lines.replace('append("some user\'s " + "private text")', "")


@pytest.mark.parametrize("line_format", ["console", "json"])
def test_colours_in_the_text_of_an_error_do_not_get_into_the_log(line_format: str, capsys: pytest.CaptureFixture[str]):
    """Log colours as delta-rs writes them, also when no terminal shows them."""
    coloured = "\x1b[31mKernel error\x1b[0m: \x1b[1;4mno such table\x1b[m"
    configure_logging("info", line_format)
    logger = structlog.get_logger("logstore.delta")
    logger.error("roll.failed", error=coloured, causes=[{"text": coloured}])
    logging.getLogger("uvicorn.error").warning("failed: %s", coloured)
    try:
        raise RuntimeError(coloured)
    except RuntimeError:
        logger.exception("append failed")
    written = capsys.readouterr().err
    assert written.count("Kernel error: no such table") >= 4
    assert "\x1b" not in written
    assert "u001b" not in written


def test_a_later_call_replaces_the_earlier_one(capsys: pytest.CaptureFixture[str]):
    logger = structlog.get_logger("logstore.journal")
    configure_logging("debug", "json")
    logger.debug("first")
    configure_logging("warning", "console")
    logger.info("second")
    logger.warning("third")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0])["event"] == "first"
    assert "third" in lines[1]
    assert not lines[1].startswith("{")


def test_clients_past_the_bound_count_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(observability, "_clients", set())
    names = [f"client-{i}" for i in range(observability.CLIENT_LABELS_MAX + 50)]
    labels = [client_label(name) for name in names]
    assert labels[:100] == names[:100]
    assert set(labels[100:]) == {"other"}
    assert client_label("client-0") == "client-0"
    assert client_label(None) == client_label("") == ""


def test_a_deleted_topic_leaves_no_series():
    for topic in ("remains", "goes"):
        observability.PRODUCED_RECORDS.labels(topic).inc(3)
        observability.ROLLS.labels(topic, "committed").inc()
        observability.ROLLS.labels(topic, "failed").inc()
    forget_topic("goes")
    forget_topic("never seen")
    produced = samples("logstore_produced_records_total", "topic")
    assert produced["remains"] == 3
    assert "goes" not in produced
    assert "remains" in samples("logstore_rolls_total", "topic")
    assert "goes" not in samples("logstore_rolls_total", "topic")
    forget_topic("remains")


def test_histograms_have_buckets_around_what_they_measure():
    before = samples("logstore_journal_fsync_seconds_bucket", "le")
    observability.JOURNAL_FSYNC_SECONDS.observe(0.0003)
    after = samples("logstore_journal_fsync_seconds_bucket", "le")
    assert after["0.00025"] == before["0.00025"]
    assert after["0.0005"] == before["0.0005"] + 1
