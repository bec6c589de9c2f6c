#!/usr/bin/env bash
# Spark 4.2.0 parses the first JSON document of a text, and ignores the text after it, which does not make a corrupt record.
#
# Guessed: from_json raises in mode FAILFAST for `{"a": 1} garbage` and for `{"a": 1} {"a": 2}`, and fills the corrupt-record column in mode
#          PERMISSIVE; parse_json raises, and try_parse_json gives null.
# Happens: all of them give a = 1: no error, no null, no corrupt record. spark.read.json does the same with each line of a file, and with
#          multiLine it takes only the first document of a whole file. None of the JSON options tried changes this.
# Beside:  from_json with a column `a string` returns the text of a double instead of the original text: {"a": 0.1234567890123456789012} loses
#          digits. spark.read.json of a file keeps them, unless it is given an encoding; parse_json also keeps them.
#
# Python's json raises "Extra data" for such texts.
#
#   findings/spark_json_text_behind_a_document.sh
#
# Exit: 0 as stated, 1 the behaviour changed, 2 not tried (Java or Python is missing, the installation or Spark failed, no time left).
# Needs bash, coreutils, Python >= 3.10 with venv, Java >= 17. Installs into a temporary directory that it removes.
set -euo pipefail

readonly PYSPARK=4.2.0
readonly SECONDS_IN_ALL=235

not_tried() {
    echo "not tried: $*" >&2
    exit 2
}

running=
work=$(mktemp -d)
cleanup() {
    if [ -n "$running" ]; then
        kill "$running" 2>/dev/null || true
        wait "$running" 2>/dev/null || true
    fi
    rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 2' INT TERM HUP

# Runs a command within the remaining time. Its exit code is in $code; its output is in a log.
bounded() {
    local name=$1 left=$((SECONDS_IN_ALL - SECONDS))
    shift
    [ "$left" -gt 0 ] || not_tried "no time left for $name"
    timeout --kill-after=3 "$left" "$@" >"$work/$name.log" 2>"$work/$name.err" &
    running=$!
    code=0
    wait "$running" || code=$?
    running=
    if [ "$code" -gt 1 ] || { [ "$code" = 1 ] && [ "$name" != spark ]; }; then
        cat "$work/$name.log"
        tail -n 20 "$work/$name.err" >&2
        not_tried "$name failed with $code, or took more than $left s"
    fi
}

command -v python3 >/dev/null || not_tried "python3 is missing"
command -v timeout >/dev/null || not_tried "timeout is missing"
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
command -v "$java" >/dev/null || not_tried "Spark $PYSPARK needs Java 17 or later, and $java is missing"
java_version=$("$java" -version 2>&1 | sed -n 's/.* version "\([^"]*\)".*/\1/p' | head -n 1)
java_major=${java_version%%[!0-9]*}
[ "${java_major:-0}" -ge 17 ] || not_tried "Spark $PYSPARK needs Java 17 or later, and $java is ${java_version:-of an unknown version}"

unset SPARK_HOME SPARK_CONF_DIR PYSPARK_SUBMIT_ARGS PYTHONPATH
export TMPDIR=$work SPARK_LOCAL_IP=127.0.0.1

cat >"$work/spark.py" <<'PYTHON'
"""Prints the result of each reader for the texts. Exit: 0 as stated, 1 the behaviour changed (the last line says what), or Spark failed."""

import json
import platform
import re
import sys
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession
from pyspark.sql.functions import col, from_json, parse_json, to_json, try_parse_json

work = Path(sys.argv[1])

TWO = '{"a": 1} {"a": 2}'
GARBAGE = '{"a": 1} garbage'
BEHIND = [TWO, GARBAGE]
CUT_OFF = '{"a": '
DIGITS = '{"a": 0.1234567890123456789012}'
EXACT, DOUBLE = "0.1234567890123456789012", "0.12345678901234568"

# Spark's options for reading JSON, without those for dates and times, samplingRatio (for inference), and without mode and columnNameOfCorruptRecord,
# which the cases set.
OPTIONS = {
    "allowBackslashEscapingAnyCharacter": "true",
    "allowComments": "true",
    "allowNonNumericNumbers": "false",
    "allowNumericLeadingZeros": "true",
    "allowSingleQuotes": "false",
    "allowUnquotedControlChars": "true",
    "allowUnquotedFieldNames": "true",
    "dropFieldIfAllNull": "true",
    "encoding": "UTF-8",
    "lineSep": "\n",
    "locale": "de-DE",
    "multiLine": "true",
    "prefersDecimal": "true",
    "primitivesAsString": "true",
    "useUnsafeRow": "true",
}
SETTINGS = {
    "spark.sql.json.enablePartialResults": "false",
    "spark.sql.json.enableExactStringParsing": "false",
    "spark.sql.json.useUnsafeRow": "true",
}
FAILFAST = {"mode": "FAILFAST"}
PERMISSIVE = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "corrupt"}

changed = []


def outcome(run):
    """Return the result, or the condition of Spark's error."""
    try:
        return run()
    except Exception as exception:
        condition = re.search(r"\[([A-Z_]+(?:\.[A-Z_]+)*)\]", str(exception))
        if condition is None:
            raise
        return f"raises {condition[1]}"


def case(name, text, seen, expected):
    text = text if isinstance(text, str) else " and ".join(text)
    print(f"  {name}\n    {text} -> {seen}", flush=True)
    if seen != expected:
        print(f"    CHANGED: expected {expected}")
        changed.append(f"{name} of {text} gives {seen}, not {expected}")


def python(text):
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        return f"raises {error.msg}"


try:
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.memory", "512m")
        .config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={work}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(work))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("OFF")
    java = spark.sparkContext._jvm.System.getProperty("java.version")
except Exception as exception:
    sys.exit(f"Spark did not start: {exception}"[:2000])
print(f"PySpark {pyspark.__version__}, Spark {spark.version}, Java {java}, Python {platform.python_version()}")


def values(column, texts):
    return [row[0] for row in spark.createDataFrame([(text,) for text in texts], "value string").select(column).collect()]


def rows(schema, options, texts):
    return [row if row is None else tuple(row) for row in values(from_json("value", schema, options), texts)]


def file_rows(schema, options, texts):
    path = work / "lines.json"
    path.write_text("".join(text + "\n" for text in texts))
    return [tuple(row) for row in spark.read.json(str(path), schema=schema, **options).collect()]


print("\nPython's json")
for text in BEHIND:
    case("json.loads", text, python(text), "raises Extra data")

print("\nText behind the first document: it is ignored")
MALFORMED = "raises MALFORMED_RECORD_IN_PARSING.WITHOUT_SUGGESTION"
case("from_json, FAILFAST", BEHIND, outcome(lambda: rows("a int", FAILFAST, BEHIND)), [(1,), (1,)])
case("from_json, PERMISSIVE: (a, corrupt)", BEHIND, outcome(lambda: rows("a int, corrupt string", PERMISSIVE, BEHIND)), [(1, None), (1, None)])
variant = from_json("value", "variant", FAILFAST)
case("from_json to `variant`, FAILFAST", BEHIND, outcome(lambda: values(to_json(variant), BEHIND)), ['{"a":1}', '{"a":1}'])
case("parse_json", BEHIND, outcome(lambda: values(to_json(parse_json(col("value"))), BEHIND)), ['{"a":1}', '{"a":1}'])
case("try_parse_json", BEHIND, outcome(lambda: values(to_json(try_parse_json(col("value"))), BEHIND)), ['{"a":1}', '{"a":1}'])

print("\nA document that is cut off: the modes do what they say")
case("from_json, FAILFAST", CUT_OFF, outcome(lambda: rows("a int", FAILFAST, [CUT_OFF])), MALFORMED)
case("from_json, PERMISSIVE: (a, corrupt)", CUT_OFF, outcome(lambda: rows("a int, corrupt string", PERMISSIVE, [CUT_OFF])), [(None, CUT_OFF)])
case("parse_json", CUT_OFF, outcome(lambda: values(to_json(parse_json(col("value"))), [CUT_OFF])), MALFORMED)
case("try_parse_json", CUT_OFF, outcome(lambda: values(to_json(try_parse_json(col("value"))), [CUT_OFF])), [None])

print("\nspark.read.json of a file: it is ignored, too")
case("lines, FAILFAST", BEHIND, outcome(lambda: file_rows("a int", FAILFAST, BEHIND)), [(1,), (1,)])
case("lines, PERMISSIVE: (a, corrupt)", BEHIND, outcome(lambda: file_rows("a int, corrupt string", PERMISSIVE, BEHIND)), [(1, None), (1, None)])
case("lines, DROPMALFORMED", BEHIND, outcome(lambda: file_rows("a int", {"mode": "DROPMALFORMED"}, BEHIND)), [(1,), (1,)])
case("multiLine, FAILFAST", BEHIND, outcome(lambda: file_rows("a int", {**FAILFAST, "multiLine": True}, BEHIND)), [(1,)])

print("\nA float in a column `a string`")
case("from_json, FAILFAST", DIGITS, outcome(lambda: rows("a string", FAILFAST, [DIGITS])), [(DOUBLE,)])
case("lines, FAILFAST", DIGITS, outcome(lambda: file_rows("a string", FAILFAST, [DIGITS])), [(EXACT,)])
case("lines, FAILFAST, encoding", DIGITS, outcome(lambda: file_rows("a string", {**FAILFAST, "encoding": "UTF-8"}, [DIGITS])), [(DOUBLE,)])
case("parse_json", DIGITS, outcome(lambda: values(to_json(parse_json(col("value"))), [DIGITS])), [f'{{"a":{EXACT}}}'])

print("\nOptions and settings with from_json, FAILFAST, `a string`: none changes it")
texts = [*BEHIND, DIGITS]
same = [("1",), ("1",), (DOUBLE,)]
frame = spark.createDataFrame([(text,) for text in texts], "value string")


def all_options():
    parsed = frame.select(*(from_json("value", "a string", {**FAILFAST, name: value}).alias(name) for name, value in OPTIONS.items())).collect()
    return {name: [tuple(row[name]) for row in parsed] for name in OPTIONS}


by_option = outcome(all_options)
if isinstance(by_option, str):
    # One of them raises, so they are tried one by one.
    by_option = {name: outcome(lambda: rows("a string", {**FAILFAST, name: value}, texts)) for name, value in OPTIONS.items()}
for name, value in OPTIONS.items():
    seen = by_option[name]
    print(f"  {name}={value!r}: {'the same' if seen == same else f'CHANGED: {seen}'}")
    if seen != same:
        changed.append(f"from_json with {name}={value!r} gives {seen}, not {same}")
for name, value in SETTINGS.items():
    spark.conf.set(name, value)
seen = outcome(lambda: rows("a string", FAILFAST, texts))
print(f"  {', '.join(f'{name}={value}' for name, value in SETTINGS.items())}: {'the same' if seen == same else f'CHANGED: {seen}'}")
if seen != same:
    changed.append(f"from_json with the settings gives {seen}, not {same}")

print()
if changed:
    print("CHANGED: " + "; ".join(changed))
else:
    print("as stated: text behind the first JSON document is ignored by every function, mode and option tried, and from_json makes a double of a float")
sys.exit(1 if changed else 0)
PYTHON

bounded venv python3 -m venv "$work/venv"
bounded pip "$work/venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile "pyspark==$PYSPARK"
echo "installed after $SECONDS s" >&2
bounded spark "$work/venv/bin/python" "$work/spark.py" "$work"
cat "$work/spark.log"
if [ "$code" = 1 ] && ! grep -q '^CHANGED: ' "$work/spark.log"; then
    tail -n 20 "$work/spark.err" >&2
    not_tried "Spark failed"
fi
exit "$code"
