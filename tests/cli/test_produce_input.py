"""The records that each input becomes, shown by --dry-run, which needs no store."""

import io
import json
import re
from types import SimpleNamespace

import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from logstore.cli.app import app
from logstore.cli.csv_reader import CsvFormat, read_csv
from logstore.cli.produce_run import summarize
from logstore.cli.table_reader import Fields
from logstore.errors import InvalidRecordError


@pytest.fixture
def dry():
    """Return ``dry(..., input=...)``, which returns the first records as JSON, or with ``code`` the error message."""

    def dry(*arguments: object, input: str | bytes = "", code: int = 0) -> list[dict] | str:
        given = ["produce", "t", *map(str, arguments), "--dry-run", "--json"]
        # Nothing listens at this address, so a request to a store would fail.
        result = CliRunner(env={"LOGSTORE_URL": "127.0.0.1:1", "COLUMNS": "200"}).invoke(app, given, input=input)
        assert result.exit_code == code, result.output
        assert "Traceback" not in result.output
        return json.loads(result.stdout) if code == 0 else re.sub(r"[\s│]+", " ", result.stderr)

    return dry


def pairs(records: list[dict]) -> list[tuple]:
    return [(record["key"], record["value"]) for record in records]


def values(records: list[dict]) -> list:
    return [json.loads(record["value"]) for record in records]


def test_text_of_csv_stays_text(dry):
    text = 'zip,country,price,empty,quoted\n00123,NA,1.50,,""\n1e5,null,true,,x\n'
    assert values(dry("--format", "csv", input=text)) == [
        {"zip": "00123", "country": "NA", "price": "1.50", "empty": None, "quoted": ""},
        {"zip": "1e5", "country": "null", "price": "true", "empty": None, "quoted": "x"},
    ]


def test_types_are_those_asked_for(dry):
    text = "zip,n,price,at,zoned,day,long,ok\n"
    text += "00123,7,1.50,2026-11-21T08:00:00,2026-11-21T08:00:00+01:00,2026-11-21,5,true\n"
    types = "n=int64, price=decimal(10,2),at=timestamp[ms],zoned=timestamp[s, UTC],day=date32,long=duration[s],ok=bool"
    (record,) = dry("--format", "csv", "--types", types, input=text)
    assert record["value"] == (
        '{"zip":"00123","n":7,"price":1.50,"at":"2026-11-21T08:00:00.000","zoned":"2026-11-21T07:00:00Z",'
        '"day":"2026-11-21","long":"PT5S","ok":true}'
    )


def test_types_are_found_out_if_asked_for_but_for_those_that_are_given(dry):
    text = "zip,code,n\n00123,00123,NA\n00124,00124,7\n"
    found = values(dry("--format", "csv", "--infer", "--types", "zip=string", input=text))
    assert found == [{"zip": "00123", "code": 123, "n": None}, {"zip": "00124", "code": 124, "n": 7}]


def test_times_that_nobody_gave_a_type_keep_their_digits(dry):
    text = "at,zoned,typed\n2026-11-21 08:00:00.5,2026-11-21T08:00:00+01:00,2026-11-21 08:00:00\n"
    text += "2026-11-21 08:00:00.120,2026-11-21T08:00:00.250Z,2026-11-21 08:00:00.5\n"
    found = values(dry("--format", "csv", "--infer", "--types", "typed=timestamp[ms]", input=text))
    assert found == [
        {"at": "2026-11-21 08:00:00.5", "zoned": "2026-11-21T08:00:00+01:00", "typed": "2026-11-21T08:00:00.000"},
        {"at": "2026-11-21 08:00:00.120", "zoned": "2026-11-21T08:00:00.250Z", "typed": "2026-11-21T08:00:00.500"},
    ]
    wrong = "typed\n2026-11-21\nsoon\n"
    arguments = ("--format", "csv", "--infer", "--types", "typed=timestamp[ms]")
    assert "row 2, column 'typed': 'soon' is not timestamp[ms]" in dry(*arguments, input=wrong, code=1)


@pytest.mark.parametrize("delimiter", [";", "|", "\\t", "\t"])
def test_columns_are_between_delimiters(dry, delimiter):
    text = '\ufeffa;"b;\nc"\n1,5;"x;y"\n'.replace(";", "\t" if "t" in delimiter or delimiter == "\t" else delimiter)
    (found,) = values(dry("--format", "csv", "--delimiter", delimiter, input=text))
    assert list(found) == ["a", text.split('"')[1]]
    assert list(found.values()) == ["1,5", text.split('"')[3]]


@pytest.mark.parametrize("text", ["", "\n", "a,b\n", "a,b"])
def test_csv_without_rows_has_no_records(dry, text):
    assert dry("--format", "csv", input=text) == []


@pytest.mark.parametrize(
    ("time", "timestamp"),
    [
        ("1500", 1500),
        ("1970-01-01T00:00:01.500Z", 1500),
        ("1970-01-01T01:00:01.500+01:00", 1500),
        ("1970-01-01 00:00:01.500", 1500),
        ("1970-01-01T00:00:01.500999999Z", 1500),
        ("1970-01-02", 86_400_000),
        ("", None),
    ],
)
def test_times_in_csv_are_numbers_or_texts_and_stay_text_in_the_row(dry, time, timestamp):
    text = f"at,x\n{time},1\n"
    (record,) = dry("--format", "csv", "--timestamp-field", "at", input=text)
    assert record["timestamp"] == timestamp
    assert json.loads(record["value"])["at"] == (time or None)


def test_times_with_and_without_a_zone_may_be_in_one_column(dry):
    times = ["1970-01-01T00:00:01Z", "1970-01-01 00:00:02", "", "1970-01-01T02:00:03+02:00", "1970-01-02"]
    text = "at,x\n" + "".join(f"{time},1\n" for time in times)
    found = dry("--format", "csv", "--timestamp-field", "at", input=text)
    assert [record["timestamp"] for record in found] == [1_000, 2_000, None, 3_000, 86_400_000]


def test_records_in_csv_are_what_they_are(dry):
    text = 'key,value,timestamp,to\nada,NA,5,1\n,,6,0\n"","",7,\n'
    found = dry("--format", "csv", "--partition-field", "to", input=text)
    assert pairs(found) == [("ada", "NA"), (None, None), ("", "")]
    assert [(r["row"], r["timestamp"], r["partition"]) for r in found] == [(1, 5, 1), (2, 6, 0), (3, 7, None)]
    assert pairs(dry("--format", "csv", "-Z", "--key-json", input=text)) == [
        ('"ada"', "NA"),
        (None, None),
        ('""', None),
    ]


def test_rows_of_parquet_have_one_form_whether_pandas_is_there_or_not(dry, tmp_path):
    table = pa.table(
        {
            "ns": pa.array([1], pa.timestamp("ns")),
            "took": pa.array([1_500], pa.duration("ms")),
            "price": pa.array(["1.10"]).cast(pa.decimal128(10, 2)),
            "tags": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
            "blob": pa.array([b"\xff"]),
        }
    )
    parquet.write_table(table, tmp_path / "rows.parquet")
    (record,) = dry(tmp_path / "rows.parquet", "--key-field", "ns")
    assert record["key"] == "1970-01-01T00:00:00.000000001"
    assert record["value"] == (
        '{"ns":"1970-01-01T00:00:00.000000001","took":"PT1.500S","price":1.10,"tags":{"a":1},"blob":"/w=="}'
    )
    (record,) = dry(tmp_path / "rows.parquet", "--key-field", "blob")
    assert record["key"] == {"base64": "/w=="}
    (record,) = dry(tmp_path / "rows.parquet", "--key-field", "ns", "--key-json")
    assert record["key"] == '"1970-01-01T00:00:00.000000001"'


def test_one_key_and_headers_for_all(dry):
    found = dry("-k", "ada", "-H", "source=web", "--header", "empty=", "-p", 3, input="a\n\nb\n")
    assert pairs(found) == [("ada", "a"), ("ada", "b")]
    assert found[1]["line"] == 3
    headers = [{"key": "source", "value": "web"}, {"key": "empty", "value": ""}]
    assert [(r["headers"], r["partition"]) for r in found] == [(headers, 3)] * 2
    assert pairs(dry("-k", 'a"b', "--key-json", input="a")) == [('"a\\"b"', "a")]
    assert pairs(dry("--format", "csv", "-k", "ada", input="key,value\nbob,1\n")) == [("ada", "1")]


def test_keys_before_a_separator(dry):
    assert pairs(dry("-K", ":", input="a:b:c\r\n:x\n\nk:\n")) == [("a", "b:c"), ("", "x"), ("k", "")]
    assert pairs(dry("-K", ":", "-Z", input="a:1\na:\n")) == [("a", "1"), ("a", None)]
    assert pairs(dry("--key-separator", "\\t", "--key-json", input="é\t1\n")) == [('"é"', "1")]
    assert pairs(dry("-K", ":", "--format", "ndjson", "-Z", input='a:{"x":1}\na:\n')) == [("a", '{"x":1}'), ("a", None)]
    assert "line 2 has no ':'" in dry("-K", ":", input="a:1\nb\n", code=1)
    assert "line 1 is not JSON" in dry("-K", ":", "--format", "ndjson", input="a:b\n", code=1)


@pytest.mark.parametrize("arguments", [["--format", "ndjson"], ["--key-field", "x"], ["--format", "record"]])
def test_a_line_of_blanks_is_no_json_record(dry, arguments):
    text = ' \n{"value":1,"x":"a"}\n\t \n\r\r\n{"value":2,"x":"b"}\r\n  '
    assert len(pairs(dry(*arguments, input=text))) == 2
    assert "line 3 is not" in dry(*arguments, input='{"value":1}\n \nx\n', code=1)
    assert len(pairs(dry(input=text))) == 6, "any text is a value"


def test_an_empty_line_with_a_key_is_a_tombstone(dry):
    found = dry("-k", "ada", "-Z", input="x\n\n\ny")
    assert pairs(found) == [("ada", "x"), ("ada", None), ("ada", None), ("ada", "y")]
    assert [record["line"] for record in found] == [1, 2, 3, 4]
    for text, records in (("\n", 1), ("x\n\n", 2), ("", 0), ("\r\n", 1)):
        assert len(dry("-k", "ada", "-Z", input=text)) == records, repr(text)


def test_key_fields_are_raw_or_json(dry):
    text = '{"k":"a\\u00e9"}\n{"k":17}\n{"k":{"x":"y"}}\n{"k":null}\n{}\n'
    assert [r["key"] for r in dry("--key-field", "k", input=text)] == ["aé", "17", '{"x":"y"}', None, None]
    assert [r["key"] for r in dry("--key-field", "k", "--key-json", input=text)][:2] == ['"a\\u00e9"', "17"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--key", "a", "--key-field", "b"], "give one of --key, --key-field"),
        (["--key", "a", "-K", ":"], "give one of --key, --key-separator"),
        (["-K", ""], "it has no character"),
        (["-K", ":", "--format", "csv"], "rows have columns"),
        (["--key-json"], "needs one of --key, --key-separator, --key-field"),
        (["-Z"], "needs --key or --key-separator"),
        (["-Z", "--key-field", "a"], "no value is empty"),
        (["-H", "a"], "'a' is not NAME=VALUE"),
        (["-H", "=a"], "'=a' is not NAME=VALUE"),
        (["-H", "a=b", "--headers-field", "h", "--format", "parquet", "f"], "give one of --header and --headers-field"),
        (["--headers-field", "h", "--format", "csv"], "use Parquet"),
        (["-p", "1", "--partition-field", "p", "--format", "csv"], "give one of --partition and --partition-field"),
        (["--value-field", "v"], "lines have no columns"),
        (["--infer"], "is for CSV: the format is lines"),
        (["--types", "a=int64", "--format", "ndjson"], "is for CSV: the format is ndjson"),
        (["--delimiter", ";;", "--format", "csv"], "one ASCII character"),
        (["--types", "a", "--format", "csv"], "'a' is not COLUMN=TYPE"),
        (["--types", "a=int64,a=bool", "--format", "csv"], "column 'a' is there twice"),
        (["--types", "a=number", "--format", "csv"], "'number' is not a type: use string, bool"),
        (["--key", "\udcff"], "is not UTF-8"),
    ],
)
def test_options_that_exclude_each_other_are_named(dry, tmp_path, arguments, says):
    (tmp_path / "f").touch()
    arguments = [tmp_path / "f" if argument == "f" else argument for argument in arguments]
    assert says in dry(*arguments, input="x\n", code=2)


@pytest.mark.parametrize(
    ("text", "arguments", "says"),
    [
        ("a,a\n1,2\n", [], "there are two columns 'a'"),
        ("a\nx\n", ["--types", "b=int64"], "there is no column 'b': the file has a"),
        ("a,zip\nx,1\n\ny,12x\n", ["--types", "zip=int32"], "row 2, column 'zip': '12x' is not int32"),
        ("a\n1.2\n1.234\n", ["--types", "a=decimal(5,2)"], "column 'a': Rescaling Decimal value would cause data loss"),
        ("a,b\n1,2\n3\n", [], "row 2: it has 1 value, and the file 2 columns: 3"),
        ("a\n1\n3,4,5\n", [], "row 2: it has 3 values, and the file 1 column: 3,4,5"),
        (b"a\xff\n1\n", [], "the names of the columns, is not UTF-8 text: convert the file"),
        (b"a,caf\xc3\xa9\n1,2\n1,\xff\n", [], "row 2, column 'café': not UTF-8 text: convert the file, as in iconv"),
        ('at\n\n5\n""\n2026-11-21\n', ["--timestamp-field", "at"], "row 2: '' is not a time"),
        (
            "at,x\n,\n5,\n2026-11-21,\n",
            ["--timestamp-field", "at"],
            "row 3: '2026-11-21' is a time as a text, in the rows before it is a number",
        ),
        ("at\n5\nsoon\n", ["--timestamp-field", "at"], "row 2: 'soon' is not a time"),
        ("to\n5\n1.5\n", ["--partition-field", "to"], "row 2: '1.5' is not a partition"),
    ],
)
def test_a_mistake_in_csv_is_named(dry, text, arguments, says):
    assert says in dry("--format", "csv", *arguments, input=text, code=1)


@pytest.mark.parametrize("format", [CsvFormat(types={"zip": pa.int64()}), CsvFormat(infer=True)])
def test_a_row_of_csv_is_named_by_its_number_in_the_file(format):
    """Put the row far behind the first block, from which types are inferred."""
    text = io.BytesIO(b"zip,x\n" + b"1,\n" * 3_000 + b"12x,\n")
    with pytest.raises(InvalidRecordError, match=r"^row 3001, column 'zip': '12x' is not int64$"):
        list(read_csv(text, 1_000, format, Fields()))


def test_headers_of_a_file_and_of_the_command_line_do_not_mix(dry, tmp_path):
    headers = pa.array(
        [[{"key": "h", "value": b"1"}]], pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    )
    parquet.write_table(pa.table({"value": ["x"], "headers": headers}), tmp_path / "t.parquet")
    assert dry(tmp_path / "t.parquet")[0]["headers"] == [{"key": "h", "value": "1"}]
    assert "leave out --header" in dry(tmp_path / "t.parquet", "-H", "a=b", code=1)


def test_a_dry_run_also_shows_the_first_ten_to_people():
    lines = "".join(f"k{n}:value {n}\n" for n in range(30))
    given = ["produce", "t", "-K", ":", "-H", "a=b", "--dry-run"]
    shown = CliRunner(env={"LOGSTORE_URL": "127.0.0.1:1"}).invoke(app, given, input=lines).stdout.splitlines()
    assert shown[0] == "The first 10 records as they would be stored; nothing was sent"
    assert shown[1].split() == ["line", "key", "value", "headers"]
    assert [line.split() for line in shown[2:]] == [[str(n + 1), f"k{n}", "value", str(n), "a=b"] for n in range(10)]


def test_a_failed_produce_has_no_summary(capsys):
    nothing = SimpleNamespace(topic="t", records=0, bytes=0, seconds=0.1, partitions={})
    summarize(nothing, "Topic 't' does not exist.", json=False, quiet=False)
    assert capsys.readouterr().out == ""
    summarize(nothing, None, json=False, quiet=False)
    assert "Produced 0 records" in capsys.readouterr().out
