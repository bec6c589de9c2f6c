#!/usr/bin/env bash
# pyarrow 26.0.1 reads JSON and CSV into a decimal column that is too narrow for the value, and Parquet gives another number back.
#
# Guessed: a reader that is given decimal(4,2) refuses 999.5, which needs five digits, as it refuses 12345, and as a cast does.
# Happens: `pyarrow.json.read_json` and `pyarrow.csv.read_csv` count the digits of the text, and add the zeros of the scale afterwards. 999.5
#          has four digits and becomes 999.50 in a column of decimal(4,2). `pyarrow.parquet.write_table` writes it without an error, in the
#          two bytes that four digits need, and reads -311.22 back. Only `validate(full=True)` says so before that.
#
# So validate such a table in full, or read the column as text and cast it, before it is written.
#
#   findings/pyarrow_decimals_beyond_their_precision.sh
#
# Exit: 0 as stated, 1 the behaviour changed, 2 not tried (Python is missing, or the installation failed).
# Needs bash, coreutils, Python >= 3.10 with venv. Installs into a temporary directory that it removes.
set -euo pipefail

readonly PYARROW=26.0.1

not_tried() {
    echo "not tried: $*" >&2
    exit 2
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 2' INT TERM HUP

command -v python3 >/dev/null || not_tried "python3 is missing"
command -v timeout >/dev/null || not_tried "timeout is missing"
unset PYTHONPATH

cat >"$work/decimals.py" <<'PYTHON'
"""Prints what each way makes of each number. Exit: 0 as stated, 1 the behaviour changed."""

import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet

TYPE = pa.decimal128(4, 2)
file = Path(sys.argv[1]) / "decimals.parquet"
changed = []


def from_json(text):
    options = pyarrow.json.ParseOptions(explicit_schema=pa.schema([("amount", TYPE)]))
    return pyarrow.json.read_json(io.BytesIO(b'{"amount": %b}\n' % text.encode()), parse_options=options)


def from_csv(text):
    options = pyarrow.csv.ConvertOptions(column_types={"amount": TYPE})
    return pyarrow.csv.read_csv(io.BytesIO(b"amount\n%b\n" % text.encode()), convert_options=options)


def by_cast(text):
    return pa.table({"amount": pa.array([text]).cast(TYPE)})


def seen(read, text):
    """Return the value that is read, whether it is valid, and the value that Parquet gives back; or the error's type."""
    try:
        table = read(text)
    except pa.ArrowInvalid:
        return "refused"
    try:
        table.validate(full=True)
        valid = "valid"
    except pa.ArrowInvalid:
        valid = "not valid"
    pyarrow.parquet.write_table(table, file)
    (back,) = pyarrow.parquet.read_table(file)["amount"].to_pylist()
    return f"{table['amount'][0]}, {valid}, from Parquet {back}"


def case(read, text, expected):
    found = seen(read, text)
    print(f"  {read.__name__:9} {text:6} {found}")
    if found != expected:
        print(f"            CHANGED: expected {expected}")
        changed.append(f"{read.__name__} of {text}")


print(f"pyarrow {pa.__version__}, into {TYPE}")
for read in (from_json, from_csv):
    case(read, "1.25", "1.25, valid, from Parquet 1.25")
    case(read, "999.5", "999.50, not valid, from Parquet -311.22")
    case(read, "12345", "refused")
case(by_cast, "999.5", "refused")
print("CHANGED: " + "; ".join(changed) if changed else "as stated: readers take a decimal beyond its precision, and Parquet changes it")
sys.exit(1 if changed else 0)
PYTHON

timeout 60 python3 -m venv "$work/venv" >&2 || not_tried "no virtual environment"
timeout 180 "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "pyarrow==$PYARROW" >&2 ||
    not_tried "the installation failed"
code=0
timeout 60 "$work/venv/bin/python" "$work/decimals.py" "$work" || code=$?
[ "$code" -le 1 ] || not_tried "the cases failed with $code"
exit "$code"
