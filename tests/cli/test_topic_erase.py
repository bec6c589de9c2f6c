import json

import pytest

from logstore.client.admin import Admin
from logstore.errors import InvalidRequestError
from logstore.limits import ERASED_KEYS_MAX, ERASED_RANGES_MAX

pytestmark = pytest.mark.system


def files_with(data, text):
    return [file for file in data.rglob("*") if file.is_file() and text in file.read_bytes()]


def test_records_of_a_key_leave_every_file_of_a_running_store(run, run_json, topic, server, tmp_path):
    """Erase records that the command line sent, as text and as JSON, some of them rolled."""
    run("produce", topic, "--key", f"ada-{topic}", input="spoken by ada\n")
    run("produce", topic, "--key", "bob", input="spoken by bob\n")
    run("topic", "roll", topic)
    run("produce", topic, "--key", f"ada-{topic}", "--key-json", input="spoken by ada\n")
    run("produce", topic, "--key", f"eve-{topic}", input="spoken by eve\n")
    assert files_with(server.data, topic.encode() + b'"')

    keys = tmp_path / "keys.txt"
    keys.write_text(f"ada-{topic}\neve-{topic}\n")
    count = run_json("topic", "erase", topic, "--keys-file", keys, "--dry-run")
    assert count == {"topic": topic, "records": 3, "files": count["files"]}
    assert "confirm with --yes" in run("topic", "erase", topic, "--key", "bob", code=2).output
    assert "name the records" in run("topic", "erase", topic, "--yes", code=2).output

    report = run_json("topic", "erase", topic, "--keys-file", keys, "--yes")
    assert (report["state"], report["records"], report["pending"]) == ("erased", 3, [])
    assert report["erased_ms"] >= report["requested_ms"]
    assert not any(f"ada-{topic}" in str(value) for value in report.values())
    assert files_with(server.data, f"ada-{topic}".encode()) == files_with(server.data, f"eve-{topic}".encode()) == []
    (left,) = map(json.loads, run("consume", topic, "--from-beginning", "-f", "json").stdout.splitlines())
    assert left["key"] == "bob"
    listed = run_json("topic", "erasures", topic)
    assert [one["erasure"] for one in listed] == [report["erasure"]]
    assert report["erasure"] in run("topic", "erasures", topic).stdout
    assert "Not reached" in run("topic", "erase", topic, "--key", "bob", "--yes").stdout


def test_a_file_of_keys_has_one_on_each_line(run, run_json, topic, tmp_path):
    """Use keys with characters that Python also takes for the end of a line."""
    keys = ["a\u2028b", "a\x1cb", "a\x85b", "a\rb"]
    for key in (*keys, "a", "b"):
        run("produce", topic, "--key", key, input="spoken\n")
    file = tmp_path / "keys.txt"
    file.write_bytes("\ufeff{}\n{}\r\n\n{}\n{}".format(*keys).encode())
    assert run_json("topic", "erase", topic, "--keys-file", "-", "--dry-run", input=file.read_bytes())["records"] == 4
    assert run_json("topic", "erase", topic, "--keys-file", file, "--yes")["records"] == 4
    left = map(json.loads, run("consume", topic, "--from-beginning", "-f", "json").stdout.split("\n")[:-1])
    assert {record["key"] for record in left} == {"a", "b"}


def test_a_file_may_have_as_many_keys_as_the_page_says(run, run_json, topic, server, tmp_path):
    """Give the most keys to the command, and the same to ``Admin``, as text and as bytes."""
    run("produce", topic, "--key", "\u00fc0", input="spoken\n")
    keys = [f"\u00fc{number}" for number in range(ERASED_KEYS_MAX)]
    file = tmp_path / "keys.txt"
    file.write_text("\n".join(keys), encoding="utf-8")
    for options in ([], ["--key-json"]):
        shown = run_json("topic", "erase", topic, "--keys-file", file, *options, "--dry-run")
        assert shown["records"] == (not options)
    assert "10000" in run("topic", "erase", topic, "--keys-file", file, "--key", "b", "--dry-run", code=1).output
    assert "key 0" in run("topic", "erase", topic, "--key", "?", "--key-base64", "--dry-run", code=1).output
    with Admin(server.url) as admin:
        for given in (keys, [key.encode() for key in keys]):
            report = admin.erase(topic, given, dry_run=True, wait=False)
            assert report.state in ("counting", "counted")
        with pytest.raises(InvalidRequestError, match="texts or of bytes"):
            admin.erase(topic, ["ada", b"ada"])


def test_an_erasure_that_cannot_be_remembered_says_why(run, topic):
    run("produce", topic, "--partition", 0, input="1\n0\n" * (ERASED_RANGES_MAX + 1))
    shown = run("topic", "erase", topic, "--where", "$ == 1", "--yes", code=1)
    assert "nothing was erased: the expression selects records in 100001 places" in shown.output


def test_a_store_that_does_not_run_says_what_to_do(run):
    shown = run("topic", "erase", "t", "--key", "ada", "--yes", "--url", "http://127.0.0.1:9", code=None)
    assert "Records are erased by the running store" in shown.output
    assert shown.exit_code == 1
