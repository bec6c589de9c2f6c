"""Runs in a separate process, with the page codec that was compiled with sanitizers: ``tests/unit/test_sanitized.py``.

python -m tests.support.sanitized_pages LIBRARY fuzz     # prints how many pages were taken and refused
python -m tests.support.sanitized_pages LIBRARY read     # reads behind the end of a page
python -m tests.support.sanitized_pages LIBRARY write    # writes behind the end of a copy
"""

import sys
from pathlib import Path
from random import Random

import numpy as np
import pyarrow as pa

from logstore.kafka_batches.native import NativeCodec
from logstore.kafka_batches.plain_pages import PageCodec
from logstore.records import column_memory
from tests.support.plain_pages import levels_of, page_of
from tests.support.sanitized_codec import copied, exact

_PAGES = 6_000
_PAGE = page_of([b"value"], b"\2\1")


def fuzz(codec: PageCodec) -> tuple[int, int]:
    taken = refused = 0
    chance = Random(7)
    for number in range(_PAGES):
        values = random_values(chance)
        content = bytearray(page_of(values, levels_of(values, chance)))
        for _ in range(number % 4):
            content[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        rows = len(values) + (number % 50 == 0)
        page = codec.read(copied(bytes(content[: chance.choice([None, None, -1])])), rows)
        if page is None:
            refused += 1
            continue
        taken += 1
        kept = np.array([chance.random() < 0.7 for _ in range(rows)])
        codec.copy(page, kept, exact(codec.copied_size(page, kept)), 0)
    return taken, refused


def random_values(chance: Random) -> list[bytes | None]:
    return [chance.choice([None, b"", chance.randbytes(chance.randrange(1, 20))]) for _ in range(chance.randint(1, 40))]


def read_too_far(codec: PageCodec) -> None:
    page = codec.read(copied(_PAGE), 1)
    assert page is not None
    codec.copy(page._replace(data=copied(_PAGE[:-1])), np.array([True]), exact(len(_PAGE)), 0)


def write_too_far(codec: PageCodec) -> None:
    page, kept = codec.read(copied(_PAGE), 1), np.array([True])
    assert page is not None
    size = codec.copied_size(page, kept)
    short = exact(size - 1)
    codec.copy(page, kept, pa.foreign_buffer(short.address, size, base=short), 0)


def main(library: str, what: str) -> None:
    column_memory.allocate = exact
    codec = PageCodec(NativeCodec(), Path(library))
    if what == "fuzz":
        print(*fuzz(codec))
    else:
        {"read": read_too_far, "write": write_too_far}[what](codec)


if __name__ == "__main__":
    main(*sys.argv[1:])
