"""A process that appends to a journal until it is killed: ``-m tests.support.journal_process <directory> <rounds>``.

Each frame that is acknowledged is told on stdout as ``<partition> <offset>``; ``LOGSTORE_FAULT`` says where it dies.
"""

import asyncio
import os
import sys
from pathlib import Path

from logstore.clock import SystemClock
from logstore.filesystem import FileSystem
from logstore.journal.frame import FrameType
from logstore.journal.journal import Journal
from tests.support.journals import TOPIC, data_frame, snapshot_frame

PARTITIONS = 3
SLOW_PARTITION = 2
FILE_BYTES = 4096


def payload_of(partition: int, offset: int) -> bytes:
    return b"%d:%d;" % (partition, offset) * (20 + offset % 50)


async def _run(directory: Path, rounds: int) -> None:
    journal = Journal(directory, filesystem=FileSystem.from_environment(), clock=SystemClock(), file_bytes=FILE_BYTES)
    ends = [0] * PARTITIONS
    for frame in journal.recover():
        header = frame.header
        state = header.base_offset if header.type is FrameType.SNAPSHOT else header.end_offset
        ends[header.partition] = max(ends[header.partition], state)
    await journal.start(
        lambda: [snapshot_frame(ends[partition], partition=partition) for partition in range(PARTITIONS)]
    )

    async def append(partition: int) -> None:
        offset = ends[partition]
        await journal.append([data_frame(offset, payload_of(partition, offset), partition=partition)])
        ends[partition] += 1
        os.write(sys.stdout.fileno(), b"%d %d\n" % (partition, offset))

    for number in range(rounds):
        await asyncio.gather(*(append(partition) for partition in range(PARTITIONS)))
        if number % 5 == 4:
            for partition in range(PARTITIONS):
                if partition != SLOW_PARTITION:
                    journal.release(TOPIC, partition, ends[partition] - 3)
            await journal.relocate_oldest()
    await journal.close()


if __name__ == "__main__":
    asyncio.run(_run(Path(sys.argv[1]), int(sys.argv[2])))
