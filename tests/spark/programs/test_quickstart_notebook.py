"""The notebook of the documentation runs from top to bottom against a real store, in a separate directory."""

import os

import nbformat
import pytest
from nbclient import NotebookClient

from tests.spark.conftest import QUICK
from tests.support.server_process import ROOT, ServerProcess

pytestmark = pytest.mark.long


def test_the_quickstart_notebook_runs(tmp_path, monkeypatch):
    notebook = nbformat.read(ROOT / "docs" / "notebooks" / "quickstart.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "keep the notebook without outputs"
    with ServerProcess(tmp_path / "data") as server:
        monkeypatch.setenv("LOGSTORE_URL", server.url.removeprefix("http://"))
        monkeypatch.setenv("LOGSTORE_SPARK_LOG", str(tmp_path / "spark.log"))
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
        (tmp_path / "spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in QUICK.items()))
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
        (tmp_path / "elsewhere").mkdir()
        client = NotebookClient(
            notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path / "elsewhere")}}
        )
        client.execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert "|Berlin|     300|" in printed
    assert "|0        |10    |" in printed
    left = [path.name for path in (tmp_path / "elsewhere").rglob("*")]
    assert left in ([], ["spark-warehouse"]), "Spark's own empty directory is all that a session leaves"
