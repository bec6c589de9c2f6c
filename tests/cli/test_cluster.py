"""Commands that look at a cluster, on a store of one node; elections of leaders."""

import pytest

from logstore.cli.topic_listing import print_partitions
from logstore.protocol.messages.cluster import PartitionReplicas

pytestmark = pytest.mark.system


def test_describe(run, run_json, server, topic):
    found = run_json("cluster", "describe")
    assert found["controller_id"] == 0
    (broker,) = found["brokers"]
    assert (broker["broker_id"], broker["url"], broker["rack"]) == (0, server.url, None)
    assert broker["leaders"] == broker["replicas"] == found["partitions"] >= 2
    assert found["under_replicated_partitions"] == found["unavailable_partitions"] == 0
    lines = run("cluster", "describe").stdout.splitlines()
    assert lines[0] == f"Cluster {found['cluster_id']}: 1 broker, controller: broker 0"
    assert ["0", server.url, "-", str(broker["replicas"]), str(broker["leaders"])] in [line.split() for line in lines]
    assert lines[-1] == "under-min-isr     none"


@pytest.mark.parametrize("state", ["under-replicated", "unavailable", "under-min-isr"])
def test_partitions_in_a_state(run, run_json, topic, state):
    assert run_json("topic", "list", f"--{state}-partitions") == []
    assert run("topic", "list", f"--{state}-partitions").stdout == f"No partition is {state.replace('-', ' ')}\n"


def test_one_state_at_a_time(run):
    options = ("--under-replicated-partitions", "--unavailable-partitions")
    assert "give one of the three lists" in run("topic", "list", *options, code=2).output


def test_partitions_are_shown_with_their_replicas(capsys):
    rows = [
        PartitionReplicas("t", 0, 2, 7, (1, 2, 3), (2,), (), ()),
        PartitionReplicas("t", 1, -1, 8, (1, 2), (), (), ()),
    ]
    print_partitions(rows, "under-replicated", as_json=False)
    lines = [line.split("  ") for line in capsys.readouterr().out.splitlines()]
    assert [[cell.strip() for cell in line if cell.strip()] for line in lines] == [
        ["topic", "partition", "leader", "replicas", "isr"],
        ["t", "0", "2", "1 2 3", "2"],
        ["t", "1", "none", "1 2", "none"],
    ]


def test_a_topic_is_created_with_a_replication_factor(run, topic):
    assert run("topic", "create", f"{topic}-r", "-r", 1).exit_code == 0
    refused = run("topic", "create", f"{topic}-x", "--replication-factor", 2, code=1).output
    assert "Replication factor 2 is larger than the number of brokers (1)" in refused


def test_describe_shows_leader_replicas_and_isr(run, run_json, topic):
    lines = [line.split() for line in run("topic", "describe", topic).stdout.splitlines()]
    assert lines[-3][:4] == ["partition", "leader", "replicas", "isr"]
    assert lines[-1][:4] == ["1", "0", "0", "0"]
    partition = run_json("topic", "describe", topic)["topic"]["partitions"][1]
    assert partition["replicas"] == [{"broker": 0, "leader": True, "in_sync": True}]


def test_elections_on_one_node(run, run_json, topic):
    assert run("topic", "elect-leaders", "--election-type", "preferred").stdout == "No election was needed\n"
    chosen = ("--election-type", "preferred", "--topic", topic, "--partition", 1)
    (found,) = run_json("topic", "elect-leaders", *chosen)
    assert (found["topic"], found["partition"], found["error_code"]) == (topic, 1, 40925)
    assert "leads everything" in found["error"]
    assert run("topic", "elect-leaders", *chosen).stdout == "No election was needed\n"
    unclean = run("topic", "elect-leaders", "--election-type", "unclean", code=2).output
    assert "confirm with --yes" in unclean
    assert run_json("topic", "elect-leaders", "--election-type", "unclean", "--yes") == []
    assert "needs --topic" in run("topic", "elect-leaders", *chosen[:2], "--partition", 1, code=2).output
    assert "not found" in run("topic", "elect-leaders", *chosen[:3], "no-such-topic", code=1).output


def test_no_cluster_runs_there(run, tmp_path):
    for command in (("start-broker", 1), ("start-zookeeper",)):
        refused = run("cluster", *command, "--data", tmp_path, code=1).output
        assert f"No cluster runs on {tmp_path}: start it with logstore cluster start --data {tmp_path}" in refused


def test_a_topic_with_too_few_replicas_for_its_acks_is_warned_of(run, topic):
    made = run("topic", "create", f"{topic}-few", "-c", "min.insync.replicas=2")
    assert "min.insync.replicas is 2, and each partition has 1 replica: it counts as 1." in made.stderr
    assert "insync" not in run("topic", "create", f"{topic}-enough").stderr
    sent = run("produce", f"{topic}-few", input="x\n")
    assert "1 record" in sent.output
