"""The checker names each anomaly by its invariant, and is silent on histories of a correct store."""

import multiprocessing
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.bench.answer_checks import PROGRESS_S
from tests.faults.bench.checker import check
from tests.faults.bench.history import Fetch, Recorder, read_history
from tests.faults.bench.model_store import ModelLog, ModelStore, Pending
from tests.support.examples import examples

Event = dict[str, Any]

PLAIN, BOUNDED, KEYED, APPENDED, BOTH = "plain", "bounded", "keyed", "appended", "both"
STATED, STATED_KEYED = "stated", "stated-keyed"


def make_store() -> ModelStore:
    store = ModelStore()
    store.topic(PLAIN, 2)
    store.topic(BOUNDED, retention_bytes="1000")
    store.topic(KEYED, cleanup_policy="compact", delete_retention_ms="0")
    store.topic(APPENDED, message_timestamp_type="LogAppendTime")
    return store


def story(*more: Callable[[ModelStore], object]) -> list[Event]:
    """Return a correct history of a store with all kinds of topics, and of what ``more`` does in its middle."""
    store = make_store()
    for _ in range(4):
        for topic in (PLAIN, BOUNDED, APPENDED):
            store.do(store.produce(topic, 3))
        store.do(store.produce(PLAIN, [store.record(f"k{n}") for n in range(5)], None))
        keyed = [store.record(key) for key in ("a", "b", "c")]
        store.do(store.produce(KEYED, keyed))
        for topic in store.topics:
            store.do(store.fetch(topic, 0 if topic != BOUNDED else 12))
            store.roll(topic)
            store.look(topic)
        store.retention(BOUNDED, 3)
        store.compact(KEYED)
        store.do(store.fetch(KEYED, 0))
        store.look(KEYED)
    for step in more:
        step(store)
    return store.finish()


def found(events: list[Event]) -> list[str]:
    """Return the invariant and the name of each anomaly, once."""
    return sorted({f"{anomaly.invariant}: {anomaly.name}" for anomaly in check(events)})


def the(events: list[Event], op: str, phase: str = "ok", nth: int = 0, **fields: Any) -> Event:
    return [e for e in events if e["op"] == op and e["phase"] == phase and fields.items() <= e.items()][nth]


def final_of(events: list[Event], topic: str, partition: int = 0) -> Event:
    return the(events, "final", topic=topic, partition=partition)


# ---- one anomaly each -----------------------------------------------------------------------------------------------

Anomalous = Callable[[], list[Event]]
ANOMALIES: list[Any] = []


def anomaly(*expected: str) -> Callable[[Anomalous], Anomalous]:
    def add(make: Anomalous) -> Anomalous:
        ANOMALIES.append(pytest.param(make, sorted(expected), id=make.__name__))
        return make

    return add


@pytest.mark.parametrize(("make", "expected"), ANOMALIES)
def test_an_anomaly_is_named(make: Anomalous, expected: list[str]) -> None:
    assert found(make()) == expected


def test_a_right_history_has_no_anomaly() -> None:
    assert check(story()) == []


def test_a_record_of_which_an_answer_knows_nothing_may_be_stored() -> None:
    events = story(lambda store: store.do(store.produce(PLAIN, 2, process="partly")))
    told = the(events, "produce", process="partly")
    told["places"][1], told["unknown"] = None, [1]
    assert check(events) == []


# A: stored records.


@anomaly("A1: acknowledged record is lost")
def lost_in_the_middle() -> list[Event]:
    events = story()
    del final_of(events, PLAIN)["rows"][4]
    return events


@anomaly("A1: acknowledged record is lost")
def lost_at_the_end() -> list[Event]:
    events = story()
    final = final_of(events, APPENDED)
    final["rows"].pop()
    # The table and its readers agree with the log.
    final["high_watermark"] -= 1
    fetched = the(events, "fetch", topic=APPENDED, nth=-1)
    fetched["records"], fetched["next_offset"] = [], fetched["offset"]
    fetched["high_watermark"] -= 1
    last = the(events, "final_delta", topic=APPENDED)
    last["rows"].pop()
    last["sealed"]["0"] -= 1
    # An end that was shown before the acknowledgement does not depend on it.
    produced = the(events, "produce", nth=-1, topic=APPENDED)
    produced["t"] = final["t"] + 1
    return events


@anomaly("A1: acknowledged record is lost")
def lost_at_the_log_start() -> list[Event]:
    """Drop the first row without a move of the log start: retention would move it."""
    return story(lambda store: store.topics[BOUNDED].logs[0].rows.pop(3))


@anomaly("A1: acknowledged record is replaced")
def replaced() -> list[Event]:
    def lose(store: ModelStore) -> None:
        log = store.topics[PLAIN].logs[0]
        store.do(store.produce(PLAIN, 1))
        del log.rows[log.end - 1]
        log.end -= 1
        store.do(store.produce(PLAIN, 1, process="other", acks="0"))

    return story(lose)


@anomaly("A1: acknowledged record changed")
def key_changed() -> list[Event]:
    return story(lambda store: _change(store, 3, "another"))


@anomaly("A1: acknowledged record changed")
def value_changed() -> list[Event]:
    return story(lambda store: _change(store, 4, "another"))


@anomaly("A1: acknowledged record changed")
def header_changed() -> list[Event]:
    return story(lambda store: _change(store, 2, "another"))


@anomaly("A1: acknowledged record changed")
def header_lost() -> list[Event]:
    return story(lambda store: _change(store, 2, None))


def _change(store: ModelStore, column: int, value: object, *, phase: str = "ok") -> None:
    store.do(store.produce(PLAIN, 1), phase)
    log = store.topics[PLAIN].logs[0]
    log.rows[log.end - 1][column] = value


@anomaly("A5: record changed")
def unacknowledged_value_changed() -> list[Event]:
    return story(lambda store: _change(store, 4, "another", phase="info"))


@anomaly("A2: refused record is stored")
def resurrected() -> list[Event]:
    return story(lambda store: store.do(store.produce(PLAIN, 2), "fail"))


@anomaly("A2: refused record is stored")
def half_resurrected() -> list[Event]:
    def forget_half(store: ModelStore) -> None:
        log = store.topics[PLAIN].logs[0]
        store.do(store.produce(PLAIN, 2), "fail")
        log.end -= 1
        del log.rows[log.end]

    return story(forget_half)


@anomaly("A2: record is stored twice")
def stored_twice() -> list[Event]:
    return story(_store_twice)


def _store_twice(store: ModelStore) -> None:
    log = store.topics[PLAIN].logs[0]
    log.rows[log.end] = [log.end, *log.rows[2][1:]]
    log.end += 1


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("epoch bump: skipped sequence numbers", []),
        ("epoch bump: 1 message(s) timed out", ["A2: record is stored twice"]),
    ],
)
def test_a_producer_in_its_next_epoch_sends_again_what_is_under_way(reason: str, expected: list[str]) -> None:
    events = story(_store_twice)
    sent = next(
        event for event in events if event["op"] == "produce" and event["phase"] == "ok" and [0, 2] in event["places"]
    )
    bumped = {"t": sent["t"], "process": sent["process"], "op": "bumped", "phase": "ok", "id": "b", "reason": reason}
    assert found([*events, bumped]) == expected


@anomaly("A3: record is not where it was acknowledged")
def wrong_place() -> list[Event]:
    def swap(store: ModelStore) -> None:
        log = store.topics[PLAIN].logs[0]
        store.do(store.produce(PLAIN, 2))
        first, second = log.rows[log.end - 2], log.rows[log.end - 1]
        first[1:], second[1:] = second[1:], first[1:]

    return story(swap)


@anomaly("A3: refused record is stored")
def partly_refused() -> list[Event]:
    events = story(lambda store: store.do(store.produce(PLAIN, 2, process="partly")))
    the(events, "produce", process="partly")["places"][1] = None
    return events


@anomaly("A3: answer with an impossible place")
def impossible_place() -> list[Event]:
    events = story(lambda store: store.do(store.produce(PLAIN, 1, process="odd")))
    the(events, "produce", process="odd")["places"] = [[0, -1]]
    return events


@anomaly("A3: answer of another length")
def too_short_an_answer() -> list[Event]:
    events = story(lambda store: store.do(store.produce(PLAIN, 2, process="odd")))
    the(events, "produce", process="odd")["places"].pop()
    return events


@anomaly("A4: two readers, two records")
def two_readers_two_records() -> list[Event]:
    events = story()
    the(events, "fetch", topic=PLAIN, nth=2)["records"][1][4] = "another"
    return events


@anomaly("A4: record moved")
def moved() -> list[Event]:
    def move(store: ModelStore) -> None:
        log = store.topics[PLAIN].logs[0]
        store.do(store.produce(PLAIN, 1), "info")
        store.do(store.fetch(PLAIN, log.end - 1))
        log.rows[log.end] = [log.end, *log.rows.pop(log.end - 1)[1:]]
        log.end += 1

    return story(move)


@anomaly("A5: invented record")
def invented() -> list[Event]:
    def invent(store: ModelStore) -> None:
        log = store.topics[PLAIN].logs[0]
        log.rows[log.end] = [log.end, store.now_ms, "nobody", None, "nothing"]
        log.end += 1

    return story(invent)


@anomaly("A5: invented record", "B4: high watermark fell")
def invented_for_one_reader() -> list[Event]:
    events = story()
    fetched = the(events, "fetch", process="healed", topic=APPENDED)
    end = fetched["high_watermark"]
    fetched["records"].append([end, 1, "nobody", None, "nothing"])
    fetched["high_watermark"] = fetched["next_offset"] = end + 1
    return events


@anomaly("A5: wrong partition")
def acknowledged_in_the_wrong_partition() -> list[Event]:
    def misplace(store: ModelStore) -> None:
        right, wrong = store.topics[PLAIN].logs
        store.do(store.produce(PLAIN, 1))
        wrong.rows[wrong.end] = [wrong.end, *right.rows.pop(right.end - 1)[1:]]
        wrong.end += 1

    return story(misplace)


@anomaly("A5: partition that is not there")
def partition_that_is_not_there() -> list[Event]:
    events = story()
    the(events, "topic", topic=PLAIN)["partitions"] = 1
    return events


@anomaly("A5: wrong partition")
def wrong_partition() -> list[Event]:
    return story(lambda store: _misplace(store, [store.record("k0")], 0))


@anomaly("A5: wrong partition")
def key_in_two_partitions() -> list[Event]:
    return story(lambda store: _misplace(store, [store.record("k0")], None))


@anomaly("A5: wrong partition")
def keyless_request_in_two_partitions() -> list[Event]:
    return story(lambda store: _misplace(store, store.records(2), None))


def _misplace(store: ModelStore, records: list[Any], partition: int | None) -> None:
    ends = [log.end for log in store.topics[PLAIN].logs]
    store.do(store.produce(PLAIN, records, partition, acks="0"))
    logs = store.topics[PLAIN].logs
    (right,) = (at for at in (0, 1) if logs[at].end > ends[at])
    wrong = logs[1 - right]
    wrong.rows[wrong.end] = [wrong.end, *logs[right].rows.pop(logs[right].end - 1)[1:]]
    wrong.end += 1
    logs[right].end -= 1


# B: offsets and time.


@anomaly("B1: two acknowledged records at an offset")
def two_at_an_offset() -> list[Event]:
    events = story(lambda store: store.do(store.produce(PLAIN, 1, process="second")))
    the(events, "produce", process="second")["places"] = [[0, 3]]
    return events


@anomaly("B2: hole")
def hole() -> list[Event]:
    def leave_out(store: ModelStore) -> None:
        store.topics[PLAIN].logs[0].end += 1

    return story(leave_out)


@anomaly("B3: real-time order broken")
def real_time_order() -> list[Event]:
    return _overtake("slow", "quick")


@anomaly("C1: producer order broken")
def producer_order() -> list[Event]:
    return _overtake("one", "one")


@anomaly("C1: producer order broken")
def order_of_requests_under_way() -> list[Event]:
    events = _overtake_under_way("one", "one")
    for nth in (-3, -2):
        the(events, "produce", "invoke", topic=APPENDED, nth=nth)["pipeline"] = "one"
    return events


def test_requests_under_way_have_no_order_unless_their_producer_promises_one() -> None:
    assert check(_overtake_under_way("one", "one")) == []


def _overtake(first: str, second: str) -> list[Event]:
    """Store the second request before the first one, although it was sent after the answer to the first."""
    events = _overtake_under_way(first, second)
    acknowledged = the(events, "produce", topic=APPENDED, nth=-3)
    the(events, "produce", "invoke", topic=APPENDED, nth=-2)["t"] = acknowledged["t"] + 1
    return events


def _overtake_under_way(first: str, second: str) -> list[Event]:
    """Store the second request before the first one, which was sent before it and is not answered yet."""

    def overtake(store: ModelStore) -> None:
        calls = store.produce(APPENDED, 2, process=first), store.produce(APPENDED, 2, process=second)
        for call in reversed(calls):
            store.act(call)
        for call in calls:
            store.end(call)

    return story(overtake)


@anomaly("B4: log start fell")
def log_start_fell() -> list[Event]:
    events = story()
    the(events, "fetch", process="healed", topic=BOUNDED)["log_start"] -= 1
    return events


@anomaly("B4: log start fell")
def log_start_of_the_table_fell() -> list[Event]:
    events = story()
    the(events, "delta", topic=BOUNDED, nth=-1)["log_start"]["0"] += 1
    return events


@anomaly("B4: log start fell")
def a_power_cut_took_a_log_start_that_was_told() -> list[Event]:
    """Take an entry that had no fsync when delete-records was answered."""

    def cut(store: ModelStore) -> None:
        bounded = store.topics[BOUNDED]
        rows, start = dict(bounded.logs[0].rows), bounded.logs[0].start
        store.do(store.delete_records(BOUNDED, start + 2))
        _lose_newest_entry(store, BOUNDED)
        bounded.logs[0].rows, bounded.logs[0].start = rows, start
        store.do(store.fetch(BOUNDED, start))

    return story(cut)


def _lose_newest_entry(store: ModelStore, topic: str) -> None:
    store.tell("nemesis", "fault", kind="power_cut")
    store.tell("nemesis", "fault", kind="entry_lost", topic=topic, version=store.topics[topic].version)
    store.topics[topic].version -= 1
    store.restart()


@anomaly("B4: log start above the end")
def log_start_above_the_end() -> list[Event]:
    events = story()
    final = final_of(events, BOUNDED)
    final["log_start"], final["rows"] = final["high_watermark"] + 1, []
    return events


@anomaly("B4: high watermark fell")
def high_watermark_fell() -> list[Event]:
    def read(store: ModelStore) -> None:
        store.do(store.produce(APPENDED, 2, acks="0"))
        store.do(store.fetch(APPENDED, 0))
        store.do(store.fetch(APPENDED, 0, count=1, process="second"))

    events = story(read)
    the(events, "fetch", process="second")["high_watermark"] -= 1
    return events


@anomaly("B4: end below an acknowledged record")
def end_below_an_acknowledgement_after_restart() -> list[Event]:
    def read(store: ModelStore) -> None:
        store.do(store.produce(APPENDED, 1))
        store.restart()
        store.do(store.fetch(APPENDED, 0, count=1, process="second"))

    events = story(read)
    the(events, "fetch", process="second")["high_watermark"] -= 1
    return events


@anomaly("B5: timestamp changed")
def timestamp_changed() -> list[Event]:
    def change(store: ModelStore) -> None:
        store.do(store.produce(PLAIN, [store.record(timestamp_ms=77)]))
        log = store.topics[PLAIN].logs[0]
        log.rows[log.end - 1][1] += 1

    return story(change)


@anomaly("B5: append time before the topic")
def append_time_is_always_the_same() -> list[Event]:
    events = story()
    for event in events:
        for row in [*event.get("rows", ()), *event.get("records", ())] if event.get("topic") == APPENDED else ():
            if event["phase"] == "ok" and event["op"] != "produce":
                row[-4] = 0
    return events


@anomaly("B5: append time went back")
def append_time_went_back() -> list[Event]:
    def turn_back(store: ModelStore) -> None:
        store.do(store.produce(APPENDED, 1))
        log = store.topics[APPENDED].logs[0]
        log.rows[log.end - 1][1] -= 100

    return story(turn_back)


@pytest.mark.parametrize("answer", [0, 4, 6, None, 10**6])
def test_wrong_offset_by_time(answer: int | None) -> None:
    def ask(store: ModelStore) -> None:
        store.do(store.offset_for_time(PLAIN, store.topics[PLAIN].logs[0].rows[5][1]))

    events = story(ask)
    told = the(events, "offset_for_time")
    row = next(row for row in final_of(events, PLAIN)["rows"] if row[1] == final_of(events, PLAIN)["rows"][5][1])
    assert told["offset"] == row[0]
    if answer != row[0]:
        told["offset"] = answer
        assert found(events) == ["B5: offset by time is wrong"]


@anomaly("B5: offset by time is wrong")
def offset_by_time_below_the_log_start() -> list[Event]:
    events = story(lambda store: store.do(store.offset_for_time(BOUNDED, 0)))
    the(events, "offset_for_time")["offset"] = 1
    return events


# C: the order.


@anomaly("C1: batch order broken")
def batch_order() -> list[Event]:
    def swap(store: ModelStore) -> None:
        log = store.topics[PLAIN].logs[0]
        store.do(store.produce(PLAIN, 3), "info")
        first, second = log.rows[log.end - 2], log.rows[log.end - 1]
        first[1:], second[1:] = second[1:], first[1:]

    return story(swap)


@anomaly("C1: batch order broken")
def batch_order_as_acknowledged() -> list[Event]:
    def swap(store: ModelStore) -> None:
        log = store.topics[PLAIN].logs[0]
        store.do(store.produce(PLAIN, 2, process="swapped"))
        first, second = log.rows[log.end - 2], log.rows[log.end - 1]
        first[1:], second[1:] = second[1:], first[1:]

    events = story(swap)
    the(events, "produce", process="swapped")["places"].reverse()
    return events


@anomaly("C2: existing record skipped")
def skipped_in_a_poll() -> list[Event]:
    events = story()
    del the(events, "fetch", topic=PLAIN, nth=3)["records"][2]
    return events


@anomaly("C2: existing record skipped")
def skipped_between_polls() -> list[Event]:
    events = story(lambda store: store.do(store.fetch(PLAIN, 0, count=3, process="second")))
    the(events, "fetch", process="second")["next_offset"] += 1
    return events


@anomaly("C2: existing record skipped")
def skipped_in_a_compacted_topic() -> list[Event]:
    events = story()
    del the(events, "fetch", topic=KEYED, nth=-2)["records"][1]
    return events


@anomaly("C2: existing record skipped")
def skipped_before_retention_took_it() -> list[Event]:
    def read(store: ModelStore) -> None:
        start = store.topics[BOUNDED].logs[0].start
        for process in ("one", "other"):
            store.do(store.fetch(BOUNDED, start, process=process))
        store.retention(BOUNDED, start + 5)

    events = story(read)
    del the(events, "fetch", process="other")["records"][2]
    return events


@anomaly("C2: existing record skipped")
def acknowledged_and_skipped_before_retention_took_it() -> list[Event]:
    def read(store: ModelStore) -> None:
        end = store.topics[BOUNDED].logs[0].end
        store.do(store.produce(BOUNDED, 3))
        store.do(store.fetch(BOUNDED, end, process="only"))
        store.roll(BOUNDED)
        store.retention(BOUNDED, end + 3)

    events = story(read)
    del the(events, "fetch", process="only")["records"][1]
    return events


@anomaly("C2: rows out of order")
def row_given_twice() -> list[Event]:
    events = story()
    rows = the(events, "fetch", topic=PLAIN, nth=3)["records"]
    rows.insert(2, rows[2])
    return events


@anomaly("C2: rows out of order")
def final_row_given_twice() -> list[Event]:
    events = story()
    rows = final_of(events, PLAIN)["rows"]
    rows.insert(2, rows[2])
    return events


@anomaly("C2: rows out of order")
def poll_goes_back() -> list[Event]:
    events = story()
    the(events, "fetch", topic=PLAIN, nth=3)["records"].reverse()
    return events


@anomaly("C2: rows out of order")
def poll_begins_too_early() -> list[Event]:
    events = story()
    for phase in ("invoke", "ok"):
        the(events, "fetch", phase, topic=PLAIN, nth=3)["offset"] = 2
    return events


@anomaly("C2: rows out of order")
def final_read_goes_back() -> list[Event]:
    events = story()
    final_of(events, PLAIN)["rows"].reverse()
    return events


@anomaly("C2: wrong next offset")
def next_offset_goes_back() -> list[Event]:
    events = story()
    the(events, "fetch", topic=PLAIN, nth=3)["next_offset"] -= 1
    return events


# D: visibility and the table.


@anomaly("D1: read record is lost")
def read_then_lost() -> list[Event]:
    def lose(store: ModelStore) -> None:
        log = store.topics[PLAIN].logs[0]
        store.do(store.produce(PLAIN, 1), "info")
        store.do(store.fetch(PLAIN, log.end - 1))
        del log.rows[log.end - 1]

    return story(lose)


@anomaly("D1: read record is lost")
def read_then_replaced() -> list[Event]:
    def lose(store: ModelStore) -> None:
        log = store.topics[PLAIN].logs[0]
        store.do(store.produce(PLAIN, 1), "info")
        store.do(store.fetch(PLAIN, log.end - 1))
        del log.rows[log.end - 1]
        log.end -= 1
        store.do(store.produce(PLAIN, 1, process="other"))

    return story(lose)


@anomaly("D1: read above the high watermark")
def read_above_the_high_watermark() -> list[Event]:
    def read(store: ModelStore) -> None:
        store.do(store.produce(APPENDED, 2, acks="0"))
        store.do(store.fetch(APPENDED, 0, process="early"))

    events = story(read)
    the(events, "fetch", process="early")["high_watermark"] -= 1
    return events


@pytest.mark.parametrize(
    ("process", "leader", "expected"),
    [
        ("kafka-reader-0", 2, []),
        ("kafka-reader-0", 1, ["D1: read above the high watermark"]),
        ("reader-0", 2, ["D1: read above the high watermark"]),
    ],
)
def test_librdkafka_knows_the_end_that_any_leader_reported_last(process: str, leader: int, expected: list[str]) -> None:
    def read(store: ModelStore) -> None:
        store.do(store.produce(APPENDED, 2, acks="0"))
        store.do(store.fetch(APPENDED, 0, process=process))

    events = story(read)
    told = the(events, "fetch", process=process)
    told["high_watermark"] -= 1
    for number, (who, seen_until) in enumerate([(1, 0), (leader, told["t"])]):
        partitions = [[who, who, [1, 2], [1, 2]]]
        document = {"topic": APPENDED, "mzxid": number, "partitions": partitions, "seen_until": seen_until}
        common = {"t": told["t"], "process": "zookeeper", "op": "registered", "phase": "ok", "id": f"z{number}"}
        events.append({**common, **document})
    assert found(events) == expected


@anomaly("D1: read above the high watermark")
def final_read_above_the_high_watermark() -> list[Event]:
    events = story(lambda store: store.produce(PLAIN, [("late", None, "v", None)]))
    final = final_of(events, PLAIN)
    final["rows"].append([final["high_watermark"], 1, "late", None, "v"])
    return events


@anomaly("D2: rows are missing")
def row_of_the_table_missing() -> list[Event]:
    events = story()
    del the(events, "final_delta", topic=PLAIN)["rows"][3]
    return events


@anomaly("D2: rows are missing")
def row_of_a_compacted_table_missing() -> list[Event]:
    events = story()
    the(events, "final_delta", topic=KEYED)["rows"].pop()
    return events


@anomaly("D2: rows are missing")
def first_row_of_a_compacted_table_missing() -> list[Event]:
    def look(store: ModelStore) -> None:
        store.topic("begun", cleanup_policy="compact")
        store.do(store.produce("begun", [store.record("a")]))
        store.roll("begun")
        store.look("begun")

    events = story(look)
    the(events, "delta", topic="begun")["rows"].clear()
    return events


@anomaly("D2: rows are missing")
def row_missing_since_the_last_look() -> list[Event]:
    def look(store: ModelStore) -> None:
        log = store.topics[APPENDED].logs[0]
        since = log.sealed
        store.do(store.produce(APPENDED, 2))
        store.roll(APPENDED)
        store.look(APPENDED, {0: since})

    events = story(look)
    the(events, "delta", topic=APPENDED, nth=-1)["rows"].pop(0)
    return events


@anomaly("D2: rows are doubled")
def row_of_the_table_doubled() -> list[Event]:
    events = story()
    rows = the(events, "delta", topic=PLAIN, nth=2)["rows"]
    rows.append(rows[1])
    return events


@anomaly("D2: rows differ from the log")
def row_of_the_table_differs() -> list[Event]:
    events = story()
    the(events, "delta", topic=PLAIN, nth=2)["rows"][1][5] = "another"
    return events


@anomaly("D2: rows beyond sealed")
def row_beyond_sealed() -> list[Event]:
    def look(store: ModelStore) -> None:
        store.do(store.produce(APPENDED, 1))
        store.look(APPENDED)

    events = story(look)
    rows = the(events, "delta", topic=APPENDED, nth=-1)["rows"]
    rows.append([0, *final_of(events, APPENDED)["rows"][len(rows)]])
    return events


@anomaly("D2: sealed fell")
def sealed_fell() -> list[Event]:
    def look(store: ModelStore) -> None:
        log = store.topics[APPENDED].logs[0]
        log.sealed -= 3
        store.roll(KEYED)
        store.look(APPENDED)

    return story(look)


@anomaly("D2: sealed fell")
def sealed_fell_long_after_an_entry_was_lost() -> list[Event]:
    def look(store: ModelStore) -> None:
        _lose_newest_entry(store, APPENDED)
        store.wait(2)
        store.roll(APPENDED)
        store.events[-1]["sha256"] = "ours, again"
        store.look(APPENDED)
        store.topics[APPENDED].logs[0].sealed -= 3
        store.roll(KEYED)
        store.look(APPENDED)

    return story(look)


@anomaly("D2: sealed beyond the end")
def sealed_beyond_the_end() -> list[Event]:
    events = story()
    the(events, "final_delta", topic=APPENDED)["sealed"]["0"] += 1
    return events


@anomaly("D2: not all sealed after a clean stop")
def not_all_sealed() -> list[Event]:
    events = story()
    last = the(events, "final_delta", topic=APPENDED)
    last["rows"].pop()
    last["sealed"]["0"] -= 1
    return events


@anomaly("D3: torn batch")
def torn_batch() -> list[Event]:
    return story(lambda store: _tear(store, 2))


@anomaly("D3: torn batch")
def torn_batch_with_a_hole() -> list[Event]:
    def tear(store: ModelStore) -> None:
        log = store.topics[PLAIN].logs[0]
        store.do(store.produce(PLAIN, 4), "info")
        del log.rows[log.end - 2]

    return story(tear)


@anomaly("D3: torn batch")
def torn_batch_and_another_in_its_place() -> list[Event]:
    def tear(store: ModelStore) -> None:
        _tear(store, 1)
        store.do(store.produce(PLAIN, 3, process="other"))

    return story(tear)


def _tear(store: ModelStore, kept: int) -> None:
    log = store.topics[PLAIN].logs[0]
    begin = log.end
    store.do(store.produce(PLAIN, 4), "info")
    for offset in range(begin + kept, log.end):
        del log.rows[offset]
    log.end = begin + kept


@anomaly("D3: half a batch in a version")
def half_a_batch_in_a_version() -> list[Event]:
    def seal_half(store: ModelStore) -> None:
        store.do(store.produce(APPENDED, 3))
        store.roll(KEYED)
        store.topics[APPENDED].logs[0].sealed += 2
        store.look(APPENDED)

    return story(seal_half)


@anomaly("D3: log entry changed")
def log_entry_changed() -> list[Event]:
    return story(lambda store: store.tell("observer", "entry", topic=PLAIN, version=2, sha256="another"))


@anomaly("D3: version gap")
def version_gap() -> list[Event]:
    events = story()
    events.remove(the(events, "entry", topic=PLAIN, version=2))
    return events


@anomaly("D4: table cannot be read")
def table_cannot_be_read() -> list[Event]:
    return story(lambda store: store.tell("observer", "delta", "fail", topic=PLAIN, error="no such file"))


@anomaly("D5: acknowledged record is not given")
def acknowledged_record_not_given() -> list[Event]:
    events = story()
    fetched = the(events, "fetch", topic=PLAIN, nth=2)
    fetched["records"], fetched["next_offset"] = [], fetched["offset"]
    return events


# G: committed offsets.


def committing(*offsets: dict[int, int]) -> Callable[[ModelStore], None]:
    def commit(store: ModelStore) -> None:
        for partition in (0, 1):
            store.do(store.fetch(PLAIN, 0, partition))
        for told in offsets:
            store.do(store.commit("g", PLAIN, told))
        store.do(store.committed("g", PLAIN))

    return commit


@anomaly("G3: committed offset went back")
def committed_offset_went_back() -> list[Event]:
    events = story(committing({0: 3}, {0: 5}))
    the(events, "committed")["offsets"]["0"] = 3
    return events


@anomaly("G3: committed offset went back")
def committed_offset_that_was_read_went_back() -> list[Event]:
    def doubt(store: ModelStore) -> None:
        store.do(store.commit("g", PLAIN, {0: 7}), "info")
        for _ in range(2):
            store.do(store.committed("g", PLAIN))

    events = story(committing({0: 3}), doubt)
    the(events, "committed", nth=2)["offsets"]["0"] = 3
    return events


@anomaly("G3: commit is lost")
def commit_is_lost() -> list[Event]:
    events = story(committing({0: 3}))
    the(events, "final_commits")["offsets"] = {}
    return events


@anomaly("G3: offset was never committed")
def offset_was_never_committed() -> list[Event]:
    events = story(committing({0: 3}))
    the(events, "final_commits")["offsets"]["0"] = 4
    return events


@anomaly("G3: offset was never committed")
def refused_commit_is_there() -> list[Event]:
    return story(committing({0: 3}), lambda store: store.do(store.commit("g", PLAIN, {0: 4}), "fail"))


@anomaly("G3: commit of several partitions is torn")
def torn_commit() -> list[Event]:
    def tear(store: ModelStore) -> None:
        store.do(store.commit("g", PLAIN, {0: 5, 1: 4}), "info")
        store.groups["g", PLAIN]["1"] = 2

    return story(committing({0: 3, 1: 2}), tear)


@anomaly("G3: commit of several partitions is torn")
def first_commit_is_torn() -> list[Event]:
    def tear(store: ModelStore) -> None:
        store.do(store.commit("g", PLAIN, {0: 5, 1: 4}), "info")
        del store.groups["g", PLAIN]["1"]

    return story(committing(), tear)


@anomaly("G4: commit beyond the position")
def commit_beyond_the_position() -> list[Event]:
    def commit(store: ModelStore) -> None:
        store.do(store.fetch(APPENDED, 0, count=2, process="c.1"))
        store.do(store.commit("h", APPENDED, {0: 3}, process="c.2"))
        store.do(store.fetch(APPENDED, 2, process="c.2"))

    return story(commit)


@anomaly("G5: records skipped by a commit")
def records_skipped_by_a_commit() -> list[Event]:
    def commit(store: ModelStore) -> None:
        store.do(store.fetch(APPENDED, 0, count=2, process="c"))
        store.do(store.fetch(APPENDED, 4, count=2, process="c"))
        store.do(store.commit("h", APPENDED, {0: 6}, process="c"))

    return story(commit)


# I: compaction and retention.


@anomaly("I1: last value of a key is lost")
def last_value_lost() -> list[Event]:
    return story(lambda store: store.topics[KEYED].logs[0].rows.pop(10))


@anomaly("I1: last value of a key is lost")
def last_value_lost_and_others_in_doubt() -> list[Event]:
    def lose(store: ModelStore) -> None:
        for record in (store.record("c", None), store.record("b")):
            store.do(store.produce(KEYED, [record]), "info", acts=False)
        del store.topics[KEYED].logs[0].rows[10]

    return story(lose)


@anomaly("I1: last value of a key is lost")
def last_value_lost_in_one_version() -> list[Event]:
    """Compact the record before its successor is in the table."""

    def look(store: ModelStore) -> None:
        store.look(KEYED, tells_cleaned=False)
        store.do(store.produce(KEYED, [store.record("b")]))
        store.roll(KEYED)
        store.compact(KEYED)

    events = story(look)
    the(events, "delta", topic=KEYED, nth=-1)["rows"].pop(1)
    return events


@anomaly("I1: compaction moved an offset")
def compaction_moved_an_offset() -> list[Event]:
    def move(store: ModelStore) -> None:
        log = store.topics[KEYED].logs[0]
        store.do(store.produce(KEYED, [store.record("d"), store.record("d")]))
        store.roll(KEYED)
        store.compact(KEYED)
        row = log.rows.pop(log.end - 1)
        log.rows[log.end - 2] = [log.end - 2, *row[1:]]

    return story(move)


@anomaly("I1: tombstone gone too early")
def tombstone_gone_too_early() -> list[Event]:
    def delete(store: ModelStore) -> None:
        store.topic("slow", cleanup_policy="compact", delete_retention_ms="60000")
        store.do(store.produce("slow", [store.record("a"), store.record("a", None)]))
        store.roll("slow")
        store.compact("slow")
        store.wait(50)
        del store.topics["slow"].logs[0].rows[1]

    return story(delete)


@anomaly("I1: tombstone gone before what it deletes")
def tombstone_gone_before_what_it_deletes() -> list[Event]:
    def delete(store: ModelStore) -> None:
        log = store.topics[KEYED].logs[0]
        store.do(store.produce(KEYED, [store.record("d"), store.record("d", None)]))
        store.roll(KEYED)
        store.compact(KEYED)
        sent = the(store.events, "produce", topic=KEYED, nth=-1)
        record_id, key, value, _ = sent["records"][0]
        log.rows[sent["places"][0][1]] = [sent["places"][0][1], store.now_ms, record_id, key, value]

    return story(delete)


@anomaly("I1: record gone above the cleaned part")
def gone_above_the_cleaned_part() -> list[Event]:
    def remove(store: ModelStore) -> None:
        log = store.topics[KEYED].logs[0]
        store.do(store.produce(KEYED, [store.record("d"), store.record("d")]))
        del log.rows[log.end - 2]

    return story(remove)


@anomaly("B2: hole")
def hole_in_a_compacted_topic() -> list[Event]:
    return story(_hole_of_nobody)


def _hole_of_nobody(store: ModelStore) -> None:
    store.topics[KEYED].logs[0].end += 1
    store.do(store.produce(KEYED, [store.record("d")]))
    store.roll(KEYED)
    store.compact(KEYED)


@anomaly("I3: retention took from the middle")
def retention_took_from_the_middle() -> list[Event]:
    return story(lambda store: store.topics[BOUNDED].logs[0].rows.pop(7))


@anomaly("I3: retention took too much")
def retention_took_too_much() -> list[Event]:
    def take(store: ModelStore) -> None:
        store.roll(BOUNDED)
        store.look(BOUNDED)
        store.retention(BOUNDED, store.topics[BOUNDED].logs[0].end)
        store.look(BOUNDED)

    return story(take)


@anomaly("I3: prefix lost without retention")
def prefix_lost_without_retention() -> list[Event]:
    return story(lambda store: store.retention(PLAIN, 4))


@anomaly("I3: prefix lost without retention")
def more_deleted_than_asked_for() -> list[Event]:
    def delete(store: ModelStore) -> None:
        store.do(store.delete_records(PLAIN, 3))
        store.retention(PLAIN, 4)

    return story(delete)


@anomaly("I3: prefix lost without retention")
def deleted_though_that_was_refused() -> list[Event]:
    def delete(store: ModelStore) -> None:
        store.do(store.delete_records(PLAIN, 3), "fail", acts=False)
        store.retention(PLAIN, 3)

    return story(delete)


@anomaly("I3: records below the log start")
def records_below_the_log_start() -> list[Event]:
    events = story()
    final_of(events, BOUNDED)["log_start"] += 1
    return events


@anomaly("I3: read below the log start")
def read_below_the_log_start() -> list[Event]:
    def read(store: ModelStore) -> None:
        start = store.topics[BOUNDED].logs[0].start
        early = store.fetch(BOUNDED, start, process="early")
        store.act(early)
        store.retention(BOUNDED, start + 2)
        store.do(store.fetch(BOUNDED, start + 2, process="shown"))
        store.end(early)

    events = story(read)
    shown = the(events, "fetch", process="shown")
    the(events, "fetch", "invoke", process="early")["t"] = shown["t"] + 1
    the(events, "fetch", process="early")["log_start"] = shown["log_start"]
    return events


@anomaly("I4: a job took rows away")
def job_took_rows_away() -> list[Event]:
    def merge(store: ModelStore) -> None:
        store._job("merge", PLAIN, lambda log: None, 0)
        store.look(PLAIN)

    events = story(merge)
    del the(events, "delta", topic=PLAIN, nth=-1)["rows"][2]
    return events


# J, and the history itself.


@anomaly("A1: acknowledged after a failed fsync")
def acknowledged_after_a_failed_fsync() -> list[Event]:
    def fail(store: ModelStore) -> None:
        store.tell("nemesis", "fault", kind="fsync_error")
        store.tell("nemesis", "fault", kind="fsync_failed")
        store.do(store.produce(PLAIN, 1))
        store.restart()
        store.do(store.produce(PLAIN, 1))

    return story(fail)


@anomaly("J1: error of the server without a fault")
def stored_and_answered_with_an_error() -> list[Event]:
    """Answer with an error that does not refuse the request, so that the client does not know the outcome."""

    def refuse(store: ModelStore) -> None:
        store.restart()
        store.do(store.produce(PLAIN, 1), "info")
        store.events[-1].update(status=500, error_code=50002)
        store.tell("bench", "heal")
        store.wait(4)
        store.do(store.produce(PLAIN, 1), "info")
        store.events[-1].update(status=503, error_code=50301)
        store.wait(2)
        store.do(store.produce(PLAIN, 1), "info")
        store.events[-1].update(status=500, error_code=50002)

    return story(refuse)


@pytest.mark.parametrize(
    ("process", "later_s", "expected"),
    [
        ("machine", 4, []),
        ("machine", 6, ["J1: error of the server without a fault"]),
        ("consumer-m0", 4, ["J1: error of the server without a fault"]),
    ],
)
def test_a_stall_of_the_machine_explains_errors(process: str, later_s: float, expected: list[str]) -> None:
    def stall(store: ModelStore) -> None:
        since = store.events[-1]["t"]
        store.wait(2)
        store.tell(process, "stall", since=since)
        store.wait(later_s)
        store.do(store.produce(PLAIN, 1), "info")
        store.events[-1].update(status=503, error_code=50304)

    assert found(story(stall)) == expected


@anomaly("J1: error that is not documented")
def error_of_a_bug() -> list[Event]:
    def fail(store: ModelStore) -> None:
        store.restart()
        store.do(store.fetch(PLAIN, 0), "info")
        store.events[-1].update(status=500, error_code=500)

    return story(fail)


@anomaly("J2: no progress after healing")
def no_progress_after_healing() -> list[Event]:
    return _in_doubt(story(), BOUNDED)


@anomaly("J2: no progress after healing")
def progress_too_late() -> list[Event]:
    events = story()
    healed = the(events, "heal")["t"]
    for event in events:
        event["t"] -= (PROGRESS_S + 1) * 1_000_000_000 if event["t"] <= healed else 0
    return events


@anomaly("J2: no progress after healing")
def nothing_after_a_last_fault() -> list[Event]:
    events = story(ModelStore.restart)
    events.remove(the(events, "heal"))
    return _in_doubt(events, PLAIN, BOUNDED, KEYED, APPENDED)


def _in_doubt(events: list[Event], *topics: str) -> list[Event]:
    """Leave the last producers without an answer."""
    for event in events:
        if event["process"] == "healed" and event["phase"] == "ok" and event["topic"] in topics and "places" in event:
            event["phase"] = "info"
            del event["places"]
    return events


@anomaly("history: no final read")
def no_final_read() -> list[Event]:
    events = story()
    events.remove(final_of(events, PLAIN, 1))
    return events


@anomaly("history: nothing acknowledged", "history: nothing fetched", "history: no look at a table")
def nothing_to_check() -> list[Event]:
    return make_store().events


@anomaly("history: completion without invocation")
def completion_without_invocation() -> list[Event]:
    events = story()
    events.remove(the(events, "fetch", "invoke", topic=PLAIN))
    return events


@anomaly("history: completion of another operation")
def completion_of_another_operation() -> list[Event]:
    return story(lambda store: store.tell("x", "committed", "ok", store.tell("x", "fetch", "invoke")))


@anomaly("history: id used twice")
def id_used_twice() -> list[Event]:
    return story(lambda store: [store.tell("x", "fetch", "invoke", "same") for _ in range(2)])


@anomaly("history: record sent twice")
def record_sent_twice() -> list[Event]:
    def send(store: ModelStore) -> None:
        record = store.record()
        store.do(store.produce(PLAIN, [record]), "info", acts=False)
        store.do(store.produce(PLAIN, [record]), "info")

    return story(send)


@anomaly("history: no topic")
def no_topic() -> list[Event]:
    events = story()
    events.remove(the(events, "topic", topic=APPENDED))
    return events


# ---- streams --------------------------------------------------------------------------------------------------------


def streamed(query: str = "delta", topic: str = PLAIN) -> list[Event]:
    """Return a correct history with three batches of a streaming query, the second of them in two attempts."""

    def read(store: ModelStore) -> None:
        store.stream(topic, query)
        store.do(store.produce(topic, 5))
        store.roll(topic)
        store.stream(topic, query)
        store.stream(topic, query, again=True)

    return story(read)


def batches(events: list[Event], number: int) -> list[Event]:
    return [event for event in events if event["op"] == "stream" and event["batch"] == number]


@anomaly("C2: stream gave a record twice")
def stream_gave_a_record_twice() -> list[Event]:
    events = streamed()
    batches(events, 2)[0]["rows"].insert(0, batches(events, 1)[0]["rows"][0])
    return events


@anomaly("C2: stream gave a record twice")
def stream_gave_a_record_twice_at_once() -> list[Event]:
    events = streamed()
    rows = batches(events, 0)[0]["rows"]
    rows.append(rows[3])
    return events


@anomaly("C2: stream went back")
def stream_went_back() -> list[Event]:
    events = streamed()
    batches(events, 2)[0]["rows"].append(batches(events, 0)[0]["rows"].pop(0))
    return events


@anomaly("C2: stream left a record out")
def stream_left_a_record_out() -> list[Event]:
    events = streamed("logstore")
    for attempt in batches(events, 1):
        attempt["rows"].pop()
    return events


@anomaly("C2: repeated batch of a stream differs", "C2: stream left a record out")
def repeated_batch_has_less() -> list[Event]:
    events = streamed("logstore")
    batches(events, 1)[1]["rows"].pop()
    return events


@anomaly("C2: repeated batch of a stream differs")
def repeated_batch_has_more() -> list[Event]:
    events = streamed("logstore", BOUNDED)
    batches(events, 1)[0]["rows"].pop()
    return events


@anomaly("A4: two readers, two records")
def stream_gave_another_record() -> list[Event]:
    events = streamed()
    row = batches(events, 2)[0]["rows"][0]
    row[5] = "another"
    return events


@anomaly("D1: read record is lost")
def stream_gave_a_record_that_is_lost() -> list[Event]:
    def read(store: ModelStore) -> None:
        log = store.topics[PLAIN].logs[0]
        store.do(store.produce(PLAIN, 1, process="in-doubt"), "info")
        store.stream(PLAIN, "logstore")
        del log.rows[log.end - 1]
        log.end -= 1

    return story(read)


@anomaly("D4: table cannot be streamed")
def table_cannot_be_streamed() -> list[Event]:
    events = streamed()
    failed = {"phase": "info", "id": "failed", "batch": -1, "rows": [], "error": "Detected a data update"}
    return [*events, {**batches(events, 2)[0], **failed}]


def test_a_query_that_asks_the_store_may_fail() -> None:
    events = streamed("logstore")
    failed = {"phase": "info", "id": "failed", "batch": -1, "rows": [], "error": "no store answers"}
    assert found([*events, {**batches(events, 2)[0], **failed}]) == []


def test_a_stream_over_a_table_may_miss_what_came_in_the_place_of_a_lost_entry() -> None:
    events = streamed()
    for attempt in batches(events, 1):
        attempt["rows"].pop()
    lost = {"op": "fault", "phase": "ok", "process": "nemesis", "id": "lost", "kind": "entry_lost", "topic": PLAIN}
    assert found([*events, {**lost, "t": batches(events, 1)[0]["t"], "version": 5}]) == []


# ---- silence --------------------------------------------------------------------------------------------------------


def test_a_power_cut_may_take_what_was_not_acknowledged() -> None:
    """Check an entry that only Delta readers had seen, which do not wait for an fsync."""

    def cut(store: ModelStore) -> None:
        bounded = store.topics[BOUNDED]
        rows, start, sealed = dict(bounded.logs[0].rows), bounded.logs[0].start, bounded.logs[0].sealed
        store.retention(BOUNDED, start + 2)
        store.look(BOUNDED)
        _lose_newest_entry(store, BOUNDED)
        bounded.logs[0].rows, bounded.logs[0].start, bounded.logs[0].sealed = rows, start, sealed
        store.do(store.fetch(BOUNDED, start))
        store.roll(BOUNDED)
        store.events[-1]["sha256"] = "ours, again"
        store.look(BOUNDED)

    events = story(cut)
    assert check(events) == []
    assert check([event for event in events if event.get("kind") != "entry_lost"])


def test_other_writers_may_overwrite_entries() -> None:
    """Check a version without the store's commit, a forgotten log start, and an undone compaction."""

    def overwrite(store: ModelStore) -> None:
        bounded, keyed = store.topics[BOUNDED].logs[0], store.topics[KEYED].logs[0]
        lost, undone = dict(bounded.rows), dict(keyed.rows)
        store.do(store.produce(KEYED, [store.record("a")]))
        undone.update(keyed.rows)
        store.retention(BOUNDED, 6)
        store.roll(KEYED)
        store.compact(KEYED)
        store.do(store.fetch(BOUNDED, 6))
        store.do(store.fetch(KEYED, 0))
        store.do(store.offset_for_time(BOUNDED, 0))
        store.look(BOUNDED)
        for topic in (BOUNDED, KEYED):
            version = store.topics[topic].version
            store.tell("nemesis", "fault", kind="overwrite", topic=topic, version=version)
            store.tell("observer", "entry", topic=topic, version=version, sha256="another's")
        bounded.rows, bounded.start, keyed.rows = lost, 3, undone
        store.do(store.fetch(BOUNDED, 3))
        store.look(BOUNDED)
        # A later commit came before the lost one was repeated.
        told = store.events[-1]
        told["rows"] = told["rows"][3:]

    events = story(overwrite)
    assert check(events) == []
    assert check([event for event in events if event.get("kind") != "overwrite"])


def test_foreign_commits_excuse_anomalies_of_their_table_until_they_are_undone() -> None:
    """Check a version without the store's files, and one with a row of a writer that does not know offsets."""

    def meddle(store: ModelStore) -> None:
        version = store.topics[PLAIN].version + 1
        for strange in ([], [[0, 10**6, 7, None, None, "foreign"]]):
            store.roll(PLAIN)
            store.look(PLAIN)
            store.events[-1]["rows"] = strange
        store.tell("nemesis", "foreign", topic=PLAIN, version=version)
        store.roll(PLAIN)
        store.tell("nemesis", "foreign", topic=PLAIN, version=version, until=store.topics[PLAIN].version)
        store.look(PLAIN)

    events = story(meddle)
    assert check(events) == []
    late = [{**event, "version": event["version"] + 2} if event["op"] == "foreign" else event for event in events]
    assert {"A5: invented record", "D2: rows are missing", "D2: rows beyond sealed"} <= set(found(late))


def after_a_statement(*more: Callable[[ModelStore], object]) -> list[Event]:
    """Change offset 1 of ``PLAIN`` and delete offset 2, after both were read."""

    def state(store: ModelStore) -> None:
        store.do(store.statement(PLAIN, {1: "new", 2: None}))
        for step in more:
            step(store)
        store.do(store.fetch(PLAIN, 0, process="afterwards"))
        store.look(PLAIN)

    return story(state)


def row_at(rows: list[list[Any]], offset: int) -> list[Any]:
    return next(row for row in rows if row[0] == offset)


def test_a_statement_of_others_changes_and_deletes_records() -> None:
    events = after_a_statement()
    assert check(events) == []
    rows = final_of(events, PLAIN)["rows"]
    assert row_at(rows, 1)[4] == "new"
    assert [row[0] for row in rows[:3]] == [0, 1, 3]


def test_records_are_changed_more_than_once_and_back_again() -> None:
    def again(store: ModelStore) -> None:
        before = store.topics[PLAIN].logs[0].rows[4]
        store.do(store.statement(PLAIN, {1: "newer", 3: None, 4: "new"}))
        store.look(PLAIN)
        store.do(store.statement(PLAIN, {4: before[4]}))

    assert check(after_a_statement(again)) == []


def test_jobs_work_on_what_a_statement_left() -> None:
    def others(store: ModelStore) -> None:
        store.do(store.statement(APPENDED, dict.fromkeys(range(12))))
        store.do(store.statement(BOUNDED, {3: None, 6: "new"}))
        store.retention(BOUNDED, 5)
        # The last record of a key, and one that has to stay.
        end = store.topics[KEYED].logs[0].end
        store.do(store.statement(KEYED, {end - 1: None, end - 2: "new"}))
        store.compact(KEYED)
        store.do(store.fetch(KEYED, 0))
        store.look(KEYED)

    assert check(after_a_statement(others)) == []


def test_a_reader_that_asked_before_a_statement_was_served_may_see_either() -> None:
    events = after_a_statement()
    before = the(events, "fetch", topic=PLAIN, partition=0, nth=-3)
    done = the(events, "statement")
    assert {row[0] for row in before["records"]} >= {1, 2}
    asked = the(events, "fetch", "invoke", id=before["id"])
    asked["t"], before["t"] = done["t"] - 2, done["t"] + 2
    assert check(events) == []
    asked["t"] = done["t"] + 1
    assert found(events) == ["I5: deleted record is back", "I5: record is not as a statement left it"]


@anomaly("A1: acknowledged record is lost")
def more_than_a_statement_names_is_gone() -> list[Event]:
    events = after_a_statement()
    rows = final_of(events, PLAIN)["rows"]
    rows.remove(row_at(rows, 3))
    return events


@anomaly("A1: acknowledged record changed", "A4: two readers, two records", "D2: rows differ from the log")
def another_value_than_that_of_a_statement() -> list[Event]:
    events = after_a_statement()
    for row in (row_at(final_of(events, PLAIN)["rows"], 1), row_at(the(events, "final_delta", topic=PLAIN)["rows"], 1)):
        row[-1] = "another"
    return events


@anomaly("I5: record is not as a statement left it")
def the_old_value_after_a_statement() -> list[Event]:
    events = after_a_statement()
    row_at(final_of(events, PLAIN)["rows"], 1)[4] = row_at(the(events, "fetch", topic=PLAIN)["records"], 1)[4]
    return events


@anomaly("I5: deleted record is back")
def a_deleted_record_comes_back() -> list[Event]:
    events = after_a_statement()
    final_of(events, PLAIN)["rows"].insert(2, row_at(the(events, "fetch", topic=PLAIN)["records"], 2))
    return events


@anomaly("A1: acknowledged record is lost")
def a_record_that_a_restore_brought_back_is_gone() -> list[Event]:
    """Undo the statement, but leave the record deleted."""

    def restore(store: ModelStore) -> None:
        (row,) = [row for row in the(store.events, "statement")["rows"] if row[0] == 2]
        log = store.topics[PLAIN].logs[0]
        log.rows[2] = row
        store.do(store.statement(PLAIN, {2: row[4]}))
        del log.rows[2]

    return after_a_statement(restore)


@anomaly("C2: existing record skipped")
def gone_before_the_statement() -> list[Event]:
    events = after_a_statement()
    fetched = [e for e in events if e["op"] == "fetch" and e["phase"] == "ok" and e["topic"] == PLAIN]
    rows = next(e for e in fetched if e["partition"] == 0)["records"]
    rows.remove(row_at(rows, 2))
    return events


@anomaly("D2: rows are missing")
def gone_in_the_version_before_the_statement() -> list[Event]:
    events = after_a_statement()
    look = the(events, "delta", topic=PLAIN)
    look["rows"] = [row for row in look["rows"] if row[:2] != [0, 2]]
    return events


@anomaly("I5: record is not as a statement left it")
def changed_in_the_version_before_the_statement() -> list[Event]:
    events = after_a_statement()
    look = the(events, "delta", topic=PLAIN)
    next(row for row in look["rows"] if row[:2] == [0, 1])[-1] = "new"
    return events


@anomaly("I5: deleted record is back", "I5: record is not as a statement left it")
def a_version_after_the_statement_has_the_file_from_before() -> list[Event]:
    """Let the store commit its own file again."""
    events = after_a_statement()
    before = the(events, "delta", topic=PLAIN)
    look = the(events, "delta", topic=PLAIN, nth=-1)
    look["rows"] = [row for row in before["rows"] if row[:1] == [0] and row[1] < 3] + [
        row for row in look["rows"] if row[:1] != [0] or row[1] >= 3
    ]
    return events


def test_the_older_of_two_stores_may_not_know_what_the_younger_acknowledged() -> None:
    def meanwhile(store: ModelStore) -> None:
        end = store.topics[PLAIN].logs[0].end
        store.tell("nemesis", "fault", kind="lock")
        store.do(store.produce(PLAIN, 2, process="second"))
        store.roll(PLAIN)
        store.look(PLAIN)
        store.do(store.fetch(PLAIN, end))
        store.events[-1].update(records=[], next_offset=end, high_watermark=end)
        store.tell("nemesis", "start")

    events = story(meanwhile)
    assert check(events) == []
    assert "B4: end below an acknowledged record" in found([e for e in events if e.get("kind") != "lock"])


def test_a_commit_in_doubt_need_not_be_there() -> None:
    def doubt(store: ModelStore) -> None:
        store.do(store.commit("g", PLAIN, {0: 7}), "info", acts=False)
        for _ in range(3):
            store.restart()
        store.do(store.committed("g", PLAIN))

    assert check(story(committing({0: 3}), doubt)) == []


def test_a_commit_of_some_partitions_is_also_whole() -> None:
    """Check the read of a commit of one partition, which looks like half of the failed commit before it."""

    def commit(store: ModelStore) -> None:
        store.do(store.commit("g", PLAIN, {0: 5, 1: 4}), "info", acts=False)
        store.do(store.commit("g", PLAIN, {0: 5}))
        store.do(store.committed("g", PLAIN))

    assert check(story(committing({0: 3, 1: 2}), commit)) == []


def test_progress_is_not_due_when_the_next_fault_comes_first() -> None:
    def heal_for_a_while(store: ModelStore) -> None:
        store.tell("bench", "heal")
        store.wait(PROGRESS_S * 2 // 3)
        store.restart()
        store.wait(PROGRESS_S * 2 // 3)

    events = story(heal_for_a_while)
    assert check(events) == []
    assert found([event for event in events if event["op"] != "fault"]) == ["J2: no progress after healing"]


def test_progress_is_not_due_of_a_partition_that_comes_later() -> None:
    def grow(store: ModelStore) -> None:
        store.topic("growing")
        store.tell("bench", "heal")
        for name, topic in store.topics.items():
            for partition, log in enumerate(topic.logs):
                store.do(store.produce(name, [store.record("a")], partition))
                store.do(store.fetch(name, log.start, partition))
        store.wait(PROGRESS_S * 2)
        store.topics["growing"].logs.append(ModelLog())
        store.tell("bench", "topic", topic="growing", partitions=2, configs={}, now_ms=store.now_ms)
        store.do(store.produce("growing", 1, 1))
        store.do(store.fetch("growing", 0, 1))

    events = story(grow)
    assert check(events) == []
    the(events, "topic", topic="growing")["partitions"] = 2
    assert found(events) == ["J2: no progress after healing"]


def test_compaction_takes_what_has_no_key() -> None:
    def turn(store: ModelStore) -> None:
        store.topic("turned")
        store.do(store.produce("turned", 3))
        store.tell("bench", "topic", topic="turned", partitions=1, configs={"cleanup.policy": "compact"})
        store.do(store.produce("turned", [store.record("a")]))
        store.roll("turned")
        for offset in range(3):
            del store.topics["turned"].logs[0].rows[offset]
        store.compact("turned")

    assert check(story(turn)) == []


def test_deleted_records_may_go() -> None:
    def delete(store: ModelStore) -> None:
        store.do(store.delete_records(PLAIN, 5))
        store.do(store.fetch(PLAIN, 5))
        store.look(PLAIN)

    assert check(story(delete)) == []


def test_expired_tombstones_may_go() -> None:
    def delete(store: ModelStore) -> None:
        store.topic("slow", cleanup_policy="compact", delete_retention_ms="60000")
        for age in (61, 0):
            store.do(store.produce("slow", [store.record("a"), store.record("a", None)]))
            store.roll("slow")
            store.compact("slow")
            store.wait(age)
        log = store.topics["slow"].logs[0]
        store.do(store.produce("slow", [store.record("a")]))
        store.roll("slow")
        store.compact("slow")
        assert list(log.rows) == [4]

    assert check(story(delete)) == []


def test_no_reader_must_have_seen_what_compaction_removed() -> None:
    """Check a record without an answer that was compacted before any reader saw it."""

    def unseen(store: ModelStore) -> None:
        store.do(store.produce(KEYED, [store.record("a"), store.record("a")]), "info")
        store.do(store.produce(KEYED, [store.record("c", None)]), "info")
        store.roll(KEYED)
        store.compact(KEYED)

    events = story(unseen)
    assert check(events) == []
    for doubtful in [e for e in events if e["op"] == "produce" and e["phase"] == "info"]:
        doubtful["phase"] = "fail"
    assert {anomaly.invariant for anomaly in check(events)} >= {"A2", "B2"}


def test_the_log_start_may_cut_a_batch() -> None:
    def cut(store: ModelStore) -> None:
        begin = store.topics[BOUNDED].logs[0].end
        store.do(store.produce(BOUNDED, 4), "info")
        store.roll(BOUNDED)
        store.retention(BOUNDED, begin + 2)

    assert check(story(cut)) == []


# A step is a name and a number, which chooses the client, the amount or the order.
_STEPS = (
    *("produce",) * 4,
    *("fetch",) * 3,
    *("act",) * 6,
    *("end",) * 6,
    *("doubt", "refuse", "commit", "committed", "time", "delete", "roll", "look", "compact", "retention", "restart"),
    *("stream", "stream", "state"),
)


class Drive:
    """Clients with one call each at a time, on a correct store, in any order."""

    def __init__(self) -> None:
        self.store = make_store()
        self.store.topic(BOTH, 2, cleanup_policy="compact,delete", delete_retention_ms="0", retention_bytes="1000")
        #: Streams cannot bear statements.
        self.streamed = list(self.store.topics)
        self.store.topic(STATED, 2)
        self.store.topic(STATED_KEYED, cleanup_policy="compact", delete_retention_ms="0")
        self.names = list(self.store.topics)
        self.lives = dict.fromkeys(("p0", "p1", "p2", "r0", "r1"), 0)
        self.calls: dict[str, Pending] = {}
        self.at: dict[tuple[str, str, int], int] = {}
        self.looked: dict[str, dict[int, int]] = {}

    def take(self, step: str, number: int) -> None:
        getattr(self, f"_{step}")(number, random.Random(number))

    def _free(self, chance: random.Random, kind: str) -> tuple[str, str] | None:
        """Return a client that waits for nothing, and its current name."""
        free = [client for client in self.lives if client not in self.calls and client[0] == kind]
        client = chance.choice(free) if free else None
        return (client, f"{client}.{self.lives[client]}") if client else None

    def _produce(self, number: int, chance: random.Random) -> None:
        client = self._free(chance, "p")
        if not client:
            return
        topic = chance.choice(self.names)
        compacted = self.store.topics[topic].compacted
        keyed = compacted or chance.random() < 0.5
        records = [
            self.store.record(
                f"k{chance.randrange(3)}" if keyed else None,
                None if compacted and chance.random() < 0.3 else "",
                chance.randrange(1000) if chance.random() < 0.3 else None,
            )
            for _ in range(chance.randint(1, 4))
        ]
        partition = chance.choice([None, chance.randrange(len(self.store.topics[topic].logs))])
        acks = chance.choice(["all", "1", "0"])
        self.calls[client[0]] = self.store.produce(topic, records, partition, process=client[1], acks=acks)

    def _log(self, chance: random.Random) -> tuple[str, int]:
        topic = chance.choice(self.names)
        return topic, chance.randrange(len(self.store.topics[topic].logs))

    def _fetch(self, number: int, chance: random.Random) -> None:
        client = self._free(chance, "r")
        if client:
            topic, partition = self._log(chance)
            offset = self.at.setdefault((client[0], topic, partition), 0)
            count = chance.choice([1, 3, 1000])
            self.calls[client[0]] = self.store.fetch(topic, offset, partition, count=count, process=client[1])

    def _commit(self, number: int, chance: random.Random) -> None:
        client = self._free(chance, "r")
        if client:
            topic = chance.choice(self.names)
            offsets = {p: at for (who, what, p), at in self.at.items() if (who, what) == (client[0], topic)}
            if offsets:
                self.calls[client[0]] = self.store.commit(client[0], topic, offsets, process=client[1])

    def _committed(self, number: int, chance: random.Random) -> None:
        client = self._free(chance, "r")
        if client:
            self.calls[client[0]] = self.store.committed(client[0], chance.choice(self.names), process=client[1])

    def _time(self, number: int, chance: random.Random) -> None:
        topic, partition = self._log(chance)
        times = [row[1] for row in self.store.topics[topic].logs[partition].rows.values()]
        self.store.do(self.store.offset_for_time(topic, chance.choice([0, self.store.now_ms, *times]), partition))

    def _delete(self, number: int, chance: random.Random) -> None:
        topic, partition = chance.choice([(BOUNDED, 0), (BOTH, 0), (BOTH, 1)])
        log = self.store.topics[topic].logs[partition]
        call = self.store.delete_records(topic, chance.randint(log.start, log.end), partition)
        self.store.do(call, chance.choice(["ok", "info"]))

    def _act(self, number: int, chance: random.Random) -> None:
        waiting = [call for call in self.store.pending if not call.acted]
        if waiting:
            self.store.act(chance.choice(waiting))

    def _end(self, number: int, chance: random.Random) -> None:
        self._answer(chance, "ok", acted=True)

    def _refuse(self, number: int, chance: random.Random) -> None:
        self._answer(chance, "fail", acted=False)

    def _doubt(self, number: int, chance: random.Random) -> None:
        self._answer(chance, "info", acted=chance.random() < 0.5)

    def _answer(self, chance: random.Random, phase: str, *, acted: bool) -> None:
        clients = [client for client, call in self.calls.items() if call.acted == acted]
        if not clients:
            return
        client = chance.choice(clients)
        call = self.calls.pop(client)
        told = self.store.end(call, phase)
        self.lives[client] += phase == "info"
        if call.op == "fetch":
            place = (client, call.asked["topic"], call.asked["partition"])
            if told:
                self.at[place] = told["next_offset"]
            elif call.acted and phase == "ok":
                # The offset is out of range: the reader continues from the current log start.
                self.at[place] = self.store.topics[place[1]].logs[place[2]].start
        elif call.op == "committed" and told and chance.random() < 0.5:
            for partition, offset in told["offsets"].items():
                self.at[client, call.asked["topic"], int(partition)] = offset

    def _roll(self, number: int, chance: random.Random) -> None:
        self.store.roll(chance.choice(self.names))

    def _look(self, number: int, chance: random.Random) -> None:
        topic = chance.choice(self.names)
        since = self.looked.get(topic) if chance.random() < 0.7 else None
        self.store.look(topic, since, tells_cleaned=chance.random() < 0.5)
        self.looked[topic] = {p: log.sealed for p, log in enumerate(self.store.topics[topic].logs)}

    def _compact(self, number: int, chance: random.Random) -> None:
        self.store.compact(*chance.choice([(KEYED, 0), (BOTH, 0), (BOTH, 1), (STATED_KEYED, 0)]))

    def _retention(self, number: int, chance: random.Random) -> None:
        topic, partition = chance.choice([(BOUNDED, 0), (BOTH, 0), (BOTH, 1)])
        log = self.store.topics[topic].logs[partition]
        # Retention by size leaves some records.
        self.store.retention(topic, chance.randint(log.start, max(log.start, log.sealed - 1)), partition)

    def _stream(self, number: int, chance: random.Random) -> None:
        query = chance.choice(["delta", "logstore"])
        self.store.stream(chance.choice(self.streamed), query, again=chance.random() < 0.3)

    def _state(self, number: int, chance: random.Random) -> None:
        topic, partition = chance.choice([(STATED, 0), (STATED, 1), (STATED_KEYED, 0)])
        sealed = [at for at, row in self.store.topics[topic].logs[partition].rows.items() if row[4] is not None]
        values = {at: chance.choice([None, f"new{number}"]) for at in sealed if chance.random() < 0.5}
        self.store.do(self.store.statement(topic, values, partition))

    def _restart(self, number: int, chance: random.Random) -> None:
        for client in list(self.calls):
            call = self.calls.pop(client)
            self.store.end(call, "info")
            self.lives[client] += 1
        self.store.restart()

    def finish(self) -> list[Event]:
        return self.store.finish()


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.sampled_from(_STEPS), st.integers(0, 2**16)), max_size=120))
def test_the_checker_is_silent_on_right_histories(steps: list[tuple[str, int]]) -> None:
    drive = Drive()
    for step, number in steps:
        drive.take(step, number)
    events = drive.finish()
    assert [str(anomaly) for anomaly in check(events)] == []


def long_history(requests: int) -> list[Event]:
    """Return twenty records a request, read by one reader and one table, with a commit for each read."""
    chance = random.Random(7)
    drive = Drive()
    store = drive.store
    for number in range(requests):
        topic, partition = chance.choice([(PLAIN, 0), (PLAIN, 1), (KEYED, 0), (APPENDED, 0)])
        records = [store.record(f"k{chance.randrange(500)}") for _ in range(20)]
        store.do(store.produce(topic, records, partition, process=f"p{number % 4}"))
        offset = drive.at.get(("r", topic, partition), 0)
        told = store.do(store.fetch(topic, offset, partition, process="r"))
        drive.at["r", topic, partition] = told["next_offset"]
        store.do(store.commit("r", topic, {partition: told["next_offset"]}, process="r"))
    return store.finish()


@pytest.mark.long
def test_long_histories_take_no_long_time() -> None:
    """Check that long histories are judged quickly: quadratic time would be minutes."""
    events = long_history(1000)
    began = time.process_time()
    assert check(events) == []
    assert time.process_time() - began < 10


# ---- the recorder ---------------------------------------------------------------------------------------------------


def _record(path: Path, process: str, calls: int) -> None:
    with Recorder(path) as recorder:
        for n in range(calls):
            number = recorder.invoke(process, "fetch", topic="t", partition=0, offset=n)
            rows = [[n, 1, f"{process}-{n}", None, "x" * 500]]
            recorder.complete(number, process, "fetch", "ok", records=rows, next_offset=n + 1, reason="")


@pytest.mark.system
def test_threads_and_processes_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "history.jsonl"
    spawn = multiprocessing.get_context("spawn")
    workers = [spawn.Process(target=_record, args=(path, f"process-{n}", 200)) for n in range(2)]
    workers += [threading.Thread(target=_record, args=(path, f"thread-{n}", 200)) for n in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    events = read_history(path)
    assert [event.t for event in events] == sorted(event.t for event in events)
    assert len({event.id for event in events}) == 5 * 200
    for name in ("process-0", "process-1", "thread-0", "thread-1", "thread-2"):
        told = [event for event in events if event.process == name and isinstance(event, Fetch) and event.phase == "ok"]
        assert [fetch.records[0][:3] for fetch in told] == [(n, 1, f"{name}-{n}") for n in range(200)]


def test_a_killed_recorder_leaves_its_last_line_cut(tmp_path: Path) -> None:
    path, other = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    _record(path, "a", 2)
    _record(other, "b", 1)
    path.write_bytes(path.read_bytes()[:-3])
    assert [(event.process, event.phase) for event in read_history(other, path)] == [
        ("a", "invoke"),
        ("a", "ok"),
        ("a", "invoke"),
        ("b", "invoke"),
        ("b", "ok"),
    ]
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(ValueError, match=r"a\.jsonl:4 is no event"):
        read_history(path)


def test_a_mistake_of_the_workload_fails_where_it_is_made(tmp_path: Path) -> None:
    with Recorder(tmp_path / "history.jsonl") as recorder:
        with pytest.raises(msgspec.ValidationError, match="offset"):
            recorder.invoke("w", "fetch", topic="t", partition=0, offset="1")
        with pytest.raises(msgspec.ValidationError, match="fetched"):
            recorder.tell("w", "fetched")
    assert read_history(tmp_path / "history.jsonl") == []


def test_a_history_is_judged_as_it_was_recorded(tmp_path: Path) -> None:
    """Judge events from a file, typed, or plain ones, in any order."""
    events = lost_in_the_middle()
    path = tmp_path / "history.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(event) + b"\n" for event in reversed(events)))
    (anomaly,) = check(read_history(path))
    assert str(anomaly).startswith("A1 acknowledged record is lost: plain-0 offsets 4 of [0, 17)")
    assert [event.process for event in anomaly.events] == ["producer", "producer", "reader", "final"]


# G: members of groups.

SHARED, GROUP = "shared", "members"
SHARED_1 = (SHARED, 1)


def of_group(*more: Callable[[ModelStore], object]) -> list[Event]:
    """Let two members share two partitions, and hand one over; then ``more``."""

    def share(store: ModelStore) -> None:
        store.topic(SHARED, 2)
        store.group(GROUP, SHARED)
        store.assign("a", GROUP, SHARED, 0, 1)
        for _ in range(2):
            for partition in (0, 1):
                store.do(store.produce(SHARED, 3, partition))
                store.process("a", GROUP, SHARED, partition)
        store.describe(GROUP, SHARED)
        store.give_up("a", GROUP, SHARED, 1)
        store.assign("b", GROUP, SHARED, 1)
        store.describe(GROUP, SHARED)
        store.do(store.produce(SHARED, 3, 1))
        store.process("b", GROUP, SHARED, 1)

    return story(share, *more)


def silence(store: ModelStore, member: str) -> None:
    """Stop the member for longer than its session: other members get its partitions."""
    store.wait(5)
    store.tell(member, "stall", since=store._time - 5_000_000_000)


def test_groups_whose_members_come_and_go_have_no_anomaly() -> None:
    def moves(store: ModelStore) -> None:
        # "a" dies after it has processed, and before it has committed.
        store.do(store.produce(SHARED, 2, 0))
        store.process("a", GROUP, SHARED, 0, commits=False)
        store.tell("nemesis", "fault", kind="member_killed", member="a")
        store.assign("b", GROUP, SHARED, 0)
        store.process("b", GROUP, SHARED, 0)
        # "b" is fenced, and notices later.
        store.assign("c", GROUP, SHARED, 0, 1)
        store.process("b", GROUP, SHARED, 0, commits=False)
        silence(store, "b")
        store.give_up("b", GROUP, SHARED, 0, 1, op="lost")
        store.owners[GROUP, SHARED].update({0: "c", 1: "c"})
        before = store.generations[GROUP]
        store.restart()
        store.tell("nemesis", "heal")
        store.tell("nemesis", "group_restarted", group=GROUP, before=before, after=before + 1)

    assert check(of_group(moves)) == []


@anomaly("G1: partition has two owners")
def assigned_before_it_was_revoked() -> list[Event]:
    def steal(store: ModelStore) -> None:
        store.assign("a", GROUP, SHARED, 1)
        store.wait(1)
        store.give_up("b", GROUP, SHARED, 1)

    return of_group(steal)


@anomaly("G1: partition is assigned again")
def assigned_twice() -> list[Event]:
    return of_group(lambda store: store.assign("b", GROUP, SHARED, 1))


@anomaly("G1: records of a partition that is not owned")
def processed_after_it_was_revoked() -> list[Event]:
    def go_on(store: ModelStore) -> None:
        store.give_up("b", GROUP, SHARED, 1)
        store.process("b", GROUP, SHARED, 1, commits=False)
        store.assign("a", GROUP, SHARED, 1)

    return of_group(go_on)


@anomaly("G1: two members are assigned a partition")
def described_with_two_owners() -> list[Event]:
    events = of_group()
    the(events, "described", nth=1)["members"]["a"].append(SHARED_1)
    return events


@anomaly("G1: partition without an owner")
def nobody_owns_it_in_the_end() -> list[Event]:
    events = of_group()
    the(events, "described", nth=-1)["members"]["b"].remove(SHARED_1)
    return events


@anomaly("G7: member that is gone is in its group")
def a_dead_member_is_kept() -> list[Event]:
    events = of_group()
    the(events, "described", nth=-1)["live"].remove("b")
    return events


@anomaly("G7: member that was heard of is out of its group")
def lost_without_a_reason() -> list[Event]:
    def lose(store: ModelStore) -> None:
        store.give_up("b", GROUP, SHARED, 1, op="lost")
        store.assign("b", GROUP, SHARED, 1)

    return of_group(lose)


@anomaly("G2: commit of a former owner is accepted")
def a_fenced_member_commits() -> list[Event]:
    def fence(store: ModelStore) -> None:
        store.assign("a", GROUP, SHARED, 1)
        silence(store, "b")
        offsets = {1: store.topics[SHARED].logs[1].end}
        store.do(store.commit(GROUP, SHARED, offsets, process="b"))
        store.give_up("b", GROUP, SHARED, 1, op="lost")
        store.owners[GROUP, SHARED][1] = "a"

    return of_group(fence)


@anomaly("G2: generation fell")
def a_generation_is_used_again() -> list[Event]:
    events = of_group()
    the(events, "described", nth=-1)["generation"] = 1
    return events


@anomaly("G2: more than one rebalance after a restart")
def a_restart_disturbs_its_groups() -> list[Event]:
    return of_group(lambda store: store.tell("nemesis", "group_restarted", group=GROUP, before=3, after=5))


@anomaly("G3: owner begins before the committed offset")
def a_new_owner_is_told_an_old_offset() -> list[Event]:
    events = of_group()
    processed = the(events, "processed", process="b")
    processed["rows"] = [the(events, "processed", process="a", partition=1, nth=1)["rows"][-1], *processed["rows"]]
    return events


@anomaly(
    "C2: records skipped by a member",
    "G5: commit of records that nobody has processed",
    "G5: record was never processed",
)
def a_member_passes_over_a_record() -> list[Event]:
    events = of_group()
    del the(events, "processed", process="b")["rows"][1]
    return events


@anomaly("G5: commit of records that nobody has processed", "G5: record was never processed")
def committed_before_it_was_processed() -> list[Event]:
    def pass_over(store: ModelStore) -> None:
        store.give_up("b", GROUP, SHARED, 1)
        store.do(store.produce(SHARED, 2, 1))
        store.do(store.commit(GROUP, SHARED, {1: store.topics[SHARED].logs[1].end}, process="b"))
        store.assign("a", GROUP, SHARED, 1)

    return of_group(pass_over)


@anomaly(
    "G5: commit of records that nobody has processed",
    "G5: owner begins after the committed offset",
    "G5: record was never processed",
)
def a_new_owner_skips_a_record() -> list[Event]:
    def skip(store: ModelStore) -> None:
        store.give_up("b", GROUP, SHARED, 1)
        store.do(store.produce(SHARED, 2, 1))
        store.assign("a", GROUP, SHARED, 1)
        log = store.topics[SHARED].logs[1]
        rows = [(log.end - 1, log.rows[log.end - 1][2])]
        store.tell("a", "processed", group=GROUP, topic=SHARED, partition=1, rows=rows)
        store.do(store.commit(GROUP, SHARED, {1: log.end}, process="a"))

    return of_group(skip)


@anomaly("C2: records of a member go back")
def a_member_reads_again() -> list[Event]:
    events = of_group()
    processed = the(events, "processed", process="b")
    processed["rows"] = [*processed["rows"], processed["rows"][0]]
    return events


@anomaly("A4: a member and another reader, two records")
def a_member_reads_something_else() -> list[Event]:
    events = of_group()
    processed = the(events, "processed", process="b")
    processed["rows"][0] = (processed["rows"][0][0], "r0")
    return events


@anomaly("G1: partition without an owner", "G5: record was never processed")
def a_new_partition_is_never_read() -> list[Event]:
    def share(store: ModelStore) -> None:
        store.topic(SHARED, 2)
        store.group(GROUP, SHARED)
        store.assign("a", GROUP, SHARED, 0)

    return story(share)
