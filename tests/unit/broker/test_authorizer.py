from dataclasses import dataclass, field

import pytest

from logstore.broker.authorizer import Authorizer, Operation, ResourceType
from logstore.broker.context import ANONYMOUS, INTERNAL, Principal, RequestContext
from logstore.errors import ClusterAuthorizationError, GroupAuthorizationError, TopicAuthorizationError

ALICE = RequestContext("1", "", "HTTP", "127.0.0.1", None, Principal("User", "alice"))


@dataclass
class View:
    """An authorizer's view that allows ``names`` and records each call."""

    version: int
    names: set[str]
    asked: list[tuple[Principal, str, Operation, ResourceType, str]] = field(default_factory=list)

    def allows(self, principal, host, operation, resource_type, name):
        self.asked.append((principal, host, operation, resource_type, name))
        return name in self.names


def read(authorizer: Authorizer, *names: str, context: RequestContext = ALICE) -> list[str]:
    return authorizer.authorize(context, Operation.READ, ResourceType.TOPIC, names)


def test_everybody_may_do_everything_without_quotas():
    authorizer = Authorizer()
    for context in (ALICE, INTERNAL):
        assert read(authorizer, "b", "a", context=context) == ["b", "a"]
        authorizer.require(context, Operation.DELETE, ResourceType.GROUP, "g")


def test_names_that_are_allowed_come_back_in_their_order():
    assert read(Authorizer(View(1, {"a", "c"})), "c", "b", "a", "c") == ["c", "a", "c"]


def test_a_decision_is_asked_for_once_by_principal_host_operation_type_and_name():
    view = View(1, {"a"})
    authorizer = Authorizer(view)
    for _ in range(3):
        read(authorizer, "a", "b")
    assert len(view.asked) == 2
    others = [
        RequestContext("2", "", "HTTP", "127.0.0.1", None, ANONYMOUS),
        RequestContext("3", "", "HTTP", "10.0.0.1", None, ALICE.principal),
        RequestContext("4", "", "HTTP", "127.0.0.1", None, Principal("User", "alice", frozenset({"admins"}))),
    ]
    for context in others:
        read(authorizer, "a", context=context)
    authorizer.authorize(ALICE, Operation.WRITE, ResourceType.TOPIC, ["a"])
    authorizer.authorize(ALICE, Operation.READ, ResourceType.GROUP, ["a"])
    assert len(view.asked) == 2 + 5
    # Another request of the same client is answered from the cache.
    read(authorizer, "a", context=RequestContext("5", "me", "HTTP", "127.0.0.1", None, ALICE.principal))
    assert len(view.asked) == 2 + 5


def test_decisions_die_with_their_view_and_an_older_view_is_not_taken():
    authorizer = Authorizer(View(1, {"a"}))
    assert read(authorizer, "a", "b") == ["a"]
    authorizer.replace(View(2, {"b"}))
    assert read(authorizer, "a", "b") == ["b"]
    authorizer.replace(View(1, {"a"}))
    assert read(authorizer, "a", "b") == ["b"]


def test_remembered_decisions_are_bounded(monkeypatch):
    monkeypatch.setattr("logstore.broker.authorizer._DECISIONS_MAX", 50)
    view = View(1, set())
    authorizer = Authorizer(view)
    for n in range(500):
        read(authorizer, f"t{n}", "x" * 10_000)
        kept = [name for known in authorizer._decisions.values() for name in known]
        assert len(kept) <= 50
        assert max(map(len, kept), default=0) < 300


@pytest.mark.parametrize(
    ("resource_type", "error"),
    [
        (ResourceType.TOPIC, TopicAuthorizationError),
        (ResourceType.GROUP, GroupAuthorizationError),
        (ResourceType.CLUSTER, ClusterAuthorizationError),
    ],
)
def test_a_refusal_names_principal_operation_and_resource(resource_type, error):
    with pytest.raises(error, match=f"User:alice may not ALTER the {resource_type.lower()} 'x'"):
        Authorizer(View(1, set())).require(ALICE, Operation.ALTER, resource_type, "x")
