#!/usr/bin/env bash
# Delta parses the table property delta.dataSkippingStatsColumns as SQL, under the settings of the session that reads the table.
#
# Guessed: a table with statistics of the columns `offset,timestamp` can be read in every session; at worst no files are skipped.
# Happens: with spark.sql.ansi.enforceReservedKeywords (and ANSI mode), OFFSET is reserved, the property cannot be parsed, and a query with a filter
#          fails with java.util.NoSuchElementException: None.get, which names neither the property nor the setting. A query without a filter works.
# Beside:  the names in backquotes (`offset`,`timestamp`) do not help: there the error is PARSE_SYNTAX_ERROR at or near 'offset'. A session that
#          planned a query of this version of the table before the setting was on continues with the parsed names, and a session that failed still
#          fails after the setting is off again: the order of queries decides.
#
#   findings/delta_statistics_columns_are_parsed_as_sql.sh
#
# Exit: 0 as stated, 1 the behaviour changed, 2 not tried (Java or Python is missing, the installation or Spark failed, no time left).
# Needs bash, coreutils, Python >= 3.10 with venv, Java >= 17. Installs into a temporary directory that it removes.
set -euo pipefail

readonly PYSPARK=4.2.0
readonly DELTA=4.4.0
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
"""Reads tables with and without the setting. Exit: 0 as stated, 1 the behaviour changed (the last line says what), or Spark failed."""

import platform
import sys
from pathlib import Path

import pyspark
from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

work = Path(sys.argv[1])
RESERVED = "spark.sql.ansi.enforceReservedKeywords"
changed = []

try:
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.driver.memory", "600m")
        .config("spark.driver.extraJavaOptions", f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Djava.io.tmpdir={work}")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(work))
        .config("spark.jars.ivy", str(work / "ivy"))
        .config("spark.sql.warehouse.dir", str(work / "warehouse"))
        .config("spark.sql.ansi.enabled", "true")
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
    )
    spark = configure_spark_with_delta_pip(builder).getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
except Exception as exception:
    sys.exit(f"Spark did not start: {exception}"[:2000])
print(f"PySpark {pyspark.__version__}, delta-spark {sys.argv[2]}, Python {platform.python_version()}")


def table(name, columns):
    path = str(work / name)
    spark.sql(f"CREATE TABLE delta.`{path}` (`offset` BIGINT, `value` BIGINT) USING delta TBLPROPERTIES ('delta.dataSkippingStatsColumns' = '{columns}')")
    spark.range(3).selectExpr("id AS `offset`", "id AS `value`").write.format("delta").mode("append").save(path)
    return path


def rows(path, *, filtered):
    frame = spark.read.format("delta").load(path)
    try:
        return len((frame.where(frame["offset"] >= 1) if filtered else frame).collect())
    except Exception as exception:
        return "None.get" if "None.get" in str(exception) else f"raises {str(exception).splitlines()[0][:120]}"


def case(name, seen, expected):
    print(f"  {name}: {seen}", flush=True)
    if seen != expected:
        print(f"    CHANGED: expected {expected}")
        changed.append(f"{name} gives {seen}, not {expected}")


plain, quoted, seen_before = table("plain", "offset,value"), table("quoted", "`offset`,`value`"), table("seen", "offset,value")
case("without the setting, filtered", rows(seen_before, filtered=True), 2)
spark.conf.set(RESERVED, "true")
case(f"{RESERVED}, no filter", rows(plain, filtered=False), 3)
case(f"{RESERVED}, filtered", rows(plain, filtered=True), "None.get")
case(f"{RESERVED}, filtered, names in backquotes", str(rows(quoted, filtered=True)).split(" Syntax")[0], "raises [PARSE_SYNTAX_ERROR]")
case(f"{RESERVED}, filtered, read before without it", rows(seen_before, filtered=True), 2)
spark.conf.set(RESERVED, "false")
case("without the setting again, filtered, failed before", rows(plain, filtered=True), "None.get")

print()
print("CHANGED: " + "; ".join(changed) if changed else "as stated: the names of the statistics columns are parsed under the reader's settings, and a reserved word ends its query")
sys.exit(1 if changed else 0)
PYTHON

bounded venv python3 -m venv "$work/venv"
bounded pip "$work/venv/bin/python" -m pip install --disable-pip-version-check --no-input --no-compile "pyspark==$PYSPARK" "delta-spark==$DELTA"
echo "installed after $SECONDS s" >&2
bounded spark "$work/venv/bin/python" "$work/spark.py" "$work" "$DELTA"
cat "$work/spark.log"
if [ "$code" = 1 ] && ! grep -q '^CHANGED: ' "$work/spark.log"; then
    tail -n 20 "$work/spark.err" >&2
    not_tried "Spark failed"
fi
exit "$code"
