from itertools import combinations

import pytest

from logstore.errors import InvalidConfigError
from logstore.replication.peer_auth import ClusterSecret, is_same_proof, new_nonce
from logstore.replication.protocol import NONCE_BYTES, PROOF_BYTES, Hello, encode_hello

SECRET = ClusterSecret("a secret of the cluster")
HELLO = Hello("c", 1, 2, 3, bytes(32), "1.0")
ANSWER = Hello("c", 2, 1, 4, bytes(31) + b"\1", "1.0")


def proof(hello: Hello = HELLO, answer: Hello = ANSWER, secret: ClusterSecret = SECRET) -> bytes:
    return secret.proof_of_connecting(encode_hello(hello), encode_hello(answer))


def test_a_proof_is_known_to_both_sides_and_has_its_length():
    assert proof() == proof()
    assert is_same_proof(proof(), proof())
    assert len(proof()) == PROOF_BYTES


def test_a_proof_is_of_one_connection_one_direction_and_one_secret():
    """Change each field of both messages: cluster, ids, epochs, nonces."""
    others = [
        proof(),
        proof(secret=ClusterSecret("another secret of it")),
        proof(secret=ClusterSecret(None)),
        proof(hello=ANSWER, answer=HELLO),
        SECRET.proof_of_asked(encode_hello(HELLO), encode_hello(ANSWER)),
    ]
    for field, value in {
        "cluster_id": "d",
        "broker_id": 5,
        "peer_id": 5,
        "broker_epoch": 5,
        "nonce": b"\2" * 32,
        "release": "2",
    }.items():
        others += [proof(hello=HELLO._replace(**{field: value})), proof(answer=ANSWER._replace(**{field: value}))]
    assert not any(is_same_proof(one, other) for one, other in combinations(others, 2))


def test_bytes_cannot_move_from_one_hello_to_the_other():
    assert SECRET.proof_of_connecting(b"ab", b"c") != SECRET.proof_of_connecting(b"a", b"bc")


def test_nonces_differ():
    assert len({new_nonce() for _ in range(100)}) == 100
    assert len(new_nonce()) == NONCE_BYTES


def test_a_secret_is_not_shown():
    assert "secret of" not in repr(SECRET)
    assert not hasattr(SECRET, "__dict__")


@pytest.mark.parametrize(("secret", "loopback"), [(SECRET, False), (SECRET, True), (ClusterSecret(None), True)])
def test_a_secret_is_needed_where_other_machines_reach(secret, loopback):
    secret.require_for("store.example", loopback=loopback)


@pytest.mark.parametrize("secret", [None, ""])
def test_without_one_the_message_says_what_to_set(secret):
    with pytest.raises(InvalidConfigError, match=r"reach store\.example.*set cluster\.secret"):
        ClusterSecret(secret).require_for("store.example", loopback=False)
