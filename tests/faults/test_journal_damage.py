"""Rule R1: the tail of a crash is cut, damage is refused, for every byte of a journal."""

import asyncio
import shutil

import pytest

from logstore.errors import CorruptionError, StorageError
from logstore.filesystem import FileSystem, local_filesystem
from logstore.inspection.journal import verify
from logstore.journal.errors import JournalCorruptionError
from logstore.journal.frame import HEADER_BYTES, FrameType, encode_mark
from logstore.journal.journal_file import JournalFile
from logstore.journal.writer import FrameBuffers
from tests.support.captured_logs import captured_logs
from tests.support.faulty_filesystem import FaultyFileSystem
from tests.support.journals import (
    MemoryRecord,
    data_frame,
    new_journal,
    offsets,
    recovered_frames,
    running,
    snapshot_frame,
)


def _killed_journal(directory, groups, *, filesystem=None, file_bytes=1 << 20):
    """Write a journal of these groups (lists of frames) and kill its process; return frame locations per group."""
    filesystem = filesystem or FaultyFileSystem()

    async def scenario():
        journal = new_journal(directory, filesystem, file_bytes=file_bytes)
        list(journal.recover())
        await journal.start(lambda: [snapshot_frame(), snapshot_frame(partition=1)], MemoryRecord())
        locations = [await journal.append(group) for group in groups]
        await journal._thread.run(filesystem.crash)
        journal._failed = CorruptionError("the process is dead")
        await journal.close()
        return locations

    return asyncio.run(scenario())


def _groups(count, payload_bytes=40):
    return [[data_frame(2 * i, bytes([i + 1]) * payload_bytes), data_frame(2 * i + 1, b"z" * 8)] for i in range(count)]


def _only_file(directory):
    return max(directory.glob("*.log"))


def _forget_mark(path, end):
    """Remove the mark, which is not synced, as a power cut soon after the last sync may."""
    content = bytearray(path.read_bytes())
    content[end : end + HEADER_BYTES] = bytes(len(content[end : end + HEADER_BYTES]))
    path.write_bytes(content)


def test_a_last_group_torn_at_any_byte_is_cut_to_whole_frames(tmp_path):
    source = tmp_path / "0"
    source.mkdir()
    locations = _killed_journal(source, _groups(2, payload_bytes=5))
    path = _only_file(source)
    last_group = locations[-1]
    end = sum(last_group[-1])
    content = path.read_bytes()
    for cut in range(last_group[0].position, end):
        for tail in (b"", bytes(700)):
            torn = tmp_path / "torn"
            torn.mkdir()
            (torn / path.name).write_bytes(content[:cut] + tail)
            whole = [i for i, location in enumerate(last_group) if sum(location) <= cut]
            assert offsets(recovered_frames(torn)) == [0, 1, *(2 + i for i in whole)], cut
            assert (torn / path.name).stat().st_size == (
                sum(last_group[whole[-1]]) if whole else last_group[0].position
            )
            shutil.rmtree(torn)


@pytest.mark.parametrize("marked", [True, False])
def test_every_flipped_bit_is_refused_or_cuts_only_what_nothing_says_was_durable(tmp_path, marked):
    source = tmp_path / "0"
    source.mkdir()
    locations = _killed_journal(source, _groups(3))
    path = _only_file(source)
    end = sum(locations[-1][-1])
    if not marked:
        _forget_mark(path, end)
    content = path.read_bytes()[: end + HEADER_BYTES]
    path.write_bytes(content)
    refused = 0
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        report = verify(source)
        if report.damage is not None:
            refused += 1
            assert isinstance(report.damage, JournalCorruptionError)
            assert str(path) in str(report.damage)
            assert "logstore journal repair" in str(report.damage)
            assert report.damage.position <= at
            continue
        good = [location for group in locations for location in group if sum(location) <= report.end_position]
        if marked:
            assert report.end_position == end, f"byte {at} was durable, and said to be"
        else:
            assert report.end_position >= sum(locations[-2][-1]), f"byte {at}: more than the last group was cut"
        assert report.frames == 2 + len(good)
    # Every byte is refused except the last mark, or the last group and what follows it.
    assert refused == (end if marked else locations[-1][0].position)


def test_good_frames_behind_a_lost_page_of_the_last_group_are_not_corruption(tmp_path):
    """Repeat the experiment behind R1: one write, whose later pages were written back but not a middle one."""
    locations = _killed_journal(
        tmp_path, [[data_frame(0, bytes(3000))], [data_frame(1 + i, b"r" * 3000) for i in range(6)]]
    )
    path = _only_file(tmp_path)
    _forget_mark(path, sum(locations[-1][-1]))
    content = bytearray(path.read_bytes())
    page = (locations[1][2].position // 512 + 1) * 512
    content[page : page + 512] = bytes(512)
    path.write_bytes(content)

    with captured_logs() as logs:
        frames = recovered_frames(tmp_path)

    assert offsets(frames) == [0, 1, 2]
    assert [log["event"] for log in logs] == ["journal_tail_cut"]
    assert logs[0]["position"] == locations[1][2].position
    assert offsets(recovered_frames(tmp_path)) == [0, 1, 2]


def test_the_same_hole_is_corruption_once_a_later_frame_says_it_was_durable(tmp_path):
    groups = [[data_frame(0, bytes(3000))], [data_frame(1 + i, b"r" * 3000) for i in range(6)], [data_frame(7)]]
    locations = _killed_journal(tmp_path, groups)
    path = _only_file(tmp_path)
    _forget_mark(path, sum(locations[-1][-1]))
    content = bytearray(path.read_bytes())
    page = (locations[1][2].position // 512 + 1) * 512
    content[page : page + 512] = bytes(512)
    path.write_bytes(content)

    with pytest.raises(JournalCorruptionError) as caught:
        recovered_frames(tmp_path)

    assert caught.value.position == locations[1][2].position
    assert path.read_bytes() == content, "refusing changes nothing"


def test_journal_bytes_that_a_producer_sends_are_no_frames(tmp_path):
    """Check that a value with a journal's own frames, behind a torn frame, is no evidence of durability."""
    first = tmp_path / "first"
    first.mkdir()
    _killed_journal(first, _groups(5))
    stolen = _only_file(first).read_bytes()
    victim = tmp_path / "victim"
    victim.mkdir()
    locations = _killed_journal(victim, [[data_frame(0)], [data_frame(1, stolen)]], file_bytes=1 << 24)
    path = _only_file(victim)
    _forget_mark(path, sum(locations[-1][-1]))
    content = bytearray(path.read_bytes())
    content[locations[1][0].position + 20] ^= 1
    path.write_bytes(content)
    assert offsets(recovered_frames(victim)) == [0]


@pytest.mark.parametrize("damage", ["flip", "cut", "said durable", "missing", "header"])
def test_an_older_file_must_be_whole_up_to_the_next_one(tmp_path, damage):
    locations = _killed_journal(tmp_path, _groups(12), file_bytes=1500)
    paths = sorted(tmp_path.glob("*.log"))
    assert len(paths) >= 3
    old = paths[1]
    content = bytearray(old.read_bytes())
    if damage == "flip":
        content[-1] ^= 1
    elif damage == "cut":
        del content[-1:]
    elif damage == "said durable":
        content += bytes(100) + encode_mark(durable_end=int(paths[2].stem) + 100, file_id=_file_id(old))
    elif damage == "header":
        content[0] ^= 1
    old.write_bytes(content)
    if damage == "missing":
        old.unlink()
    with pytest.raises(JournalCorruptionError) as caught:
        recovered_frames(tmp_path)
    assert caught.value.path == (paths[0] if damage == "missing" else old)
    # The oldest files may be missing, because that is how files are freed.
    if damage == "missing":
        paths[0].unlink()
        first = int(paths[2].stem)
        kept = [group for group in locations if group[0].position >= first]
        assert len(offsets(recovered_frames(tmp_path))) == 2 * len(kept)


@pytest.mark.parametrize("behind", ["zero", "garbage", "mark", "frames"])
def test_bytes_of_a_process_without_the_lock_behind_the_end_of_an_older_file_are_passed_over(tmp_path, behind):
    """Check bytes of a process that called none of them durable, and acknowledged none."""
    _killed_journal(tmp_path, _groups(12), file_bytes=1500)
    before = offsets(recovered_frames(tmp_path))
    old, following = sorted(tmp_path.glob("*.log"))[1:3]
    end, file_id = int(following.stem), _file_id(old)
    frames = FrameBuffers(end, end, file_id)
    frames.add(data_frame(1000))
    written = {
        "zero": b"\0",
        "garbage": b"garbage" * 100,
        "mark": encode_mark(durable_end=end, file_id=file_id),
        "frames": b"".join(frames.buffers()),
    }
    old.write_bytes(old.read_bytes() + written[behind])
    assert offsets(recovered_frames(tmp_path)) == before


def _file_id(path):
    file = JournalFile.open(path, int(path.stem), local_filesystem())
    file.close()
    return file.file_id


@pytest.mark.parametrize("content", [b"", bytes(100), bytes(5000), b"garbage" * 100])
def test_a_file_whose_header_never_got_durable_was_never_begun(tmp_path, content):
    locations = _killed_journal(tmp_path, _groups(2))
    path = _only_file(tmp_path)
    end = sum(locations[-1][-1])
    path.write_bytes(path.read_bytes()[:end])
    unborn = tmp_path / f"{end:020d}.log"
    unborn.write_bytes(content)

    async def scenario():
        async with running(tmp_path) as (journal, recovered):
            assert offsets(recovered) == [0, 1, 2, 3]
            assert journal.files[-1][0] == end
            await journal.append([data_frame(4)])

    asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == [0, 1, 2, 3, 4]


def test_a_first_file_whose_header_never_got_durable_leaves_an_empty_journal(tmp_path):
    (tmp_path / f"{0:020d}.log").write_bytes(bytes(64))
    assert recovered_frames(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_header_is_not_taken_for_a_file_never_begun(tmp_path):
    # This file is the only one, because the earlier ones were freed.
    async def scenario():
        async with running(tmp_path, file_bytes=1000) as (journal, _):
            for i in range(3):
                await journal.append([data_frame(i, bytes(700))])
            journal.release(data_frame(0).header.topic_id, 0, 3)

    asyncio.run(scenario())
    path = _only_file(tmp_path)
    content = path.read_bytes()
    assert int(path.stem) > 0
    for keep in (len(content), HEADER_BYTES):
        path.write_bytes(b"X" + content[1:keep])
        with pytest.raises(JournalCorruptionError, match="header"):
            recovered_frames(tmp_path)


def test_snapshots_that_never_got_durable_are_cut_and_the_older_file_still_counts(tmp_path):
    """Imitate a crash between making a file and syncing it: the previous one was not freed."""
    filesystem = FaultyFileSystem()
    filesystem.crash_at("journal.file_created", 2)

    async def scenario():
        journal = new_journal(tmp_path, filesystem, file_bytes=1000)
        list(journal.recover())
        await journal.start(lambda: [snapshot_frame()], MemoryRecord())
        await journal.append([data_frame(0, bytes(700))])
        await asyncio.wait([journal.append([data_frame(1, bytes(700))])])
        assert journal.failed
        await journal.close()

    asyncio.run(scenario())
    assert len(list(tmp_path.glob("*.log"))) == 2
    frames = recovered_frames(tmp_path)
    assert offsets(frames) == [0]
    assert [f.header.type for f in frames] == [FrameType.SNAPSHOT, FrameType.DATA]


def test_a_recovery_killed_halfway_twice_ends_as_one_that_was_not(tmp_path):
    locations = _killed_journal(tmp_path, _groups(3))
    path = _only_file(tmp_path)
    _forget_mark(path, sum(locations[-1][-1]))
    content = bytearray(path.read_bytes())
    content[locations[-1][1].position] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        filesystem = FaultyFileSystem()
        filesystem.crash_at("journal.recovery_half")
        journal = new_journal(tmp_path, filesystem)
        list(journal.recover())
        with pytest.raises(StorageError, match="died"):
            journal.establish_end()
        asyncio.run(journal.close())
        assert path.stat().st_size == len(content)
    assert offsets(recovered_frames(tmp_path)) == [0, 1, 2, 3, 4]
    assert path.stat().st_size == locations[-1][1].position


def test_a_frame_larger_than_the_window_is_checked_to_its_last_byte(tmp_path):
    async def scenario():
        async with running(tmp_path, FileSystem(), file_bytes=1 << 24) as (journal, _):
            location = (await journal.append([data_frame(0, bytes(9 << 20))]))[0]
            await journal.append([data_frame(1)])
            return location

    location = asyncio.run(scenario())
    assert offsets(recovered_frames(tmp_path)) == [0, 1]
    path = min(tmp_path.glob("*.log"))
    content = bytearray(path.read_bytes())
    content[sum(location) - 1] ^= 1
    path.write_bytes(content)
    with pytest.raises(JournalCorruptionError) as caught:
        recovered_frames(tmp_path)
    assert caught.value.position == location.position
