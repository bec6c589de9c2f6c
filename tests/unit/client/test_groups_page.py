import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from logstore.client.admin import Admin
from logstore.errors import TopicExistsError
from tests.support.server_process import ROOT

pytestmark = pytest.mark.long


def test_the_examples_of_the_page_run(admin: Admin, store: str, capsys):
    page = (ROOT / "docs" / "groups.md").read_text()
    # The first records may take longer than the page's 5 seconds on a busy machine.
    page = page.replace("timeout_s=5", "timeout_s=15").replace("timeout_ms=5_000", "timeout_ms=15_000")
    share, go_on, table = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    with contextlib.suppress(TopicExistsError):
        admin.create_topic("payments", partitions=2)
    end = admin.offsets("payments", 0).end_offset
    for count in (3, 2):
        records = [{"value": n} for n in range(count)]
        admin._transport.request("POST", "/topics/payments/partitions/0", json={"records": records})
        exec(compile(go_on.replace("127.0.0.1:8082", store), "docs/groups.md", "exec"), {})
        committed = {found.partition: found.offset for found in admin.group_offsets("billing")}
        assert committed[0] == admin.offsets("payments", 0).end_offset
        assert admin.group_lag("billing").total_lag == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 records done"
    exec(compile(share.replace("127.0.0.1:8082", store), "docs/groups.md", "exec"), {})
    assert "packed 0 0\n" in capsys.readouterr().out
    assert "packing" in admin.groups()
    admin.roll("__consumer_offsets")
    location = admin.describe_topic("__consumer_offsets").location
    exec(compile(table.replace("data/topics/__consumer_offsets", location), "docs/groups.md", "exec"), {})
    assert re.search(rf"billing.*payments.* 0 .* {end + 5} ", capsys.readouterr().out)


def test_the_shell_examples_of_the_page_run(admin: Admin, store: str, tmp_path: Path):
    page = (ROOT / "docs" / "groups.md").read_text()
    instance, seeking, member, _, file, http = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    with contextlib.suppress(TopicExistsError):
        admin.create_topic("payments", partitions=2)
    records = [{"value": n} for n in range(20)]
    admin._transport.request("POST", "/topics/payments/partitions/0", json={"records": records})
    admin.commit_offsets("billing", {("payments", 0): 15})
    admin.commit_offsets("reports", {("payments", 0): 1})
    before_the_end = instance.index("curl -s -X DELETE")
    script = "\n".join([instance[:before_the_end], seeking, instance[before_the_end:], member, file, http])
    ran = subprocess.run(
        ["bash", "-euc", script.replace("http://127.0.0.1:8082", store).replace("localhost:8082", store)],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"LOGSTORE_URL": store, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert 'error_code":4' not in ran.stdout
    assert '"instance_id":"c1"' in ran.stdout
    assert '"offset":19' in ran.stdout
    assert '"consumed"' in ran.stdout
    joined, _, left = ran.stdout.partition('"member_epoch":-1')
    assert '"member_epoch":1' in joined
    assert joined.count('"topic":"payments"') >= 2
    assert left, ran.stdout
    assert "payments,0,15\n" in (tmp_path / "offsets.csv").read_text()
    assert '"dry_run":true,"offsets":[{"topic":"payments","partition":0,"offset":5,"previous_offset":15}' in left
    assert {"billing", "reports"}.isdisjoint(admin.groups())
