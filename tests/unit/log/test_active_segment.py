"""The active segment: its age, its share of the journal, and the frames that a truncation is about to drop."""

from uuid import UUID

from logstore.journal.frame import HEADER_BYTES, Frame, FrameFlags, FrameHeader, FrameLocation, FrameType
from logstore.log.active_segment import ActiveSegment, JournalBytes
from tests.support.manual_clock import ManualClock

LENGTH = HEADER_BYTES + 10


def frame(base: int) -> Frame:
    return Frame(FrameHeader(FrameType.DATA, FrameFlags(0), UUID(int=1), 0, base, 5, 1, 0, 0, 1), bytes(10))


def filled(clock: ManualClock, journal_bytes: JournalBytes) -> ActiveSegment:
    segment = ActiveSegment(clock, journal_bytes)
    for at, base in enumerate((0, 5, 10)):
        segment.begin(frame(base))
        segment.stored(frame(base).header, FrameLocation(at * LENGTH, LENGTH))
    return segment


def test_the_age_is_that_of_the_oldest_frame_and_begins_again_with_a_roll() -> None:
    clock = ManualClock()
    assert ActiveSegment(clock, JournalBytes()).age_ms == 0
    segment = filled(clock, JournalBytes())
    clock.advance(100)
    clock.step_wall(-10_000)
    assert round(segment.age_ms) == 100
    segment.seal(5)
    clock.advance(30)
    assert round(segment.age_ms) == 30
    segment.seal(15)
    assert segment.age_ms == 0


def test_journal_bytes_count_frames_from_their_begin_to_failure_truncation_or_roll() -> None:
    journal_bytes = JournalBytes()
    segment = filled(ManualClock(), journal_bytes)
    segment.begin(frame(15))
    assert journal_bytes.num_bytes == 4 * LENGTH
    segment.failed(frame(15))
    assert journal_bytes.num_bytes == 3 * LENGTH
    segment.truncate(10)
    assert journal_bytes.num_bytes == 2 * LENGTH
    segment.seal(5)
    assert journal_bytes.num_bytes == segment.index.num_bytes == LENGTH


def test_frames_are_kept_until_a_truncation_that_drops_them_is_durable() -> None:
    segment = filled(ManualClock(), JournalBytes())

    def kept() -> list[int]:
        return [one.base_offset for one in segment.frames_to_keep(0, 3 * LENGTH)]

    assert kept() == [0, 5, 10]
    segment.begin_truncation()
    assert segment.is_truncating
    assert kept() == [0, 5, 10]
    segment.truncation_failed()
    assert not segment.is_truncating
    assert kept() == [0, 5, 10]
    segment.begin_truncation()
    segment.truncate(5)
    assert not segment.is_truncating
    assert kept() == [0]
