from logstore.log.partition_log_state import PartitionLogState
from logstore.records.batch_identity import NO_IDENTITY, BatchIdentity, RememberedBatch
from tests.support.journals import data_frame
from tests.support.manual_clock import ManualClock


def test_a_follower_remembers_a_key_of_journal_format_1_that_its_leader_has():
    state = PartitionLogState("t-0", clock=ManualClock(), producer_id_expiration_ms=1)
    for offset, identity in enumerate((NO_IDENTITY, BatchIdentity(9, -1, -5))):
        frame = data_frame(offset)
        frame = frame._replace(header=frame.header._replace(identity=identity))
        state.begin(frame.header)
        state.stored(frame)
    (known,) = state.idempotency_keys.known(9)
    assert known == RememberedBatch(9, -1, -5, 1, 1, frame.header.append_time_ms)
    assert (state.idempotency_keys.num_batches, state.producers.num_batches) == (1, 0)
