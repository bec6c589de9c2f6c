"""Code blocks of the pages run unchanged, each page in one script beside a separate store.

``tests/spark/programs/test_pages.py`` runs the pages with Spark, ``tests/cluster/test_pages.py`` those about a cluster.
"""

from pathlib import Path

import pytest

from tests.support.pages import PAGES, PLANS, Plan, run, run_beside_a_store

#: The page that a new user reads first.
QUICK = "quickstart-producer.md"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=page.name, marks=pytest.mark.system if page.name == QUICK else pytest.mark.long)
        for page in PAGES
        if page.name in PLANS and PLANS[page.name].runs(page) and not PLANS[page.name].is_elsewhere
    ],
)
def test_the_blocks_of_the_page_run(page: Path, tmp_path: Path):
    run_beside_a_store(page, tmp_path)


@pytest.mark.system
def test_a_block_that_fails_fails_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nnames=ada\n```\n\n```sh\ntest $names = ada\n```\n\n```python\nimport os\nos._exit(9)\n```\n"
    )
    monkeypatch.setitem(PLANS, "page.md", Plan())
    with pytest.raises(AssertionError, match=r"exit code 9\n(?s:.*)---- page.md:9"):
        run(page, PLANS["page.md"], tmp_path, {})
