"""``consume --key`` and ``--where``."""

import json

import pytest

from tests.support.posting import post

pytestmark = pytest.mark.system


def test_only_the_records_that_are_meant(run, server, topic):
    for partition in (0, 1):
        values = [json.dumps({"user": user, "n": n}).encode() for n, user in enumerate(["ada", "bob"] * 5)]
        post(server.url, topic, partition, values)
    run("produce", topic, "--key", "ada", input='{"user":"ada","n":100}\n')
    assert len(run("consume", topic, "--where", '$.user == "ada" and $.n < 5').stdout.splitlines()) == 6
    assert run("consume", topic, "--key", "ada", "-f", "%s").stdout == '{"user":"ada","n":100}\n'
    assert run("consume", topic, "--key", "ada", "--where", "$.n == 1").stdout == ""
    assert len(run("consume", topic, "--where", "$.n == 3", "--max", 1).stdout.splitlines()) == 1
    # Committed offsets skip the records that were not selected.
    run("consume", topic, "--group", f"g-{topic}", "--where", '$.user == "bob"')
    assert run("consume", topic, "--group", f"g-{topic}").stdout == ""


def test_an_expression_that_cannot_be_read_is_a_usage_error(run, topic):
    assert "Position 8 of the expression" in run("consume", topic, "--where", "$.user = 1", code=2).stderr
    assert "--from-timestamp" in run("consume", topic, "--key", "a", "--tail", 5, code=2).stderr
