from logstore.limits import MIB
from logstore.listening_sockets import SocketBuffers
from logstore.replication.peer_options import HANDSHAKE_SECONDS_MAX, PeerOptions
from logstore.settings import load_settings


def test_settings_become_options():
    settings = load_settings(
        cluster_secret="a secret of the cluster",
        replica_socket_timeout_ms=5_000,
        socket_send_buffer_bytes=1,
        socket_receive_buffer_bytes=2,
        replica_socket_receive_buffer_bytes=3,
    )
    options = PeerOptions.of(settings)
    assert options.secret
    assert (options.timeout_s, options.handshake_s) == (5.0, 5.0)
    assert (options.accepted_buffers, options.made_buffers) == (SocketBuffers(1, 2), SocketBuffers(1, 3))
    assert "a secret of" not in repr(options)


def test_defaults_are_those_of_the_settings():
    found, defaults = PeerOptions.of(load_settings()), PeerOptions()
    assert not found.secret
    assert not defaults.secret
    assert (found.timeout_s, found.message_bytes_max) == (defaults.timeout_s, defaults.message_bytes_max)
    assert (found.accepted_buffers, found.made_buffers) == (defaults.accepted_buffers, defaults.made_buffers)
    assert found.handshake_s == HANDSHAKE_SECONDS_MAX


def test_a_message_holds_an_answer_that_goes_over_its_bound_by_the_largest_request():
    options = PeerOptions.of(load_settings(max_request_size=100 * MIB, replica_fetch_response_max_bytes=50 * MIB))
    assert options.message_bytes_max > 150 * MIB + 30 * MIB
