"""The high watermark: it acknowledges appends and wakes readers, and falls only by a truncation."""

import asyncio

from logstore.log.acknowledgements import Acknowledgement
from logstore.log.high_watermark import HighWatermark


def test_an_advance_acknowledges_appends_and_wakes_readers_once() -> None:
    async def scenario() -> None:
        high_watermark = HighWatermark()
        first, second = Acknowledgement(1), Acknowledgement(1)
        high_watermark.appends.add(3, first)
        high_watermark.appends.add(5, second)
        loop = asyncio.get_running_loop()
        reader, removed, woken, later = (loop.create_future() for _ in range(4))
        woken.set_result(None)  # by another partition
        for one in (reader, removed, woken):
            high_watermark.add_reader(one)
        high_watermark.remove_reader(removed)
        high_watermark.advance(4)
        assert (high_watermark.offset, reader.done(), removed.done()) == (4, True, False)
        assert (first.future.done(), second.future.done()) == (True, False)
        high_watermark.add_reader(later)
        high_watermark.advance(4)
        assert not later.done()

    asyncio.run(scenario())


def test_the_high_watermark_falls_only_to_the_end_of_a_truncated_log() -> None:
    high_watermark = HighWatermark()
    high_watermark.advance(6)
    high_watermark.advance(2)
    high_watermark.truncate(9)
    assert high_watermark.offset == 6
    high_watermark.truncate(4)
    assert high_watermark.offset == 4
