"""A small run of our side, and what it reports about missing tools."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import kafka
from benchmarks.__main__ import main
from benchmarks.measure import Sample
from benchmarks.run import Case, Peers, Stage, run_case
from benchmarks.server import Result, SingleServer, Turn, turn_of


@dataclass(frozen=True, slots=True)
class Recorded:
    """A contender that records its turns."""

    name: str
    turns: list[tuple[str, float]] = field(compare=False)
    needs: tuple[str, ...] = ()

    def start(self, _stage: Stage) -> Callable[[float], Sample]:
        def turn(seconds: float) -> Sample:
            self.turns.append((self.name, seconds))
            return Sample(records_s=len(self.turns))

        return turn


def test_contenders_take_turns_after_a_round_that_does_not_count(tmp_path: Path):
    turns: list[tuple[str, float]] = []
    case = Case("c", "", (Recorded("a", turns), Recorded("b", turns), Recorded("x", turns, ("kafka",))))
    result = run_case(case, tmp_path, Peers(), rounds=2, seconds=4.0, tell=print)
    assert turns == [("a", 2.0), ("b", 2.0), ("a", 4.0), ("b", 4.0), ("a", 4.0), ("b", 4.0)]
    assert {name: [s.records_s for s in samples] for name, samples in result.samples.items()} == {
        "a": [3, 5],
        "b": [4, 6],
    }
    assert result.absent == {"x": "kafka"}


def test_a_case_is_left_out_when_its_own_side_lacks_something(tmp_path: Path):
    turns: list[tuple[str, float]] = []
    case = Case("c", "", (Recorded("a", turns, ("wrk",)), Recorded("b", turns)))
    result = run_case(case, tmp_path, Peers(), rounds=2, seconds=4.0, tell=print)
    assert (result.samples, result.absent, turns) == ({}, {"a": "wrk"}, [])


@pytest.mark.long
def test_ours_alone_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    where = ["--directory", str(tmp_path / "data"), "--results", str(tmp_path / "results")]
    code = main(["--cases", "produce-json-100", "--alone", "--pairs", "1", "--seconds", "0.2", *where])
    printed = capsys.readouterr().out
    assert code == 0, printed
    (written,) = (tmp_path / "results").glob("*.json")
    (case,) = json.loads(written.read_text())["cases"]
    (sample,) = case["contenders"]["ours"]
    assert sample["records_s"] > 0
    assert sample["mb_s"] == pytest.approx(sample["records_s"] * 113 / 1e6)
    assert 0 < sample["p50_ms"] <= sample["p99_ms"] <= sample["p999_ms"]
    assert sample["peak_mb"] >= sample["resident_mb"] > 20
    assert sample["server_cpu_us"] > 0
    assert case["absent"] == {"kafka": "kafka", "kafka fsync": "kafka"}
    assert "ours alone, without Kafka" in printed
    assert list((tmp_path / "data").iterdir()) == []
    assert not _children(str(tmp_path))


class Process(SingleServer):
    """A server whose process is that of the test; it never stops."""

    process = SimpleNamespace(pid=os.getpid())

    def pause(self) -> None:
        pass

    def resume(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Refused:
    """A contender whose answers are all 429."""

    name: str
    needs: tuple[str, ...] = ()

    def start(self, _stage: Stage) -> Turn:
        return turn_of(Process(), 100, lambda seconds: Result(0, seconds, throttled=37))


def test_a_turn_without_a_record_names_the_side_and_the_answers_and_the_run_continues(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    cases = [Case("full", "", (Recorded("a", []), Refused("b"))), Case("fine", "", (Recorded("a", []),))]
    monkeypatch.setattr("benchmarks.__main__.choose", lambda *_, **__: cases)
    monkeypatch.setattr("benchmarks.__main__.describe", lambda *_: {})
    where = ["--directory", str(tmp_path / "data"), "--results", str(tmp_path / "results")]
    assert main(["--alone", "--pairs", "1", *where]) == 1
    printed = capsys.readouterr().out
    assert "fine: round 1: a: 2 records/s" in printed
    assert printed.endswith("failed full: b, warm-up: no record got through in 2.0 s, 37 answers were 429\n")


def test_an_unknown_case_is_reported(capsys: pytest.CaptureFixture[str]):
    assert main(["--cases", "produce-jason"]) == 2
    assert "no case is called 'produce-jason'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("option", "given", "says"),
    [
        ("--pairs", "0", "'0' is not a whole number from 1"),
        ("--pairs", "-1", "'-1' is not a whole number from 1"),
        ("--pairs", "1.5", "'1.5' is not a whole number from 1"),
        ("--seconds", "0", "'0' is not a number of seconds above 0"),
        ("--seconds", "-1", "'-1' is not a number of seconds above 0"),
        ("--seconds", "nan", "'nan' is not a number of seconds above 0"),
        ("--seconds", "long", "'long' is not a number of seconds above 0"),
    ],
)
def test_a_number_that_measures_nothing_is_wrong_usage(
    option: str, given: str, says: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as ended:
        main(["--list", option, given])
    assert ended.value.code == 2
    assert f"argument {option}: {says}" in capsys.readouterr().err


def test_cases_can_be_listed(capsys: pytest.CaptureFixture[str]):
    assert main(["--list"]) == 0
    assert "produce-json-100" in capsys.readouterr().out


@pytest.mark.long
def test_a_missing_tool_for_kafka_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("KAFKA_PEER_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    assert "Java is missing" in str(kafka.find_kafka())
    (tmp_path / "java").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "Maven is missing" in str(kafka.find_kafka())
    maven = tmp_path / "mvn"
    maven.write_text("#!/bin/sh\necho '[ERROR] offline' >&2; exit 1\n")
    maven.chmod(0o755)
    assert str(kafka.find_kafka()) == "Maven could not fetch Kafka's jars: [ERROR] offline"
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs/kafka-clients-4.1.1.jar").touch()
    found = kafka.find_kafka()
    assert isinstance(found, kafka.Kafka)
    assert found.version == "4.1.1"


@pytest.mark.system
def test_jars_that_several_ask_for_are_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("KAFKA_PEER_HOME", str(tmp_path / "peer"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "java").touch(mode=0o755)
    maven = tmp_path / "mvn"
    # A killed run has left a jar of another version.
    (tmp_path / "peer/libs.arriving").mkdir(parents=True)
    (tmp_path / "peer/libs.arriving/kafka-clients-1.0.jar").touch()
    maven.write_text(
        "#!/bin/sh\n"
        f"echo run >> {tmp_path}/runs; sleep 0.2\n"
        'for argument; do case "$argument" in -DoutputDirectory=*) directory="${argument#*=}"; esac; done\n'
        'mkdir -p "$directory" && touch "$directory/kafka-clients-4.1.1.jar"\n'
    )
    maven.chmod(0o755)
    with ThreadPoolExecutor(4) as pool:
        found = [asked.result() for asked in [pool.submit(kafka.find_kafka) for _ in range(4)]]
    assert all(isinstance(each, kafka.Kafka) for each in found), found
    assert (tmp_path / "runs").read_text() == "run\n"
    assert [jar.name for jar in (tmp_path / "peer/libs").iterdir()] == ["kafka-clients-4.1.1.jar"]


@pytest.mark.long
def test_servers_end_with_their_case(tmp_path: Path):
    with ExitStack() as stack:
        store = Stage(tmp_path, Peers(), stack).store("ours, one")
        store.create_topic("t", 2)
        store.pause()
        assert _children(str(tmp_path))
    assert not _children(str(tmp_path))


def _children(argument: str) -> list[int]:
    """Return the living child processes that have ``argument`` in their command line."""
    found = []
    for directory in Path("/proc").iterdir():
        if directory.name.isdigit():
            try:
                parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == os.getpid() and argument in (directory / "cmdline").read_text():
                    found.append(int(directory.name))
            except OSError:
                continue
    return found
