#!/usr/bin/env bash
# deltalake (delta-rs) 1.6.6 commits an OPTIMIZE although another OPTIMIZE has removed its source files meanwhile: each row is in the table twice.
#
# Guessed: two rewrites of the same files conflict. The second fails with CommitFailedError, as it does when a DELETE has removed a file.
#          Delta's protocol lets a writer that lost the race commit again only if the files it read have not changed; Delta on Spark raises
#          ConcurrentDeleteReadException or ConcurrentDeleteDeleteException.
# Happens: the second `optimize.compact()` or `optimize.z_order()` of a DeltaTable that was opened before the first one was committed returns
#          without an error. It removes files that are already removed, and adds its own file beside that of the first. Rows that a DELETE
#          removes after the first OPTIMIZE come back with the second.
# Before:  1.6.3 and the earlier versions tried (1.2.1 to 1.6.2) raise CommitFailedError in all four cases.
#
# So run one OPTIMIZE at a time, and none while another writer's job rewrites files with dataChange=false.
#
#   findings/two_optimizes_of_delta_rs.sh
#
# Exit: 0 as stated, 1 the behaviour changed, 2 not tried (Python is missing, or the installation failed).
# Needs bash, coreutils, Python >= 3.10 with venv. Installs into a temporary directory that it removes.
set -euo pipefail

readonly DELTALAKE=1.6.6 PYARROW=26.0.1

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

cat >"$work/two.py" <<'PYTHON'
"""Prints the rows after each pair of commits. Exit: 0 as stated, 1 the behaviour changed."""

import sys
from pathlib import Path

import deltalake
import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

work = Path(sys.argv[1])
FIRST = [0, 1, 10, 11, 20, 21]
CONFLICT = "CommitFailedError"
changed = []


def rows(path):
    return sorted(pa.table(DeltaTable(path).to_pyarrow_table())["x"].to_pylist())


def case(name, between, second, expected):
    """Open a table of three files, have ``between`` commit, then run ``second`` on the table that was opened before."""
    path = str(work / f"table-{len(list(work.glob('table-*')))}")
    for start in (0, 10, 20):
        write_deltalake(path, pa.table({"x": [start, start + 1]}), mode="append")
    opened_before = DeltaTable(path)
    between(path)
    left = rows(path)
    try:
        second(opened_before)
        seen = rows(path)
    except Exception as error:
        seen = type(error).__name__
    print(f"  {name}\n    before the second commit {left}, after it {seen}")
    if seen != expected:
        print(f"    CHANGED: expected {expected}")
        changed.append(name)


def compact(path):
    DeltaTable(path).optimize.compact()


def compact_and_delete(path):
    compact(path)
    DeltaTable(path).delete("x = 0")


print(f"deltalake {deltalake.__version__}, pyarrow {pa.__version__}")
twice = sorted(FIRST * 2)
case("OPTIMIZE beside OPTIMIZE", compact, lambda table: table.optimize.compact(), twice)
case("Z-ORDER beside OPTIMIZE", compact, lambda table: table.optimize.z_order(["x"]), twice)
case("OPTIMIZE beside OPTIMIZE and DELETE of x = 0", compact_and_delete, lambda table: table.optimize.compact(), twice[1:])
case("OPTIMIZE beside DELETE", lambda path: DeltaTable(path).delete("x = 0"), lambda table: table.optimize.compact(), CONFLICT)
print("CHANGED: " + "; ".join(changed) if changed else "as stated: two OPTIMIZEs of the same files double the rows")
sys.exit(1 if changed else 0)
PYTHON

timeout 60 python3 -m venv "$work/venv" >&2 || not_tried "no virtual environment"
timeout 180 "$work/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-input "deltalake==$DELTALAKE" "pyarrow==$PYARROW" >&2 ||
    not_tried "the installation failed"
code=0
timeout 60 "$work/venv/bin/python" "$work/two.py" "$work" || code=$?
[ "$code" -le 1 ] || not_tried "the cases failed with $code"
exit "$code"
