"""``logstore topic columns`` against a real store."""

import json

import pytest

pytestmark = pytest.mark.system


def test_columns_from_a_proposal_to_their_retirement(run, run_json, topic):
    lines = [json.dumps({"carrier": f"C{n % 3}", "delay": n, "offset": n}) for n in range(50)]
    run("produce", topic, input="\n".join([*lines, "no json"]))
    told = run("topic", "columns", "propose", topic).stdout
    ddl = "carrier STRING, delay BIGINT, value_offset BIGINT FROM offset"
    assert told.startswith(f"{ddl}\n\n98.0% of 51 records fit; a value takes ")
    assert "  1 do not fit: " in told
    assert run_json("topic", "columns", "propose", topic)["ddl"] == ddl
    assert "no declared columns" in run("topic", "columns", "show", topic).stdout

    run("topic", "roll", topic)
    assert "Would declare carrier STRING" in run("topic", "columns", "set", topic, ddl, "--dry-run").stdout
    assert run("topic", "columns", "set", topic, ddl).stdout.startswith(f"Declared {ddl}\n")
    assert run("topic", "columns", "set", topic, ddl).stdout == f"Nothing to change: topic {topic} has {ddl}\n"
    assert run_json("topic", "columns", "add", topic, "late BOOLEAN")["added"] == ["late BOOLEAN"]
    run("produce", topic, input=lines[0] + '\n{"late": 1}')
    run("topic", "roll", topic)
    shown = run("topic", "columns", "show", topic).stdout
    assert "1 record did not fit, with the reason in value_error" in shown
    assert "with 51 records from before a column was declared" in shown
    assert f"Columns: {ddl}, late BOOLEAN" in run("topic", "describe", topic).stdout

    assert run("topic", "columns", "retire", topic, "late").stdout == "Retired late\n"
    refused = run("topic", "columns", "add", topic, "late STRING", code=None)
    assert refused.exit_code != 0
    assert "Declare a new column instead: late_2 STRING FROM late" in refused.output
