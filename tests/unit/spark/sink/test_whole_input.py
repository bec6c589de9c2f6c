"""Rows that were cut off differ from whole ones in what follows them in the stream of PySpark's worker."""

import os

import pytest

from logstore.spark.sink.whole_input import RowsCutOffError, whole


def main(infile):
    """Read the rows like ``pyspark.worker.main``, whose ``infile`` is at the end of the rows here."""
    return list(whole([1, 2]))


@pytest.mark.parametrize("end_mark", [b"\xff\xff\xff\xfc", b""])
def test_rows_are_whole_if_something_follows_them(end_mark):
    reading, writing = os.pipe()
    os.write(writing, end_mark)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        if end_mark:
            assert main(stream) == [1, 2]
            assert stream.read() == end_mark, "the mark is left for PySpark"
        else:
            with pytest.raises(RowsCutOffError, match="The rows of this task ended early"):
                main(stream)


def test_rows_outside_of_a_worker_are_whole():
    assert list(whole([1])) == [1]
    assert main(None) == [1, 2]
