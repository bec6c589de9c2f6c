#!/usr/bin/env bash
# Checks the tools of this machine, makes .venv and installs locked packages into it, then this project as editable.
# Whatever is missing or too old is named in one line, with the command that installs it.
#
#   conf/bootstrap.sh           check and install (when something has changed): everything, with the tools of development
#   conf/bootstrap.sh run       the same with conf/demo.lock: what `make demo`, `make run` and `make cluster` run, and no more
#   conf/bootstrap.sh check     only check
#   conf/bootstrap.sh airflow   the same for Airflow: .venv-airflow with airflow_dags/requirements.lock, nothing of logstore
#   conf/bootstrap.sh bench     the same for the benchmarks' rival client: .venv-bench with benchmarks/requirements.txt
#
# PYTHON chooses the interpreter of the environment; without it the first of python3, python3.11, python3.12, python3.13 that will do.
set -euo pipefail
cd "$(dirname "$0")/.."

readonly PYTHON_MIN=3.11 JAVA_MIN=17
case "${1:-install}" in
airflow) readonly VENV=.venv-airflow LOCK=airflow_dags/requirements.lock ;;
bench) readonly VENV=.venv-bench LOCK=benchmarks/requirements.txt ;;
run) readonly VENV=.venv LOCK=conf/demo.lock ;;
*) readonly VENV=.venv LOCK=requirements.lock ;;
esac
readonly LOG=$VENV/install.log

fail() {
    echo "logstore: $*" >&2
    exit 1
}

python_will_do() {
    command -v "$1" >/dev/null && "$1" -c "import sys; sys.exit(sys.version_info < (${PYTHON_MIN/./, }))" 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13}; do
        if python_will_do "$candidate"; then
            "$candidate" -c "import ensurepip, venv" 2>/dev/null ||
                fail "$candidate has no venv: sudo apt-get install $("$candidate" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')"
            command -v "$candidate"
            return
        fi
    done
    if [ -n "${PYTHON:-}" ]; then
        fail "PYTHON=$PYTHON is missing or older than $PYTHON_MIN: name another one, or none"
    elif command -v python3 >/dev/null; then
        fail "$(python3 --version 2>&1) is too old, Python >= $PYTHON_MIN is needed: sudo apt-get install python3.11 python3.11-venv"
    fi
    fail "Python >= $PYTHON_MIN is missing: sudo apt-get install python3 python3-venv"
}

check_java() {
    local java=java major
    if [ -n "${JAVA_HOME:-}" ]; then
        java=$JAVA_HOME/bin/java
        [ -x "$java" ] || fail "JAVA_HOME=$JAVA_HOME has no bin/java: unset JAVA_HOME or set it to a Java >= $JAVA_MIN"
    elif ! command -v java >/dev/null; then
        fail "Java >= $JAVA_MIN is missing: sudo apt-get install default-jre-headless"
    fi
    # The output has `openjdk version "17.0.15"` or `java version "1.8.0_412"`.
    major=$("$java" -version 2>&1 | sed -nE 's/.* version "(1\.)?([0-9]+).*/\2/p' | head -n 1)
    [ "${major:-0}" -ge "$JAVA_MIN" ] ||
        fail "Java ${major:-of unknown version} is too old, Java >= $JAVA_MIN is needed: sudo apt-get install openjdk-17-jre-headless"
}

# pip's own output goes to the log; here one line shows the progress. The lock names everything, so pip resolves
# nothing. Most modules are never imported, so Python compiles only those that are.
install() {
    local total
    total=$(grep -c '==' $LOCK)
    "$VENV/bin/python" -m pip install --require-hashes --no-deps --no-compile -r $LOCK --disable-pip-version-check \
        --no-input --progress-bar off 2>&1 | tee "$LOG" | progress "$total" ||
        { tail -n 20 "$LOG" >&2; fail "the installation failed: see $LOG"; }
    [ $VENV = .venv ] || return 0
    # PyPI's `logstore` is another project's, and ours had that name before: either would overwrite files of this one.
    "$VENV/bin/python" -m pip uninstall --yes logstore >>"$LOG" 2>&1
    "$VENV/bin/python" -m pip install --no-deps --no-build-isolation --editable . --disable-pip-version-check --no-input \
        >>"$LOG" 2>&1 || { tail -n 20 "$LOG" >&2; fail "the installation failed: see $LOG"; }
    [ -e logstore/records/columns/_json_columns.so ] ||
        echo "No C compiler that works: JSON, Kafka's record batches and typed columns go a slower way. To change that: sudo apt-get install gcc libc6-dev"
}

progress() {
    local line count=0 terminal=false
    if [ -t 1 ]; then terminal=true; fi
    while read -r line; do
        case $line in
        "Collecting "* | "Requirement already satisfied: "*) count=$((count + 1)) ;;
        "Building wheel for "*) ;;
        "Installing collected packages"*) line="Installing $count packages (a minute)" ;;
        *) continue ;;
        esac
        line=${line%% (from*}
        line=${line%%==*}
        if $terminal; then
            printf '\r\033[K[%d/%d] %s' "$count" "$1" "$line"
        elif [ "$((count % 20))" = 0 ] || [[ $line != Collecting* && $line != Requirement* ]]; then
            echo "[$count/$1] $line"
        fi
    done
    if $terminal; then printf '\r\033[K'; fi
}

if [ $VENV = .venv ]; then check_java; fi
if [ "${1:-install}" = check ]; then
    find_python >/dev/null
    exit
fi

# The inputs of the installation of this project, including the C compilers that exist now.
sources() {
    cat pyproject.toml logstore/__init__.py conf/build_hook.py logstore/*/*.c logstore/*/*/*.c
    echo "${CC:-}"
    command -v cc gcc clang || true
}

# A .venv that was moved, or made by a Python that no longer exists, does not count.
stamp() {
    echo "$({ cat "$1" && if [ $VENV = .venv ]; then sources; fi; } | cksum) in $PWD"
}

installed() {
    [ "$(cat "$VENV/.installed-$(basename "$1")" 2>/dev/null)" = "$(stamp "$1")" ]
}

# requirements.lock includes all of conf/demo.lock.
if { installed $LOCK || { [ $LOCK = conf/demo.lock ] && installed requirements.lock; }; } && $VENV/bin/python -c "" 2>/dev/null; then
    exit
fi

python=$(find_python)
echo "Installing the dependencies into $VENV (once)"
if ! { $VENV/bin/python -m pip --version && grep -q "VIRTUAL_ENV=.*$PWD/$VENV" $VENV/bin/activate; } >/dev/null 2>&1; then
    "$python" -m venv --clear $VENV
fi
install
stamp $LOCK >"$VENV/.installed-$(basename $LOCK)"
