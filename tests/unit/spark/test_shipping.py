"""The archive of the package for workers."""

import subprocess
import sys
import zipfile

import pytest

import logstore
from logstore.spark import shipping


def test_the_archive_is_the_same_each_time_and_named_by_its_content(tmp_path):
    paths = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        shipping._archive.cache_clear()
        paths.append(shipping._write_archive(tmp_path / name))
    assert paths[0].name == paths[1].name
    assert paths[0].name.startswith(f"logstore-{logstore.__version__}-")
    assert paths[0].read_bytes() == paths[1].read_bytes()
    names = zipfile.ZipFile(paths[0]).namelist()
    assert {"logstore/spark/source/slice_reader.py", "compaction_jobs/jobs.py"} <= set(names)


@pytest.mark.system
def test_a_worker_imports_from_the_archive(tmp_path):
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import logstore.spark.source.slice_reader as m; print(m.__file__)"
    )
    archive = shipping._write_archive(tmp_path)
    done = subprocess.run([sys.executable, "-c", code, archive], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(archive))
