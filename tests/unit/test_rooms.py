"""The parts of a store are put together once: nothing is set on them later, and one module knows of a cluster."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("logstore/broker", "logstore/kafka_listener", "logstore/node.py", "logstore/cluster_member.py")
ASKING = ("logstore/broker", "logstore/kafka_listener", "consumer_offsets", "ingest_api")
#: The module that puts the broker together, and the settings that a router shows.
KNOWS = {"logstore/broker/broker.py"}
#: An error is copied whole; a progress report is written as the work goes on; an epoch is forgotten with its topic.
ALLOWED = {
    ("logstore/broker/produce/batcher.py", "copy.args"),
    ("logstore/broker/erasing.py", "run.progress.step"),
    ("logstore/broker/replica_manager.py", "partition_log.leader_epoch"),
}


def modules(*places: str) -> Iterator[tuple[str, ast.Module]]:
    for place in places:
        path = ROOT / place
        for module in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield module.relative_to(ROOT).as_posix(), ast.parse(module.read_text())


def set_attributes(tree: ast.Module) -> Iterator[ast.Attribute]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in {"self", "cls"}


def declared(tree: ast.Module) -> set[str]:
    """Return the attributes of the classes of a module."""
    fields = {
        node.target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    return fields | {node.attr for node in set_attributes(tree) if is_own(node)}


def test_no_module_sets_an_attribute_of_another_modules_class() -> None:
    found = {
        (name, ast.unparse(node))
        for name, tree in modules(*ROOMS)
        for node in set_attributes(tree)
        if not is_own(node) and node.attr not in declared(tree)
    }
    assert found == ALLOWED


def test_one_module_of_the_broker_knows_whether_there_is_a_cluster() -> None:
    asked = {"zookeeper_connect", "links"}
    found = {
        name
        for name, tree in modules(*ASKING)
        for node in ast.walk(tree)
        if (isinstance(node, ast.Attribute) and node.attr == "zookeeper_connect")
        or (
            isinstance(node, ast.Compare)
            and any(isinstance(one, ast.Is | ast.IsNot) for one in node.ops)
            and isinstance(node.left, ast.Name)
            and node.left.id in asked
        )
    }
    assert found == KNOWS
